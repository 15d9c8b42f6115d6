"""The encrypted first layer against the plain one: equal numbers, and each side sees only its part."""

import builtins

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxleak import audit, models, protocols
from jaxleak._base import Batch
from jaxleak.protocols import _ckks, encrypted_first
from jaxleak.threats import party_view

N, B, WIDTHS, C = 6, 3, (2, 3, 2), 3
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model():
    return models.bottom_top(WIDTHS, C, bottom=(4,), top=(5,))


@pytest.fixture(scope="module")
def private():
    return Batch(
        jax.random.uniform(KEY, (N, 3, 3)).at[:, ::2, 2].set(0.0), jnp.array([0, 1, 2, 2, 1, 0]), jnp.arange(N)
    )


@pytest.fixture(scope="module")
def owner():
    return _ckks.SecretOwner()


@pytest.mark.parametrize(("n", "m", "k"), [(16, 8, 100), (3, 2, 4096), (9, 3, 1000), (1, 1, 1)])
def test_products_on_ciphertexts_are_more_precise_than_float32(owner, n, m, k):
    matrix, plain, offset = RNG.normal(size=(n, m)), RNG.normal(size=(m, k)), RNG.uniform(-10, 10, (n, k))
    found = owner.product(matrix, plain, offset)
    np.testing.assert_allclose(found, matrix @ plain + offset, atol=2e-9)


def test_a_ciphertext_holds_as_many_numbers_as_it_has_slots():
    assert [_ckks._rows_per_chunk(width) for width in (1, _ckks.SLOTS // 3, _ckks.SLOTS)] == [_ckks.SLOTS, 3, 1]
    for width in (0, _ckks.SLOTS + 1):
        with pytest.raises(ValueError, match="width must be in"):
            _ckks._rows_per_chunk(width)


def test_the_other_side_cannot_decrypt(owner):
    library = _ckks.tenseal()
    public = library.context_from(owner.public_key)
    assert not public.is_private()
    (columns,) = owner.encrypt(np.ones((2, 1)), 3)
    with pytest.raises(ValueError, match="secret"):
        library.ckks_vector_from(public, columns[0]).decrypt()
    stranger = _ckks.SecretOwner().decrypt(columns, 3)
    assert np.abs(stranger - 1).min() > 1e3  # another party's key gives noise


def test_the_cipher_is_the_plain_algebra_is_the_layer(model):
    params = model.init(KEY)["top"]["first"]
    params["bias"] = params["bias"] + 0.5
    embeddings = tuple(jnp.asarray(RNG.normal(size=(B, 4)), jnp.float32) for _ in WIDTHS)
    delta = jnp.asarray(RNG.normal(size=(B, 5)), jnp.float32)
    results = {}
    for name, layer in (
        ("layer", lambda key, params, b: model.first(params, b)),
        ("plain", encrypted_first(cipher="plain")),
        ("ckks", encrypted_first(active=1)),
    ):
        z, pull = jax.vjp(lambda p, b, layer=layer: layer(KEY, p, b), params, embeddings)
        results[name] = (z, pull(delta))
    for name in ("plain", "ckks"):
        # The plain algebra adds and removes a mask of 10 in float32; the cipher does so in float64.
        for a, b in zip(*map(jax.tree.leaves, (results[name], results["layer"])), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5 if name == "plain" else 2e-6)


def test_the_label_holder_sees_ciphertexts_and_the_party_masked_products(monkeypatch):
    original_multiply, original_decrypt = _ckks.multiply, _ckks.SecretOwner.decrypt
    seen, decrypted = {}, []

    def multiply(public_key, chunks, plain, offset):
        seen.update(ciphertexts=chunks, plain=plain, offset=offset)
        return original_multiply(public_key, chunks, plain, offset)

    def decrypt(self, chunks, width):
        decrypted.append(original_decrypt(self, chunks, width))
        return decrypted[-1]

    monkeypatch.setattr(_ckks, "multiply", multiply)
    monkeypatch.setattr(_ckks.SecretOwner, "decrypt", decrypt)
    weights, alpha = jnp.full((4, 5), 0.25), jnp.asarray(RNG.normal(size=(B, 4)), jnp.float32)
    z = encrypted_first()(KEY, {"kernel": weights, "bias": jnp.zeros(5)}, (alpha,))
    jax.block_until_ready(z)
    assert all(isinstance(column, bytes) for chunk in seen["ciphertexts"] for column in chunk)
    blind = 0.25 - seen["plain"]  # the part that the label holder's copy lacks: a matrix with entries from (0, 1)
    assert blind.shape == (4, 5)
    assert blind.std() > 0.1
    assert blind.min() >= 0
    assert blind.max() <= 1
    assert np.abs(seen["offset"]).mean() > 2  # the mask on the numbers that the party decrypts
    np.testing.assert_allclose(decrypted[0] - seen["offset"], np.asarray(alpha) @ seen["plain"], atol=1e-5)
    np.testing.assert_allclose(z, alpha @ weights, atol=1e-5)


def test_every_party_but_the_label_holder_encrypts_what_it_sends(monkeypatch):
    original, encrypted = _ckks.SecretOwner.encrypt, []

    def encrypt(self, matrix, width):
        encrypted.append(np.asarray(matrix))
        return original(self, matrix, width)

    monkeypatch.setattr(_ckks.SecretOwner, "encrypt", encrypt)
    embeddings = tuple(jnp.full((B, 2), float(party)) for party in range(3))
    params = {"kernel": jnp.ones((6, 4)), "bias": jnp.zeros(4)}
    jax.block_until_ready(encrypted_first(active=1)(KEY, params, embeddings))
    assert sorted(matrix.mean() for matrix in encrypted) == [0.0, 2.0]


def test_masks_are_fresh_and_uniform_around_zero(monkeypatch):
    """Masks must not repeat within a step, between parties, or between steps."""
    offsets, plains = [], []
    original = _ckks.SecretOwner.product

    def product(self, matrix, plain, offset):
        offsets.append(offset)
        plains.append(plain)
        return original(self, matrix, plain, offset)

    monkeypatch.setattr(_ckks.SecretOwner, "product", product)
    n = 6  # samples, embeddings and outputs alike, so that all masks have one shape
    params = {"kernel": jnp.zeros((2 * n, n)), "bias": jnp.zeros(n)}
    embeddings, layer = (jnp.ones((n, n)),) * 2, encrypted_first(blind=0.5, mask=4.0)
    for seed in range(2):
        _, pull = jax.vjp(lambda b, seed=seed: layer(jax.random.key(seed), params, b), embeddings)
        jax.block_until_ready(pull(jnp.zeros((n, n))))
    blinds = [-plain for plain in plains if plain.any()]  # the label holder's copy of weights that are zero
    masks = [offset for offset in offsets if offset.any()]
    assert (len(blinds), len(masks)) == (4, 8)
    for mask in masks:
        assert -4 <= mask.min() < -2
        assert 2 < mask.max() <= 4
    for blind in blinds:
        assert 0 <= blind.min() < 0.25 < blind.max() <= 0.5
    rows = [mask.ravel() / 4 for mask in masks] + [4 * blind.ravel() - 1 for blind in blinds]
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.7


@pytest.mark.slow
def test_training_on_ciphertexts_shows_a_party_the_same_gradients(model, private):
    def watch(layer):
        protocol = protocols.split_training(
            model, num_samples=N, batch_size=B, optimizer=optax.sgd(0.5), interactive=layer
        )
        return audit.watch(protocol, party_view(0), private, protocol.init(KEY), key=KEY, rounds=3)

    plain, encrypted = watch(None), watch(encrypted_first(active=2))
    for a, b in zip(*map(jax.tree.leaves, (plain, encrypted)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert np.abs(encrypted[1].party.output_gradient).max() > 1e-2


def split_by(model, layer):
    return protocols.split_training(model, num_samples=N, batch_size=B, interactive=layer)


def test_a_first_layer_that_is_not_the_encrypted_one_is_refused(model):
    """Otherwise, a model other than the client's would silently be trained and attacked."""
    layer = encrypted_first(active=2, cipher="plain")
    split_by(model, layer)
    for first in (
        lambda params, b: jnp.tanh(jnp.concatenate(b, axis=1) @ params["kernel"] + params["bias"]),
        lambda params, b: jnp.concatenate(b[::-1], axis=1) @ params["kernel"] + params["bias"],
        lambda params, b: jnp.concatenate(b, axis=1) @ params["kernel"],
    ):
        with pytest.raises(ValueError, match="the first layer of this model computes something else: put what"):
            split_by(model._replace(first=first), layer)
    with pytest.raises(ValueError, match="a dictionary of 'kernel' and 'bias', and has no such names"):
        split_by(models.bottom_top(WIDTHS, C, bottom=(4,), top=None), layer)

    def renamed(key):
        params = model.init(key)
        first = {"w": params["top"]["first"]["kernel"], "b": params["top"]["first"]["bias"]}
        return {**params, "top": {**params["top"], "first": first}}

    def shaped(kernel):
        params = jax.eval_shape(model.init, KEY)
        first = {"kernel": jnp.zeros(kernel), "bias": params["top"]["first"]["bias"]}
        return lambda key: {**model.init(key), "top": {**model.init(key)["top"], "first": first}}

    for kernel in ((5, 12), (3, 4, 5), (11, 5)):
        with pytest.raises(ValueError, match=r"needs a kernel of shape \(12, d\), 4 rows for each of 3 parties"):
            split_by(model._replace(init=shaped(kernel)), layer)
    frozen = model._replace(init=lambda key: flax.core.freeze(model.init(key)))
    split_by(frozen, layer)
    split_by(model._replace(first=lambda p, b: model.first(p, tuple(x.astype(jnp.bfloat16) for x in b))), layer)

    with pytest.raises(ValueError, match="and has b, w"):
        split_by(model._replace(init=renamed), layer)


def test_errors_come_before_training(model, monkeypatch):
    with pytest.raises(ValueError, match="cipher must be one of ckks, plain"):
        encrypted_first(cipher="paillier")
    with pytest.raises(ValueError, match="mask must be > 0"):
        encrypted_first(mask=0.0)
    with pytest.raises(ValueError, match="blind must be > 0"):
        encrypted_first(blind=-1.0)
    with pytest.raises(ValueError, match="active must be >= 0"):
        encrypted_first(active=-1)
    with pytest.raises(ValueError, match=r"active must be in \[0, 2\], got 3"):
        split_by(model, encrypted_first(active=3, cipher="plain"))
    with pytest.raises(OverflowError, match="numbers up to 500, got 600"):
        _ckks.SecretOwner().product(np.full((1, 2), 30.0), np.full((2, 1), 10.0), np.zeros((1, 1)))
    with pytest.raises(OverflowError, match="numbers up to 500, got 600"):
        _ckks.SecretOwner().product(np.full((1, 2), 30.0), np.full((2, 1), 5.0), np.full((1, 1), 300.0))
    np.testing.assert_allclose(
        _ckks.SecretOwner().product(np.full((1, 1), 25.0), np.full((1, 1), 20.0), np.zeros((1, 1))), 500.0
    )
    with pytest.raises(ValueError, match=r"width must be in \[1, 4096\], got 4097"):
        _ckks.SecretOwner().encrypt(np.ones((1, 1)), 4097)

    original = builtins.__import__

    def without_tenseal(name, *args, **kwargs):
        if name == "tenseal":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tenseal)
    with pytest.raises(ImportError, match="pip install tenseal"):
        encrypted_first()
    encrypted_first(cipher="plain")
