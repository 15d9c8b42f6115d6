import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import _tree, models, protocols
from jaxleak._base import Batch
from jaxleak.models._conv import conv2d, max_pool, smoothed_max_pool_relu
from jaxleak.models._networks import ConvExtractor


@pytest.mark.parametrize("shape", [(2, 6, 6, 1, 3), (2, 5, 7, 2, 2)])
def test_patches_equal_lax_in_value_and_first_two_derivatives(shape):
    batch, height, width, c_in, c_out = shape
    x, kernel = reference.normal(batch, height, width, c_in), reference.normal(5, 3, c_in, c_out, seed=1)
    dx, dk = reference.normal(*x.shape, seed=2), reference.normal(*kernel.shape, seed=3)

    def all_orders(form):
        def loss(x, kernel):
            return jnp.sum(jnp.tanh(conv2d(x, kernel, form=form)) ** 2)

        first = jax.grad(loss, argnums=(0, 1))
        # A gradient of a function of the gradient, as gradient matching needs.
        second = jax.grad(lambda x, k: sum(jnp.vdot(g, d) for g, d in zip(first(x, k), (dx, dk), strict=True)), (0, 1))
        return conv2d(x, kernel, form=form), first(x, kernel), second(x, kernel)

    patches, lax = (jax.jit(all_orders, static_argnums=0)(form) for form in ("patches", "lax"))
    for a, b in zip(jax.tree.leaves(patches), jax.tree.leaves(lax), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))


def test_patches_equal_lax_under_vmap_over_kernels():
    x, kernels = reference.normal(3, 2, 6, 6, 1), reference.normal(3, 5, 5, 1, 2, seed=1)

    def grad_of_grad(form):
        def inner(x, kernel):
            return jax.grad(lambda k: jnp.sum(jax.nn.softplus(conv2d(x, k, form=form))))(kernel)

        return jax.vmap(jax.grad(lambda x, k: jnp.sum(inner(x, k) ** 2)))(x, kernels)

    patches, lax = (jax.jit(grad_of_grad, static_argnums=0)(form) for form in ("patches", "lax"))
    assert patches.shape == x.shape
    np.testing.assert_allclose(patches, lax, rtol=1e-4, atol=1e-4 * float(jnp.abs(lax).max()))


def test_conv2d_is_a_cross_correlation_with_zeros_around():
    x, kernel = np.asarray(reference.normal(1, 4, 5, 2)), np.asarray(reference.normal(3, 5, 2, 2, seed=1))
    found = jax.jit(lambda x, kernel: [conv2d(x, kernel, form=form) for form in ("patches", "lax", "auto")])(x, kernel)
    for z in found:
        np.testing.assert_allclose(z, reference.conv2d(x, kernel), atol=1e-5)
    with pytest.raises(ValueError, match="form must be one of auto, patches, winograd, fourier, lax, got 'fft'"):
        conv2d(x, kernel, form="fft")


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 5), (1, 3), (7, 4)])
def test_max_pool_equals_a_loop_at_even_and_odd_sizes(height, width):
    # Shifted below zero, so that wrongly padded zeros would be the maximum.
    z = np.asarray(reference.normal(2, height, width, 3)) - 5
    np.testing.assert_array_equal(jax.jit(max_pool)(z), reference.max_pool(z))


@pytest.mark.parametrize("size", [4, 5])
def test_smoothed_pooling_is_exact_in_value_and_a_softmax_in_its_tangent(size):
    z, dz = reference.normal(2, size, size, 3), reference.normal(2, size, size, 3, seed=1)
    temperature = jnp.array([0.3, 2.0])
    pooled = lambda z: smoothed_max_pool_relu(z, temperature)  # noqa: E731
    (value, tangent), plain = jax.jit(lambda z, dz: (jax.jvp(pooled, (z,), (dz,)), pooled(z)))(z, dz)
    np.testing.assert_array_equal(value, np.maximum(reference.max_pool(np.asarray(z)), 0))
    np.testing.assert_array_equal(value, plain)
    slow = reference.smoothed_pool_tangent(np.asarray(z), np.asarray(dz), np.asarray(temperature))
    np.testing.assert_allclose(tangent, slow, atol=1e-5)


def test_smoothed_pooling_tends_to_the_exact_derivative():
    z, dz = reference.normal(1, 5, 5, 2), reference.normal(1, 5, 5, 2, seed=1)

    @jax.jit
    def distance(temperature):
        exact = jax.jvp(lambda z: jax.nn.relu(max_pool(z)), (z,), (dz,))[1]
        tangent = jax.jvp(lambda z: smoothed_max_pool_relu(z, temperature[None]), (z,), (dz,))[1]
        return jnp.abs(tangent - exact).max()

    assert distance(1.0) > 0.05
    assert distance(1e-4) < 1e-5


@pytest.mark.parametrize("size", [4, 5, 7])
def test_smoothed_pooling_transposes_and_is_finite(size):
    z, dz = reference.normal(2, size, size, 3), reference.normal(2, size, size, 3, seed=1)
    cotangent = reference.normal(*jax.eval_shape(max_pool, z).shape, seed=2)

    @jax.jit
    def derivatives(temperature):
        pool = lambda z: smoothed_max_pool_relu(z, jnp.full(2, temperature))  # noqa: E731
        tangent, (pulled,) = jax.jvp(pool, (z,), (dz,))[1], jax.vjp(pool, z)[1](cotangent)
        return pulled, jnp.vdot(tangent, cotangent), jnp.vdot(dz, pulled)

    for temperature in (1e-9, 0.5, 1e3):
        pulled, *products = derivatives(temperature)
        assert np.isfinite(pulled).all()
        np.testing.assert_allclose(*products, rtol=1e-4)


def _count(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return shapes, sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_cafe_vertical_has_the_papers_shapes():
    model = models.cafe_vertical((14, 14, 1))
    assert (model.parties, model.feature_size, model.width, model.num_classes) == (4, 2048, 256, 10)
    shapes, count = _count(model)
    assert shapes["first"]["kernel"].shape == (4, 2048, 256)
    assert shapes["first"]["bias"].shape == (4, 256)
    assert shapes["extractor"]["kernel_0"].shape == (4, 5, 5, 1, 64)
    assert shapes["extractor"]["kernel_1"].shape == (4, 5, 5, 64, 128)
    convolutions = 5 * 5 * 1 * 64 + 64 + 5 * 5 * 64 * 128 + 128
    dense = 2048 * 256 + 256 + 256 * 64 + 64 + 64 * 10 + 10
    assert count == 4 * (convolutions + dense) + 40 * 10 + 10


def test_cafe_horizontal_has_the_papers_shapes():
    model = models.cafe_horizontal((32, 32, 3))
    assert (model.parties, model.feature_size, model.width) == (1, 8 * 8 * 128, 512)
    _, count = _count(model)
    convolutions = 5 * 5 * 3 * 64 + 64 + 5 * 5 * 64 * 128 + 128
    assert count == convolutions + 8192 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10


def test_odd_tiles_pool_up():
    assert models.cafe_vertical((7, 5, 3), channels=(2, 3)).feature_size == 2 * 2 * 3


@pytest.fixture(scope="module")
def problem():
    return reference.tiny_problem(n=4, k=2, side=5, channels=(2,), width=6, hidden=4)


def test_parties_have_parameters_of_their_own(problem):
    for leaf in (problem.params["extractor"]["kernel_0"], problem.params["first"]["kernel"]):
        assert (leaf[0] != leaf[1]).any()


def test_features_are_each_partys_own(problem):
    model, params, x = problem.model, problem.params, problem.private.x
    features = jax.jit(model.features)(params, x)
    assert features.shape == (4, 2, model.feature_size)
    for party in range(2):
        own = jax.tree.map(lambda leaf, party=party: leaf[party], params["extractor"])
        by_party = jax.jit(model.party_features)(own, x[:, party], None)
        np.testing.assert_allclose(by_party, features[:, party], atol=1e-6)


def test_a_temperature_changes_derivatives_and_not_values(problem):
    own = jax.tree.map(lambda leaf: leaf[0], problem.params["extractor"])
    x = problem.private.x[:1, 0]

    @jax.jit
    def both(x, temperature):
        return jax.value_and_grad(lambda x: problem.model.party_features(own, x, temperature).sum())(x)

    (value, exact), (same, smooth) = both(x, None), both(x, jnp.full(1, 0.1))
    np.testing.assert_allclose(value, same, rtol=1e-6)
    assert np.abs(exact - smooth).max() > 1e-3


def test_frozen_features_share_the_same_dense_gradients(problem):
    model, params, private = problem.model, problem.params, problem.private
    head = models.frozen_features(model)
    features = Batch(jax.jit(model.features)(params, private.x), private.y, private.index)
    frozen = {**params, "extractor": {}}
    short = jax.jit(protocols.vertical(head, num_samples=4, batch_size=2).share)(frozen, features)
    full = jax.jit(problem.protocol.share)(params, private)
    assert short["extractor"] == {}
    for group in ("first", "rest"):
        for a, b in zip(jax.tree.leaves(short[group]), jax.tree.leaves(full[group]), strict=True):
            assert np.abs(b).max() > 0
            np.testing.assert_allclose(a, b, atol=1e-6)
    drawn = jax.jit(head.init)(jax.random.key(1))
    assert drawn["extractor"] == {}
    np.testing.assert_array_equal(drawn["first"]["kernel"], params["first"]["kernel"])
    assert head.slice_shape == (model.feature_size,)
    assert head.features_are_data
    h = features.x[:2, 0]
    assert head.party_features({}, h, jnp.ones(2)) is h
    assert head.statistics(frozen, features.x) == {}


def test_models_without_extractor_see_the_data(problem):
    x = reference.normal(3, 2, 5)
    for model in (
        models.all_dense((5,), parties=2, num_classes=3, width=4, hidden=3),
        models.logistic((5,), parties=2, num_classes=3),
    ):
        params = jax.jit(model.init)(jax.random.key(0))
        assert model.features_are_data
        features, logits = jax.jit(lambda params, model=model: (model.features(params, x), model.apply(params, x)))(
            params
        )
        np.testing.assert_array_equal(features, x)
        assert logits.shape == (3, 3)
    kernel, bias = np.asarray(params["first"]["kernel"]), np.asarray(params["first"]["bias"])
    by_hand = sum(np.asarray(x)[:, p] @ kernel[p] + bias[p] for p in range(2))
    np.testing.assert_allclose(logits, by_hand, atol=1e-5)


@pytest.mark.parametrize("output_activation", [None, nn.relu])
def test_towers_have_activations_between_layers_and_the_asked_one_at_the_end(output_activation):
    model = models.cafe_vertical(
        (4, 4, 1), parties=2, num_classes=3, width=5, hidden=4, channels=(2, 2), output_activation=output_activation
    )
    params = jax.jit(model.init)(jax.random.key(0))
    u = np.asarray(reference.normal(6, 2, 5, seed=1))
    rest = jax.tree.map(np.asarray, params["rest"])
    tower, joint = (rest[name] for name in ("VmapDenseTower_0", "Dense_0"))
    outputs = []
    for p in range(2):
        hidden = np.maximum(u[:, p], 0) @ tower["Dense_0"]["kernel"][p] + tower["Dense_0"]["bias"][p]
        outputs.append(np.maximum(hidden, 0) @ tower["Dense_1"]["kernel"][p] + tower["Dense_1"]["bias"][p])
    joined = np.concatenate(outputs, axis=1)
    assert (joined < 0).any()
    joined = joined if output_activation is None else np.maximum(joined, 0)
    np.testing.assert_allclose(jax.jit(model.rest)(params, u), joined @ joint["kernel"] + joint["bias"], atol=1e-5)


def test_bad_sizes_are_refused():
    for build in (models.cafe_vertical, models.cafe_horizontal):
        with pytest.raises(ValueError, match=r"slice_shape must be \(height, width, channels\), got \(14, 14\)"):
            build((14, 14))
        with pytest.raises(ValueError, match="width must be > 0, got 0"):
            build((14, 0, 1))
        with pytest.raises(ValueError, match=r"num_classes must be in \[2, .*\], got 1"):
            build((14, 14, 1), num_classes=1)
    with pytest.raises(ValueError, match="parties must be > 0, got 0"):
        models.cafe_vertical((14, 14, 1), parties=0)
    with pytest.raises(ValueError, match=r"slice_shape\[0\] must be > 0, got 0"):
        models.all_dense((0,))
    with pytest.raises(ValueError, match="width must be > 0, got -1"):
        models.all_dense((4,), width=-1)
    with pytest.raises(ValueError, match=r"width must be a whole number, got 4\.5"):
        models.all_dense((4,), width=4.5)


def test_a_million_classes_are_the_most():
    assert models.logistic((3,), parties=2, num_classes=10**6).num_classes == 10**6
    with pytest.raises(ValueError, match="got 1000001"):
        models.logistic((3,), parties=2, num_classes=10**6 + 1)


def test_statistics_are_those_of_every_partys_pre_activations(problem):
    params, x = problem.params, np.asarray(problem.private.x)
    found = problem.model.statistics(params, problem.private.x)["statistics"]
    assert set(found) == {"mean_0", "var_0"}
    for party in range(2):
        kernel, bias = (np.asarray(params["extractor"][name][party]) for name in ("kernel_0", "bias_0"))
        z = reference.conv2d(x[:, party], kernel) + bias
        np.testing.assert_allclose(found["mean_0"][0][party], z.mean((0, 1, 2)), atol=1e-5)
        np.testing.assert_allclose(found["var_0"][0][party], z.var((0, 1, 2)), rtol=1e-4)


@pytest.mark.parametrize("activation", [nn.relu, nn.tanh])
def test_every_block_is_smoothed_at_its_own_temperature(activation):
    """The third block has the temperature share of the second, and only ReLUs have a smoothed derivative."""
    extractor = ConvExtractor((2, 3, 2), activation, "patches")
    x, tangent, temperature = reference.normal(2, 8, 7, 1), reference.normal(2, 8, 7, 1, seed=1), jnp.array([0.1, 0.3])
    shapes = jax.eval_shape(lambda: extractor.init(jax.random.key(0), x))["params"]
    params = {name: reference.normal(*shapes[name].shape, seed=i) for i, name in enumerate(shapes)}

    def slow(x):
        for i, share in enumerate((4.0, 1.5, 1.5)):
            z = conv2d(x, params[f"kernel_{i}"]) + params[f"bias_{i}"]
            smoothed = activation is nn.relu
            x = smoothed_max_pool_relu(z, share * temperature) if smoothed else activation(max_pool(z))
        return x.reshape(2, -1)

    fast = lambda x: extractor.apply({"params": params}, x, temperature)  # noqa: E731
    for a, b in zip(*(jax.jit(lambda f=f: jax.jvp(f, (x,), (tangent,)))() for f in (fast, slow)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_first_layer_is_drawn_for_each_party_by_its_own_sizes():
    model = models.all_dense((30, 2), parties=3, width=20)
    kernel = np.asarray(jax.jit(model.init)(jax.random.key(0))["first"]["kernel"])
    limit = (6 / (60 + 20)) ** 0.5
    for own in kernel:
        assert 0.97 * limit < np.abs(own).max() <= limit * (1 + 1e-6)
    assert np.abs(kernel[0] - kernel[1]).min() > 0


def test_networks_without_an_extractor_have_one_party_and_ten_classes_by_themselves():
    for model, width in ((models.all_dense((5,)), 256), (models.logistic((5,)), 10)):
        assert (model.parties, model.num_classes, model.width, model.feature_size) == (1, 10, width, 5)
    shapes = jax.eval_shape(models.all_dense((5,)).init, jax.random.key(0))["rest"]
    tower = shapes["VmapDenseTower_0"]
    assert [tower[name]["kernel"].shape for name in ("Dense_0", "Dense_1")] == [(1, 256, 64), (1, 64, 10)]
    assert shapes["Dense_0"]["kernel"].shape == (10, 10)


def _by_hand(layers, x, linear_last):
    """The output of Flax's dense layers with ReLUs between them."""
    for i in range(len(layers)):
        x = x @ layers[f"Dense_{i}"]["kernel"] + layers[f"Dense_{i}"]["bias"]
        x = x if linear_last and i == len(layers) - 1 else np.maximum(x, 0)
    return x


@pytest.mark.parametrize("top", [(8, 9), (8,), None])
def test_bottoms_and_top_are_dense_layers(top):
    model = models.bottom_top((3, 5), 4, bottom=(6, 7), top=top)
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.1, jax.jit(model.init)(jax.random.key(0)))
    assert (model.parties, model.slice_shape, model.embedding) == (2, (5,), 7 if top else 4)
    x = np.asarray(reference.normal(6, 2, 5))
    embeddings = [_by_hand(params["bottom"][p], x[:, p, :d], top is None) for p, d in enumerate((3, 5))]
    if top is None:
        logits = sum(embeddings)
        assert params["top"] == {"first": {}, "rest": {}}
    else:
        first = params["top"]["first"]
        z = np.maximum(np.concatenate(embeddings, 1) @ first["kernel"] + first["bias"], 0)
        logits = _by_hand(params["top"]["rest"], z, True)
    np.testing.assert_allclose(jax.jit(model.apply)(params, x), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("top", [(8,), None])
def test_a_top_may_end_in_probabilities(top):
    logits, soft = (models.bottom_top((3, 5), 4, top=top, probabilities=ends) for ends in (False, True))
    params, x = jax.jit(logits.init)(jax.random.key(0)), reference.normal(6, 2, 5)
    found = np.exp(np.asarray(logits.apply(params, x)))
    np.testing.assert_allclose(soft.apply(params, x), found / found.sum(axis=1, keepdims=True), rtol=1e-5)
    assert (logits.probabilities, soft.probabilities) == (False, True)


def test_bottoms_and_top_are_drawn_as_their_paper_says():
    model = models.bottom_top((40, 90), 3)
    params = jax.jit(model.init)(jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)
    dense = lambda *sizes: {  # noqa: E731
        f"Dense_{i}": {"kernel": (a, b), "bias": (b,)} for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }
    assert shapes["bottom"] == (dense(40, 50, 50), dense(90, 50, 50))
    assert shapes["top"] == {"first": {"kernel": (100, 100), "bias": (100,)}, "rest": dense(100, 100, 3)}
    for leaf in jax.tree.leaves(params):
        limit = (6 / leaf.shape[0]) ** 0.5 if leaf.ndim == 2 else 0
        assert 0.95 * limit <= np.abs(leaf).max() <= limit * (1 + 1e-6)
    kernels = [params["bottom"][0]["Dense_1"]["kernel"], params["bottom"][1]["Dense_1"]["kernel"]]
    assert np.abs(kernels[0] - kernels[1]).max() > 0


def test_bottoms_and_top_of_the_smallest_sizes_and_below():
    assert models.bottom_top((1,), 2, bottom=(1,), top=(1,)).parties == 1
    assert models.bottom_top((1,), 10**6, bottom=(1,), top=(1,)).num_classes == 10**6
    for arguments, message in (
        (((), 2), "at least one party"),
        (((3, 0), 2), "party 1 has no features"),
        (((3,), 1), "num_classes must be in"),
        (((3,), 10**6 + 1), "num_classes must be in"),
        (((3,), 2.5), "num_classes must be a whole number"),
        (((3, 1.5), 2), r"widths\[1\] must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            models.bottom_top(*arguments)
    for options, message in (
        ({"bottom": ()}, "at least one layer each"),
        ({"top": ()}, "at least one layer each"),
        ({"bottom": (3, 0)}, r"bottom\[1\] must be > 0"),
        ({"top": (0,)}, r"top\[0\] must be > 0"),
        ({"bottom": (3, 1.5)}, r"bottom\[1\] must be a whole number, got 1\.5"),
        ({"top": (1.5,)}, r"top\[0\] must be a whole number, got 1\.5"),
    ):
        with pytest.raises(ValueError, match=message):
            models.bottom_top((3,), 2, **options)


class TestFrozenParts:
    """Networks of which a client trains only a part: fixed parameters have no gradient, and the rest is unchanged."""

    MODEL = models.mlp((2, 2, 1), 3, widths=(4,))

    def frozen(self, *names):
        variables = self.MODEL.init(jax.random.key(0))
        return variables, *models.freeze(self.MODEL, variables, names)

    def test_answers_and_gradients_are_those_of_the_whole_network(self):
        kernel, bias = (name for name in _tree.named_leaves(self.MODEL.init(jax.random.key(0))["params"])
                        if name not in self.MODEL.head_names)  # fmt: skip
        kernel, bias = sorted((kernel, bias), key=lambda name: "bias" in name)
        variables, model, trained = self.frozen(kernel)
        assert set(_tree.named_leaves(trained["params"])) == {bias, *self.MODEL.head_names}
        assert set(_tree.named_leaves(model.init(jax.random.key(1))["params"])) == {bias, *self.MODEL.head_names}
        x = reference.normal(2, 2, 2, 1)
        logits = jax.jit(lambda x: (model.apply(trained, x).logits, self.MODEL.apply(variables, x).logits))(x)
        np.testing.assert_array_equal(*logits)
        rows = set(jax.eval_shape(self.MODEL.rows, variables, x))
        assert kernel in rows
        assert set(jax.eval_shape(model.rows, trained, x)) == rows - {kernel}
        # The head is trained, and its leaves keep their names.
        assert model.head == self.MODEL.head
        assert tuple(model.head_names) == tuple(self.MODEL.head_names)
        assert model.notes[-1] == "1 of 4 parameters are constants"

    def test_a_constant_head_is_no_head_and_a_constant_bias_no_bias(self):
        kernel, bias = self.MODEL.head_names
        assert self.MODEL.bias_of(kernel) == bias
        _, model, _ = self.frozen(kernel)
        assert (model.head, model.head_leaves) == ("", ())
        _, model, _ = self.frozen(bias)
        assert (model.head, tuple(model.head_leaves)) == (self.MODEL.head, (kernel,))
        assert model.bias_of(kernel) == ""
        # A second call freezes the rest of a network without a head.
        _, headless, trained = self.frozen(kernel, bias)
        first = next(iter(_tree.named_leaves(trained["params"])))
        again, _ = models.freeze(headless, trained, [first])
        assert (again.head, again.head_leaves) == ("", ())

    def test_variables_of_the_whole_network_are_refused(self):
        """Their gradient would contain entries that the client does not send, and an attack would use them."""
        kernel, _ = self.MODEL.head_names
        variables, model, trained = self.frozen(kernel)
        x = reference.normal(1, 2, 2, 1)
        for call in (model.apply, model.rows):
            with pytest.raises(ValueError, match=f"{kernel} is a constant of this model: pass the variables that"):
                call(variables, x)
            call(trained, x)

    def test_a_layer_stands_for_its_parameters(self):
        _, model, trained = self.frozen("head")
        assert not set(_tree.named_leaves(trained["params"])) & set(self.MODEL.head_names)
        assert model.notes[-1] == "2 of 4 parameters are constants"
        with pytest.raises(ValueError, match="no parameter or layer hea; "):
            self.frozen("hea")

    def test_what_is_not_there_and_nothing_to_train_are_refused(self):
        variables = self.MODEL.init(jax.random.key(0))
        with pytest.raises(ValueError, match="the model has no parameter or layer nowhere; it has "):
            models.freeze(self.MODEL, variables, ["nowhere"])
        with pytest.raises(ValueError, match=r"names must be several names, as in \['head'\], got the text 'head'"):
            models.freeze(self.MODEL, variables, "head")
        with pytest.raises(ValueError, match="a parameter must be left that is not frozen"):
            models.freeze(self.MODEL, variables, _tree.named_leaves(variables["params"]))


def test_an_equal_network_is_the_same_object():
    """Otherwise all programs for one network would be compiled again for the other."""
    model = models.mlp((4, 4, 1), 3)
    assert models.mlp([4, 4, 1], 3) is model
    assert models.mlp((4, 4, 1), 3, widths=(5,)) is not model
    with jax.enable_x64(True):
        assert models.mlp((4, 4, 1), 3) is not model


def test_a_module_without_a_hash_is_a_network_as_well():
    class Listed(nn.Module):
        widths: list[int]

        @nn.compact
        def __call__(self, x):
            x = x.reshape(len(x), -1)
            for width in self.widths:
                x = nn.Dense(width)(x)
            return x

    model = models.classifier(Listed([5, 3]), image_shape=(2, 2, 1))
    assert model.num_classes == 3
