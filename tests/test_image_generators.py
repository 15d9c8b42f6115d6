"""Generators that an inversion may optimise in place of pixels, against slow convolutions and a plain training loop."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jaxleak.attacks import client_updates
from jaxleak.attacks._inversion import public_generator


def _convolved(x, kernel, bias=0.0, stride=1):
    """Convolve (H, W, C) with a 3x3 kernel, zero-padded for ceil(H / stride) rows; odd padding is larger at the end."""
    sides = [-(-n // stride) for n in x.shape[:2]]
    pads = [max((new - 1) * stride + 3 - n, 0) for new, n in zip(sides, x.shape[:2], strict=True)]
    padded = np.pad(x, [*((pad // 2, pad - pad // 2) for pad in pads), (0, 0)])
    out = np.zeros((*sides, kernel.shape[3]))
    for i, j in np.ndindex(*sides):
        window = padded[i * stride : i * stride + 3, j * stride : j * stride + 3]
        out[i, j] = np.tensordot(window, kernel, 3)
    return out + bias


def _doubled(x):
    return np.array([[x[i // 2, j // 2] for j in range(2 * x.shape[1])] for i in range(2 * x.shape[0])])


def _gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _drawn(tree, seed=0):
    """Random weights in place of the initial ones, where biases are zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.standard_normal(leaf.shape), jnp.float32), tree)


@pytest.mark.parametrize(("start", "mean", "deviation"), [
    ("uniform", 0.5, 12**-0.5), ("normal", 0.0, 1.0), ("grey", 0.5, 0.0), ("nearly_grey", 0.5, 0.01)
])  # fmt: skip
def test_pixels_start_as_they_are_called_and_stay_in_their_box(start, mean, deviation):
    free = client_updates.pixels(start, box=None)
    x, _ = free.init(jax.random.key(0), (4, 20, 20, 3))
    assert float(x.mean()) == pytest.approx(mean, abs=3 * deviation / 4800**0.5)
    assert float(x.std()) == pytest.approx(deviation, rel=0.05)
    np.testing.assert_array_equal(free.decode(free.project(9 * x), ()), 9 * x)
    boxed = client_updates.pixels(start, box=(0.2, 0.45))
    np.testing.assert_array_equal(boxed.project(x), np.clip(x, 0.2, 0.45))
    if start != "grey":
        np.testing.assert_array_equal(boxed.init(jax.random.key(0), x.shape)[0], np.clip(x, 0.2, 0.45))
    assert boxed.of_pixels
    with pytest.raises(ValueError, match="box must be"):
        client_updates.pixels(start, box=(0.5, 0.5))


def test_an_untrained_generator_by_hand():
    """Nearest-neighbour doubling, convolutions normalised per image and channel, leaky ReLU, a crop and a sigmoid."""
    candidate = client_updates.generator_weights(channels=3, noise_channels=2, stages=2)
    shape = (2, 5, 7, 3)
    weights, constants = jax.jit(candidate.init, static_argnums=1)(jax.random.key(0), shape)
    assert constants["noise"].shape == (2, 2, 2, 2)
    weights = {name: np.asarray(leaf, np.float64) for name, leaf in _drawn(weights).items()}
    assert len(weights) == 2 * 2 + 4

    def normalised(x):
        x = (x - x.mean(axis=(0, 1))) / np.sqrt(x.var(axis=(0, 1)) + 1e-5)
        return np.where(x > 0, x, 0.2 * x)

    expected = []
    for noise in np.asarray(constants["noise"], np.float64):
        x = _convolved(noise, weights["in_kernel"], weights["in_bias"])
        for stage in range(2):
            x = normalised(_convolved(_doubled(x), weights[f"up_{stage}_kernel"]))
            x = normalised(_convolved(x, weights[f"mix_{stage}_kernel"]))
        expected.append(_sigmoid(_convolved(x[:5, :7], weights["out_kernel"], weights["out_bias"])))
    found = jax.jit(candidate.decode)(jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), weights), constants)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert candidate.project(weights) is weights
    assert not candidate.of_pixels


def test_the_untrained_generators_size_is_that_of_its_docstring():
    weights, constants = jax.eval_shape(
        lambda key: client_updates.generator_weights().init(key, (2, 32, 20, 3)), jax.random.key(0)
    )
    assert constants["noise"].shape == (2, 4, 3, 32)
    assert weights["in_kernel"].shape == (3, 3, 32, 64)
    assert weights["mix_2_kernel"].shape == (3, 3, 64, 64)
    assert "up_3_kernel" not in weights
    for size in ("channels", "noise_channels", "stages"):
        with pytest.raises(ValueError, match=f"{size} must be > 0"):
            client_updates.generator_weights(**{size: 0})


def test_latents_stay_within_their_bound_and_are_likely_as_a_normal_distribution_says():
    candidate = client_updates.generator_latents(lambda z: z + 1, 400, bound=1.5)
    z, _ = candidate.init(jax.random.key(0), (3, 8, 8, 1))
    assert z.shape == (3, 400)
    assert (np.abs(z).max(), np.abs(z).min() < 0.1) == (1.5, True)
    assert float((np.abs(z) == 1.5).mean()) == pytest.approx(0.134, abs=0.03)
    np.testing.assert_array_equal(candidate.decode(candidate.project(3 * z), ()), np.clip(3 * z, -1.5, 1.5) + 1)
    z = np.array([[0.5, 1.5, -0.5, 2.5], [0.0, 1.0, 0.0, -1.0]])
    m, v = z.mean(axis=1), z.var(axis=1)
    assert float(candidate.prior(jnp.asarray(z))) == pytest.approx(np.mean((m**2 + v - np.log(v) - 1) / 2), rel=1e-5)
    usual = client_updates.generator_latents(lambda z: z, 400)
    assert float(usual.project(jnp.full((1, 400), 9.0)).max()) == 3.0


SHAPE, CHANNELS = (10, 13, 3), 2  # the coarse map, a quarter of the size, has three rows and four columns


def test_a_public_generators_decoder_and_enhancer_by_hand():
    decoder = public_generator._Decoder(SHAPE, CHANNELS, 2)
    enhancer = public_generator._Enhancer(CHANNELS)
    assert public_generator._stages(SHAPE) == 2
    z = jnp.asarray(np.random.default_rng(1).standard_normal((2, 5)), jnp.float32)
    params = {
        "decoder": jax.jit(decoder.init)(jax.random.key(0), z)["params"],
        "enhancer": jax.jit(enhancer.init)(jax.random.key(0), jnp.zeros((1, *SHAPE)))["params"],
    }
    assert not any(leaf.any() for leaf in params["enhancer"]["_Conv_2"].values())  # the enhancer starts as the identity
    params = _drawn(params)
    mean, scale = jnp.arange(5.0) / 10, jnp.arange(5.0) / 5 + 0.2
    generator = client_updates.PublicGenerator(params, mean, scale, SHAPE, CHANNELS, np.zeros((1, 2)))
    assert generator.latent_size == 5

    def convolution(tree, k, x):
        layer = tree[f"_Conv_{k}"]
        return _convolved(x, np.asarray(layer["kernel"]), np.asarray(layer["bias"]))

    images, enhanced = [], []
    for code in np.asarray(mean + scale * z):
        dense = params["decoder"]["Dense_0"]
        x = _gelu(code @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"])).reshape(3, 4, 2 * CHANNELS)
        for stage in range(2):
            x = _gelu(convolution(params["decoder"], stage, _doubled(x)))
        x = _sigmoid(convolution(params["decoder"], 2, x[:10, :13]))
        change = x
        for k in (1, 0, 2):  # Flax numbers nested layers from the outside in; the last layer was made after them
            change = convolution(params["enhancer"], k, change)
            change = change if k == 2 else _gelu(change)
        images.append(x)
        enhanced.append(np.clip(x + change, 0, 1))
    np.testing.assert_allclose(jax.jit(lambda z: generator(z))(z), images, atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: generator.enhance(x))(jnp.asarray(images)), enhanced, atol=1e-5)
    assert (np.array(enhanced) == 0).any()


@pytest.mark.parametrize(("side", "stages"), [(4, 1), (8, 1), (9, 2), (16, 2), (17, 3), (224, 6)])
def test_a_code_is_doubled_from_a_side_of_four_until_it_covers_the_image(side, stages):
    assert public_generator._stages((4, side, 1)) == public_generator._stages((side, 4, 1)) == stages


def test_a_public_generators_encoder_by_hand():
    encoder = public_generator._Encoder(3, CHANNELS, 3)
    x = jnp.asarray(np.random.default_rng(1).random((2, *SHAPE)), jnp.float32)
    params = _drawn(jax.jit(encoder.init)(jax.random.key(0), x)["params"])
    params["Dense_0"] = {**params["Dense_0"], "bias": jnp.array([0.0, 1.0, -1.0, 12.0, -12.0, 0.0])}
    expected = []
    for image in np.asarray(x, np.float64):
        for stage in range(3):
            layer = {name: np.asarray(leaf) for name, leaf in params[f"_Conv_{stage}"].items()}
            assert layer["bias"].shape == ((CHANNELS, 2 * CHANNELS, 2 * CHANNELS)[stage],)
            image = _gelu(_convolved(image, layer["kernel"], layer["bias"], stride=2))
        expected.append(image.ravel() @ np.asarray(params["Dense_0"]["kernel"]) + np.asarray(params["Dense_0"]["bias"]))
    expected = np.array(expected)
    mean, log_variance = jax.jit(encoder.apply)({"params": params}, x)
    np.testing.assert_allclose(mean, expected[:, :3], atol=1e-5)
    np.testing.assert_allclose(log_variance, expected[:, 3:].clip(-10, 10), atol=1e-5)
    assert (np.abs(expected[:, 3:]) > 10).any()


@pytest.mark.slow
def test_a_public_generator_is_trained_as_by_a_plain_loop():
    """The training has two epochs of five images in batches of two, so each epoch leaves one image out."""
    shape, rate, kl, noise = (5, 4, 1), 0.02, 0.2, 0.4
    images = reference.uniform(5, *shape, seed=1)
    options = {"epochs": 2, "batch_size": 2, "learning_rate": rate, "kl": kl, "noise": noise, "channels": CHANNELS}
    found = client_updates.train_generator(jax.random.key(0), images, 3, **options)
    nets = (public_generator._Encoder(3, CHANNELS, 1), public_generator._Decoder(shape, CHANNELS, 1))
    enhancer = public_generator._Enhancer(CHANNELS)
    encode, decode, enhance = (lambda p, x, net=net: net.apply({"params": p}, x) for net in (*nets, enhancer))
    keys = jax.random.split(jax.random.key(0), 5)

    def trained(loss, params, key):
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, 4))

        @jax.jit
        def descend(params, state, key, rows):
            gradient, error = jax.grad(loss, has_aux=True)(params, key, rows)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, error

        state, epochs = optimizer.init(params), []
        for epoch_key in jax.random.split(key, 2):
            order_key, draw_key = jax.random.split(epoch_key)
            order, draws, errors = np.asarray(jax.random.permutation(order_key, 5)), jax.random.split(draw_key, 2), []
            for step in range(2):
                rows = images[order[2 * step : 2 * step + 2]]
                params, state, error = descend(params, state, draws[step], rows)
                errors.append(float(error))
            epochs.append(np.mean(errors))
        return params, epochs

    def auto_encoding(params, key, x):
        mean, log_variance = encode(params[0], x)
        z = mean + jnp.exp(log_variance) ** 0.5 * jax.random.normal(key, mean.shape)
        square = jnp.sum((decode(params[1], z) - x) ** 2) / len(x)
        divergence = jnp.sum(mean**2 + jnp.exp(log_variance) - log_variance - 1) / 2 / len(x)
        return square + kl * divergence, square / (5 * 4)

    start = tuple(
        jax.jit(net.init)(key, one)["params"]
        for net, key, one in zip(nets, keys, (images[:1], jnp.zeros((1, 3))), strict=False)
    )
    params, errors = trained(auto_encoding, start, keys[2])
    mean, log_variance = map(np.asarray, jax.jit(encode)(params[0], images[:4]))
    variance = mean.var(axis=0) + np.exp(log_variance).mean(axis=0)

    def enhancing(own, key, x):
        z = encode(params[0], x)[0]
        z += noise * np.sqrt(variance) * jax.random.normal(key, z.shape)
        square = jnp.sum((enhance(own, decode(params[1], z)) - x) ** 2) / len(x)
        return square, square / (5 * 4)

    own, enhanced_errors = trained(enhancing, jax.jit(enhancer.init)(keys[3], images[:1])["params"], keys[4])
    assert (found.image_shape, found.channels, found.latent_size) == (shape, CHANNELS, 3)
    np.testing.assert_allclose(found.losses, np.stack([errors, enhanced_errors], axis=1), rtol=1e-4)
    np.testing.assert_allclose(found.mean, mean.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found.scale, np.sqrt(variance), rtol=1e-3)
    for tree, expected in ((found.params["decoder"], params[1]), (found.params["enhancer"], own)):
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-3)
