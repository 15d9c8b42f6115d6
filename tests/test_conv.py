"""Strided, padded and grouped convolutions, and pooling; `test_models.py` tests the case of the CAFE networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_among

from jaxleak.models import avg_pool, conv2d, global_avg_pool, max_pool


def _all_orders(f, primals, tangents):
    """The value of f, the gradient of a scalar function of it, and that gradient's gradient along `tangents`."""
    first = jax.grad(lambda *a: jnp.sum(jnp.tanh(f(*a)) ** 2), argnums=tuple(range(len(primals))))

    def along(*a):
        return sum(jnp.vdot(g, t) for g, t in zip(first(*a), tangents, strict=True))

    return f(*primals), first(*primals), jax.grad(along, argnums=tuple(range(len(primals))))(*primals)


def _assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * float(jnp.abs(y).max()))


CASES = {
    # kernel (kh, kw), C_in, C_out, stride, padding, groups, (H, W)
    "strided": ((3, 3), 2, 3, 2, 1, 1, (6, 5)),
    "strided SAME": ((3, 3), 2, 3, 2, "SAME", 1, (6, 5)),
    "stem": ((7, 7), 1, 2, 2, 3, 1, (8, 8)),
    "1x1": ((1, 1), 3, 2, 1, 0, 1, (3, 4)),
    "strided 1x1": ((1, 1), 3, 2, 2, 0, 1, (5, 4)),
    "stride 3": ((5, 3), 2, 2, 3, 2, 1, (7, 8)),
    "stride beyond the window": ((2, 2), 1, 2, 3, 0, 1, (9, 8)),
    "even window SAME": ((2, 4), 1, 2, 1, "SAME", 1, (4, 5)),
    # With many channels, patches are gathered from both axes at once.
    "wide": ((3, 3), 16, 2, 1, 1, 1, (4, 3)),
    "wide, strided": ((3, 3), 16, 2, 2, 1, 1, (5, 4)),
    "depthwise": ((3, 3), 4, 4, 1, 1, 4, (4, 5)),
    "strided depthwise": ((3, 3), 2, 4, 2, 1, 2, (5, 6)),
    "depthwise, even and asymmetric": ((4, 2), 3, 3, 1, ((2, 0), (0, 1)), 3, (5, 4)),
    "depthwise, stride 3": ((5, 5), 2, 2, 3, "SAME", 2, (7, 8)),
    "depthwise, a last row that nothing reads": ((3, 3), 2, 2, 2, 0, 2, (6, 6)),
    "grouped": ((3, 3), 4, 6, 2, 1, 2, (5, 5)),
}


#: Cases that use the same branch of the code as another case.
ALIKE = ("strided SAME", "strided 1x1", "stride 3", "wide, strided", "strided depthwise", "depthwise, stride 3")


@pytest.mark.parametrize("case", slow_among(CASES, ALIKE))
def test_patches_equal_lax_in_value_and_first_two_derivatives(case):
    window, c_in, c_out, stride, padding, groups, size = CASES[case]
    primals = reference.normal(2, *size, c_in), reference.normal(*window, c_in // groups, c_out, seed=1)
    tangents = reference.normal(*primals[0].shape, seed=2), reference.normal(*primals[1].shape, seed=3)

    @jax.jit
    def both(primals):
        return tuple(
            _all_orders(
                functools.partial(conv2d, stride=stride, padding=padding, groups=groups, form=form), primals, tangents
            )
            for form in ("patches", "lax")
        )

    patches, lax = both(primals)
    assert patches[0].shape == lax[0].shape
    _assert_same(patches, lax)


@pytest.mark.parametrize("padding", [1, ((2, 0), (0, 2)), ((0, 2), (1, 1))])
def test_a_window_that_fits_exactly_is_read_once(padding):
    x, kernel = reference.normal(2, 1, 1, 2), reference.normal(3, 3, 2, 2, seed=1)
    (top, _), (left, _) = padding if isinstance(padding, tuple) else ((padding, 0), (padding, 0))
    expected = np.einsum("bc,co->bo", x[:, 0, 0], kernel[top, left])
    for form in ("patches", "lax"):
        out = conv2d(x, kernel, padding=padding, form=form)
        np.testing.assert_allclose(out, expected[:, None, None], rtol=1e-5)
    for smaller in (((1, 0), (1, 1)), ((1, 1), (0, 1))):
        with pytest.raises(ValueError, match="a window of 3 does not fit into 1 pixels"):
            conv2d(x, kernel, padding=smaller)


@pytest.mark.parametrize("size", [(6, 6), (7, 5)])
def test_paddings_follow_pytorch_and_tensorflow(size):
    x, kernel = reference.normal(1, *size, 2), reference.normal(3, 3, 2, 2, seed=1)
    # PyTorch's rule: a convolution with stride 2 keeps every other entry of that with stride 1.
    dense = conv2d(x, kernel, form="lax")
    np.testing.assert_allclose(conv2d(x, kernel, stride=2, padding=1), dense[:, ::2, ::2], atol=1e-5)
    same = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(conv2d(x, kernel, stride=2), same, atol=1e-5)


def test_a_strided_convolution_runs_inside_scan_and_vmap():
    x, kernels = reference.normal(2, 6, 6, 2), reference.normal(3, 3, 3, 2, 2, seed=1)

    @jax.jit
    def run(kernels):
        def one(kernel):
            def step(x, _):
                return x - 0.1 * jax.grad(lambda x: jnp.sum(conv2d(x, kernel, stride=2, padding=1) ** 2))(x), None

            return jax.lax.scan(step, x, None, length=2)[0]

        return jax.vmap(one)(kernels), one(kernels[1])

    many, single = run(kernels)
    np.testing.assert_allclose(many[1], single, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("stride", "padding"), [(2, 1), (1, 0)])
def test_depthwise_convolutions_of_many_kernels_and_images_are_each_their_own(stride, padding):
    """The convolution is batched in both arguments, also in derivatives, as for clients that are attacked together."""
    x, kernels = reference.normal(3, 2, 5, 6, 4), reference.normal(3, 3, 3, 1, 4, seed=1)

    def second(x, kernel):
        def slope(x, kernel):
            return jax.grad(lambda k: jnp.sum(jnp.tanh(conv2d(x, k, stride=stride, padding=padding, groups=4)) ** 2))(
                kernel
            )

        return jax.grad(lambda x: jnp.sum(slope(x, kernel) ** 2))(x), slope(x, kernel)

    @jax.jit
    def run(x, kernels):
        many = [jax.vmap(second, in_axes=axes) for axes in ((0, 0), (0, None), (None, 0))]
        batched = many[0](x, kernels), many[1](x, kernels[1]), many[2](x[1], kernels)
        return [jax.tree.map(lambda a: a[1], way) for way in batched], second(x[1], kernels[1])

    ways, alone = run(x, kernels)
    for way in ways:
        _assert_same(way, alone)


@pytest.mark.parametrize("narrow", ["x", "kernel"])
def test_a_depthwise_convolution_takes_two_kinds_of_numbers_as_lax_does(narrow):
    x, kernel = reference.normal(1, 3, 3, 2), reference.normal(3, 3, 1, 2, seed=1)
    x, kernel = (x.astype(jnp.bfloat16), kernel) if narrow == "x" else (x, kernel.astype(jnp.bfloat16))
    loss = lambda x, kernel: jnp.sum(conv2d(x, kernel, padding=1, groups=2) ** 2)  # noqa: E731
    assert conv2d(x, kernel, padding=1, groups=2).dtype == jnp.float32
    by_x, by_kernel = jax.grad(loss, argnums=(0, 1))(x, kernel)
    assert (by_x.dtype, by_kernel.dtype) == (x.dtype, kernel.dtype)


def test_sizes_that_do_not_fit_are_refused():
    x, kernel = jnp.zeros((1, 4, 4, 4)), jnp.zeros((3, 3, 4, 4))
    with pytest.raises(ValueError, match=r"kernel must be .*got \(3, 3, 4, 4\) for C_in = 4, groups = 2"):
        conv2d(x, kernel, groups=2)
    with pytest.raises(ValueError, match="stride must be > 0, got 0"):
        conv2d(x, kernel, stride=0)
    with pytest.raises(ValueError, match="padding must be 'SAME', an integer or two pairs of integers, got 'VALID'"):
        conv2d(x, kernel, padding="VALID")
    with pytest.raises(ValueError, match="padding must be >= 0, got -1"):
        conv2d(x, kernel, padding=-1)
    with pytest.raises(ValueError, match="a window of 3 does not fit into 2 pixels with padding 0"):
        conv2d(x[:, :2], kernel, padding=0)
    with pytest.raises(ValueError, match=r"window must be in \[1, 4\], got 5"):
        avg_pool(x, 5)


@pytest.mark.parametrize(
    ("window", "stride", "padding", "size"), [(3, 2, 1, (7, 6)), (3, 3, 0, (7, 6)), (2, 2, "SAME", (5, 4))]
)
def test_max_pool_equals_a_reduce_window(window, stride, padding, size):
    # Shifted below zero, so that wrongly padded zeros would be the maximum.
    z, tangent = reference.normal(2, *size, 2) - 5, reference.normal(2, *size, 2, seed=1)
    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0)) if padding != "SAME" else "SAME"

    def windowed(z):
        return jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (1, window, window, 1), (1, stride, stride, 1), pads)

    def squared(pool):
        return lambda z: pool(z) ** 2 / 10

    ours = functools.partial(max_pool, window=window, stride=stride, padding=padding)
    np.testing.assert_array_equal(ours(z), windowed(z))
    _assert_same(*jax.jit(lambda z: [_all_orders(squared(p), (z,), (tangent,)) for p in (ours, windowed)])(z))


@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 2, 1), (2, 2, "SAME")])
def test_a_smoothed_max_pool_is_the_log_mean_exp_of_what_lies_inside(window, stride, padding):
    z = np.asarray(reference.normal(2, 5, 7, 2))
    smooth = jax.jit(lambda sharpness: max_pool(z, window, stride, padding, sharpness=sharpness))
    low = padding if padding != "SAME" else 0
    for beta in (0.5, 20.0):
        out = np.asarray(smooth(beta))
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                top, left = i * stride - low, j * stride - low
                inside = z[:, max(top, 0) : top + window, max(left, 0) : left + window]
                expected = np.log(np.exp(beta * inside).mean(axis=(1, 2))) / beta
                np.testing.assert_allclose(out[:, i, j], expected, atol=2e-5)
    np.testing.assert_allclose(smooth(1e5), max_pool(z, window, stride, padding), atol=1e-4)
    flat = max_pool(jnp.full((1, 5, 7, 1), 3.0), window, stride, padding, sharpness=2.0)
    np.testing.assert_allclose(flat, 3.0, rtol=1e-6)


def test_average_pools():
    x = reference.normal(2, 5, 4, 3)
    by_hand = np.asarray(x)[:, :4].reshape(2, 2, 2, 2, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(avg_pool(x), by_hand, atol=1e-6)
    np.testing.assert_allclose(global_avg_pool(x), np.asarray(x).mean(axis=(1, 2)), atol=1e-6)
