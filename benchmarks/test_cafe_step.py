"""One full CAFE iteration (Algorithm 4: V, H and data of one batch) by executor and by form of the convolutions.

The size is that of the paper's MNIST runs: N = 800, K = 40, four parties with 14x14 tiles. All executors must end with
the same state before any of them is timed; the time of the first call, compilation included, is kept apart.
"""

import time

import jax
import numpy as np
import pytest

from jaxleak import attacks, audit, data, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.models import _networks

N, K, PARTIES, ROUNDS = 800, 40, 4, 4
CASES = {
    "op by op": ("eager", "patches"),
    "jit per step": ("step", "patches"),
    "jit over the loop": ("scan", "patches"),
    "jit per step, lax.conv": ("step", "lax"),
    "jit over the loop, lax.conv": ("scan", "lax"),
}


def build(form: str):
    images = data.load("natural_patches:28", N, 0).x[..., :1]
    tiles, _ = data.image_tiles(images, PARTIES)
    model = models.cafe_vertical(tiles.shape[2:], parties=PARTIES, form=form)
    protocol = protocols.vertical(model, num_samples=N, batch_size=K)
    attack = attacks.cafe(
        model, protocol.share, num_samples=N, loops="single", switch=False, **attacks.table9("mnist")._asdict()
    )
    private = Batch(jax.numpy.asarray(tiles), jax.numpy.arange(N) % 10, jax.numpy.arange(N))
    return attack, protocol, private


def run(form: str, executor: str, rounds: int):
    attack, protocol, private = build(form)
    state, infos = audit.run(
        attack,
        protocol,
        threats.HONEST_BUT_CURIOUS_SERVER,
        private,
        key=jax.random.key(0),
        rounds=rounds,
        chunk=rounds,
        executor=executor,
    )
    return jax.block_until_ready(state), infos


@pytest.fixture(scope="module")
def reference():
    return run("patches", "scan", 2)


@pytest.mark.parametrize("case", CASES)
def test_cafe_step(benchmark, case, reference):
    executor, form = CASES[case]
    state, _ = run(form, executor, 2)
    for ours, theirs in zip(jax.tree.leaves(state.attack), jax.tree.leaves(reference[0].attack), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)

    attack, protocol, private = build(form)
    key = jax.random.key(0)
    begin = audit.start(attack, protocol, private, key=key)

    def one_round(carry):
        protocol_state, transcript = protocol.round(key, carry.protocol, private)
        observation = threats.view(threats.HONEST_BUT_CURIOUS_SERVER, transcript)
        attack_state, _ = attack.step(key, carry.attack, observation)
        return carry._replace(protocol=protocol_state, attack=attack_state)

    if executor == "scan":
        compiled = jax.jit(lambda carry: jax.lax.scan(lambda c, _: (one_round(c), None), carry, length=ROUNDS)[0])
        per_call = ROUNDS
    else:
        compiled, per_call = (one_round if executor == "eager" else jax.jit(one_round)), 1
    first = time.perf_counter()
    jax.block_until_ready(compiled(begin))
    benchmark.extra_info["first_call_seconds"] = time.perf_counter() - first
    benchmark.extra_info["rounds_per_call"] = per_call
    benchmark.group = "CAFE iteration, N = 800, K = 40, M = 4, 28x28"
    benchmark.name = case
    benchmark.pedantic(lambda: jax.block_until_ready(compiled(begin)), rounds=3, iterations=1)


def test_networks_use_the_conv_module():
    # The forms above differ only if the extractor really goes through jaxleak's conv2d.
    assert _networks.conv2d is models.conv2d
