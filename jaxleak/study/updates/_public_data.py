"""Public images for attacks with a trained generator: where they come from, and that none is the victim's."""

import functools
from dataclasses import replace

import jax
import numpy as np

from jaxleak import attacks, data
from jaxleak.attacks import client_updates
from jaxleak.attacks._cafe.decoder import synthetic_slices
from jaxleak.study.updates._case import HELD_OUT, SYNTHETIC, Case

#: Weight of the codes' divergence from a standard normal: a search walks through GGL's codes, ROG's keep more detail.
KL = {"ggl": 0.1, "rog": 0.0}

_FIELDS = ("attack", "data", "pool", "skip", "public_data", "public_samples", "latent_size", "generator_epochs")


def generator_for(
    case: Case, seed: int, image_shape: tuple[int, ...], *, captured: bool = False
) -> client_updates.PublicGenerator | None:
    """The generator that the case's attack is granted, trained on its public data; None for an attack without one.

    Args:
        case: its attack, its victim's data and pool, and what is said of public data.
        seed: of the victim's draw, of the public one and of the training.
        image_shape: (H, W, C) of the private images.
        captured: the payload is from elsewhere, so that no data set is known to hold its images.

    Raises:
        ValueError: if the case's public data may hold the victim's images.
    """
    if case.attack not in attacks.presets.GENERATIVE:
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
        jax.random.key(seed), images, case.latent_size, epochs=case.generator_epochs, kl=KL[case.attack]
    )


def public_images(case: Case, seed: int, image_shape: tuple[int, ...], *, captured: bool = False) -> np.ndarray:
    """At most `case.public_samples` images (N, H, W, C) in [0, 1], none of them in the pool of the case's clients.

    Clients draw from the first `case.taken` samples of one permutation of the data set; of the same data set only later
    ones are taken. Images of another one are resized, and exact copies of the pool's images are dropped wherever they
    come from.

    Args:
        case: names the public data and the client's.
        seed: of the draw.
        image_shape: (H, W, channels).
        captured: the payload is somebody's, so that no pool is known to stay away from.

    Raises:
        ValueError: if no image is left, or the data are crops that overlap with the victim's.
    """
    spec = case.data if case.public_data == HELD_OUT else case.public_data
    if spec == SYNTHETIC:
        return synthetic_slices(seed, case.public_samples, image_shape)
    own = not captured and spec == case.data
    if not captured and all(name.partition(":")[0] in data.OVERLAPPING for name in (spec, case.data)):
        raise ValueError(
            f"{spec} and {case.data} are crops of the same photographs, which overlap, so public images of {spec} "
            f"would show the victim's pixels: take other data or --public-data {SYNTHETIC}"
        )
    x = data.load(spec, None, seed).x[case.taken if own else 0 :]
    if x.ndim != 4:
        raise ValueError(f"public data must be images (N, H, W, C), got {spec} of shape {x.shape}")
    x = _fitted(x[: case.public_samples], image_shape)
    if not captured:
        private = {image.tobytes() for image in data.load(case.data, case.taken, seed).x}
        x = x[[image.tobytes() not in private for image in x]]
    if len(x) < 2:
        raise ValueError(f"{spec} leaves {len(x)} public images beside {case.taken} samples: take a smaller pool")
    return x


def _fitted(x: np.ndarray, image_shape: tuple[int, ...]) -> np.ndarray:
    if x.shape[-1] != image_shape[-1]:
        x = np.repeat(x.mean(axis=-1, keepdims=True), image_shape[-1], axis=-1)
    if x.shape[1:3] != tuple(image_shape[:2]):
        x = np.asarray(jax.image.resize(x, (len(x), *image_shape), "linear"))
    return np.clip(x, 0, 1).astype(np.float32)
