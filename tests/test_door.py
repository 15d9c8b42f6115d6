"""Users' networks as classifiers: any JAX function, and Flax and Equinox modules."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import nnx

from jaxleak import Batch, Observation, _tree, attacks, audit, capture, models, protocols
from jaxleak.attacks import presets
from jaxleak.models._door import program
from jaxleak.models._door.flax import drawn
from jaxleak.models._door.network import layer_of
from jaxleak.models._door.piecewise import Hinge, Piecewise, larger, smaller
from jaxleak.models._door.trees import as_dict, filled
from jaxleak.objectives import cross_entropy

IMAGE, CLASSES = (8, 8, 3), 5
X = reference.uniform(2, *IMAGE, seed=1)


class PlainConvNet(nn.Module):
    """The built-in `convnet` as a user would write it in Flax."""

    @nn.compact
    def __call__(self, x):
        for i, (channels, stride) in enumerate(((4, 1), (6, 2))):
            x = nn.relu(nn.Conv(channels, (3, 3), stride, padding=1, name=f"conv_{i}")(x))
        return nn.Dense(CLASSES, name="head")(x.reshape(len(x), -1))


class Normalised(nnx.Module):
    """A network of Flax NNX with convolution, batch normalisation, pooling, and a list of layers."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dense = nnx.List([nnx.Linear(64, 6, rngs=rngs), nnx.Linear(6, CLASSES, rngs=rngs)])

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.dense[1](nnx.leaky_relu(self.dense[0](x.reshape(len(x), -1))))


class ChannelsFirst(eqx.Module):
    """A network of Equinox that takes one image with channels first."""

    conv: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    dense: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.conv, self.pool = eqx.nn.Conv2d(3, 4, 3, padding=1, key=one), eqx.nn.MaxPool2d(2, 2)
        self.dense = eqx.nn.Linear(64, CLASSES, key=two)

    def __call__(self, x):
        return self.dense(self.pool(jax.nn.relu(self.conv(x))).ravel())


def gradient_of(model, variables, x=X, mode="train"):
    y = jnp.arange(len(x))

    def loss(params):
        return cross_entropy(model.apply({**variables, "params": params}, x, mode=mode).logits, y)

    return jax.jit(jax.grad(loss))(variables["params"])


@pytest.fixture(scope="module")
def normalised():
    module = Normalised(nnx.Rngs(0))
    return module, *models.from_flax(module, image_shape=IMAGE, num_classes=CLASSES)


@pytest.fixture(scope="module")
def convnets():
    """The built-in network, its plain twin, and weights for both."""
    built_in = models.build("convnet", IMAGE, CLASSES, channels=(4, 6), strides=(1, 2))
    variables = reference.drawn(built_in)
    twin, _ = models.from_flax(PlainConvNet(), {"params": variables["params"]}, image_shape=IMAGE)
    return built_in, twin, variables


def test_the_builtin_and_its_plain_twin_agree_with_kinks_and_without(convnets):
    built_in, twin, variables = convnets
    for sharpness in (None, 3.0):
        expected, found = jax.jit(
            lambda v, x, sharpness=sharpness: [m.apply(v, x, sharpness=sharpness) for m in (built_in, twin)]
        )(variables, X)
        assert len(found.activations) == 2
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), expected[:3], found[:3])
    rows, others = jax.jit(lambda v, x: (built_in.rows(v, x), twin.rows(v, x)))(variables, X)
    assert list(rows) == list(others)
    for name in rows:
        np.testing.assert_allclose(rows[name], others[name], atol=1e-6)
    assert (twin.head_names, twin.num_classes, twin.has_batch_norm) == (("head/kernel", "head/bias"), CLASSES, False)
    assert twin.has_kinks
    assert twin.notes == ()


#: One attack per mechanism, with the numbers of compared steps and of images. FedLeak with the homotopy takes second
#: derivatives of every layer, row spaces read the rows of linear layers, and a baseline infers labels by another rule.
ATTACKS = {
    "fedleak": (presets.fedleak(10), 10, 2),
    "row_space": (presets.row_space(20)._replace(shifts=()), 3, 1),
    "inverting_gradients": (presets.inverting_gradients(20)._replace(labels="yin"), 3, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_the_same_first_steps_through_the_door(convnets, name):
    built_in, twin, variables = convnets
    settings, steps, count = ATTACKS[name]
    gradient = gradient_of(built_in, variables, X[:count])
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=gradient)
    template = Batch(jnp.zeros((count, 1, *IMAGE)), jnp.zeros(count, jnp.int32), jnp.zeros(count, jnp.int32))
    answers = []
    for model in (built_in, twin):
        share = protocols.ClientShare(model)
        attack = attacks.inversion(model, share, settings, batch_size=count)
        step = jax.jit(attack.step)
        state = attack.init(jax.random.key(3), template)
        losses = []
        for i in range(steps):
            state, info = step(jax.random.key(i), state, seen)
            losses.append(info["loss"])
        answers.append((np.array(losses), np.asarray(attack.reconstruct(state, seen).x)))
    np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-3)
    np.testing.assert_allclose(answers[0][1], answers[1][1], atol=0.02)


def test_a_module_of_nnx_computes_the_same_in_both_modes(normalised):
    module, model, variables = normalised
    for mode, copy in (("train", nnx.clone(module)), ("eval", nnx.clone(module))):
        getattr(copy, mode)()
        expected = copy(X)
        out = jax.jit(lambda v, x, mode=mode: model.apply(v, x, mode=mode))(variables, X)
        np.testing.assert_allclose(out.logits, expected, atol=1e-5)
        running = nnx.to_pure_dict(nnx.state(copy, nnx.BatchStat))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), out.batch_stats, running)
    z = module.conv(X)
    statistics = jax.jit(lambda v, x: model.apply(v, x).statistics["norm"])(variables, X)
    np.testing.assert_allclose(statistics["mean"], np.asarray(z).mean((0, 1, 2)), atol=1e-5)
    np.testing.assert_allclose(statistics["var"], np.asarray(z).var((0, 1, 2)), atol=1e-5)
    # Neither the maximum that keeps Flax's variance non-negative nor the pool counts as an activation here.
    assert [a.shape for a in out.activations] == [(2, 8, 8, 4), (2, 6)]


class Standardised(nn.Module):
    """A network with Flax's fast variances: mean of squares minus squared mean, kept >= 0 by a maximum with zero."""

    @nn.compact
    def __call__(self, x):
        x = nn.GroupNorm(2)(nn.Conv(4, (3, 3))(x))
        return nn.Dense(CLASSES, name="head")(nn.LayerNorm()(x.reshape(len(x), -1)))


def test_the_bound_of_a_variance_is_no_kink():
    module = Standardised()
    model, variables = models.from_flax(module, module.init(jax.random.key(0), X), image_shape=IMAGE)
    exact, smooth = jax.jit(lambda v, x: [model.apply(v, x, sharpness=sharpness) for sharpness in (None, 2.0)])(
        variables, X
    )
    np.testing.assert_array_equal(smooth.logits, exact.logits)
    assert not exact.activations
    assert not model.notes


CALLED = """
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, {argument}):
        z = nn.BatchNorm(use_running_average={evaluates}, name="norm")(x)
        return nn.Dense(CLASSES, name="head")(z.reshape(len(x), -1))
"""


@pytest.mark.parametrize("argument", ["train", "training", "is_training", "deterministic", "use_running_average"])
def test_what_linen_modules_call_training_is_known(argument):
    evaluates = argument in ("deterministic", "use_running_average")
    scope = {"nn": nn, "CLASSES": CLASSES}
    exec(CALLED.format(argument=argument, evaluates=argument if evaluates else f"not {argument}"), scope)
    module = scope["Net"]()
    model, variables = models.from_flax(module, module.init(jax.random.key(0), X, evaluates), image_shape=IMAGE)
    for mode, value in (("train", not evaluates), ("eval", evaluates)):

        def both(v, x, mode=mode, value=value):
            own, _ = module.apply(v, x, **{argument: value}, mutable=["batch_stats"])
            return model.apply(v, x, mode=mode).logits, own

        np.testing.assert_allclose(*jax.jit(both)(variables, X), atol=1e-5)


def test_statistics_that_are_not_granted_are_not_missed_in_training(normalised):
    _, model, variables = normalised
    withheld = {**variables, "batch_stats": None}
    out, all_seen = jax.jit(lambda w, v, x: (model.apply(w, x), model.apply(v, x)))(withheld, variables, X)
    np.testing.assert_allclose(out.logits, all_seen.logits, atol=1e-6)
    assert out.batch_stats is None
    with pytest.raises(ValueError, match="batch_stats were not granted"):
        model.apply(withheld, X, mode="eval")


@pytest.mark.parametrize("which", ["nnx", "equinox"])
def test_gradients_lie_in_the_rows_whatever_the_layout(normalised, which):
    if which == "nnx":
        _, model, variables = normalised
    else:
        model, variables = models.from_equinox(ChannelsFirst(jax.random.key(0)), image_shape=IMAGE)
    gradient = _tree.named_leaves(gradient_of(model, variables, X[:1], mode="eval"))
    rows = jax.jit(lambda v, x: model.rows(v, x, mode="eval"))(variables, X[:1])
    assert len(rows) == (3 if which == "nnx" else 2)
    for name, read in rows.items():
        matrix = np.asarray(model.matrix(name, gradient[name]), np.float64)
        read = np.asarray(read, np.float64)
        assert matrix.shape[0] == read.shape[1]
        best, *_ = np.linalg.lstsq(read.T, matrix, rcond=None)
        left = np.linalg.norm(matrix - read.T @ best)
        if len(read) < read.shape[1]:
            assert left < 1e-4 * np.linalg.norm(matrix), name


@pytest.mark.parametrize("rule", attacks.LABEL_RULES)
def test_label_rules_read_a_head_of_any_layout(rule):
    module = ChannelsFirst(jax.random.key(0))
    model, variables = models.from_equinox(module, image_shape=IMAGE)
    gradient = gradient_of(model, variables, X[:1])
    key, samples = jax.random.key(1), CLASSES + 1 if rule == "counting_rule" else 1

    def labels(kernel, bias, weight, shift):
        return attacks.infer_labels(rule, kernel, bias, samples, kernel=weight, bias=shift, key=key)

    ours, weights = model.head_of(gradient), model.head_of(variables["params"])
    found = labels(ours.kernel, ours.bias, weights.kernel, weights.bias)
    dense = gradient["dense"]
    wanted = labels(dense["weight"].T, dense["bias"], module.dense.weight.T, module.dense.bias)
    np.testing.assert_array_equal(found, wanted)
    if rule not in ("random", "counting_rule"):  # these rules use less than the gradient of one label
        np.testing.assert_array_equal(found, [0])


def test_the_head_of_any_layout_reads_as_features_by_classes():
    module = ChannelsFirst(jax.random.key(0))
    model, variables = models.from_equinox(module, image_shape=IMAGE)
    head = model.head_of(variables["params"])
    np.testing.assert_array_equal(head.kernel, module.dense.weight.T)
    np.testing.assert_array_equal(head.bias, module.dense.bias)
    changed = model.with_head(variables["params"], head._replace(kernel=2 * head.kernel))
    np.testing.assert_array_equal(changed["dense"]["weight"], 2 * module.dense.weight)
    np.testing.assert_array_equal(changed["dense"]["bias"], module.dense.bias)
    first = X.transpose(0, 3, 1, 2)
    out, expected = jax.jit(lambda v, x, first: (model.apply(v, x), jax.vmap(module)(first)))(variables, X, first)
    np.testing.assert_allclose(out.logits, expected, atol=1e-6)
    np.testing.assert_allclose(out.logits, out.features @ head.kernel + head.bias, atol=1e-5)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: jax.vmap(m)(first).sum()))(module)
    payload = capture.fit(capture.named_arrays(gradient), variables["params"], what="the gradient")
    attacks.check_payload(payload, variables)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("relu", lambda x: jnp.maximum(x, 0)),
        ("relu", lambda x: jnp.where(x > 0, x, 0.0)),
        ("relu", jax.nn.relu),
        ("relu", lambda x: x / 2 + jnp.abs(x) / 2),
        ("relu6", jax.nn.relu6),
        ("relu6", lambda x: jnp.clip(x, 0, 6)),
        ("leaky_relu", jax.nn.leaky_relu),
        ("leaky_relu", lambda x: jnp.maximum(x, 0.01 * x)),
        ("leaky_relu", lambda x: jnp.where(x < 0, 0.01 * x, x)),
    ],
)
def test_kinks_are_smoothed_however_they_are_written(name, written):
    weights = {"params": {"w": 4 * reference.normal(192, CLASSES)}}

    def network(variables, x):
        return written(x.reshape(len(x), -1) @ variables["params"]["w"])

    model, variables = models.from_function(network, weights, image_shape=IMAGE)
    z = X.reshape(2, -1) @ weights["params"]["w"]
    exact, smooth, kinked = jax.jit(lambda v, x: (model.apply(v, x), model.apply(v, x, sharpness=2.0), network(v, x)))(
        variables, X
    )
    np.testing.assert_array_equal(exact.logits, kinked)
    soft = functools.partial(models.soft_relu, sharpness=2.0 / z.std())
    expected = {"relu": soft(z), "relu6": soft(z) - soft(z - 6), "leaky_relu": 0.01 * z + 0.99 * soft(z)}
    np.testing.assert_allclose(smooth.logits, expected[name], atol=1e-5)
    assert len(smooth.activations) == 1
    np.testing.assert_array_equal(smooth.activations[0], smooth.logits)
    assert model.notes == ()


@pytest.mark.parametrize(
    ("height", "width", "padding"), [(9, 8, "VALID"), (8, 9, "VALID"), (9, 9, "SAME"), (8, 8, "VALID")]
)
def test_pools_cover_what_their_owner_said_whether_sizes_are_even_or_not(height, width, padding):
    pooled = ((height + (padding == "SAME")) // 2) * ((width + (padding == "SAME")) // 2) * 3
    weights = {"params": {"w": reference.normal(pooled, CLASSES)}}
    images = reference.uniform(2, height, width, 3, seed=1)

    def network(variables, x):
        z = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), padding)
        return z.reshape(len(x), -1) @ variables["params"]["w"]

    model, variables = models.from_function(network, weights, image_shape=(height, width, 3))
    assert model.notes == ()
    exact, sharp, expected = jax.jit(lambda v, x: (model.apply(v, x), model.apply(v, x, sharpness=1e5), network(v, x)))(
        variables, images
    )
    np.testing.assert_allclose(exact.logits, expected, rtol=1e-5)
    np.testing.assert_allclose(sharp.logits, expected, atol=1e-2)


def test_what_no_rule_knows_stays_and_is_listed():
    def network(variables, x):
        z = x.reshape(len(x), -1) @ variables["params"]["w"]
        z = jnp.sort(z, axis=1) / jnp.maximum(jnp.linalg.norm(z, axis=1, keepdims=True), 1e-12)
        z, _ = jax.lax.scan(lambda z, _: (jax.nn.relu(z), None), z, length=2)
        return jax.nn.softmax(jax.nn.elu(z))

    weights = {"params": {"w": reference.normal(192, CLASSES)}}
    model, variables = models.from_function(network, weights, image_shape=IMAGE)
    note, probabilities = model.notes
    assert probabilities.startswith("it ends in a softmax")
    assert note.startswith("kinks that are not smoothed: 1 x sort, 1 x scan (with max inside), 1 x select_n")
    smooth, exact = jax.jit(lambda v, x: [model.apply(v, x, sharpness=s).logits for s in (1.0, None)])(variables, X)
    np.testing.assert_array_equal(smooth, exact)
    text = models.describe(model)
    assert note in text
    assert "w  (192, 5)  reads 1 x 192" in text


def test_piecewise_linear_functions_are_what_they_say():
    z = np.linspace(-5, 5, 1001)
    identity = Piecewise(0)
    relu = larger(identity, Piecewise(0, 0.0, 0.0))
    assert relu == Piecewise(0, 0.0, 0.0, (Hinge(0.0, 1.0),))
    tent = smaller(relu, identity.scaled(-1.0).raised(3.0))
    double = larger(tent.plus(identity.scaled(0.5)), tent.scaled(-2.0))
    expected = np.minimum(np.maximum(z, 0), 3 - z)
    for function, values in (
        (tent, expected),
        (double, np.maximum(expected + 0.5 * z, -2 * expected)),
        (tent.positive(), np.maximum(expected, 0)),
        (identity.raised(1.0).right_of(-1.0), np.maximum(z + 1, 0)),
    ):
        np.testing.assert_allclose([function.at(value) for value in z], values, atol=1e-12)
    assert identity.raised(1.0).right_of(0.0) is None


def test_wrong_functions_and_variables_are_refused(convnets):
    weights = {"params": {"w": jnp.ones((192, CLASSES))}}

    def network(variables, x):
        return x.reshape(len(x), -1) @ variables["params"]["w"]

    def make(function=network, variables=weights, **options):
        return models.from_function(function, variables, **{"image_shape": IMAGE} | options)

    for options, message in (
        ({"num_classes": 7}, "num_classes must be that of the network, 5, got 7"),
        (
            {"function": lambda v, x: network(v, x)[0]},
            r"logits \(B, C\) with C >= 2 in mode 'eval', got \(5,\) for 2 images",
        ),
        (
            {"function": lambda v, x: (network(v, x), x)},
            r"logits \(B, C\) and nothing else in mode 'eval', got a tuple",
        ),
        ({"variables": weights["params"]}, r'variables must be {"params": tree}.* got w'),
        ({"head": "other"}, r"head must be a dense layer with 5 outputs \(w\), got 'other'"),
        ({"layout": "CHW"}, "layout must be one of"),
        ({"image_shape": (8, 8)}, "image_shape must be"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)
    model, _ = make()
    with pytest.raises(ValueError, match=r"params: w must have shape \(192, 5\), got \(192, 6\)"):
        model.apply({"params": {"w": jnp.ones((192, 6))}}, X)
    with pytest.raises(ValueError, match="params are of another model: v, w differ"):
        model.apply({"params": {"v": jnp.ones((192, 6))}}, X)
    stats = {**weights, "batch_stats": {"mean": jnp.ones(3)}}
    model, variables = make(lambda v, x: network(v, x - v["batch_stats"]["mean"]), stats)
    with pytest.raises(ValueError, match="mode 'train' is not known: give train_apply"):
        model.apply(variables, X)


def test_variables_of_linen_modules_are_asked_for():
    for given, message in (
        (None, "must be given.*; models.classifier takes a module whose weights are still to be drawn"),
        ({"Dense_0": {}}, r'must be \{"params": tree, ...\}, as its init gives, got Dense_0'),
        ([1.0], "must be.* got list"),
    ):
        with pytest.raises(ValueError, match=f"variables of a Linen module {message}"):
            models.from_flax(nn.Dense(CLASSES), given, image_shape=IMAGE)


def test_a_module_whose_weights_are_still_to_be_drawn_is_the_one_with_weights():
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(not train, use_fast_variance=False)(nn.Conv(4, (3, 3))(x))
            return nn.Dense(CLASSES)(nn.relu(x).mean((1, 2)))

    drawn = models.classifier(Normed(), image_shape=IMAGE)
    variables = drawn.init(jax.random.key(3))
    given, same = models.from_flax(Normed(), variables, image_shape=IMAGE)
    outputs = jax.jit(lambda v, w, x: (drawn.apply(v, x), given.apply(w, x)))(variables, same, X)
    jax.tree.map(np.testing.assert_array_equal, *outputs)
    other = drawn.init(jax.random.key(4))["params"]
    assert np.abs(drawn.head_of(other).kernel - drawn.head_of(variables["params"]).kernel).max() > 0


def test_a_linen_module_with_other_collections_and_channels_first():
    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, x):
            factor = self.variable("constants", "factor", lambda: jnp.full(1, 3.0))
            return nn.Dense(CLASSES)(x).sum((1, 2)) * factor.value

    shape = (4, 6, 3)
    for layout, width in (("NHWC", 3), ("NCHW", 6)):
        variables = drawn(Scaled(), shape, layout)
        assert variables["params"]["Dense_0"]["kernel"].shape == (width, CLASSES)
        again = drawn(Scaled(), shape, layout, jax.random.key(0))
        jax.tree.map(np.testing.assert_array_equal, variables, again)
        model, same = models.from_flax(Scaled(), variables, image_shape=shape, layout=layout)
        x = reference.uniform(2, *shape, seed=1)
        given = x if layout == "NHWC" else x.transpose(0, 3, 1, 2)
        out, expected = jax.jit(lambda v, w, x, y, m=model: (m.apply(v, x), Scaled().apply(w, y)))(
            same, variables, x, given
        )
        np.testing.assert_allclose(out.logits, expected, rtol=1e-4, atol=1e-5)
        assert set(same["params"]) == {"Dense_0"}


def test_trees_of_other_libraries_become_dictionaries_and_come_back():
    tree = {"a": (jnp.zeros(1), None, [jnp.ones(2)]), "b": {"c": jnp.full(3, 2.0)}}
    found = as_dict(tree)
    assert {name: {k: type(v) for k, v in part.items()} for name, part in found.items()}.keys() == {"a", "b"}
    assert _tree.named_leaves(found).keys() == {"a/0", "a/2/0", "b/c"}
    changed = jax.tree.map(lambda leaf: leaf + 1, found)
    jax.tree.map(np.testing.assert_array_equal, filled(tree, changed), jax.tree.map(lambda leaf: leaf + 1, tree))
    with pytest.raises(ValueError, match="named arrays, got a single one"):
        as_dict(jnp.zeros(2))


def test_statistics_of_another_structure_and_heads_that_are_missing_are_named():
    weights = {"params": {"w": jnp.ones((192, 2))}, "batch_stats": {"mean": jnp.zeros(3)}}

    def network(v, x):
        return (x - v["batch_stats"]["mean"]).reshape(len(x), -1) @ v["params"]["w"]

    with pytest.raises(ValueError, match="batch_stats of mode 'train' must have the structure of those in variables"):
        models.from_function(
            network, weights, train_apply=lambda v, x: (network(v, x), {"other": jnp.zeros(3)}), image_shape=IMAGE
        )
    model, variables = models.from_function(
        lambda v, x: jnp.tanh(x.reshape(len(x), -1))[:, :2] * v["params"]["w"], {"params": {"w": jnp.ones(2)}},
        image_shape=IMAGE,
    )  # fmt: skip
    assert (model.head, model.head_leaves) == ("", ())
    assert model.notes == ("the last dense layer was not found: label rules and defenses of features do not work",)
    with pytest.raises(ValueError, match="no last dense layer that is known"):
        model.head_of(variables["params"])
    with_head, variables = models.from_function(
        lambda v, x: x.reshape(len(x), -1) @ v["params"]["w"], {"params": {"w": jnp.ones((192, 2))}}, image_shape=IMAGE
    )
    with pytest.raises(ValueError, match="head is 'w', but these parameters do not hold w"):
        with_head.head_of({"v": jnp.ones(2)})


@pytest.mark.parametrize(
    ("end", "ends"),
    [
        (jax.nn.softmax, True),
        (jax.nn.sigmoid, True),
        (lambda z: jax.nn.softmax(z.T, axis=0).T, True),
        (lambda z: jax.nn.softmax(z.astype(jnp.bfloat16)).astype(jnp.float32), True),
        (jax.nn.log_softmax, False),
        (lambda z: z / 3, False),
        (lambda z: jnp.exp(z) / 3, False),
    ],
)
def test_a_network_that_ends_in_probabilities_has_no_head_for_label_rules(end, ends):
    model, _ = models.from_function(
        lambda v, x: end(x.reshape(len(x), -1) @ v["params"]["w"]), {"params": {"w": jnp.ones((192, 4))}},
        image_shape=IMAGE,
    )  # fmt: skip
    assert (model.head == "") == ends
    assert any("it ends in a softmax or in sigmoids" in note for note in model.notes) == ends
    if ends:
        with pytest.raises(ValueError, match=r"no last dense layer that is known \(it ends in a softmax"):
            attacks.inversion(model, protocols.ClientShare(model), presets.fedleak(2), batch_size=2)


@pytest.mark.parametrize(
    ("leaf", "layer"), [("fc.weight", "fc"), ("a/b.c/kernel", "a/b.c"), ("a.b/c.d", "a.b/c"), ("w", "w"), (".w", ".w")]
)
def test_the_layer_of_a_leaf_is_all_but_its_last_name(leaf, layer):
    assert layer_of(leaf) == layer


@pytest.mark.parametrize(
    ("constant", "number"),
    [
        (0.5, 0.5),
        (True, 1.0),
        (np.full((2, 3), -2.0, np.float32), -2.0),
        (np.array([False, False]), 0.0),
        (np.array([1.0, 2.0]), None),
        (np.zeros((0, 3)), None),  # no entries, so no numbers
        (np.array(["a"]), None),
    ],
)
def test_a_constant_of_one_number_is_that_number(constant, number):
    assert program.uniform(constant) == number


@pytest.mark.parametrize(
    "call",
    [
        lambda model, params, batch: model.apply(params, batch.x[:, 0]),
        lambda model, params, batch: protocols.ClientShare(model)(params, batch),
        lambda model, params, batch: audit.update(model, params, params, batch_size=1),
        lambda model, params, batch: audit.check_update(protocols.ClientShare(model), params, params, batch_size=1),
    ],
    ids=["apply", "ClientShare", "update", "check_update"],
)
def test_parameters_alone_are_no_variables(perceptron, call):
    model, variables, batch, _ = perceptron
    with pytest.raises(ValueError, match=r"^variables must be .*not the parameters alone; got a dict of dense_0"):
        call(model, variables["params"], batch)
