"""Time split vertical training under VFLRecon or its initialisation-free variant, by executor; one step by cipher.

The size is that of the paper's tables: two parties, bottoms 50-50, top 100-100, batches of 16, R 1000-600-200; the data
are digits. All entries of a table must end with the same numbers before any of them is timed; the time of the first
call, compilation included, is kept apart.
"""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _problems
from benchmarks._quiet import first_call, measure
from jaxleak import attacks, audit, data, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks import party_records

N, B, PARTY, ACTIVE = 320, 16, 0, 1
STEPS = N // B  # one epoch
THREAT = threats.party_view(PARTY)
KEY = jax.random.key(0)
CIPHERS = {"no cipher": None, "same algebra, no ciphertexts": "plain", "CKKS": "ckks"}


def samples():
    table = data.load_table("digits")
    rows = np.random.default_rng(0).permutation(len(table.y))[: 2 * N]
    x = data.encode(data.fit_encoding(table, rows[:N]), table)
    half = x.shape[1] // 2
    slices = data.party_slices(x, [np.arange(half), np.arange(half, x.shape[1])])
    ids = jnp.arange(N, dtype=jnp.int32)
    model = models.bottom_top((half, x.shape[1] - half), table.num_classes)
    return model, *(Batch(jnp.asarray(slices[own]), jnp.asarray(table.y[own]), ids) for own in (rows[:N], rows[N:]))


@pytest.fixture(scope="module")
def setting():
    """Attack with a trained R, protocol, and the data of the real run."""
    model, shadow, private = samples()
    protocol = protocols.split_training(model, num_samples=N, batch_size=B)
    _, seen = audit.watch(protocol, THREAT, shadow, protocol.init(KEY), key=jax.random.key(1), rounds=STEPS)
    nets = {
        task: attacks.train_vflrecon(KEY, seen, shadow, model, party=PARTY, task=task, fields=fields, epochs=1)
        for task, fields in (("labels", ("gradient",)), ("features", ("gradient", "outputs", "inputs")))
    }
    return attacks.vflrecon(model, party=PARTY, num_samples=N, **nets), protocol, private


def epoch_by(executor, setting):
    """The state at the start, and a function from it to the state after an epoch."""
    attack, protocol, private = setting
    begin = audit.start(attack, protocol, private, key=KEY)

    def one_round(carry):
        state, transcript = protocol.round(KEY, carry.protocol, private)
        attack_state, _ = attack.step(KEY, carry.attack, threats.view(THREAT, transcript))
        return carry._replace(protocol=state, attack=attack_state)

    return begin, _problems.repeated(one_round, executor, STEPS)


@pytest.fixture(scope="module")
def reference(setting):
    begin, epoch = epoch_by("jit over the loop", setting)
    return jax.block_until_ready(epoch(begin))


def assert_same(ours, theirs, **tolerance):
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("executor", _problems.EXECUTORS)
def test_vfl_epoch(benchmark, executor, setting, reference):
    begin, epoch = epoch_by(executor, setting)
    state = first_call(benchmark, lambda: epoch(begin))
    assert int(np.sum(state.attack.seen)) == N  # an epoch, and every sample attacked once
    assert_same(state.attack, reference.attack, rtol=2e-3, atol=2e-3)
    assert_same(state.protocol.params, reference.protocol.params, rtol=2e-3, atol=2e-4)
    group = "VFLRecon, training and attack per step of an epoch, N = 320, B = 16, two parties"
    measure(benchmark, lambda: epoch(begin), group=group, name=executor, per_call=STEPS, rounds=3)


@pytest.fixture(scope="module")
def free_setting(setting):
    """The variant that only records during the rounds, protocol and data; its clustering is NumPy on the host."""
    _, protocol, private = setting
    model, shadow, _ = samples()
    baseline = party_records.fit_label_baseline(np.asarray(shadow.x[:, PARTY]), np.asarray(shadow.y), model.num_classes)
    sizes = {"num_samples": N, "rounds": STEPS, "batch_size": B}
    return attacks.vflrecon_free(model, baseline, party=PARTY, **sizes), protocol, private


@pytest.mark.parametrize("executor", _problems.EXECUTORS)
def test_free_epoch(benchmark, executor, free_setting):
    begin, epoch = epoch_by("jit over the loop", free_setting)
    expected = epoch(begin)
    begin, epoch = epoch_by(executor, free_setting)
    state = first_call(benchmark, lambda: epoch(begin))
    assert_same(state.attack, expected.attack, rtol=2e-3, atol=2e-3)
    group = f"vflrecon_free, training and recording per step of an epoch, N = {N}, B = {B}, two parties"
    measure(benchmark, lambda: epoch(begin), group=group, name=executor, per_call=STEPS, rounds=3)


@pytest.mark.parametrize("case", CIPHERS)
def test_vfl_step_by_cipher(benchmark, case):
    cipher = CIPHERS[case]
    if cipher == "ckks" and importlib.util.find_spec("tenseal") is None:
        pytest.skip("needs tenseal")
    model, _, private = samples()

    def step_with(layer):
        protocol = protocols.split_training(model, num_samples=N, batch_size=B, interactive=layer)

        def step(state):
            after, transcript = protocol.round(KEY, state, private)
            return after, transcript.parties[PARTY].output_gradient

        return protocol.init(KEY), jax.jit(step)

    start, unencrypted = step_with(None)
    layer = None if cipher is None else protocols.encrypted_first(active=ACTIVE, cipher=cipher)
    begin, step = step_with(layer)
    _, gradient = first_call(benchmark, lambda: step(begin))
    # Parameters are not compared: Adam's first step is the sign of a gradient, whatever its size.
    assert_same(gradient, unencrypted(start)[1], rtol=0, atol=1e-5)
    group = "Split training, one step by cipher, B = 16, e = 50, one encrypting party"
    measure(benchmark, lambda: step(begin), group=group, name=case, rounds=3)
