"""Similarity of reconstructed samples to the true ones."""

import numpy as np
from numpy.typing import ArrayLike

from jaxleak import _validate
from jaxleak.metrics._pairs import pair

# Wang, Bovik, Sheikh & Simoncelli, "Image quality assessment", IEEE TIP 2004.
_SSIM_SIGMA = 1.5
_SSIM_WINDOW = 11
#: Pixels that either side of an image must have for SSIM.
SSIM_SMALLEST = 3
#: SSIM above which an image counts as recognised. The value is a convention. The count is needed because a mean over a
#: batch hides that some of its images are recovered in full.
RECOGNISED_ABOVE = 0.8
#: Largest PSNR in dB with which an image enters a mean, because an image without any error has an infinite PSNR.
MOST_DB = 200.0


def has_ssim(image_shape: tuple[int, ...]) -> bool:
    """Whether images of a shape (H, W, channels) are large enough for SSIM: at least 3x3 pixels."""
    return min(image_shape[:2]) >= SSIM_SMALLEST


def mse(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """Mean squared error of every sample.

    Args:
        truth: (N, ...) samples, in any unit.
        estimate: the same shape, in the same unit.

    Returns:
        (N,) float64, >= 0.

    Raises:
        ValueError: if the shapes differ or there is no axis beside N.
    """
    truth, estimate = pair(truth, estimate)
    return np.mean((truth - estimate) ** 2, axis=tuple(range(1, truth.ndim)))


def psnr(truth: ArrayLike, estimate: ArrayLike, peak: float = 1.0) -> np.ndarray:
    """Peak signal-to-noise ratio of every sample in dB, 10 log10(peak^2 / MSE).

    The MSE is over all pixels and channels. Nothing is clipped.

    Args:
        truth: (N, ...) samples, in the unit of `peak`.
        estimate: the same shape, in the same unit.
        peak: the largest value that a pixel may have.

    Returns:
        (N,) float64 in dB; inf if a sample is identical to the truth. A mean over samples is then inf too, so report
        the median, or the number of such samples.

    Raises:
        ValueError: if the shapes differ or `peak` is not > 0.
    """
    _validate.positive(peak=peak)
    return _decibels(peak, mse(truth, estimate))


def mean_psnr(values: np.ndarray) -> float:
    """The mean in dB of PSNRs (N,), each counted as `MOST_DB` at most."""
    return float(np.mean(np.minimum(values, MOST_DB)))


def grey_psnr(truth: ArrayLike, peak: float = 1.0) -> np.ndarray:
    """PSNR of a constant image at half the peak: the score of an attack that has recovered nothing.

    For nine in ten CIFAR-10 images it is 9 to 16 dB, as much as many published reconstructions score. Report it beside
    PSNR.

    Args:
        truth: (N, ...) samples, in the unit of `peak`.
        peak: the largest value that a pixel may have.

    Returns:
        (N,) float64, as `psnr`.

    Raises:
        ValueError: as `psnr`.
    """
    truth = np.asarray(truth, np.float64)
    return psnr(truth, np.full_like(truth, peak / 2), peak)


def psnr_up_to_scale(truth: ArrayLike, estimate: ArrayLike, peak: float = 1.0) -> np.ndarray:
    """PSNR after all samples were multiplied by one common factor, fitted to the truth by least squares.

    Gradients of networks with batch normalisation in training mode do not depend on the scale of the images, so no
    attack can do better than guess it. Plain PSNR grades that guess too, and may be low although every detail leaked.

    Args:
        truth: (N, ...) samples of one batch, in the unit of `peak`.
        estimate: the same shape and unit, matched to the truth.
        peak: the largest value that a pixel may have.

    Returns:
        (N,) float64, as `psnr`.

    Raises:
        ValueError: as `psnr`.
    """
    truth, estimate = pair(truth, estimate)
    power = np.sum(estimate**2)
    factor = max(np.sum(truth * estimate) / power, 0.0) if power else 1.0  # no scale makes an image its negative
    return psnr(truth, estimate * factor, peak)


def mean_color_psnr(truth: ArrayLike, peak: float = 1.0) -> np.ndarray:
    """PSNR of every image's own mean color, the highest PSNR of any constant image.

    Args:
        truth: (N, H, W, C) images, in the unit of `peak`.
        peak: the largest value that a pixel may have.

    Returns:
        (N,) float64 in dB, at least `grey_psnr`; inf where the image is constant.

    Raises:
        ValueError: if truth is not (N, H, W, C), or `peak` is not > 0.
    """
    truth, _ = pair(truth, truth, axes=4)
    return psnr(truth, np.broadcast_to(truth.mean(axis=(1, 2), keepdims=True), truth.shape), peak)


def psnr_channel_peak(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """PSNR with every channel's own peak, the formula that CAFE (Jin et al.) prints in its paper.

    Per image and channel: 20 log10(largest value of the true channel) - 10 log10(MSE over the channel's pixels);
    then the mean over channels. Compared with `psnr`, every channel with a peak below 1 lowers the result.

    Args:
        truth: (N, H, W, C) images, in any unit from 0 on.
        estimate: the same shape, in the same unit.

    Returns:
        (N,) float64 in dB; inf if a channel is identical to the truth, -inf if another channel has a true peak of 0,
        nan if an image has both.

    Raises:
        ValueError: if the shapes differ or are not (N, H, W, C).
    """
    truth, estimate = pair(truth, estimate, axes=4)
    error = np.mean((truth - estimate) ** 2, axis=(1, 2))
    with np.errstate(invalid="ignore"):
        return _decibels(truth.max(axis=(1, 2)), error).mean(axis=-1)


def psnr_upstream(truth_tiles: ArrayLike, estimate_tiles: ArrayLike) -> float:
    """PSNR as the published code of CAFE computes it, for comparison with its logs.

    The estimate is clipped to [0, 1], every party's slice gets its own PSNR with peak 1, these are averaged over
    images and then over parties. If slices differ in quality, the mean of their decibels is higher than the PSNR of the
    whole image (Jensen's inequality).

    Args:
        truth_tiles: (N, P, h, w, C) in [0, 1], slice p belongs to party p.
        estimate_tiles: the same shape.

    Returns:
        Decibels; inf if any slice is identical to the truth.

    Raises:
        ValueError: if the shapes differ or are not (N, P, h, w, C).
    """
    truth, estimate = pair(truth_tiles, estimate_tiles, axes=5)
    error = np.mean((truth - np.clip(estimate, 0.0, 1.0)) ** 2, axis=(2, 3, 4))
    return float(_decibels(1.0, error).mean(axis=0).mean())


def ssim(truth: ArrayLike, estimate: ArrayLike) -> np.ndarray:
    """Structural similarity of every image on [0, 1], with the constants of Wang et al. 2004.

    Local statistics are weighted by a Gaussian of sigma 1.5 in an 11x11 window, over pixels whose window lies
    inside the image, and averaged over pixels and channels. If a side is under 11 pixels, the window is the largest odd
    W that fits. The average is then over pixels at least (W - 1) / 2 from the border, and where the Gaussian reaches
    beyond the image, the image is mirrored. Compare such values only among images of the same size.

    Args:
        truth: (N, H, W, C) images in [0, 1], H and W at least 3.
        estimate: the same shape, in the same unit.

    Returns:
        (N,) float64 in [-1, 1]; 1 for identical images.

    Raises:
        ValueError: if the shapes differ, are not (N, H, W, C), or a side is under 3 pixels.
    """
    from skimage.metrics import structural_similarity

    truth, estimate = pair(truth, estimate, axes=4)
    side = min(truth.shape[1:3])
    if side < SSIM_SMALLEST:
        raise ValueError(f"ssim needs images of at least 3x3 pixels, got {truth.shape[1]}x{truth.shape[2]}")
    window = min(_SSIM_WINDOW, side if side % 2 else side - 1)
    scores = [
        structural_similarity(
            true,
            guess,
            win_size=window,
            data_range=1.0,
            channel_axis=-1,
            gaussian_weights=True,
            sigma=_SSIM_SIGMA,
            use_sample_covariance=False,
        )
        for true, guess in zip(truth, estimate, strict=True)
    ]
    return np.asarray(scores, np.float64)


def _decibels(peak: float | np.ndarray, error: np.ndarray) -> np.ndarray:
    """20 log10(peak) - 10 log10(error); inf at zero error, whatever the peak."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, np.inf, 20 * np.log10(peak) - 10 * np.log10(error))


def tinted_like(wanted: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Images after a gain and an offset for every channel, fitted to other images by least squares.

    Args:
        wanted: (I, H, W, C), the target images in [0, 1].
        images: (I, H, W, C), on the same scale.

    Returns:
        (I, H, W, C), which may leave [0, 1].

    Raises:
        ValueError: if the shapes differ or are not those of images.
    """
    pair(wanted, images, 4)
    centre, aim = images.mean(axis=(1, 2), keepdims=True), wanted.mean(axis=(1, 2), keepdims=True)
    power = np.mean((images - centre) ** 2, axis=(1, 2), keepdims=True)
    gain = np.mean((images - centre) * (wanted - aim), axis=(1, 2), keepdims=True) / np.maximum(power, 1e-12)
    return aim + gain * (images - centre)
