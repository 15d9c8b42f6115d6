"""Time attacks that solve equations instead of descending, by executor: the recording of rounds, and the solutions.

All executors must end with the same state before any of them is timed. A solution is one call, so it has no loop.

Some parts are left out, because they are NumPy and SciPy on the host by design and have nothing to compile: the direct
solver of `cafe_exact`'s Step II (its matrix-free form is one compiled program), `free_labels` behind `vflrecon_free`,
whose recording is in test_vfl.py, and the label rules, k-means and baselines of the vertical attacks.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _problems
from benchmarks._quiet import first_call, measure
from jaxleak import attacks, audit, data, defenses, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks._cafe import censored, least_squares, ordinal

N, K, PARTIES, WIDTH = 60, 12, 4, 64
KEY = _problems.KEY
#: Rounds per call, by executor.
ROUNDS = dict(zip(_problems.EXECUTORS, (2, 2, 20, 20), strict=True))
COMPARED = 2
#: Sweeps of `cafe_ordinal` over Step II.
SWEEPS = 2
#: Hidden units, or features, of each party that `cafe_censored` solves for here, with one decomposition each.
UNITS = 8
SIZE = f"N = {N}, K = {K}, M = {PARTIES}, dense, 28x28"


#: The attacks, each with the defense that it knows.
ATTACKS: dict[str, tuple[Any, defenses.Defense | None]] = {
    "cafe_exact": (attacks.cafe_exact, None),
    "cafe_censored": (attacks.cafe_censored, defenses.fake_gradients(pool_size=1, scale="tensor")),
    "cafe_ordinal": (
        functools.partial(attacks.cafe_ordinal, reading="clamped", sweeps=SWEEPS),
        defenses.fake_gradients(pool_size=1, scale="gradient"),
    ),
}


@functools.cache
def setting(name: str):
    """Attack, plan, protocol and private data."""
    images = data.load("natural_patches:28", N, 0).x[..., :1]
    tiles, _ = data.image_tiles(images, PARTIES)
    model = models.all_dense(tiles.shape[2:], parties=PARTIES, width=WIDTH)
    plan = attacks.plan_cafe_exact(model, num_samples=N, batch_size=K)
    build, defense = ATTACKS[name]
    protocol = protocols.vertical(model, num_samples=N, batch_size=K, defense=defense, sampling="uniform")
    ids = jnp.arange(N)
    return build(model, plan), plan, protocol, Batch(jnp.asarray(tiles), ids % 10, ids)


def one_round(carry: audit.RunState, name: str) -> audit.RunState:
    attack, _, protocol, private = setting(name)
    state, transcript = protocol.round(KEY, carry.protocol, private)
    seen, _ = attack.step(KEY, carry.attack, threats.view(threats.FIRST_LAYER_ONLY, transcript))
    return carry._replace(protocol=state, attack=seen)


@functools.cache
def after(rounds: int, name: str) -> audit.RunState:
    """The state after `rounds` rounds, of an attack that begins with round 0."""
    attack, _, protocol, private = setting(name)
    begin = audit.start(attack, protocol, private, key=KEY)
    return _problems.repeated(functools.partial(one_round, name=name), "jit over the loop", rounds)(begin)


def rounds_of(step: int, name: str):
    """A state early in Step I, or in Step II with V solved (in the second sweep, if there are any), and one round."""
    plan = setting(name)[1]
    sweep = ordinal.sweep_length(plan, SWEEPS) if name == "cafe_ordinal" else 0
    rounds = 3 if step == 1 else plan.output_rounds + sweep + 1
    return after(rounds, name), functools.partial(one_round, name=name)


def output_gradients(name: str):
    """The records of Step I, and the function that solves for its solution."""
    plan = setting(name)[1]
    state = after(plan.output_rounds, name).attack
    recorded = state.batches[: plan.output_rounds], state.bias_gradients
    if name == "cafe_censored":
        few = slice(0, UNITS)
        recorded = recorded[0], recorded[1][:, :, few], state.visible[:, :, few]
        return recorded, lambda r: censored._output_gradients(*r, N)
    if name == "cafe_ordinal":
        return recorded, lambda r: ordinal._output_gradients(*r, "clamped", N)
    return recorded, lambda r: least_squares.solve_output_gradients(*r, N, direct=True)


def features():
    """The records of Step II of `cafe_censored`, and the function that solves for a few features."""
    state = after(setting("cafe_censored")[1].rounds, "cafe_censored").attack
    few = slice(0, UNITS)
    recorded = state.V, state.normal[..., few], state.projected[..., few]
    return recorded, lambda r: censored._features(*r)


def patches():
    """One gradient of a vision transformer with 64 tokens, and the function that solves for its image."""
    model = models.vit((32, 32, 3), 10, depth=2)
    attack = attacks.patch_embedding(model)
    return _problems.observed(model, 1), lambda seen: attack.step(KEY, attack.init(KEY, None), seen)[0]


#: Group: (start and step, whether the step can follow itself).
PROBLEMS = {
    **{
        f"{name}, a round of Step {'I' * step}, {SIZE}": (functools.partial(rounds_of, step, name), True)
        for name in ATTACKS
        for step in (1, 2)
    },
    **{
        f"{name}, solution of Step I, {f'{UNITS} units a party, ' if name == 'cafe_censored' else ''}{SIZE}": (
            functools.partial(output_gradients, name),
            False,
        )
        for name in ATTACKS
    },
    f"cafe_censored, solution of Step II, {UNITS} features a party, {SIZE}": (features, False),
    "patch_embedding, ViT of 64 tokens, d = 192, 32x32x3": (patches, False),
}
CASES = [
    (group, executor)
    for group, (_, repeats) in PROBLEMS.items()
    for executor in _problems.EXECUTORS
    if repeats or executor != "jit over the loop"
]


@functools.cache
def reference(group: str, rounds: int):
    begin, one = PROBLEMS[group][0]()
    return _problems.repeated(one, "jit per step", rounds)(begin)


@pytest.mark.parametrize(("group", "executor"), CASES)
def test_solving_attack(benchmark, group, executor):
    start, repeats = PROBLEMS[group]
    begin, one = start()
    compared, length = (COMPARED, ROUNDS[executor]) if repeats else (1, 1)
    expected = reference(group, compared)
    found = _problems.repeated(one, executor, compared)(begin)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        scale = float(np.abs(theirs).max()) or 1.0
        # A scalar is a count, or the residual of an exact solution, which is 1e-7 by rounding.
        rounding = 1e-8 if not np.ndim(theirs) else 0.0
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4 * scale + rounding)
    call = _problems.repeated(one, executor, length)
    first_call(benchmark, lambda: call(begin))
    measure(benchmark, lambda: call(begin), group=group, name=executor, per_call=length, rounds=3)
