"""Convolution and pooling in forms whose higher derivatives stay fast.

On CPU, XLA runs the gradients of a convolution's gradients several times slower than the same arithmetic written as
patches times a matrix, and convolutions inside `lax.scan` or under `vmap` over weights slower still
(benchmarks/README.md has the ratios). Second-order attacks spend their time there. On CPU the default is therefore
Winograd's or Fourier's algorithm, which have the fewest operations, where one of them pays, and the patch form
elsewhere; on other devices it is `lax.conv`. All forms compute the same function, and tests compare them up to second
derivatives.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate
from jaxleak.models._activations import smooth_max
from jaxleak.models._cells import in_cells
from jaxleak.models._depthwise import depthwise_conv
from jaxleak.models._fourier import fourier_conv, num_products
from jaxleak.models._products import product
from jaxleak.models._winograd import tiles, winograd_conv

Form = Literal["auto", "patches", "winograd", "fourier", "lax"]
FORMS: tuple[Form, ...] = ("auto", "patches", "winograd", "fourier", "lax")
#: How many zeros are added: one number for every side, ((top, bottom), (left, right)), or "SAME" as in `conv2d`.
Padding = int | Literal["SAME"] | tuple[tuple[int, int], tuple[int, int]]

#: Layers with fewer channels than this are narrow. Their inputs are first gathered row by row: a pixel's channels fill
#: less than a cache line, and copying them one pixel at a time, k^2 times, would cost more than the product of
#: matrices.
NARROW = 16

#: Moving a number through memory costs about as much as this many multiplications in a product of matrices. Of 17
#: layers that were measured, this value slowed none down; it kept one from Fourier's algorithm, which would have been
#: faster there by a factor of 1.4.
MOVE = 50

#: Largest transform, in entries, that is made for a layer without being asked for: 28x28 pixels with 5x5 kernels.
LARGEST = 1_100_000

#: Winograd's algorithm pays if a layer has at least this many input and output channels, and at least as many tiles of
#: 2x2 pixels as channels. Otherwise its transforms, including those of the kernels, cost more than it saves.
WIDE = 32

#: Value that pads images before max pooling. It is finite, since infinity times a zero weight would be NaN.
PADDING = -1e30


def conv2d(
    x: jax.Array,
    kernel: jax.Array,
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    groups: int = 1,
    form: Form = "auto",
) -> jax.Array:
    """2-D cross-correlation with zero padding.

    Args:
        x: (B, H, W, C_in), in any unit.
        kernel: (kh, kw, C_in / groups, C_out). Output channel o reads the inputs of group o // (C_out / groups).
        stride: s >= 1, of both axes.
        padding: number of zeros on every side, as in PyTorch; or one number per side, ((top, bottom), (left, right));
            or "SAME", which gives ceil(H / s) rows and puts the odd zero at the end. With odd kernels "SAME" and k // 2
            agree at stride 1, but not at stride 2.
        groups: divides C_in and C_out; groups = C_in is a depthwise convolution.
        form: "patches" (im2col); "winograd", for 3x3 kernels, or "fourier", for odd kernels, which both apply at stride
            1 in a single group with padding that keeps the size, and fall back to patches otherwise; "lax"; or "auto":
            on CPU whichever of winograd, fourier and patches should be fastest, lax elsewhere.

    Returns:
        (B, H', W', C_out), in the unit of `x` times that of `kernel`. H' = ceil(H / s) for "SAME", else
        floor((H + 2 padding - kh) / s) + 1.

    Raises:
        ValueError: if sizes do not fit.
    """
    _validate.one_of(FORMS, form=form)
    _validate.count(stride=stride, groups=groups)
    kh, kw, c_group, c_out = kernel.shape
    c_in = x.shape[-1]
    if c_group * groups != c_in or c_out % groups:
        raise ValueError(
            f"kernel must be (kh, kw, C_in / groups, C_out), got {kernel.shape} for C_in = {c_in}, groups = {groups}"
        )
    rows, columns = (_pads(x.shape[axis], (kh, kw)[axis - 1], stride, padding, axis) for axis in (1, 2))
    if form == "auto" and jax.default_backend() != "cpu":
        form = "lax"
    if form == "lax":
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            (rows, columns),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
    if stride == groups == 1 and rows == (kh // 2, kh // 2) and columns == (kw // 2, kw // 2):
        pays = min(c_in, c_out) >= WIDE and tiles(x.shape) >= max(c_in, c_out)
        if (kh, kw) == (3, 3) and (form == "winograd" or (form == "auto" and pays)):
            return _with_zeros(winograd_conv(x, kernel), x, (kh, kw))
        if kh % 2 == kw % 2 == 1 and (form == "fourier" or (form == "auto" and _fourier_pays(x.shape, kernel.shape))):
            return _with_zeros(fourier_conv(x, kernel), x, (kh, kw))
    if groups == 1:
        # Without the barrier XLA gathers the patches once for every product that reads them.
        gathered = jax.lax.optimization_barrier(patches(x, (kh, kw), stride, padding))
        return product(gathered, kernel.reshape(kh * kw * c_in, c_out))
    if c_group == 1:
        # With one input channel per group there is no matrix to multiply by.
        return depthwise_conv(jnp.repeat(x, c_out // groups, axis=-1), kernel[:, :, 0], stride, (rows, columns))
    shifts = _shifts(x, (kh, kw), (stride, stride), (rows, columns))
    stacked = jnp.stack([z.reshape(*z.shape[:3], groups, c_group) for z in shifts], axis=-2)
    weights = kernel.reshape(kh * kw, c_group, groups, c_out // groups)
    out = jnp.einsum("bhwgkc,kcgo->bhwgo", stacked, weights)
    return out.reshape(*out.shape[:3], c_out)


def patches(x: jax.Array, window: tuple[int, int], stride: int, padding: Padding) -> jax.Array:
    """What each output pixel of a `conv2d` with one group reads: (B, H, W, C) to (B, H', W', kh kw C)."""
    kh, kw = window
    rows, columns = (_pads(x.shape[axis], window[axis - 1], stride, padding, axis) for axis in (1, 2))
    if x.shape[-1] >= NARROW:
        return _gather(_shifts(x, window, (stride, stride), (rows, columns)))
    # Gathering one axis after the other takes k + k copies instead of k^2, in every derivative too.
    x = _gather(_shifts(x, (1, kw), (1, stride), ((0, 0), columns)))
    return _gather(_shifts(x, (kh, 1), (stride, 1), (rows, (0, 0))))


def _fourier_pays(images: tuple[int, ...], kernel: tuple[int, ...]) -> bool:
    """Whether Fourier's algorithm costs less per image than patches; a batch shares the spectrum of the kernel."""
    batch, height, width, c_in = images
    kh, kw, _, c_out = kernel
    pixels, pairs, products = height * width, c_in * c_out, num_products((height, width), (kh, kw))
    if kh == kw == 1 or products * pixels > LARGEST:
        return False
    fast = products * (pairs * (1 + (kh * kw + MOVE) / batch) + pixels * (c_in + c_out))
    return fast < pixels * kh * kw * c_in * (c_out + MOVE)


def _with_zeros(y: jax.Array, x: jax.Array, window: tuple[int, int]) -> jax.Array:
    """Set y to exactly zero where all of x within the window is zero, as in a plain sum of products.

    Rounding would leave some 1e-8 there, and ReLUs in the dark parts of an image would pass gradients at random. Only
    values change, because the derivatives of a convolution do not depend on its values.
    """
    lit = (x != 0).any(axis=-1, keepdims=True)
    lit = jax.lax.reduce_window(lit, False, jax.lax.bitwise_or, (1, *window, 1), (1, 1, 1, 1), "SAME")
    return y - jax.lax.stop_gradient(jnp.where(lit, 0, y))


def _gather(shifts: list[jax.Array]) -> jax.Array:
    # A single shift, that of a 1x1 kernel, needs no copy.
    return shifts[0] if len(shifts) == 1 else jnp.concatenate(shifts, axis=-1)


def _pads(size: int, window: int, stride: int, padding: Padding, axis: int) -> tuple[int, int]:
    """Padding (before, after) of one axis, 1 or 2."""
    if padding == "SAME":
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
        return total // 2, total - total // 2
    if not isinstance(padding, (int, tuple)):
        raise ValueError(f"padding must be 'SAME', an integer or two pairs of integers, got {padding!r}")
    before, after = padding[axis - 1] if isinstance(padding, tuple) else (padding, padding)
    _validate.non_negative(padding=min(before, after))
    if size + before + after < window:
        raise ValueError(f"a window of {window} does not fit into {size} pixels with padding {padding}")
    return before, after


def _shifts(
    x: jax.Array,
    window: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[tuple[int, int], tuple[int, int]],
    fill: float = 0.0,
) -> list[jax.Array]:
    """Entry (i, j) of every window, for all (i, j) in row-major order: each (B, H', W', C).

    The transpose of a strided slice is a pad with holes, which is slow in a gradient's gradient. So a strided image is
    first cut into cells of one stride, and every shift is a contiguous slice of cells.
    """
    h, w = ((n + sum(p) - k) // s + 1 for n, k, s, p in zip(x.shape[1:3], window, strides, pads, strict=True))
    if strides == (1, 1):
        if any(map(any, pads)):
            x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
        return [x[:, i : i + h, j : j + w] for i in range(window[0]) for j in range(window[1])]
    s, t = strides
    x = in_cells(x, window, strides, pads, fill)
    return [
        x[:, i // s : i // s + h, i % s, j // t : j // t + w, j % t] for i in range(window[0]) for j in range(window[1])
    ]


def pool_windows(z: jax.Array) -> jax.Array:
    """The 2x2 windows of stride 2, 'SAME' padded: (B, H, W, C) -> (B, ceil(H/2), ceil(W/2), 4, C)."""
    batch, height, width, channels = z.shape
    pad = ((0, 0), (0, height % 2), (0, width % 2), (0, 0))
    z = jnp.pad(z, pad, constant_values=PADDING)
    h, w = (height + 1) // 2, (width + 1) // 2
    z = z.reshape(batch, h, 2, w, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return z.reshape(batch, h, w, 4, channels)


def max_pool(
    z: jax.Array,
    window: int = 2,
    stride: int | None = None,
    padding: Padding = "SAME",
    *,
    sharpness: jax.Array | float | None = None,
) -> jax.Array:
    """Max pooling over square windows: (B, H, W, C) -> (B, H', W', C), in the unit of `z`.

    The maximum is written as maxima of shifted slices, because the transpose of XLA's windowed reduction
    (select-and-scatter) has no efficient second derivative. Equal entries of a window share its gradient.

    Args:
        z: (B, H, W, C); entries stay above -1e30.
        window: k >= 1.
        stride: s >= 1; default: the window.
        padding: as in `conv2d`, with entries that are never the maximum.
        sharpness: scalar beta > 0, which replaces the maximum by `jaxleak.models.smooth_max`; None is exact.

    Raises:
        ValueError: on sizes out of range.
    """
    stride = window if stride is None else stride
    _validate.count(window=window, stride=stride)
    if sharpness is None and (window, stride, padding) == (2, 2, "SAME"):
        return pool_windows(z).max(axis=3)
    # A maximum over a square is a maximum over rows and then over columns. The same holds for a log of a sum of
    # exponentials.
    for axis in (1, 2):
        z = _max_along(z, axis, window, stride, padding, sharpness)
    return z


def _max_along(
    z: jax.Array, axis: int, window: int, stride: int, padding: Padding, sharpness: jax.Array | float | None
) -> jax.Array:
    """Pool one axis, 1 or 2."""
    size = z.shape[axis]
    before, after = _pads(size, window, stride, padding, axis)
    if axis == 1:
        shifts = _shifts(z, (window, 1), (stride, 1), ((before, after), (0, 0)), PADDING)
    else:
        shifts = _shifts(z, (1, window), (1, stride), ((0, 0), (before, after)), PADDING)
    if sharpness is None:
        return functools.reduce(jnp.maximum, shifts)
    # Only entries inside the image count, or the mean over a window would sink towards the border.
    inside = np.pad(np.ones(size, np.float32), (before, after))
    count = np.lib.stride_tricks.sliding_window_view(inside, window)[::stride].sum(axis=1)
    return smooth_max(jnp.stack(shifts), 0, sharpness, count=count[:, None, None] if axis == 1 else count[:, None])


def avg_pool(x: jax.Array, window: int = 2) -> jax.Array:
    """Means of disjoint square windows; rows and columns that do not fill a window are left out.

    Args:
        x: (B, H, W, C), in any unit.
        window: k in [1, min(H, W)].

    Returns:
        (B, H // k, W // k, C), in the unit of `x`.

    Raises:
        ValueError: on a window out of range.
    """
    batch, height, width, channels = x.shape
    _validate.in_range(1, min(height, width), window=window)
    h, w = height // window, width // window
    x = x[:, : h * window, : w * window].reshape(batch, h, window, w, window, channels)
    return x.mean(axis=(2, 4))


def global_avg_pool(x: jax.Array) -> jax.Array:
    """Mean over all pixels: (B, H, W, C) -> (B, C)."""
    return x.mean(axis=(1, 2))


@jax.custom_jvp
def smoothed_max_pool_relu(z: jax.Array, temperature: jax.Array) -> jax.Array:
    """relu(max_pool(z)), exact in value, with a smoothed derivative.

    The exact derivative selects one of five branches, the four window entries or zero, and is blind to how close the
    others are. The derivative here weighs all five by softmax([z_1, ..., z_4, 0] / temperature), the branch
    probabilities under noise of that scale. A Gauss-Newton step then sees across the kinks that lie within
    `temperature`; as the temperature falls to zero the derivative becomes exact.

    Args:
        z: (B, H, W, C) pre-activations.
        temperature: (B,) > 0, in units of z.
    """
    del temperature
    return jax.nn.relu(max_pool(z))


@smoothed_max_pool_relu.defjvp
def _smoothed_jvp(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple:
    z, temperature = primals
    windows = pool_windows(z)
    branches = jnp.concatenate([windows, jnp.zeros_like(windows[:, :, :, :1])], axis=3)
    weights = jax.nn.softmax(branches / temperature[:, None, None, None, None], axis=3)[:, :, :, :4]
    # Padded entries have weight zero, so the constant that pool_windows pads with does not matter in the tangent.
    tangent = (weights * (pool_windows(tangents[0]) * (windows > PADDING))).sum(axis=3)
    return jax.nn.relu(windows.max(axis=3)), tangent
