"""Step III's solver against slow references: one smoothed Gauss-Newton step, and the loop around the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxleak.attacks._cafe import feature_inversion
from jaxleak.attacks._cafe.feature_inversion import FeatureInversionOptions, invert_features

PIXELS, FEATURES = 6, 14
STEP = jax.jit(feature_inversion._gauss_newton_step, static_argnums=(0, 5))


def _features(weights, x, temperature):
    """A ReLU layer; a temperature smooths the layer and its derivative."""
    z = x @ weights
    return jax.nn.relu(z) if temperature is None else temperature[:, None] * jax.nn.softplus(z / temperature[:, None])


def _slow_step(weights, x, h, scale, options):
    """A slow reference for a step: least squares over growing Krylov spaces, in double precision."""
    z = x @ weights
    r = np.maximum(z, 0) - h
    loss = r @ r
    slope = weights * scipy.special.expit(z / (scale * np.sqrt(loss / len(r))))
    gradient = slope @ r
    free = ~(((x <= 0) & (gradient > 0)) | ((x >= 1) & (gradient < 0)))
    normal = (slope @ slope.T)[np.ix_(free, free)]
    krylov = [np.linalg.matrix_power(normal, k) @ gradient[free] for k in range(free.sum())]
    best, best_loss, stalled = x, loss, 0
    for products in range(2, options.max_cg + 1, 2):
        basis = np.linalg.qr(np.stack(krylov[:products], axis=1))[0]
        move = np.zeros(len(x))
        move[free] = basis @ np.linalg.lstsq(slope[free].T @ basis, -r, rcond=None)[0]
        candidate = np.clip(x + move, 0, 1)
        new = np.sum((np.maximum(candidate @ weights, 0) - h) ** 2)
        stalled = 0 if new < 0.98 * best_loss else stalled + 1
        if new < best_loss:
            best, best_loss = candidate, new
        if stalled == options.patience:
            break
    return best, best_loss < 0.999 * loss, np.sqrt(best_loss)


@pytest.mark.parametrize("scale", [1.0, 0.2])
@pytest.mark.parametrize(
    "options", [{"max_cg": 2}, {"max_cg": 6, "patience": 1}, {"max_cg": 6, "patience": 3}], ids=str
)
def test_a_step_is_the_best_of_its_krylov_spaces(scale, options):
    options = FeatureInversionOptions(**options)
    rng, improved = np.random.default_rng(0), []
    for case in range(12):
        weights = np.linalg.qr(rng.standard_normal((FEATURES, PIXELS)))[0].T + 0.1 * rng.standard_normal(
            (PIXELS, FEATURES)
        )
        x = rng.uniform(-0.5, 1.5, PIXELS).clip(0, 1)
        h = np.maximum(rng.random(PIXELS) @ weights, 0) + (2.0 * (case % 3 == 2)) * rng.standard_normal(FEATURES)
        if case == 0:  # the start is optimal: nothing improves
            h = np.maximum(x @ weights, 0)
            h -= 1e-3 * (h == 0)
        expected = _slow_step(weights, x, h, scale, options)
        with jax.enable_x64(True):
            found = STEP(_features, *map(jnp.asarray, (weights, x, h, scale)), options)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        assert bool(found[1]) == expected[1]
        assert float(found[2]) == pytest.approx(expected[2], rel=1e-6)
        improved.append(expected[1])
    assert 1 < sum(improved) < 12


def _slow_run(weights, h, start, key, options):
    """A slow reference for the loop around the steps; the steps are the library's own."""
    size = np.linalg.norm(h)
    x = best = np.clip(start, 0, 1)
    least = np.linalg.norm(np.maximum(x @ weights, 0) - h) / size
    scale, failures, since, steps, restarts, settled, events = 1.0, 0, 0, 0, 0, False, set()
    while least > options.tolerance and not settled and restarts <= options.max_restarts:
        x, improved, residual = STEP(_features, weights, x, h, jnp.asarray(scale), options)
        steps, since = steps + 1, since + 1
        if residual / size < least:
            best, least = x, residual / size
        failures = 0 if improved else failures + 1
        scale = min(1.0, 1.5 * scale) if improved else scale / 2
        settled = bool(least < options.settled) and failures >= 2
        if not settled and (failures == 6 or since == options.max_steps):
            events.add("failures" if failures == 6 else "steps")
            kick = feature_inversion._kick(jax.random.fold_in(key, restarts), x.shape, restarts, options.kick)
            x, scale, failures, since, restarts = jnp.clip(best + kick, 0, 1), 1.0, 0, 0, restarts + 1
    events.add("settled" if settled else "done" if least <= options.tolerance else "given up")
    return best, float(least), steps, min(restarts, options.max_restarts), events


@pytest.mark.slow
def test_what_is_done_between_the_steps():
    rng, seen = np.random.default_rng(1), set()
    noise = np.repeat([0.0, 2e-4, 1.0], 4)[:, None]
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 12)
        for max_steps in (4, 40):
            options = FeatureInversionOptions(max_steps=max_steps, max_restarts=2, kick=0.2)
            weights, x = rng.standard_normal((PIXELS, FEATURES)), rng.random((12, PIXELS))
            h = jnp.asarray(np.maximum(x @ weights, 0) + noise * rng.standard_normal((12, FEATURES)))
            weights, start = jnp.asarray(weights), jnp.asarray(rng.uniform(-0.2, 1.2, (12, PIXELS)))
            solve = jax.jit(invert_features, static_argnums=0, static_argnames="options")
            found = solve(_features, weights, h, start, keys=keys, options=options)
            for n in range(12):
                best, least, steps, restarts, events = _slow_run(weights, h[n], start[n], keys[n], options)
                assert (found.steps[n], found.restarts[n]) == (steps, restarts), n
                np.testing.assert_allclose(found.x[n], best, atol=1e-5)
                assert float(found.residual[n]) == pytest.approx(least, rel=1e-6, abs=1e-9)
                seen |= events
    assert seen == {"failures", "steps", "settled", "done", "given up"}
