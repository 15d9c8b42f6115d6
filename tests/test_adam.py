"""A client that trains by Adam: the upload of one step, what the server computes from it, and its audit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_updates import perceptron, pictures, sent_by

from jaxleak import Batch, Observation, attacks, audit, capture, models, protocols
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks.adaptive._adam import BeforeAdam
from jaxleak.audit._checks.adam import check_adam_step, check_not_adam
from jaxleak.audit._checks.precision import FULL, precision_of
from jaxleak.defenses import adam_step, client_defense
from jaxleak.defenses.mechanisms import AdamStep

RATE, DECAY = 1e-3, 0.01


def stepped(weights, gradient, rate, decay, epsilon=1e-8):
    """The weights after a first step of AdamW by the published algorithm, rounding after every operation."""
    f = np.float32
    mean = f(0.9) * f(0) + f(1 - 0.9) * gradient
    square = f(0.999) * f(0) + f(1 - 0.999) * gradient * gradient
    weights = weights * f(1 - rate * decay)
    root = np.sqrt(square) / f(np.sqrt(1 - 0.999)) + f(epsilon)
    return weights - f(rate / (1 - 0.9)) * (mean / root)


def drawn(seed, size=4000):
    """Weights and gradients over many orders of magnitude, including zeros."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-3, 0, size), 10.0 ** rng.uniform(-11, -1, size)
    weights, gradient = (np.asarray(scale * rng.normal(size=size), np.float32) for scale in scales)
    weights[:50], gradient[25:75] = 0, 0
    return weights, gradient


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_a_step_is_that_of_the_published_algorithm(decay):
    weights, gradient = drawn(0)
    sent = adam_step(RATE, weight_decay=decay).apply(
        jax.random.key(0), {"w": jnp.asarray(gradient)}, variables={"params": {"w": jnp.asarray(weights)}}
    )
    expected = (weights - stepped(weights, gradient, RATE, decay)) / np.float32(RATE)
    # Fused operations round once less often: results may differ by a weight's last bit, divided by the rate.
    np.testing.assert_allclose(sent["w"], expected, rtol=1e-6, atol=np.spacing(np.float32(3.0)) / RATE)
    assert np.median(np.abs(sent["w"] - expected)) < 1e-6


@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("rate", [1e-2, 1e-3, 1e-4])
def test_the_bounds_hold_every_gradient_and_tell_most(rate, decay):
    weights, gradient = drawn(1)
    sent = jnp.asarray((weights - stepped(weights, gradient, rate, decay)) / np.float32(rate))
    before, tree = BeforeAdam(AdamStep(rate, 1e-8, decay)), {"params": {"w": jnp.asarray(weights)}}
    lower, upper = before.bounds(sent, jnp.asarray(weights), 0.0)
    assert (np.asarray(lower) <= gradient).all()
    assert (gradient <= np.asarray(upper)).all()
    seen = Observation(jnp.zeros((), jnp.int32), tree, {"w": sent})
    likeliest = np.asarray(before.read(seen).payload["w"])
    told = np.isfinite(lower) & np.isfinite(upper)
    assert ((lower <= likeliest) & (likeliest <= upper))[told].all()
    # A smaller step is rounded more coarsely. This share of the gradients between 1e-6 and 1e-4 is known to 10 %.
    middle = (np.abs(gradient) > 1e-6) & (np.abs(gradient) < 1e-4)
    known = np.abs(likeliest - gradient)[middle] < 0.1 * np.abs(gradient)[middle]
    assert known.mean() > {1e-2: 0.95, 1e-3: 0.7, 1e-4: 0.35}[rate]


def test_the_nearest_gradient_is_the_simulated_one_as_far_as_the_bounds_let_it():
    weights, sent = jnp.full(4, 0.5), jnp.asarray([1.0, -1.0, 0.5, 0.0])
    before = BeforeAdam(AdamStep(1e-2, 1e-8, 0.0))
    seen = Observation(jnp.zeros((), jnp.int32), {"params": {"w": weights}}, {"w": sent})
    nearest = np.asarray(before.nearest(seen, {"w": jnp.asarray([3.0, 3.0, 3.0, 3.0])})["w"])
    lower, upper = before.bounds(sent, weights, 0.0)
    assert nearest[0] == 3  # no size is too large for an entry of 1
    assert nearest[1] == upper[1] < 0  # the sign is certain
    np.testing.assert_allclose(nearest[2], 1e-8, rtol=1e-3)  # g / (|g| + 1e-8) = 0.5
    assert 0 < nearest[3] == upper[3] == -lower[3] < 1e-12
    assert list(np.asarray(before.told(seen)["w"])) == [False, False, True, False]


@pytest.mark.parametrize("rate", [1e-2, 1e-4])
@pytest.mark.parametrize("largest", [0.5, 1e-4])
def test_the_bounds_hold_behind_optax_whose_first_step_is_a_little_shorter(rate, largest):
    weights, gradient = drawn(3)
    gradient = np.clip(gradient, -largest, largest)
    optimizer = optax.adam(rate)
    moved, _ = optimizer.update(jnp.asarray(gradient), optimizer.init(jnp.asarray(weights)))
    sent = (weights - (jnp.asarray(weights) + moved)) / rate
    seen = Observation(jnp.zeros((), jnp.int32), {"params": {"w": jnp.asarray(weights)}}, {"w": sent})
    before = BeforeAdam(AdamStep(rate, 1e-8, 0.0))
    np.testing.assert_allclose(before.nearest(seen, {"w": jnp.asarray(gradient)})["w"], gradient, rtol=1e-6)
    assert check_adam_step(before.step, seen.payload, seen.params, FULL).status != "failed"


@pytest.fixture(scope="module")
def client():
    """A client that already classifies its one image correctly and so has a small gradient, and its upload."""
    model = perceptron()
    variables, batch, _ = sent_by(model)
    batch = batch._replace(x=jnp.asarray(pictures(1), jnp.float32)[:, None])
    head = variables["params"]["head"]
    sure = {**variables["params"], "head": {**head, "bias": head["bias"].at[batch.y[0]].add(7.0)}}
    variables = {**variables, "params": sure}
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    sent = adam_step(RATE).apply(jax.random.key(0), gradient, variables=variables)
    return model, variables, batch, gradient, sent


@pytest.mark.slow
def test_who_undoes_the_step_finds_the_image_and_who_does_not_finds_none(client):
    model, variables, batch, _, sent = client
    share, settings = protocols.ClientShare(model), presets.fedleak(400)
    known = adaptive.informed(adam_step(RATE), model, share, settings, batch_size=1)
    assert known.share is share
    # Little more than signs arrives of the head bias's gradient, and rules that read its sizes find other labels.
    assert known.settings.labels == "corrected_counts"
    joint = adaptive.informed(adam_step(RATE), model, share, settings._replace(labels="joint"), batch_size=1)
    assert joint.settings.labels == "joint"
    seen = Observation(jnp.zeros((), jnp.int32), variables, sent)
    errors = {}
    for name, of in (("knows", known.settings), ("does not", settings)):
        attack = attacks.inversion(model, share, of, batch_size=1)
        found, _, _ = audit.invert(attack, seen, audit.template_of(batch), key=jax.random.key(1))
        errors[name] = float(jnp.mean((found.x - batch.x) ** 2))
        assert bool(found.gradient_matched.all()) == (name == "knows")
    assert found.y[0] == batch.y[0]  # signs reveal a single label to any attacker
    assert errors["knows"] < 5e-3 < 5e-2 < errors["does not"], errors


@pytest.mark.slow
def test_an_audit_says_that_a_stated_step_of_adam_leaks(client, tmp_path):
    model, variables, batch, gradient, _ = client
    rate = 0.01
    after = adam_step(rate, weight_decay=DECAY).apply(jax.random.key(0), gradient, variables=variables)
    after = jax.tree.map(lambda w, sent: w - jnp.float32(rate) * sent, variables["params"], after)
    facts = {"learning_rate": rate, "batch_size": 1, "defense": "adamw_step"}
    capture.save(tmp_path / "u", after, kind="weights", **facts)
    verdict = audit.update(model, variables, tmp_path / "u", truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict == "leaks", verdict.reasons
    assert verdict.metrics["psnr"] > 18
    assert not any("knows no defense" in reason for reason in verdict.reasons)


def test_an_audit_names_adam_where_nothing_is_stated(client):
    model, variables, _, gradient, sent = client
    verdict = audit.update(model, variables, sent, batch_size=1)
    assert verdict.verdict == "inputs inconsistent"
    assert "step of Adam" in verdict.reasons[0]
    assert "--defense adam_step" in verdict.reasons[0]
    assert not verdict.answers
    assert check_not_adam(gradient) == []
    assert check_not_adam({"w": jnp.ones(99)}) == []  # too few entries to decide


def test_a_gradient_of_one_size_is_none_of_adam(client):
    """A white image in a softmax regression of two classes gives a gradient with entries of one size."""
    model = models.mlp((16, 16, 1), 2, widths=())
    variables = reference.drawn(model)
    white = Batch(jnp.ones((1, 1, 16, 16, 1)), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    gradient = jax.jit(protocols.ClientShare(model))(variables, white)
    assert check_not_adam(gradient)
    assert not any(found.status == "failed" for found in audit.check_update(
        protocols.ClientShare(model), variables, gradient, batch_size=1
    ))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-3, 1e-5])
def test_no_image_is_certified_of_signs(client, rate):
    """Rounding spreads the entries of a step, but its rank stays one, as for the gradient of one sample."""
    model, variables, batch, gradient, _ = client
    sent = adam_step(rate).apply(jax.random.key(0), gradient, variables=variables)
    verdict = audit.update(model, variables, sent, batch_size=1, loss="other", truth=(batch.x[:, 0], batch.y))
    assert verdict.verdict == "not attacked", verdict.reasons


def test_a_step_of_another_rate_is_no_step_of_the_stated_one(client):
    _, variables, _, gradient, sent = client
    assert check_adam_step(AdamStep(RATE, 1e-8, 0.0), sent, variables, FULL).status == "passed"
    for factor, decay in ((2.0, 0.0), (0.5, 0.0), (1.0, 1.0)):
        other = jax.tree.map(lambda leaf, factor=factor: factor * leaf, sent)
        found = check_adam_step(AdamStep(RATE, 1e-8, decay), other, variables, FULL)
        assert found.status == "failed", (factor, decay)
        assert "learning rate" in found.cause
    assert check_adam_step(AdamStep(RATE, 1e-8, 0.0), gradient, variables, FULL).status in ("failed", "suspicious")
    coarse = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), sent)
    precision = precision_of(jax.tree.leaves(coarse), coarse)
    assert check_adam_step(AdamStep(RATE, 1e-8, 0.0), coarse, variables, precision).status == "failed"


def test_a_step_whose_moments_remember_others_is_suspicious(client):
    model, variables, batch, gradient, _ = client
    earlier = jax.jit(protocols.ClientShare(model))(variables, batch._replace(x=1 - batch.x, y=batch.y + 1))
    optimizer = optax.adam(RATE)
    _, state = optimizer.update(earlier, optimizer.init(variables["params"]))
    moved, _ = optimizer.update(gradient, state)
    later = jax.tree.map(lambda leaf: -leaf / RATE, moved)
    found = check_adam_step(AdamStep(RATE, 1e-8, 0.0), later, variables, FULL)
    assert found.status in ("suspicious", "failed")
    assert "moments that remember earlier steps" in found.cause


def test_bad_statements_are_refused_by_name(client):
    model, variables, _, _, sent = client
    stated = {"batch_size": 1, "defense": "adam_step"}
    for facts, message in (
        ({"strength": RATE, "learning_rate": 2 * RATE}, "the two must be equal, got 0.001 and 0.002"),
        ({"learning_rate": RATE, "reduction": "sum"}, "reduction must be mean with adam_step"),
        ({}, "its learning rate of Adam"),
        ({"strength": RATE, "learning_rate": RATE, "local_steps": 2}, "needs one local step in all, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            audit.update(model, variables, sent, **stated, **facts)
    for options in ({"learning_rate": 0}, {"learning_rate": 1, "epsilon": 0}, {"learning_rate": 1, "weight_decay": -1}):
        with pytest.raises(ValueError, match=f"{list(options)[-1]} must be"):
            adam_step(**options)
    with pytest.raises(ValueError, match="adam_step needs the keyword variables"):
        client_defense("adam_step", RATE).apply(jax.random.key(0), sent)


@pytest.mark.parametrize("decay", [0.0, DECAY])
def test_pytorch_takes_the_same_step(decay):
    torch = pytest.importorskip("torch")
    weights, gradient = drawn(2)
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    parameter.grad = torch.from_numpy(gradient.copy())
    kind = torch.optim.AdamW if decay else torch.optim.Adam
    kind([parameter], lr=RATE, weight_decay=decay).step()
    sent = jnp.asarray((weights - parameter.detach().numpy()) / np.float32(RATE))
    lower, upper = BeforeAdam(AdamStep(RATE, 1e-8, decay)).bounds(sent, jnp.asarray(weights))
    assert (np.asarray(lower) <= gradient).all()
    assert (gradient <= np.asarray(upper)).all()
