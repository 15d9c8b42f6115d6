"""The misfit of an answer in the layers below the head, since the head may dominate the whole update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import case_of, fresh_head

from jaxleak import Batch, Observation, audit, models, protocols
from jaxleak.attacks._inversion.peeling import CUT
from jaxleak.audit._checks.precision import Precision
from jaxleak.audit._rival import Rival
from jaxleak.audit._verdict.questions import Noise, left_below_head

WEIGHTS = {"conv": jnp.ones(4), "norm": jnp.ones(4), "head": jnp.ones(4)}


def _left(norms, parts, precision=None, head=("head",), noise=None):
    model = models.mlp((4, 4, 1), 3, widths=(2,))._replace(head_leaves=head)
    payload = {name: jnp.full(4, size / 2) for name, size in norms.items()}
    case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), {"params": WEIGHTS}, payload))
    case = case if precision is None else case._replace(precision=precision)
    nothing = np.zeros(0)
    return left_below_head(case, Rival(nothing, 0.0, 0.0, parts, norms, nothing, nothing, nothing), noise)


def test_layers_below_the_head_count_however_small_they_are_beside_it():
    assert _left({"conv": 0.01, "head": 1.0}, {"conv": 0.9, "head": 0.01}) == pytest.approx(0.9)
    both = _left({"conv": 0.03, "norm": 0.04, "head": 1.0}, {"conv": 0.5, "norm": 0.25, "head": 0.0})
    assert both == pytest.approx(np.hypot(0.5 * 0.03, 0.25 * 0.04) / 0.05)
    assert _left({"conv": 0.03, "norm": 0.0, "head": 1.0}, {"conv": 0.5, "norm": np.nan, "head": 0.0}) == 0.5


def test_nothing_is_said_where_it_cannot_be():
    parts = {"conv": 0.9, "head": 0.01}
    assert _left({"conv": 9e-4, "head": 1.0}, parts) == 0  # below a thousandth of the whole norm
    assert _left({"conv": 0.9, "head": 1.0}, parts, head=()) == 0  # the head is unknown
    of_weights = Precision(of_weights=True, scale=1e5)  # rounding errors of 6e-8 * 1e5 for weights of norm 2
    assert _left({"conv": 0.05, "head": 1.0}, parts, of_weights) == 0
    # A quantity computed from the update has its own unit, and its rounding is unknown.
    assert _left({"other": 0.9, CUT: 1.0}, {"other": 0.9, CUT: 0.0}, of_weights) == 0
    assert _left({"other": 0.9, CUT: 1.0}, {"other": 0.9, CUT: 0.0}) == pytest.approx(0.9)


def test_what_the_stated_noise_leaves_of_these_layers_is_taken_off():
    norms = {"conv": 0.1, "head": np.sqrt(1 - 0.1**2)}
    noise = Noise({"conv": 0.1, "head": 9.0}, {"conv": 0.2, "head": 1.0})
    assert _left(norms, {"conv": 0.6, "head": 0.0}, noise=noise) == pytest.approx(np.sqrt(0.6**2 - 0.5**2))
    assert _left(norms, {"conv": 0.4, "head": 0.0}, noise=noise) == 0
    assert noise.of(["conv", "head"]) == pytest.approx(np.hypot(0.1, 9.0) / np.hypot(0.2, 1.0))
    assert Noise({"conv": 0.1}, {"conv": 0.0}).of(["conv"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["none", "other"])
@pytest.mark.parametrize(("scale", "certified"), [(1.0, True), (0.1, False)])
def test_a_rate_of_their_own_below_a_fresh_head_certifies_no_other_image(scale, certified, defense):
    """A head of small weights has nearly the whole norm, so another image can come within 2e-3 in cosine distance."""
    model, variables = fresh_head()
    x = np.random.default_rng(1).random((1, 1, 2, 2, 3)).repeat(4, axis=2).repeat(4, axis=3)
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.array([3], jnp.int32), jnp.arange(1))
    gradient = jax.jit(protocols.ClientShare(model))(variables, batch)
    sent = {name: leaf * (scale if name in "ab" else 1.0) for name, leaf in gradient.items()}
    verdict = audit.update(model, variables, sent, batch_size=1, defense=defense, minutes=3)
    assert verdict.best is not None
    assert verdict.best.shown.all() == certified
    if not certified and defense == "none":
        assert any("layers with a learning rate or a scale of their own" in reason for reason in verdict.reasons)
