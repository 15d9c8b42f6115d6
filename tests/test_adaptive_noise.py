"""In which units an attacker who knows the noise compares, and how it weighs tensors whose noise it has measured."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import defenses, models, objectives, protocols
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.attacks.adaptive._likelihood import proportional_likelihood, shadow_weights


def test_a_neighbours_noise_doubles_the_variance():
    model = models.build("mlp", (4, 4, 1), 3)
    share = protocols.ClientShare(model)
    observed, simulated = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.9, -2.2, 0.7])}
    own, shared = (
        adaptive.informed(noise, model, share, presets.fedleak(5), batch_size=1).settings.gradients.distance(
            observed, simulated
        )
        for noise in (defenses.magnitude_noise(0.5), defenses.cancelling_noise(0.5, 2))
    )
    assert float(own) == pytest.approx(2 * float(shared))  # a client's own noise and that of one neighbour
    assert float(shared) > 0


def test_entries_of_zero_are_weighed_by_a_tenth_of_the_mean_square():
    """Their noise vanishes with them, and what an attacker makes of them must not be infinitely wrong."""
    observed = {"w": np.array([2.0, 0.0, -1.0], np.float32), "b": np.array([1.0], np.float32)}
    simulated = {"w": np.array([1.5, 0.5, -1.0], np.float32), "b": np.array([0.0], np.float32)}
    a, b = (np.concatenate([tree["w"], tree["b"]]) for tree in (observed, simulated))
    expected = np.mean((a - b) ** 2 / (a**2 + 0.1 * np.mean(a**2))) / 0.5**2
    assert float(proportional_likelihood(0.5)(observed, simulated)) == pytest.approx(expected, rel=1e-5)
    nothing = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}
    assert float(proportional_likelihood(0.5)(nothing, simulated)) == pytest.approx(np.mean(b**2) / 0.5**2, rel=1e-5)


@pytest.mark.parametrize(
    ("defense", "round_", "likelihood"),
    [
        (defenses.gaussian_payload_noise(0.2), 0, objectives.gaussian_likelihood(0.2)),
        (defenses.laplace_noise(0.3), 0, objectives.laplace_likelihood(0.3)),
        (defenses.clipped_gaussian(2.0, 0.5), 0, objectives.gaussian_likelihood(1.0)),  # of the clipped payload
        (defenses.dp_sgd(2.0, 0.5), 0, objectives.gaussian_likelihood(1.0 / 4)),  # of a sum over four examples
        (defenses.adaptive_dp_sgd(2.0, 0.5, decay=0.9), 3, objectives.gaussian_likelihood(0.9**3 / 4)),
    ],
)
def test_noise_is_compared_in_its_own_units(defense, round_, likelihood):
    model = models.build("mlp", (4, 4, 1), 3)
    known = adaptive.informed(
        defense, model, protocols.ClientShare(model), presets.fedleak_paper(5), batch_size=4, round=round_
    ).settings
    observed, simulated = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.9, -2.2, 0.7])}
    expected = float(likelihood(observed, simulated))
    assert float(known.gradients.distance(observed, simulated)) == pytest.approx(expected, rel=1e-6)
    assert known.gradients.selection is None  # entries weigh by their noise, and none is left out
    assert (known.weight("tv"), known.weight("activation")) == (0.1, 0.0)


def test_shadow_weights_are_the_share_of_the_signal_in_every_tensor():
    """A client whose payload is known, and a defense that moves every entry by one."""
    model, drawn = models.build("mlp", (4, 4, 1), 3), []

    def share(variables, batch):
        drawn.append((batch.x.shape, batch.y.shape))
        inside = ((batch.x >= 0) & (batch.x <= 1)).all() & ((batch.y >= 0) & (batch.y < 3)).all()
        return {"a": jnp.where(inside, jnp.array([1.0, 2.0]), jnp.nan), "b": jnp.zeros(3), "c": jnp.full(2, 0.5)}

    share.batch_norm = "train"
    moving = SimpleNamespace(apply=lambda key, payload, **_: {name: leaf + 1 for name, leaf in payload.items()})
    weights = shadow_weights(KnownClient(moving, model, share, 5))
    assert weights == pytest.approx((2.5 / 3.5, 1.0, 0.25 / 1.25))  # a tensor without signal is not weighed down
    assert drawn == [((5, 1, 4, 4, 1), (5,))]
    given = model.init(jax.random.key(3))
    seen = []
    share_of = lambda variables, batch: seen.append(variables) or {"a": jnp.ones(1)}  # noqa: E731
    share_of.batch_norm = "train"
    shadow_weights(KnownClient(moving, model, share_of, 5, variables=given))
    assert jax.tree.structure(seen[0]) == jax.tree.structure(given)
