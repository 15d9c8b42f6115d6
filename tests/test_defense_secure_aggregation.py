"""Secure aggregation: exact sums, and single uploads without information."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxleak import models, protocols, threats
from jaxleak._base import Batch
from jaxleak.defenses import cancelling_noise, laplace_noise
from jaxleak.protocols import aggregate, largest_entry, masked_payloads
from jaxleak.protocols._sampling import defense_key

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("clients", "bits"), [(2, 20), (5, 16)])
def test_the_sum_is_exact_in_fixed_point(clients, bits):
    payloads = {
        "a": jnp.asarray(RNG.standard_normal((clients, 4, 3)), jnp.float32),
        "b": jnp.asarray(RNG.standard_normal((clients, 5)) * 1e-3, jnp.float32),
    }
    masked = masked_payloads(KEY, payloads, fraction_bits=bits)
    summed, mean = aggregate(masked), aggregate(masked, mean=True)
    for name, leaf in payloads.items():
        units = np.round(np.asarray(leaf, np.float64) * 2**bits).astype(np.int64).sum(axis=0)
        total = np.asarray(masked.shares[name]).astype(np.uint64).sum(axis=0).astype(np.uint32).astype(np.int32)
        np.testing.assert_array_equal(total, units)
        np.testing.assert_array_equal(summed[name], (units * 2.0**-bits).astype(np.float32))
        np.testing.assert_allclose(summed[name], leaf.sum(axis=0), atol=clients * 2.0**-bits)
        np.testing.assert_allclose(mean[name], summed[name] / clients, rtol=1e-6)


def test_every_single_upload_is_uniform_whatever_it_hides():
    clients = 3
    values = jnp.stack([jnp.full(4000, 0.25 * (i + 1)) for i in range(clients)])
    shares = np.asarray(masked_payloads(KEY, values).shares, np.float64) / 2**32
    assert all(scipy.stats.kstest(row, "uniform").pvalue > 1e-3 for row in shares)
    # The sum of all but one is also uniform, and no single upload predicts another.
    assert scipy.stats.kstest(shares[:-1].sum(axis=0) % 1, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(shares)[0, 1]) < 0.06


def test_masks_do_not_repeat_between_leaves_and_rounds():
    zeros = {"a": jnp.zeros((2, 50)), "b": jnp.zeros((2, 50))}
    shares = masked_payloads(KEY, zeros).shares
    other = masked_payloads(jax.random.key(1), zeros).shares
    assert (shares["a"] != shares["b"]).all()
    assert (shares["a"] != other["a"]).all()


def test_largest_entries_do_not_wrap_and_larger_ones_are_refused():
    for clients, bits in ((2, 16), (7, 24)):
        limit = largest_entry(clients, bits)
        assert limit == pytest.approx(2**31 / clients / 2**bits, rel=1e-6)
        full = jnp.full((clients, 1), limit)
        both = jnp.concatenate([full, -full], axis=1)
        total = aggregate(masked_payloads(KEY, both, fraction_bits=bits))
        np.testing.assert_allclose(total, [clients * limit, -clients * limit], rtol=1e-6)
        with pytest.raises(ValueError, match=f"for {clients} clients and {bits} fraction bits"):
            masked_payloads(KEY, full * 1.001, fraction_bits=bits)
        # Traced values cannot be refused: they saturate.
        traced = jax.jit(lambda p, bits=bits: aggregate(masked_payloads(KEY, p, fraction_bits=bits)))(full * 10)
        np.testing.assert_allclose(traced, clients * limit, rtol=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="clients must be >= 2, got 1"):
        masked_payloads(KEY, jnp.zeros((1, 3)))
    with pytest.raises(ValueError, match="same leading client axis"):
        masked_payloads(KEY, {"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 3))})
    with pytest.raises(ValueError, match="fraction_bits must be in"):
        masked_payloads(KEY, jnp.zeros((2, 3)), fraction_bits=31)
    with pytest.raises(ValueError, match="fraction_bits must be in"):
        largest_entry(2, -1)
    assert largest_entry(2, 30) == pytest.approx(1, rel=1e-6)
    assert largest_entry(2, 0) == pytest.approx(2**30, rel=1e-6)
    with pytest.raises(FloatingPointError, match=r"payloads: non-finite values in \['a'\]"):
        masked_payloads(KEY, {"a": jnp.full((2, 3), jnp.nan)})


def test_the_server_sees_the_mean_and_no_single_payload():
    model = models.build("mlp", (2, 2, 1), 3)
    share = protocols.ClientShare(model, clients=2, learning_rate=0.1)
    x = jnp.asarray(RNG.random((4, 1, 2, 2, 1)), jnp.float32)
    private = Batch(x, jnp.array([0, 1, 2, 0]), jnp.arange(4))
    protocol = protocols.client(share, num_samples=4, batch_size=2, secure_aggregation=24)
    state = jax.jit(protocol.init)(KEY)
    _, transcript = jax.jit(protocol.round)(KEY, state, private)
    own = share.updates(state.params, transcript.private)
    assert len(own) == 2
    seen = threats.view(threats.SERVER_WITHOUT_INDICES, transcript)
    for leaf, a, b in zip(*map(jax.tree.leaves, (seen.payload, *own)), strict=True):
        assert leaf.shape == a.shape
        np.testing.assert_allclose(leaf, (a + b) / 2, atol=2.0**-24)
        assert not np.allclose(leaf, a, atol=1e-6)


@pytest.mark.parametrize("entry", [np.nan, 1e6])
def test_what_fixed_point_cannot_hold_is_no_sum(entry):
    model = models.build("mlp", (2, 2, 1), 3)
    share = protocols.ClientShare(model, clients=2)
    private = Batch(jnp.full((4, 1, 2, 2, 1), 0.5), jnp.array([0, 1, 2, 0]), jnp.arange(4))
    protocol = protocols.client(share, num_samples=4, batch_size=2, secure_aggregation=24)
    state = protocol.init(KEY)
    state = state._replace(params=jax.tree.map(lambda leaf: jnp.full_like(leaf, entry), state.params))
    _, transcript = jax.jit(protocol.round)(KEY, state, private)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(transcript.payload))


@pytest.mark.slow
def test_cancelling_noise_is_in_a_single_upload_and_not_in_the_sum():
    share = protocols.ClientShare(models.build("mlp", (2, 2, 1), 3, widths=(3,)))
    x = jnp.asarray(RNG.random((4, 1, 2, 2, 1)), jnp.float32)
    private = Batch(x, jnp.array([0, 1, 2, 0]), jnp.arange(4))
    noise = cancelling_noise(1.0, 2)
    protocol = protocols.client(share, num_samples=4, batch_size=2, defense=noise, neighbours=1)
    state = protocol.init(KEY)
    _, transcript = jax.jit(protocol.round)(KEY, state, private)
    assert transcript.index.shape == (2,)
    rest = np.setdiff1d(np.arange(4), transcript.index)
    own, other = (jax.jit(share)(state.params, jax.tree.map(lambda leaf, i=i: leaf[i], private))
                  for i in (transcript.index, rest))  # fmt: skip
    noise_key = defense_key(KEY, 0)
    uploads = noise.apply(noise_key, jax.tree.map(lambda *leaves: jnp.stack(leaves), own, other))
    for seen, sent, a, b in zip(*map(jax.tree.leaves, (transcript.payload, uploads, own, other)), strict=True):
        np.testing.assert_allclose(seen, sent[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(sent.sum(axis=0), a + b, rtol=1e-4, atol=1e-6)
        assert (np.abs(seen - a) > 0.1 * np.abs(a)).any()
    for options, message in (
        ({"defense": noise}, "place must be one of payload"),
        ({"defense": laplace_noise(1.0), "neighbours": 1}, "place must be one of client_payloads"),
        ({"neighbours": 1}, "got 1 and no defense"),
        ({"defense": noise, "neighbours": 2}, "neighbours"),
    ):
        with pytest.raises(ValueError, match=message):
            protocols.client(share, num_samples=4, batch_size=2, **options)


def test_one_client_cannot_aggregate_securely():
    share = protocols.ClientShare(models.build("mlp", (2, 2, 1), 3))
    with pytest.raises(ValueError, match="clients must be >= 2"):
        protocols.client(share, num_samples=4, batch_size=2, secure_aggregation=24)
