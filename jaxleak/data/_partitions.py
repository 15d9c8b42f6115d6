"""Vertical partitions: cut every sample into one slice per party, and put the slices together again."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxleak import _validate


class TileLayout(NamedTuple):
    """How images were cut into tiles; `assemble_tiles` needs nothing else to put them together.

    Attributes:
        grid: rows and columns of tiles; party r * columns + c has the tile at (r, c).
        height: height of the images in pixels.
        width: width of the images in pixels.
        padded_height: the height after zeros were added at the bottom.
        padded_width: the width after zeros were added at the right.
        note: what was padded, in words for a report; empty when nothing was.
    """

    grid: tuple[int, int]
    height: int
    width: int
    padded_height: int
    padded_width: int
    note: str


class ColumnLayout(NamedTuple):
    """How the features of a table were dealt to parties.

    Attributes:
        widths: number of features of every party, before padding.
        padded_width: features per party after zeros were added.
        note: what was padded, in words for a report; empty when nothing was.
    """

    widths: tuple[int, ...]
    padded_width: int
    note: str


def image_tiles(x: ArrayLike, parties: int, multiple: int = 1, pad: bool = True) -> tuple[np.ndarray, TileLayout]:
    """Cut images into a square grid of tiles, one per party; two parties get the left and the right half.

    If the grid does not divide the height or width, zeros are first added at the bottom or right. For example, 25x25
    images are padded to 26x26, and four parties get 13x13 tiles. The layout's note says so.

    Args:
        x: (N, H, W, C) images, in any unit.
        parties: 1, 2, 4, 9, 16 and so on: 2 or a square number.
        multiple: height and width of a tile become multiples of this, for models that need e.g. even sides.
        pad: whether zeros may be added.

    Returns:
        Tiles (N, parties, h, w, C) of the same dtype, in rows of the grid, and the layout.

    Raises:
        ValueError: if x has another number of axes, `parties` is neither 2 nor a square, the images have fewer
            rows or columns than the grid, a party would get nothing but padding, or padding is needed with
            `pad=False`.
    """
    x = _samples(x, 4, "(N, H, W, C)")
    _validate.count(parties=parties, multiple=multiple)
    rows, columns = _grid(parties)
    height, width, channels = x.shape[1:]
    if rows > height or columns > width:
        raise ValueError(f"parties must be few enough for {height}x{width} images, got a {rows}x{columns} grid")
    h, w = (math.ceil(side / (cut * multiple)) * multiple for side, cut in ((height, rows), (width, columns)))
    # A party whose tile is all padding would be reconstructed perfectly by an image of zeros.
    if (rows - 1) * h >= height or (columns - 1) * w >= width:
        raise ValueError(
            f"{height}x{width} images in a {rows}x{columns} grid of {h}x{w} tiles leave a party nothing but padding; "
            "take fewer parties or a smaller multiple"
        )
    padded_height, padded_width = rows * h, columns * w
    note = ""
    if (padded_height, padded_width) != (height, width):
        note = f"{height}x{width} images zero-padded at the bottom and right to {padded_height}x{padded_width}"
        if not pad:
            raise ValueError(
                f"pad=False, but {height}x{width} images do not divide into a {rows}x{columns} grid of tiles with "
                f"sides that are multiples of {multiple}; {padded_height}x{padded_width} would"
            )
        x = np.pad(x, ((0, 0), (0, padded_height - height), (0, padded_width - width), (0, 0)))
    tiles = x.reshape(len(x), rows, h, columns, w, channels).transpose(0, 1, 3, 2, 4, 5)
    layout = TileLayout((rows, columns), height, width, padded_height, padded_width, note)
    return tiles.reshape(len(x), parties, h, w, channels), layout


def assemble_tiles(tiles: ArrayLike, layout: TileLayout) -> np.ndarray:
    """Put tiles together into images and cut the padding off: the inverse of `image_tiles`.

    Args:
        tiles: (N, P, h, w, C).
        layout: from `image_tiles`; P, h and w must be as it says.

    Returns:
        Images (N, H, W, C) of the same dtype.

    Raises:
        ValueError: if the tiles' shape does not fit the layout.
    """
    tiles = _samples(tiles, 5, "(N, P, h, w, C)")
    rows, columns = layout.grid
    h, w = layout.padded_height // rows, layout.padded_width // columns
    if tiles.shape[1:4] != (rows * columns, h, w):
        raise ValueError(f"tiles must have shape (N, {rows * columns}, {h}, {w}, C), got {tiles.shape}")
    n, channels = len(tiles), tiles.shape[-1]
    images = tiles.reshape(n, rows, columns, h, w, channels).transpose(0, 1, 3, 2, 4, 5)
    return images.reshape(n, rows * h, columns * w, channels)[:, : layout.height, : layout.width]


def feature_columns(x: ArrayLike, parties: int) -> tuple[np.ndarray, ColumnLayout]:
    """Deal the features of a table to parties in contiguous blocks.

    If the number of features is not a multiple of the number of parties, the first parties get one feature more, and
    the slices of the others end with a column of zeros. The layout's note says so.

    Args:
        x: (N, F) table, its columns in any units.
        parties: number of parties, at most F.

    Returns:
        Columns (N, parties, ceil(F / parties)) of the same dtype, and the layout.

    Raises:
        ValueError: if x has another number of axes, or there are more parties than features.
    """
    x = _samples(x, 2, "(N, F)")
    _validate.count(parties=parties)
    features = x.shape[1]
    if parties > features:
        raise ValueError(f"parties must be at most the number of features, {features}, got {parties}")
    blocks = np.array_split(x, parties, axis=1)
    widths = tuple(block.shape[1] for block in blocks)
    short = sum(width < widths[0] for width in widths)
    note = ""
    if short:
        note = f"{features} features over {parties} parties: the slices of the last {short} zero-padded to {widths[0]}"
    padded = [np.pad(block, ((0, 0), (0, widths[0] - block.shape[1]))) for block in blocks]
    return np.stack(padded, axis=1), ColumnLayout(widths, widths[0], note)


def assemble_columns(columns: ArrayLike, layout: ColumnLayout) -> np.ndarray:
    """Put the parties' features together and cut the padding off: the inverse of `feature_columns`.

    Args:
        columns: (N, P, w).
        layout: from `feature_columns`; P and w must be as it says.

    Returns:
        Table (N, F) of the same dtype.

    Raises:
        ValueError: if the columns' shape does not fit the layout.
    """
    columns = _samples(columns, 3, "(N, P, w)")
    expected = (len(layout.widths), layout.padded_width)
    if columns.shape[1:] != expected:
        raise ValueError(f"columns must have shape (N, {expected[0]}, {expected[1]}), got {columns.shape}")
    return np.concatenate([columns[:, p, :width] for p, width in enumerate(layout.widths)], axis=1)


def _samples(x: ArrayLike, axes: int, form: str) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim != axes:
        raise ValueError(f"the array must have shape {form}, got {x.shape}")
    return x


def _grid(parties: int) -> tuple[int, int]:
    if parties == 2:
        return 1, 2
    side = math.isqrt(parties)
    if side * side != parties:
        raise ValueError(f"parties must be 2 or a square number to tile images, got {parties}")
    return side, side
