"""Step III on one party's tiles: by executor, and smoothed Gauss-Newton against Adam for the same number of seconds.

The second comparison is not about steps: what counts is the residual that is reached in a given time, on the same tiles
from the same start. In the first, all executors must end at the same tile before any of them is timed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import _problems
from benchmarks._quiet import first_call, measure
from jaxleak import data, models
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe import decoder

TILES = 8
#: Options of the comparison by executor, on one tile: in Python every step of every loop takes many calls.
SHORT = aggregated.FeatureInversionOptions(max_steps=2, max_restarts=0)


@pytest.fixture(scope="module")
def problem():
    images = data.load("natural_patches", TILES, 0).x
    tiles, _ = data.image_tiles(images, 4)
    model = models.cafe_vertical(tiles.shape[2:])
    params = model.init(jax.random.key(0))
    extractor = jax.tree.map(lambda leaf: leaf[0], params["extractor"])
    x = jnp.asarray(tiles[:, 0])
    h = model.party_features(extractor, x, None)
    slices = jnp.asarray(decoder.synthetic_slices(0, 2000, tiles.shape[2:]))
    fitted = decoder.ridge_decoder(model.party_features, extractor, slices)
    return model, extractor, h, decoder.decode(fitted, h, tiles.shape[2:])


def median_residual(model, extractor, x, h):
    misfit = jnp.linalg.norm(model.party_features(extractor, x, None) - h, axis=1)
    return float(jnp.median(misfit / jnp.linalg.norm(h, axis=1)))


@pytest.mark.parametrize("method", ["smoothed Gauss-Newton", "Adam 0.02"])
def test_step_three(benchmark, method, problem):
    model, extractor, h, start = problem
    keys = jax.random.split(jax.random.key(0), TILES)
    gauss_newton = jax.jit(lambda h, x: aggregated.invert_features(model.party_features, extractor, h, x, keys=keys).x)

    def adam(h, x, steps=300):
        optimizer = optax.adam(0.02)

        def step(carry, _):
            x, state = carry
            loss = lambda x: jnp.sum((model.party_features(extractor, x, None) - h) ** 2)  # noqa: E731
            updates, state = optimizer.update(jax.grad(loss)(x), state)
            return (jnp.clip(optax.apply_updates(x, updates), 0, 1), state), None

        return jax.lax.scan(step, (x, optimizer.init(x)), length=steps)[0][0]

    solve = gauss_newton if method.startswith("smoothed") else jax.jit(adam)
    x = first_call(benchmark, lambda: solve(h, start))
    measure(
        benchmark,
        lambda: solve(h, start),
        group=f"Step III, {TILES} tiles of 16x16x3",
        name=method,
        rounds=3,
        **{"median relative residual": median_residual(model, extractor, x, h)},
    )


# The steps are a loop inside one call, so "jit over the loop" here means the compiled call.
@pytest.mark.parametrize("executor", [e for e in _problems.EXECUTORS if e != "jit per step"])
def test_step_three_by_executor(benchmark, executor, problem):
    model, extractor, h, start = problem
    keys = jax.random.split(jax.random.key(0), 1)

    def invert(start):
        return aggregated.invert_features(model.party_features, extractor, h[:1], start, keys=keys, options=SHORT).x

    expected = jax.jit(invert)(start[:1])
    call = jax.jit(invert) if executor == "jit over the loop" else _problems.repeated(invert, executor, 1)
    found = first_call(benchmark, lambda: call(start[:1]))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    group = f"Step III, one tile of 16x16x3, {SHORT.max_steps} Gauss-Newton steps"
    measure(benchmark, lambda: call(start[:1]), group=group, name=executor, per_call=SHORT.max_steps, rounds=3)
