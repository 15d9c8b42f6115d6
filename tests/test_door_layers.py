"""Layers of users' networks: convolutions, pools and products of any layout, their rows, biases and head."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models, objectives

SHARPNESS = 2.0


def draw(seed, *shape):
    return reference.normal(*shape, seed=seed)


def flat(x):
    return x.reshape(len(x), -1)


def door(network, weights, x, **options):
    """The classifier of a function of weights and images, after a check that the logits equal the function's."""
    model, variables = models.from_function(
        lambda v, x: network(v["params"], x), {"params": weights}, image_shape=x.shape[1:], **options
    )
    given = x.transpose(0, 3, 1, 2) if options.get("layout") == "NCHW" else x
    # One program takes a fraction of the time of one per operation.
    out, expected = jax.jit(lambda v, x, given: (model.apply(v, x), network(v["params"], given)))(variables, x, given)
    np.testing.assert_allclose(out.logits, expected, rtol=1e-4, atol=1e-5)
    return model, variables, out


def smoothed(model, variables, x):
    return jax.jit(lambda v, x: model.apply(v, x, sharpness=SHARPNESS))(variables, x)


POOLED = reference.uniform(2, 6, 4, 2, seed=5)


def slow_pool(x, window, stride, pads, beta=None):
    """A slow reference for pooling: loops over windows, where only entries inside the image count."""
    (top, bottom), (left, right) = pads
    height, width = x.shape[1:3]
    rows = range(-top, height + bottom - window + 1, stride)
    columns = range(-left, width + right - window + 1, stride)
    out = np.zeros((len(x), len(rows), len(columns), x.shape[3]))
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            inside = x[:, max(r, 0) : r + window, max(c, 0) : c + window]
            log_mean = (lambda z: np.log(np.exp(beta * z).mean((1, 2))) / beta) if beta else lambda z: z.max((1, 2))
            out[:, i, j] = log_mean(inside)
    return out


@pytest.mark.parametrize(
    ("window", "stride", "pads", "order", "more"),
    [
        (2, 2, ((0, 0), (0, 0)), (0, 1, 2, 3), True),
        (2, 2, ((1, 1), (1, 1)), (0, 1, 2, 3), False),
        pytest.param(2, 2, ((0, 1), (1, 0)), (0, 3, 1, 2), False, marks=pytest.mark.slow),
        (3, 2, ((0, 1), (2, 1)), (0, 3, 1, 2), True),
        pytest.param(3, 1, ((1, 1), (1, 2)), (1, 0, 3, 2), False, marks=pytest.mark.slow),
        (2, 3, ((0, 0), (0, 1)), (3, 0, 1, 2), False),
        pytest.param(3, 3, ((0, 0), (0, 0)), (0, 1, 2, 3), False, marks=pytest.mark.slow),
    ],
)
def test_a_pool_of_any_order_of_axes_is_that_of_loops(window, stride, pads, order, more):
    of = ((1, 1, (0, 0)), (window, stride, pads[0]), (window, stride, pads[1]), (1, 1, (0, 0)))
    sizes, strides, padding = zip(*(of[axis] for axis in order), *[of[0]] * more, strict=True)

    def network(params, x):
        z = x.transpose(order)
        z = jax.lax.reduce_window(z[..., None] if more else z, -jnp.inf, jax.lax.max, sizes, strides, padding)
        return (z[..., 0] if more else z).transpose(np.argsort(order)).reshape(len(x), -1)

    model, variables, out = door(network, {"w": draw(0, 2)}, POOLED)
    assert not any("kinks" in note for note in model.notes)
    x = np.asarray(POOLED, np.float64)
    np.testing.assert_allclose(out.logits, slow_pool(x, window, stride, pads).reshape(2, -1), rtol=1e-6)
    smooth = smoothed(model, variables, POOLED)
    expected = slow_pool(x, window, stride, pads, SHARPNESS / x.std()).reshape(2, -1)
    np.testing.assert_allclose(smooth.logits, expected, rtol=1e-4)
    assert not smooth.activations


@pytest.mark.parametrize(
    ("window", "strides", "pads", "dilations", "note"),
    [
        ((1, 2, 3, 1), (1, 2, 2, 1), [(0, 0)] * 4, {}, "max-pool over windows that are not square"),
        ((1, 2, 2, 1), (1, 2, 1, 1), [(0, 0)] * 4, {}, "max-pool over windows that are not square"),
        ((1, 2, 1, 1), (1, 2, 1, 1), [(0, 0)] * 4, {}, "max-pool over windows that are not square"),
        ((1, 2, 2, 2), (1, 2, 2, 2), [(0, 0)] * 4, {}, "max-pool over windows that are not square"),
        ((1, 2, 2, 1), (1, 1, 1, 1), [(0, 0)] * 4, {"window_dilation": (1, 2, 1, 1)}, "dilated max-pool"),
        ((1, 2, 2, 1), (1, 1, 1, 1), [(0, 0)] * 4, {"base_dilation": (1, 1, 2, 1)}, "dilated max-pool"),
        ((1, 2, 2, 1), (1, 2, 2, 1), [(0, 0), (0, 0), (0, -1), (0, 0)], {}, "max-pool that cuts its images"),
        ((1, 2, 2, 1), (1, 2, 2, 1), [(0, 0), (-2, 1), (0, 0), (0, 0)], {}, "max-pool that cuts its images"),
    ],
)
def test_a_pool_without_a_smooth_form_stays_and_is_named(window, strides, pads, dilations, note):
    def network(params, x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, pads, **dilations).reshape(len(x), -1)

    model, variables, out = door(network, {"w": draw(0, 2)}, POOLED)
    assert model.notes[0] == f"kinks that are not smoothed: 1 x {note}"
    np.testing.assert_array_equal(smoothed(model, variables, POOLED).logits, out.logits)


IMAGES = draw(1, 2, 5, 4, 4)


@pytest.mark.parametrize(
    ("image", "kernel", "output", "stride", "groups"),
    [
        ("NHWC", "HWIO", "NHWC", 2, 1),
        ("NCHW", "OIHW", "NCHW", 1, 1),
        ("NCHW", "OIHW", "NCHW", 2, 2),
        ("HWNC", "OHWI", "CNWH", 1, 1),
        ("CNWH", "IWHO", "HCWN", 2, 1),
    ],
)
def test_a_convolution_of_any_layout_is_its_rows_times_its_matrix(image, kernel, output, stride, groups):
    sizes = {"H": 3, "W": 2, "I": 4 // groups, "O": 6}
    weights = {"k": draw(2, *(sizes[axis] for axis in kernel))}
    spatial = [axis for axis in kernel if axis in "HW"]  # JAX takes the order of spatial axes from the kernel

    def network(params, x):
        z = jax.lax.conv_general_dilated(
            x.transpose(["NHWC".index(axis) for axis in image]),
            params["k"],
            (stride, stride),
            ((1, 0), (2, 1)),
            dimension_numbers=(image, kernel, output),
            feature_group_count=groups,
        )
        return z.transpose([output.index(axis) for axis in ("N", *spatial, "C")]).reshape(len(x), -1)

    model, variables, out = door(network, weights, IMAGES)
    assert not any("convolutions" in note for note in model.notes)
    rows = jax.jit(model.rows)(variables, IMAGES)
    assert list(rows) == (["k"] if groups == 1 else [])
    if groups == 1:
        matrix = model.matrix("k", weights["k"])
        np.testing.assert_array_equal(
            matrix, weights["k"].transpose([kernel.index(axis) for axis in (*spatial, "I", "O")]).reshape(24, 6)
        )
        np.testing.assert_allclose((rows["k"] @ matrix).reshape(2, -1), out.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"lhs_dilation": (2, 1), "padding": ((0, 0), (0, 0))}, "dilated convolution"),
        ({"rhs_dilation": (1, 2)}, "dilated convolution"),
        ({"batch_group_count": 2}, "convolution with groups of images"),
        ({"window_strides": (1, 2)}, "convolution with two strides"),
        ({"precision": "highest"}, "convolution of another precision"),
        ({"padding": ((0, 0), (-1, 1))}, "convolution that cuts its images"),
    ],
)
def test_a_convolution_that_has_no_fast_form_stays_and_is_named(options, note):
    known = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}

    def network(params, x):
        x = jnp.concatenate([x] * options.get("batch_group_count", 1))
        return flat(jax.lax.conv_general_dilated(x, params["k"], **(known | options)))

    model, _, _ = door(network, {"k": draw(2, 3, 2, 4, 6)}, IMAGES)
    assert model.notes[0] == f"convolutions that stay in XLA's form: 1 x {note}"
    assert model.notes[1].startswith("the last dense layer was not found")


def test_convolutions_over_one_axis_and_in_half_precision_stay():
    def network(params, x):
        line = jax.lax.conv_general_dilated(
            x[:, :, 0], params["k"][:, 0], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        half = [z.astype(jnp.bfloat16) for z in (x, params["k"])]
        area = jax.lax.conv_general_dilated(*half, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return line.reshape(len(x), -1) + area[:, :, 0].reshape(len(x), -1).astype(jnp.float32)

    model, _, _ = door(network, {"k": draw(2, 3, 2, 4, 6)}, IMAGES)
    wanted = "1 x convolution over 1 axes, 1 x convolution of another precision"
    assert model.notes[0] == f"convolutions that stay in XLA's form: {wanted}"


#: A dense layer, the shape of its kernel, and the order of axes in which its output has one row per input row.
PRODUCTS = {
    "images by kernel": (lambda k, x: x.reshape(len(x), -1) @ k, (80, 3), (0, 1)),
    "kernel by images": (lambda k, x: k @ x.reshape(len(x), -1).T, (3, 80), (1, 0)),
    "a kernel that was turned": (lambda k, x: x.reshape(len(x), -1) @ k.T, (3, 80), (0, 1)),
    "a kernel read backwards": (lambda k, x: x.reshape(len(x), -1) @ k[::-1], (80, 3), (0, 1)),
    "a kernel of more axes": (lambda k, x: x.reshape(len(x), -1) @ k.reshape(80, 6), (80, 2, 3), (0, 1)),
    "a kernel with an axis of one": (lambda k, x: x.reshape(len(x), -1) @ k[0], (1, 80, 3), (0, 1)),
    "a kernel with a new axis": (
        lambda k, x: jnp.tensordot(flat(x), jax.lax.broadcast_in_dim(k, (1, 80, 3), (1, 2)), [[1], [1]])[:, 0],
        *((80, 3), (0, 1)),
    ),
    "several axes": (lambda k, x: jnp.tensordot(x, k, 3), (5, 4, 4, 3), (0, 1)),
    "several axes in another order": (lambda k, x: jnp.einsum("bhwc,wcho->bo", x, k), (4, 4, 5, 3), (0, 1)),
    "every pixel": (lambda k, x: x @ k, (4, 3), (0, 1, 2, 3)),
    "every pixel, kernel first": (
        lambda k, x: jax.lax.dot_general(k, x, (((1,), (3,)), ((), ()))),
        (3, 4),
        (1, 2, 3, 0),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_dense_layer_is_its_rows_times_its_matrix(name):
    function, shape, order = PRODUCTS[name]
    weights = {"k": draw(3, *shape)}

    def network(params, x):
        z = function(params["k"], x)
        return z.transpose(order).reshape(len(x), -1)

    model, variables, out = door(network, weights, IMAGES)
    rows, matrix = jax.jit(model.rows)(variables, IMAGES)["k"], model.matrix("k", weights["k"])
    assert matrix.shape[0] == rows.shape[1]
    np.testing.assert_allclose((rows @ matrix).reshape(out.logits.shape), out.logits, rtol=1e-4, atol=1e-5)
    assert out.features.shape == ((2, 80) if rows.shape == (2, 80) else (2, 0))
    if rows.shape == (2, 80):
        np.testing.assert_array_equal(out.features, rows)


#: Networks in which the weight k is not simply the kernel of linear layers that read single numbers of images.
OTHERWISE = {
    "added as well": lambda p, x: flat(x) @ p["k"] + p["k"].sum(),
    "scaled": lambda p, x: flat(x) @ (2 * p["k"]),
    "times a weight": lambda p, x: (flat(x) @ p["v"]) @ (p["v"].T @ p["k"]),
    "repeated": lambda p, x: jnp.tile(flat(x), 3) @ jnp.broadcast_to(p["k"].reshape(240, 1), (240, 2)),
    "by groups of pixels": lambda p, x: flat(jnp.einsum("bhwc,hwc->bhw", x, p["k"][:, 0].reshape(5, 4, 4))),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_weight_with_another_part_in_the_gradient_has_no_rows(name):
    model, variables, _ = door(OTHERWISE[name], {"k": draw(3, 80, 3), "v": draw(4, 80, 3)}, IMAGES)
    assert "k" not in jax.jit(model.rows)(variables, IMAGES)


def test_a_kernel_that_is_used_twice_has_the_rows_of_both_uses():
    weights = {"k": draw(3, 80, 80), "w": draw(4, 80, 3)}
    model, variables, out = door(lambda p, x: jnp.tanh(flat(x) @ p["k"]) @ p["k"] @ p["w"], weights, IMAGES)
    rows = jax.jit(model.rows)(variables, IMAGES)
    first = flat(IMAGES)
    second = jnp.tanh(first @ weights["k"])
    np.testing.assert_allclose(rows["k"], jnp.concatenate([first, second]), atol=1e-5)
    np.testing.assert_allclose(rows["w"], second @ weights["k"], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(rows["w"], out.features)
    with pytest.raises(ValueError, match="v is the kernel of no linear layer; they are k, w"):
        model.matrix("v", weights["w"])


#: Functions of b and of the product of images and kernel k, and whether b is the bias.
BIASES = {
    "added": (lambda z, b: z + b, True),
    "added first": (lambda z, b: b + z, True),
    "added to another shape": (lambda z, b: (z.reshape(-1, 1, 3) + b)[:, 0], True),
    "added to other axes": (lambda z, b: (z.T + b[:, None]).T, True),
    "none": (lambda z, b: z, False),
    "added to a multiple": (lambda z, b: 2 * z + b, False),
    "one number of it": (lambda z, b: z + b[0], False),
    "times something": (lambda z, b: z * b, False),
    "added to what was added": (lambda z, b: z + jnp.arange(3.0) + b, False),
    "added elsewhere": (lambda z, b: z + flat(IMAGES)[:1, :3] * b, False),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_what_is_added_to_a_layer_and_nothing_else(name):
    function, has = BIASES[name]
    weights = {"layer": {"k": draw(3, 80, 3), "b": draw(4, 3)}}
    model, _, out = door(lambda p, x: function(flat(x) @ p["layer"]["k"], p["layer"]["b"]), weights, IMAGES)
    assert model.bias_of("layer/k") == ("layer/b" if has else "")
    assert model.head == "layer"
    assert model.head_names == (("layer/k", "layer/b") if has else ("layer/k",))
    assert model.bias_of("other") == ""
    np.testing.assert_array_equal(out.features, flat(IMAGES))


def test_a_bias_of_channels_belongs_to_its_convolution():
    def network(p, x):
        z = jax.lax.conv(x, p["k"], (1, 1), "SAME")
        return jnp.maximum(z + p["b"].reshape(1, 6, 1, 1), 0).mean((2, 3)) @ p["w"]

    weights = {"k": draw(2, 6, 4, 3, 3), "b": draw(3, 6), "w": draw(4, 6, 3)}
    model, _, out = door(network, weights, IMAGES, layout="NCHW")
    assert (model.bias_of("k"), model.bias_of("w"), model.head_names) == ("b", "", ("w",))
    assert [a.shape for a in out.activations] == [(2, 6, 5, 4)]


def test_the_head_is_the_last_dense_layer_of_whole_images_that_the_logits_depend_on():
    def network(p, x):
        second = flat(x) @ p["net.first.weight"] @ p["second/kernel"]
        return second + jnp.tanh(x @ p["tokens"]).mean((1, 2)), flat(x) @ p["unused"]

    weights = {
        **{"net.first.weight": draw(3, 80, 3), "second/kernel": draw(4, 3, 3)},
        **{"tokens": draw(5, 4, 3), "unused": draw(6, 80, 3)},
    }
    model, _, out = door(lambda p, x: network(p, x)[0], weights, IMAGES)
    assert (model.head, model.head_names) == ("second", ("second/kernel",))
    np.testing.assert_allclose(out.features, flat(IMAGES) @ weights["net.first.weight"], rtol=1e-4, atol=1e-5)
    for name in ("net.first", "net.first.weight"):
        model, _, out = door(lambda p, x: network(p, x)[0], weights, IMAGES, head=name)
        assert (model.head, model.head_names) == ("net.first", ("net.first.weight",))
        np.testing.assert_array_equal(out.features, flat(IMAGES))
    with pytest.raises(ValueError, match=r"outputs \(second, net.first\), got 'tokens'"):
        door(lambda p, x: network(p, x)[0], weights, IMAGES, head="tokens")


SQUARE = draw(7, 2, 4, 4, 4)

#: Operations after a convolution with axes in another order than the library's; every axis has four entries.
FOLLOWING = {
    "a number added": lambda z, y, x: z + 2.0,
    "a number less": lambda z, y, x: 1.0 - z,
    "an array of one axis": lambda z, y, x: z * jnp.arange(4.0),
    "an array of all axes": lambda z, y, x: z - jnp.arange(64.0).reshape(1, 4, 4, 4),
    "images": lambda z, y, x: x / (2 + z * z),
    "another": lambda z, y, x: z - y,
    "itself with axes exchanged": lambda z, y, x: z - 2 * z.transpose(0, 2, 3, 1),
    "axes exchanged twice": lambda z, y, x: z.transpose(0, 3, 1, 2).transpose(0, 2, 1, 3),
    "joined channels": lambda z, y, x: jnp.concatenate([z, y], 1),
    "joined rows": lambda z, y, x: jnp.concatenate([z, y, z], 2),
    "joined with axes exchanged": lambda z, y, x: jnp.concatenate([z, y.transpose(0, 2, 3, 1)], 3),
    "joined with images": lambda z, y, x: jnp.concatenate([x, z], 1),
    **{f"sum over {axes}": lambda z, y, x, axes=axes: z.sum(axes) for axes in ((1,), (2,), (3,), (2, 3), (1, 3))},
    "largest over axes": lambda z, y, x: z.max((1, 2)),
    "smallest over an axis": lambda z, y, x: z.min(3),
    "product over an axis": lambda z, y, x: jnp.prod(z, 2),
    "whether any": lambda z, y, x: (z > 1).any(3) * 1.0,
    "mean that keeps its axes": lambda z, y, x: z - z.mean((2, 3), keepdims=True),
    "bounds": lambda z, y, x: jnp.clip(z, -0.5, 0.7),
    "a choice": lambda z, y, x: jnp.where(z > y, z, 3 * y),
    "relu": lambda z, y, x: jax.nn.relu(z),
    "relu6": lambda z, y, x: jax.nn.relu6(4 * z),
    "silu": lambda z, y, x: jax.nn.silu(z),
    "powers": lambda z, y, x: z**3,
    "half precision": lambda z, y, x: z.astype(jnp.bfloat16).astype(jnp.float32),
    "backwards": lambda z, y, x: z[:, ::-1],
    "a part": lambda z, y, x: z[:, 1:3, :2],
    "sorted": lambda z, y, x: jnp.sort(z, 1),
    "running sums": lambda z, y, x: jnp.cumsum(z, 1),
    "another shape": lambda z, y, x: z.reshape(len(z), 2, 2, 16).sum(1),
    "channels by a matrix": lambda z, y, x: jnp.einsum("bchw,cd->bhwd", z, jnp.arange(12.0).reshape(4, 3)),
}


def test_what_follows_a_convolution_of_other_axes_is_itself():
    def parts(params, x):
        z, y = (jax.lax.conv(x, params[name], (1, 1), "SAME") for name in "kl")
        return [flat(function(z, y, x)) for function in FOLLOWING.values()]

    weights = {"k": draw(2, 4, 4, 3, 3) / 6, "l": draw(3, 4, 4, 3, 3) / 6}
    model, variables = models.from_function(
        lambda v, x: jnp.concatenate(parts(v["params"], x), 1),
        {"params": weights},
        image_shape=(4, 4, 4),
        layout="NCHW",
    )
    logits = jax.jit(lambda v, x: model.apply(v, x).logits)(variables, SQUARE)
    start = 0
    for name, part in zip(FOLLOWING, jax.jit(parts)(weights, SQUARE.transpose(0, 3, 1, 2)), strict=True):
        found = logits[:, start : start + part.shape[1]]
        np.testing.assert_allclose(found, part, rtol=1e-4, atol=2e-2 if "half" in name else 1e-5, err_msg=name)
        start += part.shape[1]


def test_statistics_of_a_batch_are_solved_from_those_before_and_after_it():
    weights, x = {"w": draw(3, 80, 3)}, IMAGES
    stats = {"mean": draw(4, 4), "last": draw(5, 4), "kept": draw(6, 4)}

    def evaluated(variables, x):
        return flat(x - variables["batch_stats"]["mean"]) @ variables["params"]["w"]

    def trained(variables, x):
        old, mean = variables["batch_stats"], x.mean((0, 1, 2))
        new = {"mean": 0.75 * old["mean"] + 0.25 * mean, "last": mean, "kept": old["kept"]}
        return flat(x - mean) @ variables["params"]["w"], new

    model, variables = models.from_function(
        evaluated, {"params": weights, "batch_stats": stats}, train_apply=trained, image_shape=(5, 4, 4)
    )
    mean = x.mean((0, 1, 2))
    out = jax.jit(model.apply)(variables, x)
    np.testing.assert_allclose(out.statistics["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(out.statistics["last"], mean, atol=1e-6)
    assert np.isnan(out.statistics["kept"]).all()
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), out.batch_stats, trained(variables, x)[1])
    for mode, function in (("train", lambda v, x: trained(v, x)[0]), ("eval", evaluated)):
        found, expected = jax.jit(lambda v, x, m=mode, f=function: (model.apply(v, x, mode=m), f(v, x)))(variables, x)
        np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    assert model.apply(variables, x, mode="eval").batch_stats is variables["batch_stats"]
    assert model.has_batch_norm
    assert model.has_running_statistics
    assert not model.mixes_images("eval")


def test_training_that_reads_running_statistics_needs_them():
    stats = {"mean": jnp.ones(4)}

    def network(variables, x):
        return flat(x - variables["batch_stats"]["mean"]) @ variables["params"]["w"]

    model, variables = models.from_function(
        network, {"params": {"w": draw(3, 80, 2)}, "batch_stats": stats}, train_apply=network, image_shape=(5, 4, 4)
    )
    found, expected = jax.jit(lambda v, x: (model.apply(v, x), network(v, x)))(variables, IMAGES)
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="training reads running statistics too"):
        model.apply({**variables, "batch_stats": None}, IMAGES)


def test_two_classes_are_enough_and_one_is_not():
    def made(classes, **options):
        weights = {"params": {"w": draw(3, 80, classes)}}
        return models.from_function(lambda v, x: flat(x) @ v["params"]["w"], weights, image_shape=(5, 4, 4), **options)

    assert made(2)[0].num_classes == made(2, num_classes=2)[0].num_classes == 2
    with pytest.raises(ValueError, match=r"must be that of the network, 2, since its one logit z is .*, got 10"):
        made(1, num_classes=10)
    with pytest.raises(ValueError, match="head must be a dense layer with 1 output \\(w\\), got 'v'"):
        made(1, head="v")
    with pytest.raises(
        ValueError, match=r"got 1: a network with one logit z .* regression .* --classes 2 --loss other"
    ):
        made(1, num_classes=1)
    for change, shape in (
        (lambda z: jnp.concatenate([z, z]), (4, 3)),
        (lambda z: z[None], (1, 2, 3)),
        (lambda z: z.T, (3, 2)),
        (lambda z: z[:, :, None], (2, 3, 1)),
        (lambda z: z[0], (3,)),
        (lambda z: z[:, 0] > 0, (2,)),
    ):
        with pytest.raises(ValueError, match=re.escape(f"got {shape} for 2 images")):
            models.from_function(lambda v, x, c=change: c(flat(x)[:, :3]), {"params": {}}, image_shape=(5, 4, 4))
    for classes in (1, 10**6 + 1):
        with pytest.raises(ValueError, match="num_classes must be in"):
            made(2, num_classes=classes)
    with pytest.raises(ValueError, match="must be that of the network, 2, got 1000000"):
        made(2, num_classes=10**6)
    model, variables = made(2)
    for shape in ((5, 4, 4), (2, 4, 5, 4)):
        with pytest.raises(ValueError, match=r"x must be \(B, 5, 4, 4\)"):
            model.apply(variables, jnp.zeros(shape))
    with pytest.raises(ValueError, match="height"):
        models.from_function(lambda v, x: x, {"params": {}}, image_shape=(0, 4, 4))


def _tanh(p, x):
    return jnp.tanh(flat(x) @ p["first"])


#: Networks with one logit: shapes of the head's kernel and bias, and the function that computes the logit.
ONE_LOGIT = {
    "column": ((7, 1), (1,), lambda p, x: _tanh(p, x) @ p["w"] + p["b"]),
    "row": ((1, 7), (1,), lambda p, x: (_tanh(p, x) @ p["w"].T + p["b"])[:, 0]),
    "vector": ((7,), (), lambda p, x: _tanh(p, x) @ p["w"] + p["b"]),
    "squeezed": ((7, 1), (1, 1), lambda p, x: jnp.squeeze(_tanh(p, x) @ p["w"] + p["b"])),
}


@pytest.mark.parametrize("name", ONE_LOGIT)
def test_one_logit_stands_as_two_of_which_the_first_is_zero(name):
    kernel, bias, network = ONE_LOGIT[name]
    weights = {"first": draw(1, 80, 7), "w": draw(2, *kernel), "b": draw(3, *bias)}
    x, y = reference.uniform(3, 5, 4, 4, seed=4), jnp.array([1, 0, 1])
    model, variables = models.from_function(
        lambda v, x: network(v["params"], x), {"params": weights}, image_shape=(5, 4, 4)
    )
    assert (model.num_classes, model.one_logit, model.head_names, model.bias_of("w")) == (2, True, ("w", "b"), "b")
    assert model.notes == ("its one logit z is read as the two logits (0, z) of the classes 0 and 1",)
    both = jax.jit(lambda v, x: (model.apply(v, x), network(v["params"], x)))
    for n in (1, 3):  # for one image, the squeezed logit has no axis
        out, expected = both(variables, x[:n])
        np.testing.assert_array_equal(out.logits[:, 0], np.zeros(n))
        np.testing.assert_allclose(out.logits[:, 1], expected.reshape(n), rtol=1e-5)
    head = model.head_of(weights, gradient=False)
    np.testing.assert_array_equal(head.kernel, np.stack([np.zeros(7), np.ravel(weights["w"])], axis=1))
    np.testing.assert_allclose(out.logits, out.features @ head.kernel + head.bias, rtol=1e-4, atol=1e-5)

    def binary(p):  # the owner's loss, without two logits
        z = network(p, x).reshape(3)
        return jnp.mean(jax.nn.softplus(z) - y * z)

    def of_two(layer):
        return objectives.cross_entropy(out.features @ layer.kernel + layer.bias, y)

    gradient = jax.jit(jax.grad(binary))(weights)
    found, wanted = model.head_of(gradient, gradient=True), jax.jit(jax.grad(of_two))(head)
    np.testing.assert_allclose(found.kernel, wanted.kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.bias, wanted.bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ONE_LOGIT)
def test_two_columns_are_written_back_as_the_one_of_the_owner(name):
    kernel, bias, network = ONE_LOGIT[name]
    weights = {"first": draw(1, 80, 7), "w": draw(2, *kernel), "b": draw(3, *bias)}
    model, _ = models.from_function(lambda v, x: network(v["params"], x), {"params": weights}, image_shape=(5, 4, 4))
    for of_gradient in (False, True):
        head = model.head_of(weights, gradient=of_gradient)
        back = model.with_head(weights, head, gradient=of_gradient)
        jax.tree.map(np.testing.assert_array_equal, back, weights)
        doubled = model.with_head(weights, head._replace(kernel=2 * head.kernel, bias=None), gradient=of_gradient)
        np.testing.assert_array_equal(doubled["w"], 2 * weights["w"])
        np.testing.assert_array_equal(doubled["b"], weights["b"])
    moved = model.with_head(weights, head._replace(kernel=jnp.stack([jnp.ones(7), jnp.zeros(7)], 1)), gradient=False)
    np.testing.assert_array_equal(moved["w"], -jnp.ones(kernel))  # the logits (f, 0) equal (0, -f) up to a constant
    for read in (model.head_of, lambda tree: model.with_head(tree, head)):
        with pytest.raises(ValueError, match=r"one logit, .* say gradient=False or gradient=True"):
            read(weights)


def test_what_is_no_logit_alone_is_refused():
    weights = {"params": {"w": draw(1, 80, 1), "two": draw(2, 80, 2)}}

    def made(network, **options):
        return models.from_function(network, weights, image_shape=(5, 4, 4), **options)

    def one(v, x):
        return flat(x) @ v["params"]["w"]

    def two(v, x):
        return flat(x) @ v["params"]["two"]

    for probability in (lambda v, x: jax.nn.sigmoid(one(v, x)), lambda v, x: jnp.squeeze(jax.nn.sigmoid(one(v, x)), 1)):
        with pytest.raises(ValueError, match="ends in a sigmoid in mode 'eval', and must give the logit"):
            made(probability)
    with pytest.raises(ValueError, match=r"got \(2,\) whatever B is"):  # the two logits of the first image
        made(lambda v, x: two(v, x)[0])
    with pytest.raises(ValueError, match=r"one logit for each image.* in every mode"):
        made(one, train_apply=two)
    gated = made(lambda v, x: jax.nn.sigmoid(flat(x) @ v["params"]["two"])[:, :1] * 2 - 1)[0]
    assert gated.one_logit


def test_a_module_of_linen_may_have_one_logit():
    model = models.classifier(nn.Sequential([flat, nn.Dense(4), nn.tanh, nn.Dense(1)]), image_shape=(2, 2, 1))
    variables = reference.drawn(model)
    assert (model.num_classes, model.head_of(variables["params"], gradient=False).kernel.shape) == (2, (4, 2))
    assert model.apply(variables, jnp.ones((3, 2, 2, 1))).logits.shape == (3, 2)
