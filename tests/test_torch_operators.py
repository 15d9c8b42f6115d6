"""PyTorch's operators one by one: our computation of each, against PyTorch itself."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from jaxleak.models._door import torch_entries, torch_graph, torch_layers, torch_resize, torch_shapes  # noqa: E402
from jaxleak.models._door.torch_table import OPERATORS  # noqa: E402


def _random(*shape, seed=0):
    return (2 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


X, Y = _random(2, 4, 5, 6), _random(2, 4, 5, 6, seed=1)
POSITIVE = np.abs(X) + 0.1
MATRIX, OTHER = _random(3, 4), _random(4, 5)
BATCHES, OTHER_BATCHES = _random(2, 3, 4), _random(2, 4, 5)
CHANNELS, MORE = _random(4, seed=2), _random(4, seed=3)
MASK = X > 0
QUERY, KEY, VALUE = (_random(2, 3, 5, 4, seed=seed) for seed in range(3))
TRUTH_TABLE = np.array([True, True, False, False]), np.array([True, False, True, False])

#: Operators with one argument.
UNARY = (
    *(
        "relu",
        "relu6",
        "sigmoid",
        "tanh",
        "silu",
        "mish",
        "selu",
        "hardswish",
        "hardsigmoid",
        "log_sigmoid",
        "hardtanh",
    ),
    *("hardtanh", "leaky_relu", "elu", "softplus", "gelu", "abs", "neg", "exp", "erf", "sin", "cos", "square", "sign"),
    *("floor", "round", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "zeros_like", "ones_like"),
    *("logical_not", "mean", "sum", "max", "amax", "amin", "flatten"),
)

#: Operators that resize images: up and down, by sizes, by factors and by both, and to the same size.
RESIZES = [
    *(
        (name, (X, *more), {})
        for name in ("upsample_nearest2d", "_upsample_nearest_exact2d")
        for more in (
            *(([10, 12],), ([10, 9],), ([3, 4],), ([7, 10], None), ([7, 10], 1.5, 1.7)),
            *((None, [2.0, 3.0]), (None, [1.5, 1.7]), (None, [1.1, 0.6])),
        )
    ),
    *(
        (name, (X, size, corners, *scales), {})
        for name in ("upsample_bilinear2d", "upsample_bicubic2d")
        for corners in (False, True)
        for size, *scales in (
            *(([10, 12],), ([10, 9], None), ([3, 4], None), ([1, 6], None), ([7, 10], 1.5, 1.7)),
            *((None, [2.0, 2.0]), (None, [1.5, 1.7]), (None, [1.1, 0.6])),
        )
    ),
    *((name, (X[:, :, 0], None, [1.7]), {}) for name in ("upsample_nearest1d", "_upsample_nearest_exact1d")),
    *((name, (X[:, :, None], [2, 5, 12]), {}) for name in ("upsample_nearest3d", "_upsample_nearest_exact3d")),
    ("upsample_nearest1d", (X[:, :, 0], None, [1.1]), {}),
    ("upsample_linear1d", (X[:, :, 0], [9], False, 1.6), {}),
    ("upsample_trilinear3d", (X[:, :, None], [2, 5, 12], True, None), {}),
]
#: Transposed convolutions: disjoint, overlapping, dilated, grouped, cropped, extended, and with other numbers of axes.
TRANSPOSED = [
    ("conv_transpose2d", (X, _random(4, 3, 2, 2), _random(3), [2, 2]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 2, 3), None, [2, 3], [0, 1], [1, 2]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 1, 1), _random(3), [1, 1], [0, 0], [0, 0], 1, [2, 2]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 2, 2), _random(3), [2, 2], [0, 0], [0, 0], 1, [2, 2]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 4, 4), _random(3), [2, 2], [1, 1]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 3, 2), _random(3), [2, 1], [1, 0], [1, 0]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 1, 1), None, [2, 2], [1, 1]), {}),
    ("conv_transpose2d", (X, _random(4, 3, 2, 2), _random(6), [2, 2], [0, 0], [0, 0], 2), {}),
    ("conv_transpose1d", (X[:, :, 0], _random(4, 3, 3), _random(3), [2], [1]), {}),
    ("conv_transpose3d", (X[:, :, None], _random(4, 2, 1, 2, 2), _random(2), [1, 2, 2]), {}),
    ("convolution", (X, _random(4, 3, 3, 3), _random(3), [2], [1], [1], True, [1], 1), {}),
]

#: Cases of all operators: the lists above, further arguments for some of them, and all other operators.
CASES = [
    *((name, (X,), {}) for name in UNARY),
    *((name, (POSITIVE,), {}) for name in ("log", "sqrt", "rsqrt", "reciprocal")),
    *(
        (name, (X, Y), {})
        for name in ("mul", "maximum", "minimum", "gt", "ge", "lt", "le", "add", "sub", "div", "rsub")
    ),
    *((name, (np.round(X), np.round(Y)), {}) for name in ("eq", "ne", "ge", "le", "gt", "lt")),
    *((name, TRUTH_TABLE, {}) for name in ("logical_and", "logical_or")),
    *((name, (X, Y), {"alpha": alpha}) for name in ("add", "sub", "rsub") for alpha in (0.5, 2)),
    *((name, (X, 2.5), {}) for name in ("add", "sub", "mul", "div", "rsub", "remainder", "gt", "le")),
    ("pow", (POSITIVE, 1.5), {}),
    ("pow", (X, 2), {}),
    ("div", (X, Y), {"rounding_mode": "floor"}),
    ("div", (X, Y), {"rounding_mode": "trunc"}),
    ("clamp", (X, -1.0, 1.5), {}),
    ("clamp", (X, None, 0.5), {}),
    ("clamp", (X, 1.0, 0.5), {}),
    ("clamp", (X, CHANNELS.reshape(4, 1, 1), None), {}),
    ("clip", (X, -0.5), {}),
    ("clamp_min", (X, 0.3), {}),
    ("clamp_max", (X, 0.3), {}),
    ("hardtanh", (X, -2.0, 0.5), {}),
    ("leaky_relu", (X, 0.3), {}),
    ("prelu", (X, CHANNELS), {}),
    ("prelu", (X, CHANNELS[:1]), {}),
    ("elu", (X, 0.7), {}),
    ("elu", (X, 1.2, 1.1, 0.9), {}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("softplus", (X, 2.0), {}),
    ("where", (MASK, X, Y), {}),
    ("masked_fill", (X, MASK, -3.0), {}),
    ("matmul", (X, _random(6, 3)), {}),
    ("mm", (MATRIX, OTHER), {}),
    ("bmm", (BATCHES, OTHER_BATCHES), {}),
    ("mv", (MATRIX, CHANNELS), {}),
    ("dot", (CHANNELS, MORE), {}),
    ("addmm", (_random(5), MATRIX, OTHER), {"beta": 0.5, "alpha": 2.0}),
    ("addmm", (_random(5), MATRIX, OTHER), {}),
    ("baddbmm", (_random(2, 3, 5), BATCHES, OTHER_BATCHES), {}),
    ("linear", (BATCHES, _random(5, 4), _random(5)), {}),
    ("linear", (BATCHES, _random(5, 4)), {}),
    ("einsum", ("bij,bjk->bk", [BATCHES, OTHER_BATCHES]), {}),
    *((name, (X, [2, 3], True), {}) for name in ("mean", "sum", "amax", "amin", "logsumexp")),
    *((name, (X, [1]), {}) for name in ("mean", "sum", "amax", "amin", "logsumexp")),
    ("sum", (X, []), {}),
    ("max", (X, 1, True), {}),
    ("max", (X, 2), {}),
    ("max", (X, Y), {}),
    ("var", (X, [2, 3]), {"correction": 0, "keepdim": True}),
    ("var", (X, [1]), {"correction": 1}),
    ("var", (X, [1], False), {}),
    ("var", (X, False), {}),
    ("rsub", (X, 2.5, 3.0), {}),
    ("var", (X, [1], True, True), {}),
    ("linalg_vector_norm", (X, 2, [1, 2]), {}),
    ("linalg_vector_norm", (X, 1, [1], True), {}),
    ("linalg_vector_norm", (X, 3.0), {}),
    ("linalg_vector_norm", (X, float("inf"), [1]), {}),
    ("linalg_vector_norm", (X, float("-inf"), [1]), {}),
    ("linalg_vector_norm", (X, 0, [1]), {}),
    ("norm", (X, 2, [1]), {}),
    ("softmax", (X, 1), {}),
    ("_softmax", (X, -1, False), {}),
    ("log_softmax", (X, 1), {}),
    ("_log_softmax", (X, 2, False), {}),
    ("convolution", (X, _random(6, 2, 3, 2), _random(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 2), {}),
    ("convolution", (X, _random(6, 4, 3, 2), None, [1], [1], [1], False, [0], 1), {}),
    ("conv1d", (X[:, :, 0], _random(3, 4, 3), _random(3), [2], [1]), {}),
    ("conv2d", (X, _random(3, 4, 3, 3), _random(3), [2, 2], [1, 1]), {}),
    ("conv2d", (X, _random(3, 4, 3, 2), None, [1, 1], "same"), {}),
    ("conv2d", (X, _random(3, 4, 3, 3), None, [1, 1], "valid", [1, 2]), {}),
    ("conv3d", (X[:, :, None], _random(3, 4, 1, 3, 3)), {}),
    ("scaled_dot_product_attention", (QUERY, KEY, VALUE), {}),
    ("scaled_dot_product_attention", (QUERY, KEY, VALUE), {"is_causal": True, "scale": 0.3}),
    ("scaled_dot_product_attention", (QUERY, KEY, VALUE, _random(5, 5)), {}),
    ("scaled_dot_product_attention", (QUERY, KEY, VALUE, np.tril(np.ones((5, 5), bool))), {}),
    ("embedding", (MATRIX, np.array([[0, 2], [1, 1]])), {}),
    ("embedding", (MATRIX, np.array([[0, 2], [1, 1]]), 1), {}),
    ("layer_norm", (X, [5, 6], _random(5, 6), _random(5, 6), 0.1), {}),
    ("layer_norm", (X, [6]), {}),
    ("native_layer_norm", (X, [6], _random(6), _random(6), 1e-3), {}),
    ("group_norm", (X, 2, CHANNELS, MORE, 1e-3), {}),
    ("group_norm", (X, 4), {}),
    ("native_group_norm", (X, CHANNELS, MORE, 2, 4, 30, 2, 1e-3), {}),
    ("instance_norm", (X, CHANNELS, MORE, None, None, True, 0.1, 1e-3, False), {}),
    ("rms_norm", (X, [6], _random(6), 1e-3), {}),
    ("rms_norm", (X, [5, 6]), {}),
    ("max_pool2d", (X, [2, 2]), {}),
    ("max_pool2d", (X, [3, 2], [2, 1], [1, 0]), {}),
    ("max_pool2d", (X, [2, 2], [2, 2], [0, 0], [1, 1], True), {}),
    ("max_pool2d", (X, [2, 2], [1, 1], [0, 0], [2, 2]), {}),
    ("max_pool2d", (X, [2, 2], [3, 3], [0, 0], [1, 1], True), {}),
    ("max_pool2d", (X, [2, 2], [3, 3], [1, 1], [1, 1], True), {}),
    ("max_pool2d", (X, [2, 2], [2, 2], [0, 0], [2, 2], True), {}),
    ("max_pool2d", (X[0], [3], [], [1]), {}),
    ("max_pool2d_with_indices", (X, [3, 3], [2, 2], [1, 1]), {}),
    ("avg_pool2d", (X, [2, 3]), {}),
    ("avg_pool2d", (X, [3, 3], [2, 2], [1, 1]), {}),
    ("avg_pool2d", (X, [3, 3], [2, 2], [1, 1], True), {}),
    ("avg_pool2d", (X, [3, 3], [2, 2], [1, 1], True, False), {}),
    ("avg_pool2d", (X, [2, 2], [2, 2], [0, 0], True), {}),
    ("avg_pool2d", (X, [2, 3], [2, 3], [0, 0], False, True, 5), {}),
    ("avg_pool2d", (X, [2, 2], [3, 3], [1, 1], True), {}),
    ("avg_pool2d", (X, [2, 2], [3, 3], [1, 1], True, False), {}),
    ("avg_pool2d", (X[0], [3], [2], [1]), {}),
    ("avg_pool2d", (X[0], [3], []), {}),
    ("avg_pool2d", (X, [2, 2], [2, 2], [1, 0]), {}),
    ("adaptive_avg_pool2d", (X, [1, 1]), {}),
    ("adaptive_avg_pool2d", (X, [5, 3]), {}),
    ("adaptive_avg_pool2d", (X, [3, 4]), {}),
    ("adaptive_avg_pool2d", (X, [1, 3]), {}),
    ("adaptive_avg_pool2d", (X, [3, 1]), {}),
    ("_adaptive_avg_pool2d", (X, [2, 2]), {}),
    ("adaptive_avg_pool2d", (X[0], [5, 3]), {}),
    ("adaptive_avg_pool2d", (X[0], [3, 4]), {}),
    ("adaptive_max_pool2d", (X, [3, 4]), {}),
    *RESIZES,
    *TRANSPOSED,
    ("dropout", (X, 0.5, False), {}),
    ("dropout", (X, 0.0, True), {}),
    ("feature_dropout", (X, 0.5, False), {}),
    ("alpha_dropout", (X, 0.5, False), {}),
    ("feature_alpha_dropout", (X, 0.5, False), {}),
    ("native_dropout", (X, 0.5, False), {}),
    *((name, (X, [2, -1, 3]), {}) for name in ("view", "reshape", "_unsafe_view", "view_copy")),
    ("flatten", (X, 1, 2), {}),
    ("flatten", (X, -2), {}),
    ("unflatten", (X, 1, [2, 2]), {}),
    ("unflatten", (X, -1, [3, -1]), {}),
    *((name, (X, [3, 0, 2, 1]), {}) for name in ("permute", "permute_copy")),
    *((name, (X, -1, 1), {}) for name in ("transpose", "transpose_copy")),
    ("t", (MATRIX,), {}),
    ("numpy_T", (MATRIX,), {}),
    *((name, (X, 2), {}) for name in ("unsqueeze", "unsqueeze_copy")),
    ("unsqueeze", (X, -1), {}),
    *((name, (X[:, :1, :1],), {}) for name in ("squeeze", "squeeze_copy")),
    ("squeeze", (X[:, :1, :1], 1), {}),
    ("squeeze", (X[:, :1, :1], [-2, 0]), {}),
    *((name, (X[:, :1], [3, 2, 4, -1, 6]), {}) for name in ("expand", "expand_copy")),
    ("expand_as", (X[:, :1], Y), {}),
    ("view_as", (X, Y.reshape(8, 30)), {}),
    ("reshape_as", (X, Y.reshape(8, 30)), {}),
    ("repeat", (MATRIX, [2, 1, 3]), {}),
    *((name, ([X, Y], -2), {}) for name in ("cat", "concat", "concatenate", "stack")),
    *((name, ([X, Y],), {}) for name in ("cat", "stack")),
    *((name, (X, -1, 1, 6, 2), {}) for name in ("slice", "slice_copy")),
    ("slice", (X, 1, None, -1), {}),
    ("slice", (X,), {}),
    *((name, (X, 2, -1), {}) for name in ("select", "select_copy")),
    ("narrow", (X, 3, 1, 4), {}),
    ("split", (X, 4, 3), {}),
    ("split", (X, 1), {}),
    ("split_copy", (X, 4, 3), {}),
    *((name, (X, [1, 3], 1), {}) for name in ("split_with_sizes", "split_with_sizes_copy")),
    ("chunk", (X, 4, 3), {}),
    ("chunk", (X, 2), {}),
    ("unbind", (X, 1), {}),
    ("unbind", (X,), {}),
    ("pad", (X, [1, 2, 3, 0]), {}),
    ("pad", (X, [1, 2], "constant", 1.5), {}),
    *(("pad", (X, [1, 2, 2, 1], mode), {}) for mode in ("reflect", "replicate", "circular")),
    ("constant_pad_nd", (X, [1, -2, 0, 1], 2.0), {}),
    ("constant_pad_nd", (X, [1, 1]), {}),
    ("roll", (X, [2, -1], [1, 3]), {}),
    ("roll", (X, [5]), {}),
    ("flip", (X, [1, -1]), {}),
    ("index", (X, [None, np.array([2, 0, 3])]), {}),
    ("index", (X, [np.array([1, 0]), np.array([2, 3])]), {}),
    ("pixel_shuffle", (X, 2), {}),
    ("zeros", ([2, 3],), {}),
    ("ones", ([2, 3],), {}),
    ("new_zeros", (X, [2]), {}),
    ("new_ones", (X, [2]), {}),
    ("full", ([2, 3], 1.5), {}),
    ("full_like", (X, 1.5), {}),
    ("scalar_tensor", (1.5,), {}),
    ("arange", (5,), {}),
    ("arange", (2, 11, 3), {}),
    ("size", (X, 2), {}),
    ("type_as", (MASK, X), {}),
]

#: Operators that only the tests of whole networks and of dropout cover: PyTorch has no operator of this name with plain
#: arguments, its result cannot be compared, or it always refuses.
ELSEWHERE = {
    *("empty", "empty_permuted", "sym_size", "to", "_to_copy", "to_copy", "float"),
    *("bernoulli", "rand", "rand_like", "randn", "randn_like"),
}


def _converted(value, kind):
    if isinstance(value, np.ndarray):
        return kind(value)
    return [_converted(part, kind) for part in value] if isinstance(value, (list, tuple)) else value


def _arrays(value):
    """The arrays of a result, without entries that are None."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [np.asarray(part) for part in parts if part is not None]


@pytest.mark.parametrize(("name", "args", "options"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_an_operator_is_pytorchs(name, args, options):
    expected = _arrays(getattr(torch.ops.aten, name)(*_converted(args, torch.from_numpy), **options))
    found = _arrays(OPERATORS[name](*_converted(args, jax.numpy.asarray), **options))
    assert found
    for ours, theirs in zip(found, expected, strict=False):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "args", "options"), RESIZES[::3] + TRANSPOSED)
def test_what_makes_images_larger_has_pytorchs_derivatives(name, args, options):
    """The derivatives are those by the images and, for convolutions, by the kernel."""
    count = 2 if "conv" in name else 1
    given = [torch.from_numpy(array).requires_grad_() for array in args[:count]]
    result = getattr(torch.ops.aten, name)(*given, *_converted(args[count:], torch.from_numpy), **options)
    direction = _random(*result.shape, seed=4)
    result.backward(torch.from_numpy(direction))
    rest = _converted(args[count:], jax.numpy.asarray)
    _, backward = jax.vjp(lambda *arrays: OPERATORS[name](*arrays, *rest, **options), *args[:count])
    for ours, theirs in zip(backward(direction), given, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("train", [True, None])
@pytest.mark.parametrize(
    "name", ["dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"]
)
def test_dropout_is_refused_where_it_acts(name, train):
    with pytest.raises(torch_layers.ActiveDropoutError, match=r"dropout with p = 0.25"):
        OPERATORS[name](X, 0.25, train)
    for p, acts in ((0.25, False), (0.0, train)):
        np.testing.assert_array_equal(_arrays(OPERATORS[name](X, p, acts))[0], X)
    np.testing.assert_array_equal(_arrays(torch_layers.WITHOUT_DROPOUT[name](X, 0.25, train))[0], X)


def test_random_masks_are_refused_or_their_own_mean():
    for name in ("bernoulli", "rand", "rand_like", "randn", "randn_like"):
        with pytest.raises(torch_layers.ActiveDropoutError, match="random numbers"):
            OPERATORS[name](X, 0.5)
    np.testing.assert_array_equal(torch_layers.WITHOUT_DROPOUT["bernoulli"](X, 0.8), np.full_like(X, 0.8))
    np.testing.assert_array_equal(torch_layers.WITHOUT_DROPOUT["bernoulli"](X), X)  # X holds probabilities


def test_attention_drops_nothing_where_dropout_is_off():
    off = torch_layers.WITHOUT_DROPOUT["scaled_dot_product_attention"]
    query, key, value = (jax.numpy.asarray(part) for part in (QUERY, KEY, VALUE))
    plain = torch.ops.aten.scaled_dot_product_attention(*map(torch.from_numpy, (QUERY, KEY, VALUE)), None, 0.0, True)
    for args, options in (((None, 0.5, True), {}), ((), {"dropout_p": 0.5, "is_causal": True})):
        np.testing.assert_allclose(off(query, key, value, *args, **options), plain, rtol=2e-5, atol=1e-5)
        with pytest.raises(torch_layers.ActiveDropoutError):
            torch_layers.attention(query, key, value, *args, **options)
    with pytest.raises(NotImplementedError, match="grouped queries"):
        torch_layers.attention(query, key, value, enable_gqa=True)


#: Operators with arguments that set the dtype of the result; double precision becomes single.
DTYPES = [
    *(("to", (X, dtype), {}) for dtype in (torch.float64, torch.float16, torch.int64, torch.bool)),
    ("_to_copy", (X,), {"dtype": torch.int32}),
    ("to_copy", (X,), {"dtype": torch.float64, "layout": torch.strided}),
    ("to", (X, torch.preserve_format), {}),
    ("to", (X, torch.contiguous_format), {}),
    ("to", (MASK, torch.strided, torch.float32), {}),
    *((name, ([2, 3],), {"dtype": torch.int64}) for name in ("zeros", "ones", "empty")),
    *((name, ([2, 3],), {}) for name in ("zeros", "ones", "empty")),
    ("full", ([2], 3), {"dtype": torch.int64}),
    ("scalar_tensor", (3,), {"dtype": torch.bool}),
    ("arange", (4,), {"dtype": torch.float64}),
    ("new_zeros", (MASK, [2]), {}),
    ("new_ones", (MASK, [2]), {}),
    ("float", (MASK,), {}),
]
WANTED = ["float32", "float16", "int32", "bool", "int32", "float32", "float32", "float32", "float32"]
WANTED += ["int32"] * 3 + ["float32"] * 3 + ["int32", "bool", "float32", "bool", "bool", "float32"]


@pytest.mark.parametrize(("case", "wanted"), zip(DTYPES, WANTED, strict=True))
def test_dtypes_are_pytorchs_and_double_precision_is_single(case, wanted):
    name, args, options = case
    found = OPERATORS[name](*(jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in args), **options)
    assert found.dtype == wanted
    if isinstance(args[0], np.ndarray) and name in ("to", "_to_copy", "to_copy", "float"):
        np.testing.assert_array_equal(found, args[0].astype(wanted))


@pytest.mark.parametrize("name", torch_graph._BATCH_NORMS)
def test_batch_normalisations_have_their_arguments_where_pytorch_has_them(name):
    def places(overload):
        names = [argument.name for argument in overload._schema.arguments]
        flag = next((names.index(n) for n in ("training", "train") if n in names), None)
        return flag, *(next(i for i, n in enumerate(names) if n in known) for known in KNOWN)

    operator = getattr(torch.ops.aten, name)
    assert torch_graph._BATCH_NORMS[name] == places(operator.default)
    if "no_stats" in operator.overloads():
        node = type("Node", (), {"target": operator.no_stats, "args": (X, None, None, True, 0.1, 1e-5)})
        assert torch_graph._places(node) == places(operator.no_stats)
        assert torch_graph._by_batch(node)
        assert torch_graph._running(node) == []


KNOWN = ({"momentum", "exponential_average_factor"}, {"eps", "epsilon"})


def test_every_operator_is_compared():
    assert {torch_entries, torch_layers, torch_resize, torch_shapes}  # importing them fills the table
    assert {name for name, _, _ in CASES} | ELSEWHERE == set(OPERATORS)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.leaky_relu(x, 0.1),
        torch.nn.functional.relu6,
        lambda x: torch.nn.functional.hardtanh(x, 0.0, 2.0),
        lambda x: torch.nn.functional.prelu(x, torch.full((3,), 0.3)),
        torch.relu,
        torch.nn.functional.hardswish,
        torch.nn.functional.hardtanh,
        lambda x: x.clamp(0.0, 1.0),
        lambda x: x.clamp(min=0.0),
        lambda x: x.clamp_max(1.0),
    ],
    ids=[
        "leaky_relu",
        "relu6",
        "hardtanh",
        "prelu",
        "relu",
        "hardswish",
        "hardtanh_1",
        "clamp",
        "clamp_min",
        "clamp_max",
    ],
)
def test_derivatives_at_zero_are_those_of_pytorch(function):
    class Net(torch.nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.tensor([[-1.0, 0.0, 1.0]], requires_grad=True)
    function(x).sum().backward()
    program = torch_graph.Graph(torch.export.export(Net(), (x.detach(),)), "refuse")
    found = jax.grad(lambda z: program({}, {}, z)[0].sum())(np.array([[-1.0, 0.0, 1.0]], np.float32))
    np.testing.assert_allclose(found, x.grad, atol=1e-6)


def test_the_row_for_padding_has_no_gradient():
    weight, indices = torch.tensor(MATRIX, requires_grad=True), np.array([[0, 2], [1, 1]])
    torch.ops.aten.embedding(weight, torch.from_numpy(indices), 1).sum().backward()
    found = jax.grad(lambda weight: OPERATORS["embedding"](weight, indices, 1).sum())(MATRIX)
    np.testing.assert_array_equal(found, weight.grad)


@pytest.mark.parametrize(("beta", "threshold"), [(3.0, 1.0), (1.0, 20.0)])
def test_softplus_is_linear_beyond_its_threshold(beta, threshold):
    expected = torch.nn.functional.softplus(torch.tensor(X), beta, threshold).numpy()
    np.testing.assert_allclose(OPERATORS["softplus"](X, beta, threshold), expected, atol=1e-6)


def test_rounding_to_decimals():
    expected = torch.round(torch.tensor(X), decimals=1).numpy()
    np.testing.assert_allclose(OPERATORS["round"](X, decimals=1), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # warnings of PyTorch about its own code
@pytest.mark.parametrize("read", ["view", "slice"])
def test_a_part_of_what_is_changed_in_place_afterwards_is_changed_too(read):
    class Net(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            part = y.flatten(1) if read == "view" else y[:, :2].flatten(1)
            y.mul_(3.0)
            return part + y.sum()

    x = torch.tensor(X)
    exported = torch.export.export(Net(), (x,))
    try:
        found = torch_graph.Graph(exported, "refuse")({}, {}, X)[0]
    except torch_graph.UnknownOperatorsError:  # the caller then gets a program without in-place changes from PyTorch
        found = torch_graph.Graph(exported.run_decompositions(), "refuse")({}, {}, X)[0]
    np.testing.assert_allclose(found, Net()(x).numpy(), rtol=1e-4)
