"""Real data that ship inside scikit-image and scikit-learn, so that no network and no data folder is needed."""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from jaxleak._memory import require_host_bytes
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
_SMALLEST_PATCH = 8  # nearly every smaller crop of a smooth photograph is constant
_LARGEST_PATCH = 300  # the shorter side of the smallest photograph
_PATCHES = 1000  # crops are not a finite set, so "all of them" needs a number
_VIEWS = 200  # likewise; shrinking a large view takes longer than cutting a small patch
_SMALLEST_VIEW = 0.6  # share of the photograph's shorter side; a view of this size can still be recognised
_BYTES_PER_PIXEL = 15  # three channels, first as bytes and then as 32-bit floats
_FLAT = 0.03  # a crop whose most varied channel deviates less than this is sky or background: nothing to leak


def lfw_faces(spec: str, n: int | None, seed: int) -> Dataset:
    """Load 100 faces of LFW, (100, 25, 25, 1); of the two classes "not a face" and "face", all have the second.

    The file also holds 100 crops of the background. They are left out, since they are nobody's private images.
    """
    # skimage.data.lfw_subset reads the same file, but asks for a download where a wheel lacks it.
    path = _shipped("skimage", "data/lfw_subset.npy")
    faces = np.load(path, allow_pickle=False)[:100].astype(np.float32)
    # A classifier with one class has no gradient, so the data set has two.
    return build(spec, str(path), faces, np.ones(100, np.int32), ("not a face", "face"), n, seed)


def digits(spec: str, n: int | None, seed: int) -> Dataset:
    """Load 1797 handwritten digits of UCI, (1797, 8, 8, 1)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = (bunch.images / 16).astype(np.float32)
    return build(spec, spec, x, bunch.target, [str(name) for name in bunch.target_names], n, seed)


def breast_cancer(spec: str, n: int | None, seed: int) -> Dataset:
    """Load the 569 rows of the Wisconsin diagnostic table, (569, 30), with min-max scaled columns."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return build(spec, spec, bunch.data, bunch.target, [str(name) for name in bunch.target_names], n, seed)


def natural_patches(spec: str, n: int | None, seed: int) -> Dataset:
    """Draw random square crops of ten colour photographs, (n, size, size, 3); a label is the number of a photograph.

    Crops are drawn one after another, so the first k of a larger draw are the draw of k. Crops may overlap.
    A near-constant crop is drawn again from the same photograph, so that labels stay uniform.

    Args:
        spec: `natural_patches`, or `natural_patches:SIZE` for another side than 32, from 8 to 300.
        n: number of crops, None for 1000.
        seed: seed of the crops.

    Raises:
        ValueError: if SIZE is not a number from 8 to 300.
        MemoryError: if that many crops do not fit in memory.
    """
    size = _patch_size(spec)
    rng = np.random.default_rng(seed)
    count = _PATCHES if n is None else n
    return _views(spec, count, size, rng, lambda photograph: _varied_crop(photograph, size, rng))


def photographs(spec: str, n: int | None, seed: int) -> Dataset:
    """Draw shrunk random views of ten colour photographs, (n, size, size, 3); a label is a photograph's number.

    A view is a square crop whose side is between 60 % and 100 % of the photograph's shorter side, so a person can
    recognise what it shows even at 32 pixels. Views are drawn one after another, so the first k of a larger draw are
    the draw of k. Views of one photograph overlap.

    Args:
        spec: `photographs`, or `photographs:SIZE` for another side than 32, from 8 to 300 pixels.
        n: number of views, None for 200.
        seed: seed of the views.

    Raises:
        ValueError: if SIZE is not a number from 8 to 300.
        MemoryError: if that many views do not fit in memory.
    """
    size = _patch_size(spec)
    rng = np.random.default_rng(seed)

    def view(photograph: np.ndarray) -> np.ndarray:
        shorter = min(photograph.shape[:2])
        side = int(rng.integers(int(_SMALLEST_VIEW * shorter), shorter + 1))
        # A view need not be checked for variation: no photograph is flat over so large a part.
        crop = Image.fromarray(_crop(photograph, side, rng))
        return np.asarray(crop.resize((size, size), Image.Resampling.BOX))

    return _views(spec, _VIEWS if n is None else n, size, rng, view)


def _views(
    spec: str, count: int, size: int, rng: np.random.Generator, view: Callable[[np.ndarray], np.ndarray]
) -> Dataset:
    """Draw labelled views: for each, draw a photograph uniformly, then call `view` to cut the view from it."""
    sources = [_photograph(package, file) for package, file in _PHOTOGRAPHS]
    views, labels = [], []
    require_host_bytes(count * size**2 * _BYTES_PER_PIXEL, f"{count} samples of {spec} were asked for: take fewer")
    for _ in range(count):
        label = int(rng.integers(len(sources)))
        views.append(view(sources[label]))
        labels.append(label)
    classes = tuple(Path(file).stem for _, file in _PHOTOGRAPHS)
    return Dataset(unit_pixels(np.stack(views)), np.asarray(labels, np.int32), classes, spec)


def _patch_size(spec: str) -> int:
    text = spec.partition(":")[2] if ":" in spec else str(_PATCH_SIZE)
    if not (text.isdecimal() and _SMALLEST_PATCH <= int(text) <= _LARGEST_PATCH):
        raise ValueError(f"{spec}: SIZE must be a number from {_SMALLEST_PATCH} to {_LARGEST_PATCH}, got {text!r}")
    return int(text)


def _varied_crop(photograph: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    # Every photograph has detail at every size (the flattest accepts one crop in ten), so this ends.
    while True:
        crop = _crop(photograph, size, rng)
        if crop.std(axis=(0, 1)).max() >= 255 * _FLAT:
            return crop


def _crop(photograph: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    row = int(rng.integers(photograph.shape[0] - size + 1))
    column = int(rng.integers(photograph.shape[1] - size + 1))
    return photograph[row : row + size, column : column + size]


@functools.cache
def _photograph(package: str, file: str) -> np.ndarray:
    with Image.open(_shipped(package, file)) as image:
        return np.asarray(image.convert("RGB"))


def _shipped(package: str, file: str) -> Path:
    """Find the path of a file inside an installed package; the package is not imported, and nothing is downloaded."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"{package} is not installed, so its {file} is not at hand")
    path = Path(found.origin).parent / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: this build of {package} ships without it")
    return path
