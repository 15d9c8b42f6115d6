import functools
import inspect
import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models
from jaxleak.models._densenet import densenet121
from jaxleak.models._layers import BatchNorm, Style, conv
from jaxleak.models._mobilenet import InvertedResidual
from jaxleak.models._resnets import is_small
from jaxleak.models._vit import vit

# Small networks, one of each kind: (H, W, c), factory.
SMALL = {
    "lenet": ((8, 7, 3), functools.partial(models.lenet, channels=2, strides=(2, 1))),
    "pooled": (
        (7, 7, 1),
        functools.partial(models.convnet, channels=(2, 3), strides=(1, 1), batch_norm=True, pool_after=(1,)),
    ),
    "mlp": ((4, 5, 1), functools.partial(models.mlp, widths=(6, 5))),
    "resnet": ((16, 16, 1), functools.partial(models.resnet, blocks=(1, 1), width=2, stem="large")),
    "densenet": ((8, 8, 1), functools.partial(densenet121, blocks=(1, 1), growth=2)),
    "vit": ((8, 8, 1), functools.partial(vit, width=6, depth=1, heads=2, mlp_ratio=2)),
}


@functools.cache
def _small(name, **options):
    shape, factory = SMALL[name]
    model = factory(shape, 3, **options)
    rng = np.random.default_rng(0)
    # Drawn in NumPy, since compiling an initialiser takes longer than these tests.
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    variables = {
        "params": jax.tree.map(lambda leaf: rng.normal(0.1, 0.5, leaf.shape).astype(leaf.dtype), shapes["params"]),
        "batch_stats": jax.tree.map(
            lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype), shapes["batch_stats"]
        ),
    }
    return model, variables, rng.random((2, *shape)).astype(np.float32)


@functools.cache  # tracing a network of many layers takes a second or more
def _shapes(name, image_shape, num_classes, batch=2, **options):
    model = models.build(name, image_shape, num_classes, **options)
    variables = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, *image_shape), jnp.float32)
    return model, variables, jax.eval_shape(model.apply, variables, x)


def _count(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


MNIST, CIFAR, IMAGENET = ((28, 28, 1), 10), ((32, 32, 3), 10), ((224, 224, 3), 1000)


@pytest.mark.parametrize(
    ("name", "problem", "count"),
    [
        ("resnet10", MNIST, 4_902_090),  # the number of the victim's parameters in FedLeak
        ("resnet10_x3", MNIST, 44_049_994),
        ("resnet10_x5", MNIST, 122_322_890),
        ("resnet18", CIFAR, 11_173_962),
        ("resnet18", IMAGENET, 11_689_512),
        pytest.param("resnet34", IMAGENET, 21_797_672, marks=pytest.mark.slow),
        pytest.param("densenet121", CIFAR, 6_956_298, marks=pytest.mark.slow),
        pytest.param("densenet121", IMAGENET, 7_978_856, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", IMAGENET, 3_504_872, marks=pytest.mark.slow),
        pytest.param("vit_tiny", IMAGENET, 5_717_416, marks=pytest.mark.slow),
        pytest.param("vit_small", IMAGENET, 22_050_664, marks=pytest.mark.slow),
        ("convnet_ig", CIFAR, 2_904_970),
        ("lenet", CIFAR, 5 * 5 * 3 * 12 + 12 + 2 * (5 * 5 * 12 * 12 + 12) + 768 * 10 + 10),
        ("convnet", MNIST, 9 * 32 + 32 + 9 * 32 * 32 + 32 + 9 * 32 * 64 + 64 + 9 * 64 * 64 + 64 + 1024 * 10 + 10),
        ("mlp", MNIST, 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10),
    ],
)
def test_parameter_counts(name, problem, count):
    """Published networks have the counts of their papers; the counts of others are computed by hand."""
    model = models.build(name, *problem)
    assert _count(jax.eval_shape(model.init, jax.random.key(0))) == count


@pytest.mark.parametrize(
    ("name", "size", "features", "last_map"),
    [
        ("resnet10", (224, 224, 3), 512, (7, 7)),
        ("resnet10_x5", (32, 32, 3), 2560, (4, 4)),
        pytest.param("resnet18", (64, 64, 3), 512, (8, 8), marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", (32, 32, 3), 1280, (4, 4), marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", (96, 80, 1), 1280, (3, 3), marks=pytest.mark.slow),
        pytest.param("vit_tiny", (28, 28, 1), 192, None, marks=pytest.mark.slow),
        ("lenet", (28, 28, 1), 588, (7, 7)),
        ("convnet", (64, 64, 3), 4096, (8, 8)),
        ("convnet_ig", (32, 32, 3), 2304, (10, 10)),
    ],
)
def test_shapes(name, size, features, last_map):
    model, variables, out = _shapes(name, size, 7)
    assert (model.image_shape, model.num_classes) == (size, 7)
    assert out.logits.shape == (2, 7)
    assert out.features.shape == (2, features)
    assert variables["params"][model.head]["kernel"].shape == (features, 7)
    assert jax.tree.structure(out.statistics) == jax.tree.structure(variables["batch_stats"])
    assert jax.tree.structure(out.batch_stats) == jax.tree.structure(variables["batch_stats"])
    assert model.has_batch_norm == bool(out.statistics)
    if last_map is not None:
        assert out.activations[-1].shape[1:3] == last_map


@pytest.mark.parametrize(("stride", "channels", "adds"), [(1, 4, True), (2, 4, False), (1, 6, False)])
def test_inverted_residuals_add_their_input_where_the_shape_stays(stride, channels, adds):
    block = InvertedResidual(channels, 2, stride, Style("relu6"))
    x = np.random.default_rng(0).random((2, 4, 4, 4)).astype(np.float32)
    shapes = jax.eval_shape(lambda: block.init(jax.random.key(1), x, False))
    silent = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)  # the projection gives zero
    z = jax.jit(lambda x: block.apply(silent, x, False))(x)
    assert z.shape == (2, 4 // stride, 4 // stride, channels)
    np.testing.assert_allclose(z, x if adds else 0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "kinks"),
    [
        ("mlp", {}, True),
        ("mlp", {"activation": "gelu"}, False),
        ("convnet", {"channels": (2,), "strides": (1,), "activation": "tanh"}, False),
        ("convnet", {"channels": (2,), "strides": (1,), "activation": "tanh", "pool_after": (0,)}, True),
        ("convnet", {"channels": (2,), "strides": (1,), "activation": "relu6", "batch_norm": True}, True),
        ("resnet10", {"width": 2, "activation": "sigmoid"}, False),
    ],
)
def test_kinks_are_those_that_sharpness_rounds(name, options, kinks):
    assert models.build(name, (8, 8, 1), 3, **options).has_kinks == kinks


#: Activations of MobileNetV2 as (side, channels), without repetitions: table 2 of its paper.
MOBILENET = {
    "large": (224, [(112, 32), (112, 96), (56, 96), (56, 144), (28, 144), (28, 192), (14, 192), (14, 384), (14, 576),
                    (7, 576), (7, 960), (7, 1280)]),
    "small": (32, [(32, 32), (32, 96), (32, 144), (16, 144), (16, 192), (8, 192), (8, 384), (8, 576), (4, 576),
                   (4, 960), (4, 1280)]),
}  # fmt: skip


@pytest.mark.parametrize(("stem", "sides"), [("small", [32, 16, 8]), ("large", [16, 8, 4, 2])])
@pytest.mark.parametrize("factory", [models.resnet, densenet121])
def test_stems_and_stages_halve_where_their_papers_do(factory, stem, sides):
    model = factory(
        (32, 32, 1), 3, blocks=(1, 1, 1), stem=stem, **{"width" if factory is models.resnet else "growth": 2}
    )
    x = jax.ShapeDtypeStruct((1, 32, 32, 1), jnp.float32)
    out = jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), x)
    found = list(dict.fromkeys(a.shape[1] for a in out.activations))
    assert found == sides
    assert out.features.shape == (1, 8 if factory is models.resnet else 4)


@pytest.mark.slow
def test_tokens_and_positions_start_from_a_narrow_normal():
    params = vit((16, 16, 1), 3, width=400, depth=1, heads=1, init="wide_uniform").init(jax.random.key(0))["params"]
    for name in ("class_token", "position"):
        # A normal distribution that is truncated at two scales keeps 0.88 of its standard deviation.
        drawn = np.asarray(params[name])
        np.testing.assert_allclose(drawn.std(), 0.88 * 0.02, rtol=0.1)
        assert 0.03 < np.abs(drawn).max() <= 0.04


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_of_one_or_two_numbers_joins_the_running_variance(count):
    layer, x = BatchNorm(), np.arange(2.0 * count, dtype=np.float32).reshape(count, 1, 1, 2) ** 2

    @jax.jit
    def after(x):
        return layer.apply(layer.init(jax.random.key(0), x, False), x, True, mutable=["batch_stats"])[1]

    new = after(x)
    unbiased = np.var(x, axis=(0, 1, 2), ddof=1) if count > 1 else 0
    np.testing.assert_allclose(new["batch_stats"]["var"], 0.9 + 0.1 * unbiased, rtol=1e-5)
    np.testing.assert_allclose(new["batch_stats"]["mean"], 0.1 * x.mean((0, 1, 2)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("stem", MOBILENET)
def test_mobilenet_halves_where_its_paper_does(stem):
    side, expected = MOBILENET[stem]
    _, _, out = _shapes("mobilenet_v2", (side, side, 3), 7)
    assert list(dict.fromkeys((a.shape[1], a.shape[3]) for a in out.activations)) == expected
    assert len(out.activations) == 2 + 1 + 2 * 16  # stem and last layer, one in the first block, two in the others


@pytest.mark.parametrize(("shape", "small"), [((64, 64, 3), True), ((64, 65, 1), False), ((65, 64, 1), False)])
def test_small_images_are_those_of_up_to_64_pixels(shape, small):
    assert is_small(shape, "auto") == small
    assert is_small(shape, "small")
    assert not is_small(shape, "large")


def test_every_network_has_ten_classes_unless_told_otherwise():
    for factory in (*models.CLASSIFIERS.values(), models.resnet, vit):
        assert inspect.signature(factory).parameters["num_classes"].default == 10


def test_a_residual_network_and_a_transformer_are_the_smallest_of_their_papers_unless_told_otherwise():
    for factory, name in ((models.resnet, "resnet10"), (vit, "vit_tiny")):
        defaults, own = (inspect.signature(f).parameters for f in (factory, models.CLASSIFIERS[name]))
        assert [p.default for p in defaults.values()] == [p.default for p in own.values()]


@pytest.mark.parametrize(("side", "patch"), [(8, 4), (32, 4), (40, 8), (64, 8), (80, 16), (128, 16)])
def test_patches_of_transformers_grow_with_images(side, patch):
    model = vit((side, side, 1), 3, width=4, depth=1, heads=2)
    shapes = jax.eval_shape(model.init, jax.random.key(0))["params"]
    assert shapes["embed"]["kernel"].shape == (patch**2, 4)
    assert shapes["position"].shape == (1, 1 + (side // patch) ** 2, 4)
    assert shapes["mlp_0_0"]["kernel"].shape == (4, 16)


DESCRIBED = """images (4, 4, 1), 2 classes, 134 parameters in 6 leaves
last dense layer: head
batch normalisation: yes
kinks that the sharpness of an attack smooths: yes
parameters, and what linear layers read (rows x numbers in each, one image):
  conv_0/bias    (3,)
  conv_0/kernel  (3, 3, 1, 3)  reads 16 x 9
  head/bias      (2,)  (head)
  head/kernel    (48, 2)  reads 1 x 48  (head)
  norm_0/bias    (3,)
  norm_0/scale   (3,)"""


def test_a_description_names_every_leaf_and_what_layers_read():
    model = models.convnet((4, 4, 1), 2, channels=(3,), strides=(1,), batch_norm=True)
    assert models.describe(model) == DESCRIBED
    smooth = models.mlp((40, 40, 1), 3, widths=(), activation="tanh")._replace(head="", head_leaves=(), notes=("so",))
    lines = models.describe(smooth).splitlines()
    assert lines[0] == "images (40, 40, 1), 3 classes, 4,803 parameters in 2 leaves"
    assert lines[1:4] == [
        "last dense layer: not found",
        "batch normalisation: no",
        "kinks that the sharpness of an attack smooths: none",
    ]
    assert lines[5:] == ["  head/bias    (3,)", "  head/kernel  (1600, 3)  reads 1 x 1600", "note: so"]


def test_the_registry_knows_its_networks():
    assert set(models.CLASSIFIERS) == {
        "lenet", "convnet", "convnet_ig", "mlp", "mlp3", "resnet10", "resnet10_x3", "resnet10_x5", "resnet18",
        "resnet34", "densenet121", "mobilenet_v2", "vit_tiny", "vit_small",
    }  # fmt: skip
    weights = jax.eval_shape(models.mlp3((4, 4, 1)).init, jax.random.key(0))["params"]
    assert sorted(weights) == ["dense_0", "dense_1", "dense_2", "head"]
    with pytest.raises(ValueError, match=r"model must be one of lenet, convnet, .*vit_small, got 'alexnet'"):
        models.build("alexnet", (28, 28, 1), 10)


@pytest.mark.parametrize("name", SMALL)
def test_features_are_the_inputs_of_the_head(name):
    model, variables, x = _small(name)
    out = jax.jit(model.apply)(variables, x)
    head = variables["params"][model.head]
    logits, features, activations = jax.tree.map(np.asarray, (out.logits, out.features, out.activations))
    np.testing.assert_allclose(logits, features @ head["kernel"] + head["bias"], rtol=1e-4, atol=1e-5)
    assert len(activations) > 0
    assert all(a.shape[0] == 2 and np.isfinite(a).all() for a in activations)
    assert logits.std() > 0


def test_activations_come_in_the_order_of_the_forward_pass():
    model = models.convnet((2, 2, 1), 2, channels=range(1, 13), strides=(1,) * 12)
    variables, x = jax.eval_shape(model.init, jax.random.key(0)), jax.ShapeDtypeStruct((1, 2, 2, 1), jnp.float32)
    assert [a.shape[-1] for a in jax.eval_shape(model.apply, variables, x).activations] == list(range(1, 13))


def test_the_activation_replaces_every_relu():
    model, variables, x = _small("pooled", activation="sigmoid")
    activations = jax.tree.map(np.asarray, jax.jit(model.apply)(variables, x).activations)
    assert len(activations) == 2
    assert all((a > 0).all() and (a < 1).all() for a in activations)


@pytest.mark.parametrize("name", ["pooled", "resnet"])
def test_a_sharp_copy_tends_to_the_network_and_a_smooth_one_differs(name):
    model, variables, x = _small(name)

    @jax.jit
    def logits(sharpness):
        smooth = jax.vmap(lambda b: model.apply(variables, x, sharpness=b).logits)(sharpness)
        return model.apply(variables, x).logits, smooth

    exact, (sharp, soft) = jax.tree.map(np.asarray, logits(jnp.array([1e5, 3.0])))
    scale = np.abs(exact).max()
    assert np.abs(sharp - exact).max() < 1e-3 * scale
    assert np.abs(soft - exact).max() > 1e-2 * scale


def test_smooth_networks_ignore_sharpness():
    model, variables, x = _small("vit")
    np.testing.assert_array_equal(
        *jax.jit(lambda x: [model.apply(variables, x, sharpness=b).logits for b in (None, 2.0)])(x)
    )


def _matching_gradient(model, variables, x, sharpness):
    """The gradient by images of the squared norm of the parameter gradient, as attacks compute it."""

    def norm(x):
        def loss(params):
            logits = model.apply({**variables, "params": params}, x, sharpness=sharpness).logits
            return -jax.nn.log_softmax(logits)[:, 0].mean()

        return sum(jnp.vdot(g, g) for g in jax.tree.leaves(jax.grad(loss)(variables["params"])))

    return jax.grad(norm)(x)


@pytest.mark.parametrize("name", [pytest.param("pooled", marks=pytest.mark.slow), "vit"])
def test_second_order_gradients_are_finite(name):
    model, variables, x = _small(name)
    # A blank image has equal entries in every pooling window, and zero inputs at every ReLU.
    x = np.stack([np.zeros_like(x[0]), x[1]])
    gradient = np.asarray(jax.jit(functools.partial(_matching_gradient, model))(variables, x, jnp.float32(50.0)))
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


def test_apply_maps_over_models_and_images():
    model, _, x = _small("lenet")
    images = np.stack([x, 1 - x])

    @jax.jit
    def both(keys):
        many = jax.vmap(model.init)(keys)
        mapped = jax.vmap(lambda v, x: model.apply(v, x).logits)(many, images)
        return mapped[1], model.apply(jax.tree.map(lambda leaf: leaf[1], many), images[1]).logits

    np.testing.assert_allclose(*both(jax.random.split(jax.random.key(3), 2)), atol=1e-5)


def test_batch_normalisation_trains_as_in_pytorch():
    model = models.convnet((4, 4, 1), 2, channels=(3,), strides=(1,), window=1, batch_norm=True)
    x = np.asarray(reference.normal(5, 4, 4, 1))
    stats = {"norm_0": {"mean": jnp.array([0.0, 1.0, -1.0]), "var": jnp.array([1.0, 2.0, 3.0])}}
    variables = {"params": model.init(jax.random.key(0))["params"], "batch_stats": stats}
    conv = jax.tree.map(np.asarray, variables["params"]["conv_0"])
    z = x * conv["kernel"][0, 0, 0] + conv["bias"]
    mean, var = z.mean(axis=(0, 1, 2)), z.var(axis=(0, 1, 2))

    apply = jax.jit(model.apply, static_argnames="mode")
    train = apply(variables, x)
    normal = (z - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(train.activations[0], np.maximum(normal, 0), atol=1e-4)
    np.testing.assert_allclose(train.statistics["norm_0"]["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(train.statistics["norm_0"]["var"], var, rtol=1e-4)
    new, unbiased = train.batch_stats["norm_0"], var * 80 / 79
    np.testing.assert_allclose(new["mean"], 0.9 * stats["norm_0"]["mean"] + 0.1 * mean, atol=1e-6)
    np.testing.assert_allclose(new["var"], 0.9 * stats["norm_0"]["var"] + 0.1 * unbiased, rtol=1e-5)

    evaluated = apply(variables, x, mode="eval")
    running = stats["norm_0"]
    normal = (z - running["mean"]) / np.sqrt(running["var"] + 1e-5)
    np.testing.assert_allclose(evaluated.activations[0], np.maximum(normal, 0), atol=1e-4)
    np.testing.assert_allclose(evaluated.statistics["norm_0"]["var"], var, rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, evaluated.batch_stats, stats)

    # Running statistics that were not granted are neither needed nor invented.
    for absent in (None, {}):
        blind = apply({"params": variables["params"], "batch_stats": absent}, x)
        np.testing.assert_allclose(blind.logits, train.logits, atol=1e-5)
        assert blind.batch_stats == absent
        with pytest.raises(ValueError, match="batch_stats were not granted"):
            model.apply({"params": variables["params"], "batch_stats": absent}, x, mode="eval")


def test_a_fresh_network_has_fresh_statistics():
    model = _small("pooled")[0]
    for layer in model.init(jax.random.key(0))["batch_stats"].values():
        np.testing.assert_array_equal(layer["mean"], 0.0)
        np.testing.assert_array_equal(layer["var"], 1.0)


def test_without_batch_normalisation_evaluation_needs_no_statistics():
    model, variables, x = _small("mlp")
    apply = jax.jit(model.apply, static_argnames="mode")
    for stats in ({}, None):
        out = apply({"params": variables["params"], "batch_stats": stats}, x, mode="eval")
        assert out.statistics == {}
        assert out.batch_stats == stats


def test_initialisers():
    shape, fan_in = (20, 20, 1, 100), 400
    limits = {"default": fan_in**-0.5, "wide_uniform": 0.5, "glorot": (6 / (fan_in + 20 * 20 * 100)) ** 0.5}
    for name, limit in limits.items():
        kernel_init, bias_init = models.initializers(name, fan_in)
        kernel = np.asarray(kernel_init(jax.random.key(0), shape))
        assert 0.99 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
        np.testing.assert_allclose(kernel.std(), limit / 3**0.5, rtol=0.02)
        bias = np.abs(bias_init(jax.random.key(1), (100,))).max()
        assert bias == 0 if name == "glorot" else 0.8 * limit < bias <= limit
    kernel_init, bias_init = models.initializers("he", fan_in)
    np.testing.assert_allclose(np.std(kernel_init(jax.random.key(0), shape)), (2 / fan_in) ** 0.5, rtol=0.02)
    assert not bias_init(jax.random.key(1), (100,)).any()


def test_the_choice_of_initialiser_reaches_every_layer():
    # A 3x3 kernel of four grouped channels has 9 * 2 inputs, so the default stays within 18 ** -0.5.
    for name, limit in (("default", 18**-0.5), ("wide_uniform", 0.5)):

        class Grouped(nn.Module):
            @nn.compact
            def __call__(self, x, style=Style(init=name)):  # noqa: B008
                return conv(x, 64, 3, style, groups=2, bias=True, name="conv")

        params = Grouped().init(jax.random.key(0), jnp.zeros((1, 1, 1, 4)))["params"]
        for leaf in jax.tree.leaves(params):
            assert 0.9 * limit < np.abs(leaf).max() <= limit
    head = models.mlp((9, 9, 1), init="wide_uniform", widths=()).init(jax.random.key(0))["params"]["head"]
    assert 0.45 < head["kernel"].max() <= 0.5


def test_dense_layers_are_drawn_by_their_own_inputs():
    params = models.mlp((9, 9, 1), widths=(100,)).init(jax.random.key(0))["params"]
    for name, inputs in (("dense_0", 81), ("head", 100)):
        for leaf in params[name].values():
            assert 0.8 * inputs**-0.5 < np.abs(leaf).max() <= inputs**-0.5


def test_a_transformer_without_positions_sees_a_bag_of_patches():
    model, variables, x = _small("vit")
    params = {**variables["params"], "position": np.zeros((1, 5, 6), np.float32)}
    swapped, moved = (np.roll(x, shift, axis=1) for shift in (4, 6))
    apply = jax.jit(lambda z: model.apply({"params": params, "batch_stats": {}}, z).logits)
    logits = [np.asarray(apply(z)) for z in (x, swapped, moved)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
    assert np.abs(logits[0] - logits[2]).max() > 1e-4


def test_half_precision_stays_half_precision():
    model, variables, x = _small("resnet")
    halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (variables, x))
    assert jax.eval_shape(model.apply, *halves).logits.dtype == jnp.bfloat16


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"image_shape must be \(height, width, channels\), got \(28, 28\)"):
        models.lenet((28, 28))
    with pytest.raises(ValueError, match="num_classes must be in"):
        models.mlp((4, 4, 1), 1)
    with pytest.raises(ValueError, match=r"activation must be one of relu, .*, got 'swish'"):
        models.resnet10((8, 8, 1), activation="swish")
    with pytest.raises(ValueError, match="init must be one of default, he, glorot, wide_uniform, got 'xavier'"):
        models.convnet((8, 8, 1), init="xavier")
    with pytest.raises(ValueError, match="form must be one of auto, patches, winograd, fourier, lax, got 'fft'"):
        models.convnet((8, 8, 1), form="fft")
    with pytest.raises(ValueError, match=r"channels and strides must be equally many, got \(4,\) and \(1, 2\)"):
        models.convnet((8, 8, 1), channels=(4,), strides=(1, 2))
    with pytest.raises(ValueError, match="window must be odd, got 4"):
        models.convnet((8, 8, 1), window=4)
    with pytest.raises(ValueError, match="stem must be one of auto, small, large, got 'tiny'"):
        models.resnet10((8, 8, 1), stem="tiny")
    with pytest.raises(ValueError, match=r"patch_size must divide height and width of \(30, 30, 3\), got 4"):
        models.vit_tiny((30, 30, 3))
    with pytest.raises(ValueError, match="width must be a multiple of heads = 3, got 32"):
        models.vit_tiny((32, 32, 3), width=32)
    model, variables, x = _small("mlp")
    with pytest.raises(ValueError, match="mode must be one of train, eval, got 'test'"):
        model.apply(variables, x, mode="test")
    with pytest.raises(ValueError, match=r"x must be \(B, 4, 5, 1\), got \(4, 5, 1\)"):
        model.apply(variables, x[0])


def test_an_option_of_another_model_is_refused_by_name():
    with pytest.raises(ValueError, match="convnet has no option width; it has channels, strides, window"):
        models.build("convnet", (8, 8, 1), 10, width=16)


def test_a_normalised_network_reads_normalised_images():
    plain = models.convnet((6, 6, 3), 3, channels=(4,), strides=(1,), batch_norm=True)
    model = models.normalized(plain, models.IMAGENET_MEAN, models.IMAGENET_STD)
    variables = model.init(jax.random.key(0))
    x = np.random.default_rng(1).random((2, 6, 6, 3)).astype(np.float32)
    read = (x - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])

    @functools.partial(jax.jit, static_argnums=0)
    def found(of, x):
        outputs = [of.apply(variables, x, mode=mode, sharpness=jnp.float32(3.0)) for mode in ("train", "eval")]
        return outputs, of.rows(variables, x)

    chex.assert_trees_all_close(found(model, x), found(plain, read), atol=1e-6)
    assert model.has_kinks
    with pytest.raises(ValueError, match="one entry for each of 3 channels"):
        models.normalized(plain, (0.5,), (0.5,))
    with pytest.raises(ValueError, match=r"std\[1\] must be > 0"):
        models.normalized(plain, (0.5, 0.5, 0.5), (1.0, 0.0, 1.0))
    for mean, std in (((33.0,) * 3, (78.0,) * 3), ((0.5, 0.5, 104.0), (1.0,) * 3), ((-0.1, 0, 0), (1.0,) * 3)):
        with pytest.raises(ValueError, match=r"mean must be in \[0, 1\] and std in \(0, 1\].* divide both by 255"):
            models.normalized(plain, mean, std)
    with pytest.raises(ValueError, match=r"std in \(0, 1\], since pixels .* and \(1.0, 1.0, 58.0\): divide both"):
        models.normalized(plain, (0.5, 0.5, 0.5), (1.0, 1.0, 58.0))
    with pytest.raises(ValueError, match="mean must be in"):
        models.normalized(plain, (0.5, math.nan, 0.5), (1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"takes off mean=.* already"):
        models.normalized(model, (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
