"""Public images for attacks with a trained generator: loading them, and leaving out the victim's images."""

import functools
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from jaxleak import data
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._cafe.decoder import synthetic_slices
from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case

_FIELDS = ("attack", "data", "pool", "skip", "public_data", "public_samples", "latent_size", "generator_epochs")


def generator_for(
    case: Case, seed: int, image_shape: tuple[int, ...], *, captured: bool = False
) -> client_updates.PublicGenerator | None:
    """Train the generator of the case's attack on the public data; returns None for an attack without a generator.

    Args:
        case: case that names the attack, the victim's data and pool, and the public data.
        seed: random seed of the victim's samples, of the public samples and of the training.
        image_shape: (H, W, C) of the private images.
        captured: whether the payload comes from elsewhere, so that the data set of its images is unknown.

    Raises:
        ValueError: if the case's public data may hold the victim's images.
    """
    if case.attack not in presets.GENERATIVE:
        return None
    if captured and case.public_data == HELD_OUT:
        raise ValueError(
            f"--payload with --attack {case.attack} needs --public-data: a data specification or synthetic"
        )
    same = replace(type(case)(), **{name: getattr(case, name) for name in _FIELDS})
    return _trained(same, seed, tuple(image_shape), captured)


@functools.lru_cache(maxsize=8)
def _trained(case: Case, seed: int, image_shape: tuple[int, ...], captured: bool) -> client_updates.PublicGenerator:
    images = public_images(case, seed, image_shape, captured=captured)
    return client_updates.train_generator(
        jax.random.key(seed), images, case.latent_size, epochs=case.generator_epochs, kl=presets.GENERATIVE[case.attack]
    )


#: PSNR in dB above which two images, in grey and at half their size, count as copies of one picture. Copies that were
#: resized by another method reach at least 31 dB, and at least 36 if they are photographs. Different photographs in
#: CIFAR-10 stay below 26. Some digits that are not copies look alike; they are dropped as well.
COPIES_FROM = 30.0
#: Bounds on the height and width, in pixels, at which two images are compared: half the size of the smaller one.
_LEAST, _MOST = 4, 16


def public_images(case: Case, seed: int, image_shape: tuple[int, ...], *, captured: bool = False) -> np.ndarray:
    """Load at most `case.public_samples` images (N, H, W, C) in [0, 1], none of them in the clients' pool.

    Clients draw from the first `case.taken` samples of one permutation of their data set. If the public data have the
    same source, at any image size, only later samples are taken, and no duplicates of images in the pool. If the source
    is another one, images that show the same picture as an image of the pool are dropped, even if their size, their
    colours or their compression differ. Other crops of a picture and rotated copies are not detected.

    Args:
        case: case that names the public data and the client's data.
        seed: random seed of the draw.
        image_shape: (H, W, channels), to which images of another shape are converted.
        captured: whether the payload comes from elsewhere, so that there is no known pool to exclude.

    Raises:
        ValueError: if fewer than two images are left, if the data are no images, or if they are crops that overlap
            with the victim's images.
    """
    spec = case.data if case.public_data == HELD_OUT else case.public_data
    if spec == SYNTHETIC:
        return synthetic_slices(seed, case.public_samples, image_shape)
    x = _images(spec, None, seed)
    if not captured:
        x = _without(x, spec, case, seed)
    x = x[: case.public_samples]
    if len(x) < 2:
        raise ValueError(f"{spec} leaves {len(x)} public images beside {case.taken} samples: take a smaller pool")
    return _fitted(x, image_shape)


def _without(x: np.ndarray, spec: str, case: Case, seed: int) -> np.ndarray:
    """Keep at most `case.public_samples` of the images `x` of `spec`, and none that shows an image of the pool."""
    consequence = f"public images of {spec} would show the victim's pixels"
    require_no_overlap(spec, case.data, f"{consequence}: take other data or --public-data {SYNTHETIC}")
    private = _images(case.data, case.taken, seed)
    if _source(spec) != _source(case.data):
        x = x[: case.public_samples]
        return x[~_shown_by(x, private)]
    chosen = slice(case.taken, case.taken + case.public_samples)
    # Duplicates are equal at the size of the client's images.
    same = (x if spec == case.data else _images(case.data, None, seed))[chosen]
    taken = {image.tobytes() for image in private}
    return x[chosen][np.array([image.tobytes() not in taken for image in same], bool)]


def require_no_overlap(spec: str, private: str, consequence: str) -> None:
    """Raise `ValueError` if both data are crops of the same photographs, since the crops may share pixels.

    Args:
        spec: specification of the data that the attacker gets, or on which the attacked model was trained.
        private: specification of the victim's data.
        consequence: end of the message, which says what would be wrong and what to do.
    """
    if all(_source(name).partition(":")[0] in data.OVERLAPPING for name in (spec, private)):
        raise ValueError(f"{spec} and {private} are crops of the same photographs, which overlap, so {consequence}")


def _source(spec: str) -> str:
    """Return a specification without the size of the images: two equal sources give the same samples for one seed."""
    source = spec.partition("?")[0]
    kind, _, path = source.partition(":")
    return f"{kind}:{Path(path).expanduser().resolve()}" if kind in ("folder", "npz") else source


def _images(spec: str, n: int | None, seed: int) -> np.ndarray:
    x = data.load(spec, n, seed).x
    if x.ndim != 4:
        raise ValueError(f"public and private data must be images (N, H, W, C), got {spec} of shape {x.shape}")
    return x


def _shown_by(public: np.ndarray, private: np.ndarray) -> np.ndarray:
    """Mark (N,) bool the public images (N, H, W, C) that show the same picture as a private image (M, h, w, c)."""
    height, width = (
        min(max(min(ours, theirs) // 2, _LEAST), _MOST)
        for ours, theirs in zip(public.shape[1:3], private.shape[1:3], strict=True)
    )

    def shrunk(x: np.ndarray) -> np.ndarray:
        grey = x.mean(axis=-1)
        return np.asarray(jax.image.resize(grey, (len(x), height, width), "linear"), np.float64).reshape(len(x), -1)

    ours, theirs = shrunk(public), shrunk(private)
    squared = (ours**2).sum(axis=1)[:, None] + (theirs**2).sum(axis=1) - 2 * ours @ theirs.T
    return squared.min(axis=1) / (height * width) < 10 ** (-COPIES_FROM / 10)


def _fitted(x: np.ndarray, image_shape: tuple[int, ...]) -> np.ndarray:
    if x.shape[-1] != image_shape[-1]:
        x = np.repeat(x.mean(axis=-1, keepdims=True), image_shape[-1], axis=-1)
    if x.shape[1:3] != tuple(image_shape[:2]):
        x = np.asarray(jax.image.resize(x, (len(x), *image_shape), "linear"))
    return np.clip(x, 0, 1).astype(np.float32)
