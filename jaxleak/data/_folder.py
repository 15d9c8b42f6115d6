"""Folders of image files: one subfolder per class, or the flat layout of HAM10000 with its CSV file."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from jaxleak._memory import require_host_bytes
from jaxleak.data._dataset import Dataset, draw, unit_pixels
from jaxleak.data._size import split_size

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp"})
_HAM10000_CSV = "HAM10000_metadata.csv"
_GRAY_MODES = frozenset({"1", "L"})
# Pillow converts these modes to RGB without loss of range; it would clip 16-bit and float modes.
_COLOUR_MODES = frozenset({"CMYK", "LA", "P", "PA", "RGB", "RGBA", "YCbCr"})
#: Memory per pixel: three channels, first as bytes and then as 32-bit floats.
_BYTES_PER_PIXEL = 15
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)


class _Listing(NamedTuple):
    files: list[Path]
    labels: list[int]
    classes: tuple[str, ...]


def folder(spec: str, n: int | None, seed: int) -> Dataset:
    """Load the images of `folder:DIR` or `folder:DIR?size=32`.

    Two layouts are known. If DIR has the file `HAM10000_metadata.csv`, the columns `image_id` and `dx` of this file
    give the image files (in DIR or one folder below) and their classes. Otherwise every subfolder that holds images is
    a class, directly in DIR (Linnaeus 5) or one level down (LC25000, with class names like `lung_image_sets/lung_n`).
    If the class folders lie in `train/` and `test/`, `train/` is loaded; the specification `folder:DIR/test` loads
    the other.

    Images are grayscale (C = 1) if all files of the folder are, drawn or not, and RGB otherwise, so that every draw has
    the same shape. Only the drawn files are read. If all of them are grayscale, the headers of the other files are
    read too.

    Args:
        spec: `folder:DIR`; `?size=S` cuts the centre square of every image and resizes it to S x S by Lanczos.
        n: number of images to draw, or None for all.
        seed: seed of the draw.

    Returns:
        Images (n, H, W, C); the classes in alphabetical order.

    Raises:
        MemoryError: if images of the size asked for do not fit in memory.
        FileNotFoundError: if DIR, or an image that the CSV file lists, does not exist.
        ValueError: if the layout is neither of the two, or an image is unreadable or of another size than the
            first; the message names the file.
    """
    root, size = _parse(spec)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} does not exist or is not a folder")
    listing = _list_ham10000(root) if (root / _HAM10000_CSV).is_file() else _list_classes(root)
    picks = draw(len(listing.files), n, seed, spec)
    if size is not None:
        need = len(picks) * size**2 * _BYTES_PER_PIXEL
        require_host_bytes(need, f"{spec} makes {len(picks)} images of {size} x {size}: take a smaller size")
    images = [_read(listing.files[pick], size) for pick in picks]
    for pick, image in zip(picks, images, strict=True):
        if image.size != images[0].size:
            raise ValueError(
                f"{listing.files[pick]} is {image.size[0]}x{image.size[1]}, but {listing.files[picks[0]]} is "
                f"{images[0].size[0]}x{images[0].size[1]}; pass {spec}?size=S to bring all to S x S"
            )
    drawn_gray = all(image.mode == "L" for image in images)
    mode = "RGB" if not drawn_gray or any(map(_has_colour, listing.files)) else "L"
    x = np.stack([np.asarray(image.convert(mode)) for image in images])
    y = np.asarray(listing.labels, np.int32)[picks]
    return Dataset(unit_pixels(x[..., None] if mode == "L" else x), y, listing.classes, spec)


def _parse(spec: str) -> tuple[Path, int | None]:
    source, size = split_size(spec)
    return Path(source.removeprefix("folder:")).expanduser(), size


def _list_classes(root: Path) -> _Listing:
    for split in ("train", "test"):
        # A folder of images called "train" is a class (of vehicles, say); one of folders is a split.
        if (root / split).is_dir() and _folders(root / split) and not _images(root / split):
            root = root / split
            break
    stray = _images(root)
    if stray:
        raise ValueError(f"{stray[0]} lies in no class folder, and {root} has no {_HAM10000_CSV}")
    by_class: dict[str, list[Path]] = {}
    for child in _folders(root):
        # LC25000 groups its class folders by organ.
        for leaf in [child] if _images(child) else _folders(child) or [child]:
            by_class[leaf.relative_to(root).as_posix()] = _images(leaf)
            if not _images(leaf):
                raise ValueError(f"{leaf} holds no jpg, png or bmp image")
    if not by_class:
        raise ValueError(f"{root} holds no class folders and no {_HAM10000_CSV}")
    files = [file for images in by_class.values() for file in images]
    labels = [label for label, images in enumerate(by_class.values()) for _ in images]
    return _Listing(files, labels, tuple(by_class))


def _list_ham10000(root: Path) -> _Listing:
    table = root / _HAM10000_CSV
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = [(row["image_id"], row["dx"]) for row in csv.DictReader(file)]
    except KeyError as error:
        raise ValueError(f"{table} has no column {error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{table} is no CSV file: {error}") from error
    if not rows:
        raise ValueError(f"{table} lists no images")
    # The archive spreads its images over HAM10000_images_part_1 and _2.
    found = {file.stem: file for place in [*_folders(root), root] for file in _images(place)}
    for image_id, diagnosis in rows:
        if not diagnosis:
            raise ValueError(f"{table} gives no dx for image {image_id}")
        if image_id not in found:
            raise FileNotFoundError(f"{table} lists image {image_id}, but there is no such file in {root}")
    classes = tuple(sorted({diagnosis for _, diagnosis in rows}))
    files = [found[image_id] for image_id, _ in rows]
    return _Listing(files, [classes.index(diagnosis) for _, diagnosis in rows], classes)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def _images(root: Path) -> list[Path]:
    # Archives made on a Mac carry "._name.jpg" beside name.jpg, which is no image.
    return sorted(
        path
        for path in root.iterdir()
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _has_colour(path: Path) -> bool:
    """Whether a file's header states a colour mode; False for an unreadable file, which is an error once drawn."""
    try:
        with Image.open(path) as file:
            return file.mode in _COLOUR_MODES
    except _UNREADABLE:
        return False


def _read(path: Path, size: int | None) -> Image.Image:
    """Read one image in mode L or RGB; with a size, the centre square is resized."""
    try:
        with Image.open(path) as file:
            mode = file.mode
            if mode not in _GRAY_MODES | _COLOUR_MODES:
                raise ValueError(f"pixel mode {mode} is not supported")
            image = file.convert("L" if mode in _GRAY_MODES else "RGB")
    except _UNREADABLE as error:
        raise ValueError(f"{path} is no readable image, it may be corrupt: {error}") from error
    if size is None:
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    # Not resize(box=...): Pillow's filter would then read pixels from outside the square.
    square = image.crop((left, top, left + side, top + side))
    return square.resize((size, size), Image.Resampling.LANCZOS)
