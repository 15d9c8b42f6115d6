"""Updates of a loss that is no cross-entropy: the attacks that need neither the loss nor the labels."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_updates import answer_of, case_of

from jaxleak import Batch, Observation, audit, metrics, models, protocols
from jaxleak.audit._checks import Finding, check_known_images
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER
from jaxleak.audit._verdict import one_sample, stages, without_loss
from jaxleak.audit._verdict.one_sample import equations, whatever_the_loss
from jaxleak.audit._verdict.verdict import ALONE, ANY_LOSS, PEELED, PEELED_ALONE, best_of
from jaxleak.audit._verdict.warnings import EXPLAINED

FINDINGS = 5


def _sent(model, images=1):
    """Images (B, H, W, channels), weights, and the gradient of a binary cross-entropy over several findings."""
    variables = reference.drawn(model)
    x = reference.uniform(images, *model.image_shape, seed=1)
    y = jax.random.bernoulli(jax.random.key(2), 0.4, (images, FINDINGS)).astype(jnp.float32)

    def loss(params):
        logits = model.apply({**variables, "params": params}, x, mode="train").logits
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    return np.asarray(x), variables, jax.jit(jax.grad(loss))(variables["params"])


@pytest.fixture(scope="module")
def dense():
    model = models.mlp((8, 8, 1), FINDINGS, widths=(80, 16))
    return model, *_sent(model)


@pytest.fixture(scope="module")
def convolutional():
    model = models.convnet((8, 8, 1), FINDINGS, channels=(8,), strides=(1,))
    return model, *_sent(model)


def test_a_dense_layers_inputs_are_certified_where_the_layers_above_are_not_as_stated(perceptron):
    model, variables, batch, gradient = perceptron
    other = {**gradient, "head": jax.tree.map(lambda g: -3 * g, gradient["head"])}
    for sent, attacks in ((gradient, ["dense_inputs"]), (other, ["dense_inputs", ALONE])):
        case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), variables, sent))
        answers = list(equations(case))
        assert [answer.attack for answer in answers] == attacks
        assert best_of(answers).shown.all()
        np.testing.assert_allclose(best_of(answers).x, batch.x[:, 0], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_dense_layer_on_pixels_leaks_the_image_whatever_the_loss_is(dense, sign):
    model, x, variables, gradient = dense
    sent = jax.tree.map(lambda g: sign * g, gradient)
    assert audit.update(model, variables, sent, batch_size=1, minutes=1e-4).verdict == "inputs inconsistent"
    verdict = audit.update(model, variables, sent, batch_size=1, loss="other", truth=(x, None))
    assert verdict.headline == "leaks images"
    assert [answer.attack for answer in verdict.answers] == [ALONE]
    assert verdict.metrics["psnr"] > 60
    assert verdict.best.y.tolist() == [-1]
    assert verdict.reasons[-1].startswith("No label is claimed: the loss is stated to be no cross-entropy")
    assert "but for its loss" in verdict.threat
    found = {finding.name: finding.status for finding in verdict.findings}
    assert "sums over classes" not in found
    assert found["equations of the head and the network"] == "not applicable"


@pytest.mark.parametrize("facts", [{"loss": "other"}, {"defense": "other"}])
def test_signs_of_a_dense_layers_gradient_are_no_image(dense, facts):
    """Signs have the form of one sample's gradient, for an image that is white wherever the client's is not black."""
    model, _, variables, gradient = dense
    signs = jax.tree.map(jnp.sign, gradient)
    verdict = audit.update(model, variables, signs, batch_size=1, minutes=1e-4, **facts)
    assert not verdict.answers
    assert verdict.verdict == "not attacked"


@pytest.mark.parametrize(
    ("facts", "whys"),
    [
        (
            {"local_epochs": 2, "learning_rate": 1.0},
            ("the client took several steps.", "every step of every client has derivatives of its own"),
        ),
        ({"defense": "gaussian", "strength": 1e-9}, ("the client defends its update.",) * 2),
    ],
)
def test_what_no_attack_without_the_loss_is_for_is_not_attacked_and_that_is_said(dense, facts, whys):
    model, _, variables, gradient = dense
    verdict = audit.update(model, variables, gradient, batch_size=1, loss="other", **facts)
    assert verdict.verdict == "not attacked"
    assert not verdict.answers
    assert verdict.reasons[0].startswith("The loss is not stated to be the cross-entropy of classes.")
    for reason, what, why in zip(verdict.reasons[1:3], ("Closed forms", "FedLeak without"), whys, strict=True):
        assert reason.startswith(what)
        assert why in reason


@pytest.mark.slow
def test_images_of_several_samples_leak_whatever_the_loss_is(convolutional, tmp_path):
    """The labels are several findings per image, as no cross-entropy of classes has."""
    model = convolutional[0]
    x, variables, gradient = _sent(model, images=2)
    options = {"batch_size": 2, "loss": "other", "out": tmp_path}
    verdict = audit.update(model, variables, gradient, truth=(x, None), **options)
    assert verdict.headline == "leaks images"
    assert [answer.attack for answer in verdict.answers] == [f"{ANY_LOSS}_400"]
    assert verdict.best.shown.all()
    assert verdict.metrics["psnr"] > 40
    assert verdict.best.y.tolist() == [-1, -1]
    again = audit.update(model, variables, gradient, **options)
    assert again.best.seconds == verdict.best.seconds  # it was stored


def _known_images(model, variables, sent, images, **options):
    (found,) = check_known_images(
        protocols.ClientShare(model, **options), variables, sent, (images, None), defended=False, loss_known=False
    )
    return found


def test_known_images_are_compared_whatever_the_loss_is(convolutional):
    """With weights of another round or other images, no loss explains the update."""
    model, _, variables, _ = convolutional
    x, _, gradient = _sent(model, images=2)
    for scale in (1.0, -7.0):  # a factor belongs to the loss
        sent = jax.tree.map(lambda g, scale=scale: scale * g, gradient)
        assert _known_images(model, variables, sent, x).status == "passed"
    later = {**variables, "params": jax.tree.map(lambda w, g: w - g, variables["params"], gradient)}
    for weights, images in ((variables, x[::-1] * 0.9 + 0.05), (later, x)):
        found = _known_images(model, weights, gradient, images)
        assert found.status == "suspicious"
        assert found.cause.startswith("weights of another round")
    turned = {**gradient, "conv_0": {**gradient["conv_0"], "kernel": gradient["conv_0"]["kernel"].swapaxes(0, 1)}}
    found = _known_images(model, variables, turned, x)
    assert (found.status, found.option) == ("failed", "--update")
    assert "axes 0 and 1 are exchanged" in found.cause
    steps = protocols.ClientShare(model, local_steps=2)
    assert not check_known_images(steps, variables, gradient, (x, None), defended=False, loss_known=False)


def test_known_images_show_the_mode_of_normalisation_whatever_the_loss_is():
    model = models.convnet((8, 8, 1), FINDINGS, channels=(4,), strides=(2,), batch_norm=True)
    x, variables, gradient = _sent(model, images=3)
    assert _known_images(model, variables, gradient, x).status == "passed"
    found = _known_images(model, variables, gradient, x, batch_norm="eval")
    assert (found.status, found.option) == ("failed", "--batch-norm train")


@pytest.mark.parametrize("facts", [{"loss": "other"}, pytest.param({"defense": "other"}, marks=pytest.mark.slow)])
def test_more_unknowns_than_numbers_certify_nothing(dense, monkeypatch, facts):
    """Unknown labels and an unknown loss add free numbers, which an answer can choose like its pixels."""
    model, _, variables, gradient = dense
    asked = []

    def search(case, name, attack, observation, *, y=None, **_):
        asked.append((name, case.unknowns))
        return answer_of(name), 1.0

    monkeypatch.setattr(stages, "search", search)
    monkeypatch.setattr(stages, "_LATER", (10**9,))  # more than any budget
    audit.update(model, variables, gradient, batch_size=3, **facts)
    assert asked[-1][0] == f"{ANY_LOSS}_400"
    assert asked[-1][1] >= 3 * FINDINGS
    first = [] if "loss" in facts else [("fedleak_400", 0)]
    assert asked[:-1] == first


@pytest.mark.parametrize(
    ("facts", "advised"),
    [
        ({"loss": "binary_cross_entropy"}, {LOSS_OTHER, DEFENSE_OTHER}),
        ({"defense": "other"}, {LOSS_OTHER}),
        ({"loss": "other"}, {DEFENSE_OTHER}),
    ],
)
def test_no_finding_advises_what_is_stated_already(monkeypatch, convolutional, facts, advised):
    model, _, variables, gradient = convolutional
    monkeypatch.setattr(stages, "search", lambda case, name, *_, **__: (answer_of(name, 0.9), 1.0))
    monkeypatch.setattr(stages, "_LATER", (10**9,))  # more than any budget
    found = audit.update(model, variables, gradient, batch_size=3, **facts).findings
    (option,) = (finding.option for finding in found if finding.name == EXPLAINED)
    assert {known for known in (LOSS_OTHER, DEFENSE_OTHER) if known in option} == advised
    assert option.startswith("--truth of a known batch, --mean, --std, --minutes, ")


def test_a_list_of_options_without_one_of_them_reads_as_a_list():
    def advised(*options):
        return Finding("name", "failed", "evidence", options=options).without([LOSS_OTHER]).option

    assert advised("--weights", LOSS_OTHER, DEFENSE_OTHER) == f"--weights, or {DEFENSE_OTHER}"
    assert advised("--mean", LOSS_OTHER, "--std", "--weights") == "--mean, --std, or --weights"
    assert advised(LOSS_OTHER, DEFENSE_OTHER) == DEFENSE_OTHER
    assert not advised(LOSS_OTHER)
    assert not advised()


@pytest.fixture
def peeled(monkeypatch):
    """A network with a last layer that no attack can read, so that only peeling of a dense layer remains."""
    monkeypatch.setattr(without_loss, "why_not_any_loss", lambda *_: "the network ends in no dense layer that is known")


@pytest.mark.slow
def test_an_update_is_not_called_safe_where_peeling_alone_was_tried(convolutional, peeled, monkeypatch):
    model, _, variables, gradient = convolutional
    monkeypatch.setattr(one_sample, "_PEELED", 4)
    verdict = audit.update(model, variables, gradient, batch_size=1, loss="other")
    assert [answer.attack for answer in verdict.answers] == [PEELED_ALONE]
    assert verdict.answers[0].finished
    assert verdict.verdict == "not attacked"
    assert any("the network ends in no dense layer that is known" in reason for reason in verdict.reasons)


def test_what_peeling_leaves_of_an_update_is_asked_as_well(convolutional, peeled, monkeypatch):
    model, x, variables, _ = convolutional
    y = jnp.zeros(1, jnp.int32)
    sent = jax.jit(protocols.ClientShare(model))(variables, Batch(jnp.asarray(x)[:, None], y, jnp.arange(1)))
    case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), variables, sent))
    case = case._replace(loss_shown=True, store=SimpleNamespace(answer=lambda _: None, keep=lambda *_: None))
    for remainder, explained in ((0.04, True), (0.06, False)):
        answer = answer_of(PEELED, agreement=np.ones(1), remainder=remainder)._replace(x=x, y=np.zeros(1, np.int32))
        monkeypatch.setattr(one_sample, "search", lambda *_, found=answer, **__: (found, 0.0))
        assert [found.explained for found in equations(case)] == [explained]
        below = [found for found in whatever_the_loss(case) if not isinstance(found, str)]
        assert [found.explained for found in below] == [explained]


@pytest.mark.slow
def test_peeling_finds_the_image_whatever_the_loss_is(convolutional, peeled, tmp_path):
    model, x, variables, gradient = convolutional
    options = {"batch_size": 1, "loss": "other", "out": tmp_path}
    verdict = audit.update(model, variables, gradient, **options)
    assert verdict.headline == "leaks images"
    assert verdict.best.attack == PEELED_ALONE
    assert "of that layer's inputs and of the gradient below it has a cosine distance" in verdict.reasons[0]
    assert metrics.ssim(verdict.best.x, x)[0] > 0.95
    assert audit.update(model, variables, gradient, **options).best.seconds == verdict.best.seconds  # it was stored


@pytest.mark.parametrize("part", ["inputs", "below"])
def test_what_is_peeled_must_fit_in_the_layers_inputs_and_below_them(convolutional, peeled, monkeypatch, part):
    """The inputs have the larger norm and would outweigh a wrong gradient below them, so both parts are compared."""
    model, x, variables, gradient = convolutional
    case = {}

    def search(below, name, attack, observation, *, y):
        case["seen"] = observation
        return answer_of(name)._replace(x=x, y=y), 0.0

    def off(tree, name):
        return {**tree, name: -tree[name]}

    of_one_sample = one_sample._of_one_sample

    def changed(given):
        peeled = of_one_sample(given)
        (below,) = (name for name in peeled.observation.payload if "kernel" in name)
        payload = off(peeled.observation.payload, one_sample.CUT if part == "inputs" else below)
        return peeled._replace(observation=peeled.observation._replace(payload=payload))

    monkeypatch.setattr(one_sample, "search", search)
    right = audit.update(model, variables, gradient, batch_size=1, loss="other").best.cosine_distance
    monkeypatch.setattr(one_sample, "_of_one_sample", changed)
    wrong = audit.update(model, variables, gradient, batch_size=1, loss="other").best.cosine_distance
    assert right < 1e-5
    assert wrong > 1.0


@pytest.mark.parametrize("sign", [1, -1])
def test_findings_show_in_the_signs_where_every_output_has_a_binary_cross_entropy(dense, sign):
    """Checks that assume a cross-entropy of classes would refuse the update, and are not run."""
    model, _, variables, gradient = dense
    sent = jax.tree.map(lambda g: sign * g, gradient)
    verdict = audit.update(model, variables, sent, batch_size=1, loss="binary_cross_entropy", minutes=1e-4)
    has = np.asarray(jax.random.bernoulli(jax.random.key(2), 0.4, (1, FINDINGS)))[0]
    assert 0 < has.sum() < FINDINGS
    assert verdict.labels.tolist() == (has if sign == 1 else ~has).astype(int).tolist()
    assert verdict.headline == "leaks images and labels"
    named = ", ".join(str(c) for c in np.flatnonzero(verdict.labels))
    finding = "finding" if verdict.labels.sum() == 1 else "findings"
    assert f"proves that the batch holds samples with {finding} {named}. How many of each" in verdict.reasons[0]
    assert verdict.reasons[0].startswith("If the sign of the update is as stated")


def test_no_finding_is_claimed_of_a_client_with_a_defense(dense):
    model, _, variables, gradient = dense
    facts = {"loss": "binary_cross_entropy", "defense": "other"}
    verdict = audit.update(model, variables, gradient, batch_size=1, minutes=1e-4, **facts)
    assert not verdict.labels.any()
    assert verdict.reasons[-1].startswith("No finding is claimed: the client defends its update")


def test_a_loss_is_cross_entropy_or_another(dense):
    model, _, variables, gradient = dense
    with pytest.raises(
        ValueError, match=r"loss must be cross_entropy, binary_cross_entropy \(of .*\), or other .*; got 'bce'"
    ):
        audit.update(model, variables, gradient, batch_size=1, loss="bce")
