"""The verdict on an update: what leaks is shown, what does not is not, and mistakes are no verdict on leakage."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, Observation, audit, capture, defenses, metrics, models, protocols
from jaxleak._command.audit import _scored
from jaxleak._lock import FolderInUseError
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.labels import Labels, labels_of
from jaxleak.audit._verdict import search, stages
from jaxleak.audit._verdict.search import graded
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.store import Store
from jaxleak.audit._verdict.truth import check_truth, scores
from jaxleak.audit._verdict.update import _identity, _told
from jaxleak.audit._verdict.verdict import Answer, best_of


def _sent(model, images=1, seed=1):
    variables = jax.jit(model.init)(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(seed), (images, 1, *model.image_shape))
    batch = Batch(x, jnp.arange(images, dtype=jnp.int32) + 3, jnp.arange(images))
    return variables, batch, jax.jit(protocols.ClientShare(model))(variables, batch)


def _case(share, observation):
    """An audit of one sample that keeps and shows nothing."""
    return search.Case(share, observation, 1, None, jax.random.key(0), None)


def _pictures(count):
    """Images (count, 4, 4, 1) that are not flat."""
    return np.broadcast_to(np.linspace(0, 1, 16).reshape(1, 4, 4, 1), (count, 4, 4, 1))


@pytest.fixture(scope="module")
def perceptron():
    model = models.mlp((4, 4, 1), 10, widths=(16, 8))
    return model, *_sent(model)


def test_a_dense_layer_on_pixels_is_solved_and_the_verdict_is_leaks(perceptron):
    model, variables, batch, gradient = perceptron
    verdict = audit.update(model, variables, gradient, batch_size=1, truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict == "leaks"
    assert verdict.best.attack == "dense_inputs"
    assert verdict.metrics["psnr"] > 60
    assert verdict.metrics["label_accuracy"] == 1
    assert verdict.metrics["label_count"] == 1
    assert list(np.flatnonzero(verdict.labels)) == [3]


def test_a_truth_without_labels_changes_nothing_but_scores(perceptron):
    model, variables, batch, gradient = perceptron
    plain = audit.update(model, variables, gradient, batch_size=1)
    wrong = audit.update(model, variables, gradient, batch_size=1, truth=(1 - batch.x[:, 0], None))
    np.testing.assert_array_equal(plain.best.x, wrong.best.x)
    assert plain.verdict == wrong.verdict
    assert "psnr" not in plain.metrics


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


@pytest.mark.slow
def test_a_search_stops_with_its_budget_and_goes_on(tmp_path, monkeypatch):
    model = models.convnet((4, 4, 1), 10, channels=(4,), strides=(1,))
    variables, _, gradient = _sent(model, images=2)
    options = {"batch_size": 2, "out": tmp_path}
    shown = []
    done = lambda: [told[1] for told in shown if told[0].startswith("FedLeak") and told[1]]  # noqa: E731
    monkeypatch.setattr(Store, "left", property(lambda _: -1.0 if done() else 60.0))  # a clock that a test can stop
    show = lambda *told: shown.append(told)  # noqa: E731
    first = audit.update(model, variables, gradient, show=show, **options)
    assert not first.answers[-1].finished
    assert 0 < done()[-1] == first.answers[-1].iterations < 400
    shown.clear()
    audit.update(model, variables, gradient, show=show, **options)
    assert done()[0] > first.answers[-1].iterations
    with pytest.raises(ValueError, match=r"another audit|other inputs \(seed\)"):
        audit.update(model, variables, gradient, minutes=1, seed=1, **options)


def test_another_network_with_the_same_weights_is_another_audit(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    audit.update(model, variables, gradient, batch_size=1, out=tmp_path)
    smooth = models.mlp((4, 4, 1), 10, widths=(16, 8), activation="sigmoid")
    # Its own gradient is another one; this is what a folder says of one that happens to be the same.
    share = protocols.ClientShare(smooth)
    identity = _identity(share, variables, gradient, capture.Facts(batch_size=1), 0)
    with pytest.raises(ValueError, match=r"other inputs \(network\).*--fresh"):
        Store(tmp_path, identity, 1.0)
    Store(tmp_path, identity, 1.0, fresh=True)


def test_damaged_files_of_an_audit_are_named_and_can_be_started_afresh(tmp_path):
    notes, fields = tmp_path / "audit.json", {"attack": "peeling", "misfit": 0.5, "cosine_distance": 0.5}
    good = {"identity": {"seed": 0}, "seconds": 1.0, "answers": {"peeling": fields}}
    for damage in (
        "",
        "[1]",
        json.dumps(good | {"seconds": -1}),
        json.dumps(good | {"seconds": "long"}),
        json.dumps(good | {"answers": {"peeling": 3}}),
        json.dumps({"seconds": 1, "answers": {}}),
    ):
        notes.write_text(damage)
        with pytest.raises(ValueError, match=r"audit.json is damaged .*--fresh"):
            Store(tmp_path, {"seed": 0}, 1.0)
        assert Store(tmp_path, {"seed": 0}, 1.0, fresh=True).answer("peeling") is None
    notes.write_text(json.dumps(good))
    x, y = _pictures(2), np.zeros(2, int)
    np.savez(tmp_path / "good.npz", x=x, y=y)
    np.savez(tmp_path / "short.npz", x=x, y=y[:1])
    np.savez(tmp_path / "without.npz", x=x)
    whole = (tmp_path / "good.npz").read_bytes()
    damaged = [
        b"",
        b"PK",
        whole[: len(whole) // 2],
        *((tmp_path / f"{n}.npz").read_bytes() for n in ("short", "without")),
    ]
    for damage in damaged:
        (tmp_path / "peeling.npz").write_bytes(damage)
        with pytest.raises(ValueError, match=r"peeling.npz is damaged .*--fresh"):
            Store(tmp_path, {"seed": 0}, 1.0).answer("peeling")
    (tmp_path / "peeling.npz").write_bytes(whole)
    assert Store(tmp_path, {"seed": 0}, 1.0).answer("peeling").misfit == 0.5


def test_an_audit_locks_its_folder(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    code = "import sys, time; from pathlib import Path; from jaxleak._lock import lock_folder\n"
    code += "lock = lock_folder(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(FolderInUseError, match=f"in use by process {other.pid}"):
                audit.update(model, variables, gradient, batch_size=1, out=tmp_path)
        finally:
            other.kill()


@pytest.mark.slow
def test_peeling_leaves_an_update_of_the_layers_below():
    from jaxleak.attacks._inversion.peeling import CUT, peel

    model = models.convnet((6, 6, 1), 10, channels=(4, 4), strides=(1, 2))
    variables, batch, gradient = _sent(model)
    seen = Observation(jnp.zeros((), jnp.int32), variables, gradient)
    peeled = peel(model, seen, batch_norm="train", key=jax.random.key(2))
    simulated = peeled.share(peeled.observation.params, batch)
    features = model.apply(variables, batch.x[:, 0]).features[0]
    np.testing.assert_allclose(peeled.observation.payload[CUT], features, rtol=1e-4, atol=1e-6)
    for name, leaf in peeled.observation.payload.items():
        np.testing.assert_allclose(simulated[name], leaf, rtol=1e-3, atol=1e-4 * float(jnp.abs(leaf).max()))
    assert metrics.psnr(features[None], peeled.observation.payload[CUT][None])[0] > 60


def test_an_answer_is_an_image_and_judged_as_one(perceptron):
    """What lies outside of [0, 1] is cut off before its gradient is compared."""
    model, variables, _, gradient = perceptron
    case = _case(protocols.ClientShare(model), Observation(0, variables, gradient))
    wild = np.random.default_rng(0).uniform(-1, 2, (1, *model.image_shape))
    answer = graded(case, "wild", wild, np.zeros(1, np.int32))
    np.testing.assert_array_equal(answer.x, np.clip(wild, 0, 1).astype(np.float32))
    assert (wild < 0).any()
    assert (wild > 1).any()
    same = graded(case, "cut", answer.x, answer.y)
    assert (answer.misfit, answer.cosine_distance) == (same.misfit, same.cosine_distance)


def test_what_no_attack_explains_ends_with_a_warning_that_names_mistakes():
    from jaxleak.audit._checks import Finding
    from jaxleak.audit._checks.symmetry import SYMMETRIES
    from jaxleak.audit._verdict.verdict import Answer, best_of, decide, unexplained

    x, y, nothing = _pictures(2), np.zeros(2, int), Labels.none(10)
    far = Answer("far", x, y, misfit=0.7, cosine_distance=0.3, agreement=np.ones(2))
    near = Answer("near", x, y, misfit=0.05, cosine_distance=0.001, agreement=np.array([0.94, 0.96]))
    assert not far.shown.any()  # starts that agree on an image whose gradient is another one's show nothing
    assert best_of([far, near]) is near
    outcome, reasons = decide(unexplained(far), nothing, far, ["Tried far."], ["Row spaces were not tried."])
    assert outcome == "not shown to leak"
    assert any("Warning" in reason and "weights of another round" in reason for reason in reasons)
    assert any("not tried" in reason for reason in reasons)
    assert [finding.name for finding in unexplained(None)] == ["gradient explained"]
    without_symmetries = [Finding(SYMMETRIES, "not applicable", "none")]
    assert unexplained(near, [Finding(SYMMETRIES, "passed", "all")]) == []
    assert [finding.name for finding in unexplained(near, without_symmetries)] == ["weights"]
    outcome, reasons = decide(unexplained(near), nothing, near, [], [])
    assert outcome == "leaks"
    assert reasons[0].startswith("1 of 2 images is certified: independent starts end at the same image (near), ")
    assert reasons[0].endswith(" a cosine distance of 1.0e-03 from the update.")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"solved": True}, "The image is certified: equations have it as their solution (the inputs of a dense layer)"),
        ({"attack": "fedleak_400", "agreement": np.ones(1)}, "independent starts end at the same image (FedLeak, 400"),
        ({"attack": "row_space", "agreement": np.ones(1)}, "independent starts end at the same image (row spaces)"),
    ],
)
def test_what_shows_an_image_is_said_in_words_and_rounding_is_no_distance(fields, said):
    from jaxleak.audit._verdict.verdict import Answer, decide

    image, nothing = _pictures(1), Labels.none(10)
    found = Answer(**{"attack": "dense_inputs", "x": image, "y": np.zeros(1, int), "misfit": 0.0} | fields,
                   cosine_distance=-1.2e-07)  # fmt: skip
    _, (reason,) = decide([], nothing, found, [], [])
    assert said in reason
    assert reason.endswith(" a cosine distance below 1e-06 from the update.")


def test_a_stated_defense_is_known_to_the_attacker_or_refused(perceptron):
    model, variables, _, gradient = perceptron
    for facts, message in (
        ({"defense": "shredder", "strength": 1.0}, "defense must be one that an attacker can know .*quantization"),
        ({"defense": "gaussian"}, "strength of gaussian must be given: its standard deviation"),
        ({"defense": "quantization", "strength": 3.0}, "bits must be one of"),
        ({"defense": "dp_sgd", "strength": 10.0, "local_steps": 2}, "needs one local step in all, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            audit.update(model, variables, gradient, batch_size=1, **facts)


def test_the_budget_is_over_before_an_attack_where_checks_and_compiling_have_spent_it(perceptron):
    model, variables, _, _ = perceptron
    variables, _, gradient = _sent(model, images=2)
    late = time.monotonic() - 60
    verdict = audit.update(model, variables, gradient, batch_size=2, minutes=0.9, since=late)
    assert not verdict.answers
    assert any("was not tried: the time was spent" in reason for reason in verdict.reasons)


def test_spans_of_compiling_that_overlap_are_counted_once():
    watch = Stopwatch()
    now = time.monotonic()
    for begin, end in ((1, 2), (3, 4), (2.5, 5), (4.5, 6), (7, 8)):
        watch.add(now + begin, now + end)
    assert watch.spent["compiling"] == pytest.approx(1 + 3.5 + 1)
    late = Stopwatch()
    late.add(late._begin - 9, late._begin + 1)  # what came before is left out
    assert late.spent["compiling"] == pytest.approx(1)


def test_a_program_is_compiled_at_its_first_call_alone():
    inner = jax.jit(lambda x: jnp.linalg.svd(x, compute_uv=False))
    program = jax.jit(lambda x: jax.lax.scan(lambda y, _: (y * inner(y).sum(), None), x, None, length=2)[0])
    x = jnp.ones((3, 3))
    seconds = []
    for _ in range(2):
        watch = Stopwatch()
        jax.block_until_ready(program(x))
        seconds.append(watch.spent)
    assert 0 < seconds[0]["compiling"] <= seconds[0]["seconds"]
    assert seconds[1]["compiling"] == 0


@pytest.mark.slow
def test_verdict_and_report_say_what_compiling_took(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    jax.clear_caches()
    verdict = audit.update(model, variables, gradient, batch_size=1)
    (answer,) = verdict.answers
    assert 0 < answer.compiling <= answer.seconds
    told = _told(answer._replace(seconds=12.0, compiling=7.0))
    assert "(12 s, 7 of them compiling)" in told
    assert "compiling" not in _told(answer._replace(compiling=0.0))
    verdict = verdict._replace(answers=(answer._replace(seconds=12.0, compiling=7.0),))
    report = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
    assert "<th>Of them compiling</th>" in report
    assert "<td>12</td><td>7</td>" in report


def test_one_image_that_is_taken_for_four_proves_one_label(perceptron):
    model, variables, _, gradient = perceptron
    verdict = audit.update(model, variables, gradient, batch_size=4, minutes=1e-3)
    assert verdict.metrics["label_count"] == 1
    assert list(np.flatnonzero(verdict.labels)) == [3]
    assert "proves 1 label: 1 of class 3." in verdict.reasons[0]
    assert not any("4 of class 3" in reason for reason in verdict.reasons)
    assert any("the batch holds 1 sample," in reason for reason in verdict.reasons)


def test_labels_beyond_the_rank_are_conditional_on_the_batch_size():
    """Five images of one class, of three: the rank of two proves two samples, and the others have to be believed."""
    from jaxleak.audit._checks.head import Head

    rng = np.random.default_rng(0)
    features, logits, y = rng.normal(size=(5, 6)), rng.normal(size=(5, 3)), np.eye(3)[np.full(5, 1)]
    outputs = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - y) / 5
    bias = np.log((outputs + y / 5).sum(axis=0))  # the mean softmax, so that label counts are whole numbers
    labels = labels_of(Head(features.T @ outputs, outputs.sum(axis=0), np.zeros((6, 3)), bias), 5)
    assert labels.proven.sum() <= 2
    assert labels.proven[1] >= 1
    assert labels.proven.sum() < labels.if_stated.sum() <= 5


def test_known_images_are_compared_before_any_attack_and_never_reach_it(perceptron):
    model, variables, batch, gradient = perceptron
    x = np.asarray(batch.x[:, 0])
    plain = audit.update(model, variables, gradient, batch_size=1)
    right = audit.update(model, variables, gradient, batch_size=1, truth=(x.transpose(0, 3, 1, 2), batch.y))
    assert right.findings[-1].name == "known images"
    assert right.findings[-1].status == "passed"
    np.testing.assert_array_equal(plain.best.x, right.best.x)
    later = jax.tree.map(lambda w, g: w - 0.02 * g, variables["params"], gradient)
    another_round = audit.update(model, {**variables, "params": later}, gradient, batch_size=1, truth=(x, batch.y))
    for wrong in (another_round, audit.update(model, variables, gradient, batch_size=1, truth=(1 - x, batch.y))):
        (finding,) = [finding for finding in wrong.findings if finding.name == "known images"]
        assert (wrong.verdict, finding.status) == ("inputs inconsistent", "failed")
        assert "another round" in finding.cause
        assert not wrong.answers


def test_the_headline_says_what_leaks():
    from jaxleak.audit._verdict.verdict import Answer, Verdict

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
    from jaxleak.audit._verdict.update import _numbers, _told
    from jaxleak.audit._verdict.verdict import Answer

    near = Answer("near", np.zeros((1, 4, 4, 1)), np.zeros(1, int), 0.1, 0.005, agreement=np.array([0.9]))
    far = near._replace(cosine_distance=0.3)
    assert _numbers("leaks", Labels.none(10), near, None)[0]["agreement"] == pytest.approx(0.9)
    assert "agreement" not in _numbers("leaks", Labels.none(10), far, None)[0]
    assert "SSIM of 0.90" in _told(near)
    assert "SSIM" not in _told(far)


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
    variables, batch, gradient = _sent(model)
    kept = {
        name.replace("/", "."): leaf for name, leaf in named_leaves(gradient).items() if not name.startswith(frozen)
    }
    sent = capture.as_update(kept, batch_size=1, frozen=frozen)
    verdict = audit.update(model, variables, sent, minutes=0.02, truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict != "inputs inconsistent", verdict.reasons
    assert {finding.status for finding in verdict.findings if finding.name == "known images"} == {"passed"}
    assert any("parameters are constants" in note for note in verdict.notes)
    assert (verdict.metrics["label_count"] == 1) == (frozen != ("head/kernel",))
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
    # What is no outer product of one input is not of one sample, or was changed.
    first = next(name for name in gradient if name != model.head)
    noise = 1e-2 * jax.random.normal(jax.random.key(3), gradient[first]["kernel"].shape)
    noisy = gradient | {first: gradient[first] | {"kernel": gradient[first]["kernel"] + noise}}
    found = audit.update(model, variables, noisy, **sent | {"minutes": 1e-4})
    assert found.verdict == "not attacked"
    assert any("neither the loss nor the label" in reason for reason in found.reasons)


def test_answers_are_compared_through_the_defense_that_is_stated(perceptron):
    model, variables, batch, gradient = perceptron
    x, y, share = np.asarray(batch.x[:, 0]), np.asarray(batch.y), protocols.ClientShare(model)
    sent = {
        defenses.sparsify(10.0): (0.01, 1e-6),
        defenses.quantize(4): (1e-3, 1e-6),
        defenses.gaussian_payload_noise(1e-3): (1e-4, 1.0),
    }
    for defense, (without, through) in sent.items():
        payload = defense.apply(jax.random.key(3), gradient, round=0)
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
        case = _case(share, seen)._replace(defended=True)
        assert search.graded(case, "fedleak_400", x, y).cosine_distance > without
        known = search.graded(case._replace(defense=defense), "fedleak_400", x, y)
        assert known.cosine_distance < through
        expected = search.distance_of_truth(case._replace(defense=defense), known)
        noisy = defense.mechanism.noise is not None
        assert (expected is not None) == noisy
        assert not noisy or 0.5 < expected / known.cosine_distance < 2


def test_fewer_equations_than_unknowns_certify_nothing(perceptron):
    model, variables, batch, gradient = perceptron
    few = defenses.sparsify(0.5).apply(jax.random.key(3), gradient)
    seen = Observation(jnp.zeros((), jnp.int32), variables, few)
    case = _case(protocols.ClientShare(model), seen)._replace(defended=True, defense=defenses.sparsify(0.5))
    found = search.graded(case, "fedleak_400", np.asarray(batch.x[:, 0]), np.asarray(batch.y), agreement=np.ones(1))
    assert found.matched
    assert not found.determined
    assert not found.shown.any()


def _answer(attack="fedleak_400", distance=1e-9, **fields):
    fields = {"misfit": 0.1} | fields
    return Answer(attack, _pictures(2), np.zeros(2), cosine_distance=distance, **fields)


SURE, UNSURE = {"agreement": np.array([0.95, 0.99])}, {"agreement": np.array([0.949, 0.99])}


def test_what_certifies_an_image():
    assert _answer(solved=True).shown.all()
    assert _answer(**SURE).shown.all()
    assert _answer(**UNSURE).shown.tolist() == [False, True]
    assert not _answer().shown.any()
    for fields in ({"solved": True}, SURE):
        assert not _answer(distance=2e-2, **fields).shown.any()  # the gradient is another one
    assert _answer(distance=2e-2, **SURE).counted_agreement is None


def test_the_best_answer_has_the_most_certified_images_and_then_the_least_misfit():
    certified, closer, closest = _answer(**SURE), _answer(misfit=0.05, **UNSURE), _answer(misfit=0.01)
    assert best_of([closest, closer, certified]) is certified
    assert best_of([closest, closer]) is closer
    assert best_of([_answer(misfit=0.02), closest]) is closest
    assert best_of([_answer(misfit=np.nan), closest]) is closest
    assert best_of([_answer(misfit=np.inf)]) is None


class TestStages:
    """Which searches an audit makes; none is really made here."""

    def case(self, monkeypatch, answers, left=np.inf, **fields):
        """A case whose searches take a second an iteration and find these answers in turn."""
        self.searched, found = [], iter(answers)

        def search(case, name, attack, observation):
            self.searched.append(attack)
            return next(found), 1.0

        monkeypatch.setattr(stages, "search", search)
        monkeypatch.setattr(stages, "_known", lambda case, iterations: (None, iterations))
        monkeypatch.setattr(stages.attacks, "inversion", lambda model, share, settings, batch_size: settings)
        store = SimpleNamespace(answer=lambda name: None, keep=lambda name, answer: None, left=left)
        share = SimpleNamespace(model=None)
        case = {"defense": None, "defended": False, "samples": 2, "share": share, "observation": None, "store": store}
        return SimpleNamespace(**case | fields)

    @pytest.mark.parametrize(
        ("left", "searched"),
        [
            (1500, [400]),  # it would have to end with the budget
            (1501, [400, 1500]),
            (3001, [400, 3000]),
            (6001, [400, 3000, 6000]),
            (1e9, [400, 3000, 12000]),
        ],
    )
    def test_longer_searches_are_those_that_the_budget_lets_end(self, monkeypatch, left, searched):
        found = list(stages._gradient_matching(self.case(monkeypatch, [_answer(**UNSURE)] * 3, left)))
        assert self.searched == searched
        assert sum(isinstance(one, Answer) for one in found) == len(searched)
        if len(searched) == 1:
            assert found[-1] == "A longer search was not tried: 1500 iterations take 1500 s more."

    def test_a_search_that_has_shown_all_or_did_not_end_is_the_last(self, monkeypatch):
        unsure = _answer(**UNSURE)
        for answers, count in (
            ([_answer(**SURE)], 1),
            ([unsure._replace(finished=False)], 1),
            ([unsure, _answer(**SURE)], 2),
            ([unsure, unsure._replace(finished=False)], 2),
            ([unsure, _answer(distance=1.0, **SURE)], 2),  # starts that agree on another gradient will not change
            ([unsure, None], 2),
            ([unsure, unsure, unsure], 3),
        ):
            list(stages._gradient_matching(self.case(monkeypatch, answers)))
            assert len(self.searched) == count
        list(stages._gradient_matching(self.case(monkeypatch, [unsure]), briefly=True))
        assert self.searched == [400]
        nothing = list(stages._gradient_matching(self.case(monkeypatch, [None])))
        assert nothing == ["FedLeak was not tried: the time was spent."]

    def test_a_defense_that_is_not_stated_is_said_to_be_unknown(self, monkeypatch):
        first = next(stages._gradient_matching(self.case(monkeypatch, [_answer()], defended=True)))
        assert first.startswith("No attack that knows the defense was tried")

    @pytest.mark.parametrize(
        ("closed", "matched", "ran"),
        [
            ([_answer(solved=True)], [], []),  # equations leave nothing to search for
            ([_answer(distance=0.9e-5, **SURE)], [], []),
            ([_answer(distance=1.1e-5, **SURE)], [_answer()], ["briefly"]),
            ([_answer()], [_answer(**SURE)], ["at length"]),
            ([_answer(**UNSURE), "said"], [_answer(**UNSURE)], ["at length", "row space"]),
            (["said"], [_answer(), "said"], ["at length", "row space"]),
        ],
    )
    def test_what_is_certain_is_searched_for_briefly_and_row_spaces_come_last(self, monkeypatch, closed, matched, ran):
        seen = []

        def matching(case, *, briefly):
            seen.append("briefly" if briefly else "at length")
            yield from matched

        def row_space(case):
            seen.append("row space")
            yield "row space"

        monkeypatch.setattr(stages, "_closed_forms", lambda case: iter(closed))
        monkeypatch.setattr(stages, "_gradient_matching", matching)
        monkeypatch.setattr(stages, "_row_space", row_space)
        share = SimpleNamespace(total_steps=1)
        found = list(stages.run_stages(SimpleNamespace(samples=1, defended=False, share=share)))
        assert seen == ran
        assert len(found) == len(closed) + (len(matched) if ran else 0) + ("row space" in ran)
        for fields, why in (
            ({"samples": 2, "defended": False}, "2 samples"),
            ({"samples": 1, "defended": True, "defense": "one"}, "defends"),
            ({"samples": 1, "defended": False, "share": SimpleNamespace(total_steps=5)}, "several steps"),
        ):
            first = next(stages.run_stages(SimpleNamespace(**{"share": share} | fields)))
            assert first.startswith("Closed forms of one exact gradient were not tried: ")
            assert why in first

    @pytest.mark.parametrize(
        ("batch_norm", "head", "left", "said"),
        [
            (False, "head", 9, None),
            (True, "head", 0, "the time was spent"),
            (True, "", 9, "they say nothing of labels"),
        ],
    )
    def test_row_spaces_are_for_normalised_networks_with_time_and_a_head(self, batch_norm, head, left, said):
        model = SimpleNamespace(has_batch_norm=batch_norm, head=head)
        case = SimpleNamespace(share=SimpleNamespace(model=model), store=SimpleNamespace(left=left))
        found = list(stages._row_space(case))
        assert len(found) == (said is not None)
        assert not found or said in found[0]


@pytest.mark.parametrize(
    ("gradient", "left", "chunk"),
    # Two starts of four gradients each, and a chunk takes less than a quarter of what is left.
    [(0.01, 16.1, 50), (0.01, 16.0, 10), (0.01, 3.21, 10), (0.01, 3.2, 2), (0.01, 0.65, 2), (0.01, 0.1, 2)],
)
def test_a_search_looks_at_the_clock_in_time(monkeypatch, gradient, left, chunk):
    clock = [0.0]

    def misfits(*_):
        clock[0] += gradient
        return jnp.zeros(2)

    monkeypatch.setattr(search, "_misfits", misfits)
    monkeypatch.setattr(search.time, "monotonic", lambda: clock[0])
    share = SimpleNamespace(model=SimpleNamespace(image_shape=(2, 2, 1)))
    seen = SimpleNamespace(params=None, payload=None)
    store = SimpleNamespace(left=left)
    case = SimpleNamespace(share=share, received=None, observation=seen, samples=1, store=store)
    assert search._chunk(case) == chunk


def test_a_truth_is_read_in_either_order_and_refused_by_name():
    x = np.random.default_rng(0).random((2, 3, 4, 1))
    for given in (x, x.transpose(0, 3, 1, 2)):
        found, labels = check_truth((given, [0, 4]), 2, (3, 4, 1), 5)
        np.testing.assert_allclose(found, x, rtol=1e-6)
        assert labels.tolist() == [0, 4]
    assert check_truth((x, np.array([0.0, 4.0])), 2, (3, 4, 1), 5)[1].dtype == np.int64
    assert check_truth(None, 2, (3, 4, 1), 5) is None
    assert check_truth((np.stack([x[0], 0 * x[0] + 1]), None), 2, (3, 4, 1), 5)[1] is None  # 0 and 1 are pixels
    for truth, match in (
        ((x[:1], None), "truth must hold images of shape"),
        ((x + 1e-3 + (1 - x.max()), None), "truth must hold images in"),
        ((x - x.min() - 1e-3, None), "truth must hold images in"),
        ((x, [0]), "truth must hold 2 labels in"),
        ((x, [0, 5]), "truth must hold 2 labels in"),
        ((x, [-1, 0]), "truth must hold 2 labels in"),
        ((x, np.eye(5)[:2]), r"truth must hold 2 labels .* got shape \(2, 5\): one-hot\? take the argmax"),
        ((x, [0.5, 1.0]), "whole numbers"),
        ((x, [np.nan, 1.0]), "whole numbers"),
        ((x, ["0", "1"]), "whole numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            check_truth(truth, 2, (3, 4, 1), 5)


def test_scores_are_of_the_truth_in_the_answers_order():
    x = np.random.default_rng(0).random((2, 8, 8, 1))
    answer = Answer("fedleak_400", x[::-1] + 0.1, np.array([1, 1]), 0.0, 0.0)
    found, ordered = scores((x, np.array([0, 1])), answer)
    np.testing.assert_array_equal(ordered, x[::-1])
    assert found["psnr"] == pytest.approx(20)
    assert found["label_accuracy"] == 0.5
    assert 0.5 < found["ssim"] < 1
    assert "label_accuracy" not in scores((x, None), answer)[0]
    assert _scored(found) == f"PSNR 20.0 dB, SSIM {found['ssim']:.2f}"


@pytest.mark.parametrize("shape", [(1, 12, 1), (4, 2, 3)])
def test_images_too_small_for_ssim_are_scored_without(shape):
    x = np.random.default_rng(0).random((1, *shape))
    found, _ = scores((x, None), Answer("fedleak_400", x + 0.1, np.array([1]), 0.0, 0.0))
    assert found.keys() == {"psnr", "psnr_grey"}
    assert _scored(found) == "PSNR 20.0 dB"


def test_an_image_that_was_normalised_before_the_network_is_read_in_its_own_unit():
    model = models.mlp((4, 4, 1), 3, widths=(24,))
    variables = model.init(jax.random.key(0))
    x = 2 * jax.random.normal(jax.random.key(1), (1, 1, 4, 4, 1))
    gradient = protocols.ClientShare(model)(variables, Batch(x, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
    verdict = audit.update(model, variables, gradient, batch_size=1, minutes=0.5)
    np.testing.assert_allclose(verdict.best.x, x[:, 0], atol=1e-3)
    assert verdict.headline == "leaks images and labels"
    assert any("input range: suspicious" in reason for reason in verdict.reasons)


def test_a_head_without_bias_is_attacked_by_a_rule_that_does_without():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, use_bias=False)(nn.relu(nn.Dense(6)(x.reshape(len(x), -1))))

    model, variables = models.from_flax(
        Net(), Net().init(jax.random.key(0), jnp.zeros((1, 4, 4, 1))), image_shape=(4, 4, 1)
    )
    x = jax.random.uniform(jax.random.key(1), (2, 1, 4, 4, 1))
    gradient = protocols.ClientShare(model)(variables, Batch(x, jnp.array([0, 2], jnp.int32), jnp.arange(2)))
    assert audit.update(model, variables, gradient, batch_size=2, minutes=1e-3).verdict in ("not attacked", "leaks")


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 8, 1), (8, 2, 1)])
def test_a_table_of_several_samples_is_refused_at_once(shape):
    model = models.mlp(shape, 3, widths=(6,))
    variables = model.init(jax.random.key(0))
    gradient = jax.tree.map(jnp.ones_like, variables["params"])
    with pytest.raises(ValueError, match=r"image_shape must have at least 3x3 pixels for a batch of 2.*Fold a"):
        audit.update(model, variables, gradient, batch_size=2)
    with pytest.raises(ValueError, match="image_shape must have at least 3x3 pixels for a batch of 3"):
        audit.update(model, variables, gradient, batch_size=1, local_steps=3, learning_rate=0.1)
