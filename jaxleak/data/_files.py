"""Array files: `.npz` archives and the idx files of MNIST. Neither is ever unpickled."""

import gzip
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxleak.data._dataset import Dataset, build

_IDX_IMAGES = 0x00000803  # unsigned bytes, three dimensions
_IDX_LABELS = 0x00000801  # unsigned bytes, one dimension
#: Exceptions that may be raised when a damaged archive is read.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    ValueError,
)


def existing_file(path: str | Path) -> Path:
    """Expand `~` in a path and check that it is a file.

    Raises:
        FileNotFoundError: if the path is not a file.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file")
    return path


def npz(spec: str, path: Path, n: int | None, seed: int) -> Dataset:
    """Load the arrays `x` and `y` of an npz file, and the class names from `class_names` if it has this array.

    Args:
        spec: data specification, which becomes the dataset's name.
        path: the file. `x` is uint8 or float of shape (N, H, W, C) or (N, H, W) (images), or (N, F) (table);
            `y` is (N,) integers; `class_names`, optional, is an array of text. Other members are not read.
        n: number of samples to draw, or None for all.
        seed: seed of the draw.

    Raises:
        ValueError: if the file cannot be read, lacks an array, or an array is not as above.
    """
    members = read_npz(path)
    for key in ("x", "y"):
        if key not in members:
            raise ValueError(
                f"{path} has no array {key!r}; it has {array_names(path)}. Needed are x, which is (N, H, W, C) or "
                "(N, H, W) for images or (N, F) for a table, and y, which is (N,) whole numbers"
            )
    names = members.get("class_names")
    if names is not None and (names.dtype.kind != "U" or names.ndim != 1):
        raise ValueError(f"{path}: class_names must be a list of text, got {names.dtype} {names.shape}")
    return build(spec, str(path), members["x"], members["y"], None if names is None else names.tolist(), n, seed)


def read_npz(path: Path, names: Sequence[str] = ("x", "y", "class_names")) -> dict[str, np.ndarray]:
    """Read the named members of an npz file; names that the file lacks are left out.

    Raises:
        ValueError: if the file is no npz file, is damaged, or a member would have to be unpickled.
    """
    # np.load would try a file that is no zip archive as a pickle, and report on that.
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no npz file, or is truncated")
    name, found = "", dict[str, np.ndarray]()
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in names:
                if name in archive.files:
                    found[name] = archive[name]
        return found
    except UNREADABLE as error:
        if "Object arrays" in str(error):  # NumPy has no other sign for this error
            raise ValueError(
                f"{path}: {name} has dtype object, which is never unpickled: store numbers, with text columns encoded "
                "as codes first"
            ) from error
        raise ValueError(f"{path} cannot be read, it may be corrupt: {str(error) or type(error).__name__}") from error


def array_names(path: Path) -> str:
    """List the arrays that an npz file holds in a text, such as `images, labels`; "no array at all" if it is empty."""
    with zipfile.ZipFile(path) as archive:
        return ", ".join(sorted(name.removesuffix(".npy") for name in archive.namelist())) or "no array at all"


def idx(spec: str, images: Path, labels: Path, n: int | None, seed: int) -> Dataset:
    """Load images and labels from two idx files, the format in which MNIST and similar data sets are published.

    Args:
        spec: data specification, which becomes the dataset's name.
        images: idx3-ubyte file, raw or gzip.
        labels: idx1-ubyte file, raw or gzip.
        n: number of samples to draw, or None for all.
        seed: seed of the draw.

    Returns:
        Images (n, H, W, 1); the classes are the labels' numbers as text.

    Raises:
        ValueError: if a file has the wrong magic number or length, or the counts differ.
    """
    x, y = read_idx_pair(images, labels)
    return build(spec, str(images), x, y, None, n, seed)


def read_idx_pair(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (N, H, W) and labels (N,), both uint8, from two idx files.

    Raises:
        ValueError: if a file has the wrong magic number or length, or the counts differ.
    """
    x, y = read_idx(images, _IDX_IMAGES), read_idx(labels, _IDX_LABELS)
    if len(x) != len(y):
        raise ValueError(f"{images} has {len(x)} images, but {labels} has {len(y)} labels")
    return x, y


def read_idx(path: Path, magic: int) -> np.ndarray:
    """Read an idx file of unsigned bytes.

    Args:
        path: the file, raw or gzip; its content decides which, not its name.
        magic: number with which the file must begin; the last byte is the number of dimensions.

    Returns:
        uint8 array with the dimensions that the file states.

    Raises:
        ValueError: if the file has another magic number, or its content is shorter or longer than the header states.
    """
    axes = magic & 0xFF
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            header = file.read(4 * (1 + axes))
            found, *shape = struct.unpack(f">{1 + axes}I", header)
            if found != magic:
                raise ValueError(f"magic number must be {magic}, got {found}")
            size = int(np.prod(shape, dtype=object))
            # One byte more than stated is read, which is enough to notice a longer file.
            content = file.read(size + 1)
    except UNREADABLE as error:
        raise ValueError(f"{path} is no idx file of {axes} dimensions, or is corrupt: {error}") from error
    if len(content) != size:
        longer = "more" if len(content) > size else f"only {len(content)}"
        raise ValueError(f"{path} states {'x'.join(map(str, shape))} = {size} bytes of content, but has {longer}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def count(path: Path) -> int:
    """Count the samples of an npz file.

    Raises:
        ValueError: as `read_npz`, or if the file has no array `y`.
    """
    members = read_npz(path)
    if "y" not in members:
        raise ValueError(f"{path} has no array 'y'; it has {array_names(path)}")
    return members["y"].size
