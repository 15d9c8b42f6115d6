"""One function that loads all data: a short text names a dataset, and `load` returns its arrays."""

import contextlib
import os
from pathlib import Path

from jaxleak.data import _csv, _embedded, _files, _folder, _tfds
from jaxleak.data._dataset import Dataset, check_request
from jaxleak.data._size import resized, split_size

_VARIABLE = "JAXLEAK_DATA_DIR"
_EMBEDDED = {
    "breast_cancer": _embedded.breast_cancer,
    "digits": _embedded.digits,
    "lfw_faces": _embedded.lfw_faces,
    "natural_patches": _embedded.natural_patches,
    "photographs": _embedded.photographs,
}
#: Embedded data that are overlapping crops of one set of photographs, whose side in pixels may follow a colon.
OVERLAPPING = ("natural_patches", "photographs")
_NAMED = (
    "adult",
    "cifar10",
    "cifar100",
    "credit_default",
    "ham10000",
    "imagenet_sample",
    "lc25000_lung",
    "lc25000_lung32",
    "mnist",
    "sensorless",
    "yale32",
)
_PATTERNS = (
    "csv:FILE?label=COLUMN",
    "folder:DIR",
    "idx:IMAGES,LABELS",
    "natural_patches:SIZE",
    "npz:FILE",
    "photographs:SIZE",
    "tfds:NAME/SPLIT",
)
#: The end of a message about a missing file.
HOW_TO_MAKE = "docs/data.md says what is in it and how to make it"
_MNIST_IMAGES = "raw/mnist/train-images-idx3-ubyte.gz"
_MNIST_LABELS = "raw/mnist/train-labels-idx1-ubyte.gz"


def load(spec: str, n: int | None = None, seed: int = 0) -> Dataset:
    """Load real data by name; nothing is ever downloaded or unpickled.

    | spec | samples |
    |---|---|
    | `lfw_faces` | 100 faces of LFW, 25x25x1, from scikit-image |
    | `natural_patches`, `natural_patches:SIZE` | random crops of ten photographs, 32x32x3 or SIZExSIZEx3 |
    | `photographs`, `photographs:SIZE` | random large views of the same ten photographs, shrunk to 32x32x3 or \
SIZExSIZEx3 |
    | `digits` | 1797 digits, 8x8x1, from scikit-learn |
    | `breast_cancer` | table of 569 rows and 30 features, from scikit-learn |
    | `tfds:NAME`, `tfds:NAME/SPLIT` | images prepared with tensorflow-datasets in array_record format |
    | `folder:DIR`, `folder:DIR?size=S` | jpg, png or bmp files, one subfolder per class, or HAM10000 |
    | `npz:FILE` | arrays `x` and `y`, optionally `class_names` |
    | `csv:FILE?label=COLUMN` | a table whose first row names the columns; the numbers of \
`&categorical=A,B` are codes, and `&drop=C` leaves columns out |
    | `idx:IMAGES,LABELS` | MNIST's file format, raw or gzip |
    | `adult`, `cifar10`, `cifar100`, `credit_default`, `ham10000`, `imagenet_sample`, `lc25000_lung`, \
`lc25000_lung32`, `mnist`, `sensorless`, `yale32` | the npz file of that name in the folder that the environment \
variable JAXLEAK_DATA_DIR names |

    The name of any images may be followed by `?size=S`, such as `ham10000?size=32`: the centre square of every image
    is then resized to S x S pixels.

    `mnist` with more samples than its npz file has is read from `raw/mnist/train-*-ubyte.gz` in that folder.

    Args:
        spec: data specification, one of the table above.
        n: number of samples, drawn without replacement: the first n of one permutation by
            `numpy.random.default_rng(seed)`. None takes all (shuffled too; 1000 of
            `natural_patches`, 200 of `photographs`).
        seed: seed of the draw, in [0, 2^32).

    Returns:
        A `Dataset`: x float32 in [0, 1], (n, H, W, C) for images or (n, F) for tables, whose columns are min-max
        scaled over all rows of the source; y (n,) int32; all class names; the spec.

    Raises:
        FileNotFoundError: if a file or folder is missing, or JAXLEAK_DATA_DIR is not set where it is needed.
        ValueError: if the spec is unknown, n exceeds the samples that exist, or a file is corrupt or not of the
            stated form; the message names the file.
    """
    check_request(n, seed)
    kind, colon, rest = spec.partition(":")
    if kind == "csv" and rest:
        return _csv.csv_table(spec, n, seed)
    if "?" in spec and kind != "folder":  # the files of a folder are resized one by one while they are read
        source, size = split_size(spec)
        dataset = load(source, n, seed)
        return dataset if size is None else resized(dataset, size, spec)
    if not colon and spec in _NAMED:
        return _named(spec, n, seed)
    if kind in _EMBEDDED and (not colon or kind in OVERLAPPING):
        return _EMBEDDED[kind](spec, n, seed)
    if kind == "tfds" and rest:
        return _tfds.tfds(spec, n, seed)
    if kind == "folder" and rest:
        return _folder.folder(spec, n, seed)
    if kind == "npz" and rest:
        return _files.npz(spec, _files.existing_file(rest), n, seed)
    if kind == "idx" and rest:
        images, comma, labels = rest.partition(",")
        if not comma or "," in labels:
            raise ValueError(f"{spec}: must be idx:IMAGES,LABELS, two paths with one comma between")
        return _files.idx(spec, _files.existing_file(images), _files.existing_file(labels), n, seed)
    known = ", ".join(sorted([*_EMBEDDED, *_NAMED, *_PATTERNS]))
    raise ValueError(f"a data specification must be one of {known}, got {spec!r}{_meant(spec)}")


def _meant(path: str) -> str:
    """End a message with the specification that the user may have meant, if the text is the path of a file."""
    with contextlib.suppress(OSError):  # a text that is too long for a file's name is no path
        if path and Path(path).is_dir():
            return f"; a folder of images is folder:{path}"
        by_suffix = {".npz": f"npz:{path}", ".csv": f"csv:{path}?label=COLUMN"}
        found = by_suffix.get(Path(path).suffix.lower()) if Path(path).is_file() else None
        return f"; this file is {found}" if found else ""
    return ""


def _named(name: str, n: int | None, seed: int) -> Dataset:
    if not os.environ.get(_VARIABLE):
        raise FileNotFoundError(
            f"{name} needs the environment variable {_VARIABLE}, the folder that holds {name}.npz; it is not set "
            f"({HOW_TO_MAKE})"
        )
    root = Path(os.environ[_VARIABLE]).expanduser()
    path = root / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{name} needs {path}, which does not exist ({_VARIABLE} is {root}); {HOW_TO_MAKE}")
    raw = root / _MNIST_IMAGES, root / _MNIST_LABELS
    have_raw = name == "mnist" and all(file.is_file() for file in raw)
    if have_raw and n is not None and n > _files.count(path):
        return _files.idx(name, *raw, n, seed)
    return _files.npz(name, path, n, seed)
