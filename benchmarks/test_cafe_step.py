"""One full CAFE iteration (Algorithm 4: V, H and data of one batch) by executor, by form of the convolutions, by N, and
beside PyTorch.

The size is that of the paper's MNIST runs: N = 800, K = 40, four parties with 14x14 tiles. All executors must end with
the same state, and PyTorch's first iteration with the same gradients, before any of them is timed; the time of the
first call, compilation included, is kept apart.
"""

import functools

import jax
import numpy as np
import pytest

from benchmarks import _limits, _problems
from benchmarks._quiet import first_call, measure
from jaxleak import attacks, audit, data, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks import aggregated
from jaxleak.models import _networks

N, K, PARTIES, ROUNDS = 800, 40, 4, 4
KEY = jax.random.key(0)
CASES = {
    **{executor: (executor, "auto") for executor in _problems.EXECUTORS},
    "jit over the loop, patches": ("jit over the loop", "patches"),
    "jit over the loop, lax.conv": ("jit over the loop", "lax"),
}
SETTINGS = aggregated.published_hyperparameters("mnist")
# Layers per party and sample; weights of dense layers are counted as those of convolutions are.
LAYERS = [_limits.conv(14, 5, 1, 64), _limits.conv(7, 5, 64, 128), _limits.dense(2048, 256), _limits.dense(256, 64)]


@functools.cache
def build(form: str = "auto", num_samples: int = N):
    images = data.load("natural_patches:28", num_samples, 0).x[..., :1]
    tiles, _ = data.image_tiles(images, PARTIES)
    model = models.cafe_vertical(tiles.shape[2:], parties=PARTIES, form=form)
    protocol = protocols.vertical(model, num_samples=num_samples, batch_size=K)
    attack = attacks.cafe(
        model,
        protocol.share,
        num_samples=num_samples,
        options=aggregated.CafeOptions(loops="single", switch=False, **SETTINGS._asdict()),
    )
    ids = jax.numpy.arange(num_samples)
    return attack, protocol, Batch(jax.numpy.asarray(tiles), ids % 10, ids)


def one_round(carry, form: str, num_samples: int):
    attack, protocol, private = build(form, num_samples)
    protocol_state, transcript = protocol.round(KEY, carry.protocol, private)
    observation = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
    attack_state, _ = attack.step(KEY, carry.attack, observation)
    return carry._replace(protocol=protocol_state, attack=attack_state)


def rounds_by(executor: str, form: str, length: int, num_samples: int = N):
    """The state at the start, and a function from it to the state `length` rounds later."""
    attack, protocol, private = build(form, num_samples)
    one = functools.partial(one_round, form=form, num_samples=num_samples)
    return audit.start(attack, protocol, private, key=KEY), _problems.repeated(one, executor, length)


@functools.cache
def reference(num_samples: int = N):
    begin, loop = rounds_by("jit over the loop", "patches", 2, num_samples)
    return loop(begin).attack


def assert_same(state, num_samples: int = N) -> None:
    """Assert that a state equals the reference state after two rounds, up to rounding."""
    for ours, theirs in zip(*map(jax.tree.leaves, (state, reference(num_samples))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


@functools.cache
def work() -> _limits.Work:
    # The clients' own gradient is added to the attack's: two products in the first layer, three in each other layer.
    attacked = _limits.matching_step(LAYERS, PARTIES * K)
    passes = [2, *[3] * (len(LAYERS) - 1)]
    own = sum(2 * n * PARTIES * K * layer.products for n, layer in zip(passes, LAYERS, strict=True))
    return attacked._replace(flops=attacked.flops + own)


GROUP = f"CAFE iteration, N = {N}, K = {K}, M = {PARTIES}, 28x28"


@pytest.mark.parametrize("case", CASES)
def test_cafe_step(benchmark, case):
    executor, form = CASES[case]
    begin, two_rounds = rounds_by(executor, form, 2)
    assert_same(two_rounds(begin).attack)
    per_call = ROUNDS if executor == "jit over the loop" else 1
    begin, loop = rounds_by(executor, form, per_call)
    first_call(benchmark, lambda: loop(begin))
    measure(
        benchmark,
        lambda: loop(begin),
        group=GROUP,
        name=case,
        per_call=per_call,
        rounds=3,
        **_limits.columns(work()),
    )


def test_cafe_step_in_pytorch(benchmark, peers):
    from benchmarks import peers_cafe

    _, protocol, private = build()
    begin, loop = rounds_by("jit per step", "auto", 1)
    after = loop(begin).attack
    _, transcript = protocol.round(KEY, begin.protocol, private)
    params = peers_cafe.party_weights(begin.protocol.params, PARTIES)
    params = {name: leaf.requires_grad_() for name, leaf in params.items()}
    arguments = peers.tensor(private.x), peers.tensor(jax.nn.one_hot(private.y, 10))
    index = peers.tensor(transcript.index).long()

    def start():
        a = begin.attack
        return peers_cafe.State(peers.tensor(a.V), *map(peers_cafe.rows, (a.H, a.data.x, a.data.y)))

    state = start()
    first_call(benchmark, lambda: peers_cafe.iteration(params, state, *arguments, index, SETTINGS))
    np.testing.assert_allclose(state.V, after.V, rtol=1e-4, atol=1e-6)
    # After one step Adam's first moment is a tenth of the gradient. Unlike Adam's step it is continuous.
    moments = after.H_optimizer, after.data.x_optimizer, after.data.y_optimizer
    for theirs, ours in zip((state.H, state.x, state.y), moments, strict=True):
        _problems.assert_same_gradient(np.asarray(ours.rows[0].mu), np.asarray(theirs.mu))
    measure(
        benchmark,
        lambda: peers_cafe.iteration(params, state, *arguments, index, SETTINGS),
        group=GROUP,
        name="PyTorch eager",
        rounds=3,
        **_limits.columns(work()),
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_samples", [100, 800, 3200])
@pytest.mark.parametrize("executor", ["op by op", "jit per step", "jit over the loop"])
def test_private_set(benchmark, executor, num_samples):
    begin, loop = rounds_by(executor, "auto", 2, num_samples)
    assert_same(first_call(benchmark, lambda: loop(begin)).attack, num_samples)
    group = f"CAFE iteration by private set, N = {num_samples}, K = {K}, M = {PARTIES}, 28x28"
    measure(benchmark, lambda: loop(begin), group=group, name=executor, per_call=2, rounds=3)


def test_networks_use_the_conv_module():
    # The forms above differ only if the extractor really goes through jaxleak's conv2d.
    assert _networks.conv2d is models.conv2d
