"""The ending `?size=S` of a data specification: images of any size are resized to S x S pixels."""

import numpy as np
from PIL import Image

from jaxleak.data._dataset import Dataset


def split_size(spec: str) -> tuple[str, int | None]:
    """Split a data specification into the part before `?size=S`, and S in pixels, or None without such an ending.

    Raises:
        ValueError: if a question mark is followed by anything but `size=S` with a whole number S > 0.
    """
    source, _, query = spec.partition("?")
    if not query:
        return source, None
    key, _, value = query.partition("=")
    if key != "size" or not value.isdecimal() or int(value) == 0:
        raise ValueError(f"{spec}: after '?' only size=S with S > 0 is understood, got {query!r}")
    return source, int(value)


def resized(dataset: Dataset, size: int, spec: str) -> Dataset:
    """Resize the centre square of every image to `size` x `size` pixels by Lanczos, as for a folder of images.

    Args:
        dataset: x (n, H, W, C) in [0, 1].
        size: side of the new images in pixels, > 0.
        spec: data specification, which becomes the name of the new dataset.

    Returns:
        The dataset with x (n, size, size, C) in [0, 1], float32.

    Raises:
        ValueError: if the dataset is a table.
    """
    if dataset.x.ndim != 4:
        columns = dataset.x.shape[1]
        raise ValueError(f"{spec}: only images have a size in pixels, and this is a table of {columns} columns")
    height, width, channels = dataset.x.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    x = np.empty((len(dataset.x), size, size, channels), np.float32)
    for number, image in enumerate(dataset.x[:, top : top + side, left : left + side]):
        for channel in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            x[number, ..., channel] = np.asarray(plane.resize((size, size), Image.Resampling.LANCZOS))
    return dataset._replace(x=np.clip(x, 0, 1), name=spec)
