"""Real data that ship inside scikit-image and scikit-learn: no network and no folder needed."""

import functools
import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

from jaxleak.data._dataset import Dataset, build, unit_pixels

# Colour photographs that the wheels contain as files. The tuple fixes the labels, so its order must not change.
_PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/ihc.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)
_PATCH_SIZE = 32
_SMALLEST_PATCH = 8  # below this nearly every crop of a smooth photograph is constant
_LARGEST_PATCH = 300  # the shorter side of the smallest photograph
_PATCHES = 1000  # crops are not a finite set, so "all of them" needs a number
_FLAT = 0.03  # a crop whose most varied channel deviates less than this is sky or background: nothing to leak


def lfw_faces(spec: str, n: int | None, seed: int) -> Dataset:
    """100 faces of LFW and 100 crops that are not a face, (200, 25, 25, 1)."""
    # skimage.data.lfw_subset reads the same file, but asks for a download where a wheel lacks it.
    path = _shipped("skimage", "data/lfw_subset.npy")
    x = np.load(path, allow_pickle=False).astype(np.float32)
    y = np.repeat([1, 0], 100)
    return build(spec, str(path), x, y, ("not a face", "face"), n, seed)


def digits(spec: str, n: int | None, seed: int) -> Dataset:
    """1797 handwritten digits of UCI, (1797, 8, 8, 1)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images / 16).astype(np.float32)
    return build(spec, spec, x, bunch.target, [str(name) for name in bunch.target_names], n, seed)


def breast_cancer(spec: str, n: int | None, seed: int) -> Dataset:
    """569 rows of the Wisconsin diagnostic table, (569, 30), columns min-max scaled."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return build(spec, spec, bunch.data, bunch.target, [str(name) for name in bunch.target_names], n, seed)


def natural_patches(spec: str, n: int | None, seed: int) -> Dataset:
    """Random square crops of ten colour photographs; the label says of which. (n, size, size, 3).

    Crops are drawn one after another, so the first k of a larger draw are the draw of k. They may overlap.
    Near-constant crops are drawn again, from the same photograph, so that labels stay uniform.

    Args:
        spec: `natural_patches`, or `natural_patches:SIZE` for another side than 32, from 8 to 300.
        n: number of crops, None for 1000.
        seed: seed of the crops.

    Raises:
        ValueError: if SIZE is not a number from 8 to 300.
    """
    size = _patch_size(spec)
    photographs = [_photograph(package, file) for package, file in _PHOTOGRAPHS]
    rng = np.random.default_rng(seed)
    crops, labels = [], []
    for _ in range(_PATCHES if n is None else n):
        label = int(rng.integers(len(photographs)))
        crops.append(_varied_crop(photographs[label], size, rng))
        labels.append(label)
    classes = tuple(Path(file).stem for _, file in _PHOTOGRAPHS)
    return Dataset(unit_pixels(np.stack(crops)), np.asarray(labels, np.int32), classes, spec)


def _patch_size(spec: str) -> int:
    text = spec.partition(":")[2] if ":" in spec else str(_PATCH_SIZE)
    if not (text.isdecimal() and _SMALLEST_PATCH <= int(text) <= _LARGEST_PATCH):
        raise ValueError(f"{spec}: SIZE must be a number from {_SMALLEST_PATCH} to {_LARGEST_PATCH}, got {text!r}")
    return int(text)


def _varied_crop(photograph: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    # Every photograph has detail at every size (the flattest accepts one crop in ten), so this ends.
    while True:
        row = int(rng.integers(photograph.shape[0] - size + 1))
        column = int(rng.integers(photograph.shape[1] - size + 1))
        crop = photograph[row : row + size, column : column + size]
        if crop.std(axis=(0, 1)).max() >= 255 * _FLAT:
            return crop


@functools.cache
def _photograph(package: str, file: str) -> np.ndarray:
    with Image.open(_shipped(package, file)) as image:
        return np.asarray(image.convert("RGB"))


def _shipped(package: str, file: str) -> Path:
    """Path of a file inside an installed package, found without importing it and never downloaded."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"{package} is not installed, so its {file} is not at hand")
    path = Path(found.origin).parent / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: this build of {package} ships without it")
    return path
