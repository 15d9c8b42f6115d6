"""The verdict on an update: it shows exactly what leaks, and inputs with mistakes get no verdict on leakage."""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import pictures, sent_by

from jaxleak import Batch, audit, capture, data, defenses, models, protocols
from jaxleak._tree import named_leaves
from jaxleak.audit._checks import Finding
from jaxleak.audit._checks.known_without_loss import KNOWN_IMAGES
from jaxleak.audit._checks.labels import Labels, labels_of
from jaxleak.audit._checks.symmetry import SYMMETRIES
from jaxleak.audit._verdict import stages
from jaxleak.audit._verdict.judgement import _apart, conditions, ended, told
from jaxleak.audit._verdict.update import _without_ssim
from jaxleak.audit._verdict.verdict import Answer, best_of, decide
from jaxleak.audit._verdict.warnings import beside_the_statement, unexplained


def test_a_dense_layer_on_pixels_is_solved_and_the_verdict_is_leaks(perceptron):
    model, variables, batch, gradient = perceptron
    verdict = audit.update(model, variables, gradient, batch_size=1, truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict == "leaks"
    assert verdict.best.attack == "dense_inputs"
    assert verdict.metrics["psnr"] > 60
    assert verdict.metrics["label_accuracy"] == 1
    assert verdict.metrics["label_count"] == 1
    assert list(np.flatnonzero(verdict.labels)) == [3]


def test_a_mistake_ends_before_any_attack(perceptron):
    model, variables, _, gradient = perceptron
    for payload in (jax.tree.map(lambda g: 5 * g, gradient), {"head": gradient["head"]}):
        verdict = audit.update(model, variables, payload, batch_size=1)
        assert verdict.verdict == "inputs inconsistent"
        assert not verdict.answers
        assert "Likeliest cause" in verdict.reasons[0]
    assert audit.EXIT_STATUS[verdict.verdict] == 3


def test_a_file_with_weights_after_a_step_is_an_update(perceptron, tmp_path):
    model, variables, batch, gradient = perceptron
    after = jax.tree.map(lambda w, g: w - 0.1 * g, variables["params"], gradient)
    capture.save(tmp_path / "u", after, kind="weights", learning_rate=0.1, batch_size=1)
    verdict = audit.update(model, variables, tmp_path / "u", truth=(batch.x[:, 0], None))
    assert verdict.metrics["psnr"] > 40
    with pytest.raises(ValueError, match="batch_size must be given"):
        audit.update(model, variables, gradient)
    with pytest.raises(ValueError, match="reductions is not a fact"):
        audit.update(model, variables, gradient, batch_size=1, reductions="sum")
    with pytest.raises(ValueError, match="truth must hold images of shape"):
        audit.update(model, variables, gradient, batch_size=1, truth=(np.zeros((1, 5, 5, 1)), None))


def test_what_no_attack_explains_ends_with_a_warning_that_names_mistakes():
    x, y, nothing = pictures(2), np.zeros(2, int), Labels.none(10)
    far = Answer("far", x, y, misfit=0.7, cosine_distance=0.3, agreement=np.ones(2))
    near = Answer("near", x, y, misfit=0.05, cosine_distance=0.001, agreement=np.array([0.94, 0.96]))
    assert not far.shown.any()  # starts that agree on an image with another gradient show nothing
    assert best_of([far, near]) is near
    outcome, reasons = decide(unexplained(far), nothing, far, ["Tried far."], ["Row spaces were not tried."])
    assert outcome == "not shown to leak"
    assert any("Warning" in reason and "weights of another round" in reason for reason in reasons)
    assert any("not tried" in reason for reason in reasons)
    (warning,) = unexplained(None)
    (of_steps,) = unexplained(None, steps=2)
    assert "another learning rate or number of steps, a rate that changes between them" in of_steps.cause
    assert "between them" not in warning.cause
    assert warning.name == "gradient explained"
    assert "images that were normalised in another way" in warning.cause
    assert warning.option.startswith("--truth of a known batch, --mean, --std, --minutes, --loss other")
    (cut,) = unexplained(far._replace(finished=False))
    assert cut.cause.startswith("a search that the budget cut short, or inputs that are mistaken")
    (known,) = unexplained(far, [Finding(KNOWN_IMAGES, "passed", "all")])
    assert known.cause.startswith("a search that failed. The inputs are as stated")
    assert known.option == "--minutes"
    without_symmetries = [Finding(SYMMETRIES, "not applicable", "none")]
    assert unexplained(near, [Finding(SYMMETRIES, "passed", "all")]) == []
    (unchecked,) = unexplained(near, without_symmetries)
    _, reasons = decide([unchecked], nothing, near, [], [])
    assert reasons[-1].startswith("No check can tell mistaken inputs, since an update of this client can ")
    assert not any("Warning" in reason for reason in reasons)
    outcome, reasons = decide([Finding("counts", "suspicious", "odd")], nothing, None, ["Spent."], [], attacked=False)
    assert outcome == "not attacked"
    assert reasons == ("Spent.", "Warning: counts: suspicious. odd")
    outcome, reasons = decide(unexplained(near), nothing, near, [], [])
    assert outcome == "leaks"
    assert reasons[0].startswith("1 of 2 images is certified: independent starts end at the same image (near), ")
    assert reasons[0].endswith(" a cosine distance of 1.0e-03 from the update, if the loss is as stated.")


def test_a_search_without_a_finite_answer_has_attacked_nothing():
    answer = Answer("fedleak_400", pictures(1), np.zeros(1, int), 0.5, 0.1)
    assert ended([answer], loss_known=True)
    for misfit in (np.nan, np.inf):
        without = answer._replace(misfit=misfit)
        assert not ended([without], loss_known=True)
        assert "without a finite answer" in told(without)
    assert "finite" not in told(answer)
    assert not ended([answer._replace(finished=False)], loss_known=True)


def test_starts_that_agree_are_no_certificate_where_images_near_by_leave_the_update_unexplained():
    found = Answer("fedleak_400", pictures(2), np.zeros(2, int), 0.05, 1e-3, agreement=np.ones(2))
    assert found._replace(remainder=0.0449, fitted_remainder=0.0391).shown.all()
    short = found._replace(remainder=0.0449, fitted_remainder=0.0131)
    assert not short.shown.any()
    (warning,) = unexplained(short)
    assert (
        "leave 4.5% of the update unexplained by the stated loss, and 1.3% by a loss that is fitted" in warning.evidence
    )
    assert warning.cause == (
        "another loss or scale, such as class weights, label smoothing or another learning rate, or images with values "
        "outside [0, 1], or labels that the "
        "search took wrong"
    )
    assert warning.option.startswith("--loss other")
    # The same holds if the nearest answer was cut short and not tested.
    cut = found._replace(finished=False, cosine_distance=9e-4)
    (warning,) = unexplained(cut, [Finding(SYMMETRIES, "passed", "all")], [short, cut])
    assert warning.evidence.startswith("Images near another answer that has the update leave 4.5% of the update")
    assert unexplained(found._replace(remainder=0.01), [Finding(SYMMETRIES, "passed", "all")], [short]) == []
    outcome, reasons = decide([warning], Labels.none(10), short, [told(short)], [])
    assert outcome == "not shown to leak"
    assert reasons[0].startswith("Warning: gradient explained: suspicious")


def test_peeling_and_a_search_that_end_at_two_images_certify_neither():
    one, other = np.random.default_rng(0).random((2, 1, 8, 8, 1))
    peeled = Answer("peeling", one, np.zeros(1, int), 0.01, 1e-4, agreement=np.ones(1))
    search = peeled._replace(attack="fedleak_400", x=other)
    assert peeled.shown.all()
    first, second = _apart([peeled, search])
    assert not first.shown.any()
    assert not second.shown.any()
    assert "Peeling and FedLeak, 400 iterations end at different images" in told(first)
    for same in (
        search._replace(x=one),  # the same image
        search._replace(cosine_distance=0.5),  # too far to be an answer
        search._replace(finished=False),
        search._replace(attack="any_loss_400"),  # its loss was fitted
        search._replace(x=np.concatenate([other, one])),
    ):
        assert _apart([peeled, same])[0].shown.all()


def test_an_answer_under_another_loss_than_the_stated_one_says_so():
    found = Answer("fedleak_400", pictures(2), np.zeros(2, int), 0.05, 1e-3, agreement=np.ones(2))
    short = found._replace(remainder=0.0449, fitted_remainder=0.0131)
    other = found._replace(attack="any_loss_400", misfit=1e-4)
    (warning,) = beside_the_statement(other, [short, other])
    assert warning.status == "suspicious"
    assert "under a loss that is fitted to it, and not under the stated one" in warning.evidence
    assert beside_the_statement(other, [short, other], defended=True) == [warning]
    assert beside_the_statement(other, [found, other]) == []
    assert beside_the_statement(short, [short, other]) == []
    far = found._replace(cosine_distance=0.02)
    assert beside_the_statement(other, [far, other]) == [warning]
    assert beside_the_statement(other, [far, other], defended=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_images_that_make_up_for_another_loss_have_no_certificate(smoothing):
    model = models.mlp((8, 8, 1), 10, widths=(64, 32), activation="sigmoid")
    variables = reference.drawn(model)
    x, y = jnp.asarray(data.load("digits", n=4).x), jnp.array([1, 3, 5, 7])

    def loss(params):
        logits = model.apply({**variables, "params": params}, x, mode="train").logits
        targets = (1 - smoothing) * jax.nn.one_hot(y, 10) + smoothing / 10
        return -(targets * jax.nn.log_softmax(logits)).sum(axis=1).mean()

    verdict = audit.update(model, variables, jax.grad(loss)(variables["params"]), batch_size=4, minutes=5)
    stated = next(answer for answer in verdict.answers if not answer.fitted and answer.finished)
    assert (stated.agreement >= 0.95).all()
    assert stated.explained == (not smoothing)
    assert any(answer.fitted for answer in verdict.answers) == bool(smoothing)
    # Other images explain the update equally well, whatever the loss is.
    assert not stated.shown.any()
    assert not any(answer.shown.any() for answer in verdict.answers if not answer.explained)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"solved": True}, "The image is certified: equations have it as their solution (the inputs of a dense layer)"),
        ({"attack": "fedleak_400", "agreement": np.ones(1)}, "independent starts end at the same image (FedLeak, 400"),
        ({"attack": "row_space", "agreement": np.ones(1)}, "independent starts end at the same image (row spaces)"),
    ],
)
def test_what_shows_an_image_is_said_in_words_and_rounding_is_no_distance(fields, said):
    image, nothing = pictures(1), Labels.none(10)
    found = Answer(**{"attack": "dense_inputs", "x": image, "y": np.zeros(1, int), "misfit": 0.0} | fields,
                   cosine_distance=-1.2e-07)  # fmt: skip
    _, (reason,) = decide([], nothing, found, [], [])
    assert said in reason
    granted = ", if the update is one sample's, as stated" if "solved" in fields else ", if the loss is as stated"
    assert reason.endswith(f" a cosine distance below 1e-06 from the update{granted}.")


def test_a_stated_defense_is_known_to_the_attacker_or_refused(perceptron):
    model, variables, _, gradient = perceptron
    for facts, message in (
        ({"defense": "shredder", "strength": 1.0}, "defense must be one that an attacker can know .*quantization"),
        ({"defense": "gaussian"}, "strength of gaussian must be given: its standard deviation"),
        ({"defense": "quantization", "strength": 3.0}, "bits must be one of"),
        (
            {"defense": "dp_sgd", "strength": 10.0, "local_steps": 2, "learning_rate": 0.1},
            "needs one local step in all, got 2",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            audit.update(model, variables, gradient, batch_size=1, **facts)


def test_one_image_that_is_taken_for_four_proves_one_label(perceptron):
    model, variables, _, gradient = perceptron
    verdict = audit.update(model, variables, gradient, batch_size=4, minutes=1e-3)
    assert verdict.metrics["label_count"] == 1
    assert list(np.flatnonzero(verdict.labels)) == [3]
    assert "proves 1 label: 1 of class 3." in verdict.reasons[0]
    assert not any("4 of class 3" in reason for reason in verdict.reasons)
    assert any("the batch holds 1 sample," in reason for reason in verdict.reasons)


def test_labels_beyond_the_rank_are_conditional_on_the_batch_size():
    """Five images have one of three classes: the rank of two proves two samples; the others rest on the batch size."""
    from jaxleak.audit._checks.head import Head

    rng = np.random.default_rng(0)
    features, logits, y = rng.normal(size=(5, 6)), rng.normal(size=(5, 3)), np.eye(3)[np.full(5, 1)]
    outputs = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - y) / 5
    bias = np.log((outputs + y / 5).sum(axis=0))  # log of the mean softmax: label counts are whole numbers
    labels = labels_of(Head(features.T @ outputs, outputs.sum(axis=0), np.zeros((6, 3)), bias), 5)
    assert labels.proven.sum() <= 2
    assert labels.proven[1] >= 1
    assert labels.proven.sum() < labels.if_stated.sum() <= 5


def test_the_headline_says_what_leaks():
    from jaxleak.audit._verdict.verdict import Verdict

    x, labels = np.zeros((1, 4, 4, 1)), np.eye(10, dtype=int)[3]
    shown = Answer("near", x, np.zeros(1, int), misfit=0.0, cosine_distance=0.0, solved=True)
    hidden = shown._replace(solved=False)
    for best, proven, headline in (
        (shown, labels, "leaks images and labels"),
        (shown, 0 * labels, "leaks images"),
        (hidden, labels, "leaks labels"),
    ):
        assert Verdict("leaks", (), (), (), best, proven, "", {}).headline == headline
    for other in ("not shown to leak", "inputs inconsistent"):
        assert Verdict(other, (), (), (), None, 0 * labels, "", {}).headline == other


def test_starts_that_agree_on_another_gradient_get_no_number():
    from jaxleak.audit._verdict.judgement import numbers_of
    from jaxleak.audit._verdict.verdict import Answer

    near = Answer("near", np.zeros((1, 4, 4, 1)), np.zeros(1, int), 0.1, 0.005, agreement=np.array([0.9]))
    far = near._replace(cosine_distance=0.3)
    assert numbers_of("leaks", Labels.none(10), near, None)[0]["agreement"] == pytest.approx(0.9)
    assert "agreement" not in numbers_of("leaks", Labels.none(10), far, None)[0]
    assert "SSIM of 0.900 (a certificate takes 0.95 for each image)." in told(near)
    exact = "0.95 for each image), and one of them has the update to within rounding: look at its images."
    assert exact in told(near._replace(cosine_distance=1e-7))
    assert "SSIM" not in told(far)
    assert "cut short" not in told(near)
    cut = told(near._replace(finished=False, iterations=50))
    assert "cut short by the budget after 50 iterations" in cut
    assert "SSIM of 0.900, which certifies nothing before the search has ended." in cut
    planned = told(near._replace(attack="fedleak_400", finished=False, iterations=50))
    assert "cut short by the budget after 50 of 400 iterations (350 left out; a longer --minutes adds them)" in planned


@pytest.mark.slow
@pytest.mark.parametrize(
    "frozen",
    [
        pytest.param(("conv_0",), marks=pytest.mark.slow),
        pytest.param(("conv_0", "conv_1"), marks=pytest.mark.slow),
        ("head/kernel",),
    ],
    ids=["first", "both", "kernel"],
)
def test_what_the_client_does_not_train_is_a_constant(frozen):
    model = models.convnet((6, 6, 1), 10, channels=(4, 4), strides=(1, 2))
    variables, batch, gradient = sent_by(model)
    kept = {
        name.replace("/", "."): leaf for name, leaf in named_leaves(gradient).items() if not name.startswith(frozen)
    }
    sent = capture.as_update(kept, batch_size=1, frozen=frozen)
    verdict = audit.update(model, variables, sent, minutes=0.02, truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict != "inputs inconsistent", verdict.reasons
    assert {finding.status for finding in verdict.findings if finding.name == "known images"} == {"passed"}
    assert any("parameters are constants" in note for note in verdict.notes)
    assert verdict.labels[batch.y[0]] == verdict.metrics["label_count"] == 1  # read from the bias if no more is sent
    refused = audit.update(model, variables, sent._replace(facts=capture.Facts(batch_size=1)))
    assert refused.verdict == "inputs inconsistent"
    assert "--frozen" in refused.findings[0].option
    with pytest.raises(ValueError, match="no layer 'conv_7'"):
        audit.update(model, variables, sent, frozen=("conv_7",))


@pytest.mark.slow
@pytest.mark.parametrize(("facts", "attack"), [({"defense": "other"}, "fedleak_400"), ({}, "fedleak_informed_400")])
def test_a_defended_update_is_attacked_with_and_without_knowing_how(perceptron, facts, attack):
    model, variables, batch, gradient = perceptron
    sent = defenses.quantize(8).apply(jax.random.key(0), gradient)
    known = facts or {"defense": "quantization", "strength": 8.0}
    verdict = audit.update(model, variables, sent, batch_size=1, truth=(batch.x[:, 0], batch.y), minutes=0.3, **known)
    assert verdict.answers[0].attack == attack


def test_a_loss_that_nobody_states_hides_no_input_of_a_dense_layer(perceptron):
    model, variables, batch, _ = perceptron

    def squares(params):
        logits = model.apply({**variables, "params": params}, batch.x[:, 0]).logits
        return jnp.mean((logits - jax.nn.one_hot(batch.y, 10)) ** 2)

    gradient = jax.grad(squares)(variables["params"])
    sent = {"batch_size": 1, "defense": "other", "minutes": 0.1}
    verdict = audit.update(model, variables, gradient, truth=(batch.x[:, 0], batch.y), **sent)
    assert verdict.headline == "leaks images"
    assert "whatever the loss and the label" in verdict.reasons[0]
    assert "that layer's gradient" in verdict.reasons[0]
    assert verdict.metrics["psnr"] > 100
    # A gradient that is no outer product comes from several samples, or was changed.
    first = next(name for name in gradient if name != model.head)
    noise = 1e-2 * reference.normal(*gradient[first]["kernel"].shape, seed=3)
    noisy = gradient | {first: gradient[first] | {"kernel": gradient[first]["kernel"] + noise}}
    found = audit.update(model, variables, noisy, **sent | {"minutes": 1e-4})
    assert found.verdict == "not attacked"
    assert any("neither the loss nor the label" in reason for reason in found.reasons)


@pytest.mark.slow
def test_a_head_without_bias_is_attacked_by_a_rule_that_does_without():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, use_bias=False)(nn.relu(nn.Dense(6)(x.reshape(len(x), -1))))

    model, variables = models.from_flax(
        Net(), Net().init(jax.random.key(0), jnp.zeros((1, 4, 4, 1))), image_shape=(4, 4, 1)
    )
    x = reference.uniform(2, 1, 4, 4, 1, seed=1)
    gradient = protocols.ClientShare(model)(variables, Batch(x, jnp.array([0, 2], jnp.int32), jnp.arange(2)))
    assert audit.update(model, variables, gradient, batch_size=2, minutes=1e-3).verdict in ("not attacked", "leaks")
    alone = protocols.ClientShare(model)(variables, Batch(x[:1], jnp.array([2], jnp.int32), jnp.arange(1)))
    verdict = audit.update(model, variables, alone, batch_size=1, minutes=1e-3)
    assert verdict.labels.tolist() == [0, 0, 1]
    assert "in which the row of one class is opposite to all others" in verdict.reasons[0]


def test_several_rows_of_a_table_are_taken():
    model = models.mlp((1, 1, 6), 4, widths=(8,))
    variables, batch = reference.drawn(model), reference.uniform(2, 1, 1, 1, 6, seed=1)
    gradient = protocols.ClientShare(model)(variables, Batch(batch, jnp.arange(2), jnp.arange(2)))
    assert audit.update(model, variables, gradient, batch_size=2, minutes=1e-3).verdict == "leaks"  # labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "samples", "facts"),
    [
        ((1, 1, 6), 2, {}),
        ((2, 4, 1), 2, {}),
        ((1, 1, 6), 1, {"defense": "gaussian", "strength": 1e-4}),
        ((1, 6, 1), 1, {"local_epochs": 2, "learning_rate": 0.1}),
    ],
)
def test_rows_of_a_table_are_searched_and_certified(shape, samples, facts, monkeypatch):
    monkeypatch.setattr(stages, "_FIRST", 200)
    model = models.mlp(shape, 4, widths=(24,))
    variables = reference.drawn(model)
    x, y = reference.uniform(samples, *shape, seed=1), jnp.arange(samples)
    steps = {name: value for name, value in facts.items() if name in ("local_epochs", "learning_rate")}
    share = protocols.ClientShare(model, **steps)
    gradient = share(variables, Batch(x[:, None], y, jnp.arange(samples)))
    if "defense" in facts:
        gradient = jax.tree.map(
            lambda leaf: leaf + 1e-4 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), gradient
        )
    verdict = audit.update(model, variables, gradient, batch_size=samples, truth=(x, y), **facts)
    assert verdict.verdict == "leaks"
    assert verdict.best.shown.all()
    assert min(verdict.metrics["psnr_each"]) > 25
    assert "ssim" not in verdict.metrics


def test_agreement_of_rows_is_explained():
    row = Answer("fedleak_400", np.zeros((1, 1, 1, 6)), np.zeros(1, int), 0.0, 0.0, agreement=np.array([0.9]))
    assert _without_ssim((1, 1, 6), [row])[0].startswith("Images with a side below 3 pixels, such as rows of a table,")
    assert not _without_ssim((1, 1, 6), [row._replace(agreement=None)])  # answers of equations compare no starts
    assert not _without_ssim((3, 3, 1), [row])


def test_a_certificate_of_a_row_takes_starts_that_differ_in_no_column():
    columns = np.linspace(0, 1, 6).reshape(1, 1, 1, 6)
    answer = Answer("fedleak_400", columns, np.zeros(1, int), 0.0, 0.0, agreement=np.array([0.98]))
    assert not answer.shown.any()
    assert answer._replace(agreement=np.array([0.991])).shown.all()
    assert answer._replace(x=np.linspace(0, 1, 9).reshape(1, 3, 3, 1)).shown.all()  # the image has an SSIM


def test_a_row_is_flat_where_its_columns_are_one_number():
    columns = np.linspace(0, 1, 6).reshape(1, 1, 1, 6)
    for x, flat in ((columns, False), (np.full_like(columns, 0.5), True)):
        answer = Answer("fedleak_400", x, np.zeros(1, int), 0.0, 0.0, agreement=np.ones(1))
        assert answer.shown.all() != flat


def test_after_several_steps_a_certificate_takes_images_that_leave_little_of_the_update():
    found = Answer("fedleak_400", pictures(4), np.zeros(4, int), 0.05, 1e-3, agreement=np.ones(4), allowed=0.02)
    near, far = found._replace(remainder=0.01), found._replace(remainder=0.032)
    assert near.shown.all()
    assert not far.shown.any()
    (warning,) = unexplained(far)
    assert (
        "leave 3.2% of the update unexplained. Where no other loss explains more of it, a certificate takes at most"
        in warning.evidence
    )
    assert warning.option.startswith("--learning-rate, --momentum, --local-steps")
    (of_two,) = unexplained(far, steps=2)
    assert of_two.cause == warning.cause + (
        "; or, of several local steps, another learning rate or number of steps, a rate that changes between them, or "
        "samples that are shuffled anew in "
        "every epoch"
    )
    assert "leave 3.2% of the update unexplained, and a certificate takes at most 2.0%" in told(far)
    _, (reason,) = decide([], Labels.none(10), near, [], [], stated="the loss and the learning rate are as stated")
    assert reason.endswith("from the update, if the loss and the learning rate are as stated.")


def test_certificates_of_several_images_have_conditions_that_no_search_can_tell():
    share, precision = SimpleNamespace(total_steps=1), SimpleNamespace(of_weights=False)
    case = SimpleNamespace(share=share, precision=precision, samples=3, defended=True)
    assert conditions(case) == "the loss and the batch size are as stated, with labels that are neither mixed nor soft"
    case.samples, share.total_steps = 1, 2
    assert conditions(case) == "the loss, the batch size, the learning rate and the momentum are as stated"
    case.defended = False
    assert conditions(case).endswith("are as stated, and the update is neither clipped nor scaled")


def test_a_search_without_a_refuted_loss_is_chosen_for_its_certificates_alone():
    found = Answer("fedleak_400", pictures(2), np.zeros(2, int), 0.05, 1e-3, agreement=np.ones(2))
    refuted = found._replace(remainder=0.0449, fitted_remainder=0.0131)
    other = found._replace(attack="any_loss_400", misfit=1e-4, agreement=np.zeros(2))
    assert best_of([refuted, other]) is refuted
    assert best_of([refuted, other._replace(agreement=np.ones(2))]).fitted
    assert best_of([found._replace(agreement=np.zeros(2)), other]) is other


def test_layers_below_the_head_that_are_not_explained_withdraw_the_certificate():
    """Such layers may have their own learning rate, and the head may outweigh them."""
    found = Answer("fedleak_400", pictures(2), np.zeros(2, int), 0.05, 1e-3, agreement=np.ones(2), remainder=0.0175)
    assert found._replace(below_head=0.2).shown.all()
    far = found._replace(below_head=0.3)
    assert not far.shown.any()
    (warning,) = unexplained(far)
    assert "leave 1.8% of the update unexplained, and 30% of the layers below the head." in warning.evidence
    assert warning.cause.startswith("layers with a learning rate or a scale of their own, weights of another round")
    assert "leave 1.8% of the update unexplained, and 30% of the layers below the head" in told(far)
