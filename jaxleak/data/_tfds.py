"""Image datasets prepared with tensorflow-datasets, read without TensorFlow and never downloaded."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak.data._dataset import Dataset, checked_labels, class_names, draw, unit_pixels


def tfds(spec: str, n: int | None, seed: int) -> Dataset:
    """Load samples of `tfds:NAME` (split `train`), `tfds:NAME/SPLIT` or `tfds:NAME/CONFIG/SPLIT`.

    The dataset is read from the folder that the environment variable TFDS_DATA_DIR names, or else from
    `$JAXLEAK_DATA_DIR/tfds`, or else from the default folder of tensorflow-datasets. It must have been prepared in
    the array_record format: only this format and parquet can be read without TensorFlow. SPLIT may be a slice such as
    `test[:100]`. Only the drawn samples are decoded.

    Args:
        spec: data specification in one of the three forms above.
        n: number of samples to draw, or None for the whole split.
        seed: seed of the draw.

    Returns:
        Images (n, H, W, C) with their labels. They are read from the dataset's supervised keys, or from `image` and
        `label` if it has none.

    Raises:
        FileNotFoundError: if the dataset is not prepared there; the message says how to do it.
        ValueError: if the dataset or split is unknown, its features are not a uint8 image and a class label, its
            files are of another format or unreadable, or its images differ in size.
    """
    name, split = _parse(spec)
    builder = _prepared(spec, name)
    image_key, label_key = _features(spec, builder.info)
    if split.partition("[")[0] not in builder.info.splits:
        raise ValueError(f"{spec}: split must be one of {', '.join(builder.info.splits)}, got {split!r}")
    try:
        source = builder.as_data_source(split)
        picks = draw(len(source), n, seed, spec)
    except NotImplementedError as error:
        raise ValueError(
            f"{spec}: {builder.data_dir} is in the {builder.info.file_format.value} format, which needs TensorFlow; "
            f"{_how_to_prepare(name, None)}"
        ) from error
    try:
        samples = [source[int(pick)] for pick in picks]
    except Exception as error:  # the reader and the image decoders may raise any exception
        raise ValueError(f"{spec}: {builder.data_dir} cannot be read, it may be corrupt: {error}") from error
    images = [np.asarray(sample[image_key]) for sample in samples]
    for pick, image in zip(picks, images, strict=True):
        if image.shape != images[0].shape:
            raise ValueError(f"{spec}: image {pick} has shape {image.shape}, image {picks[0]} {images[0].shape}")
    y = checked_labels(np.asarray([sample[label_key] for sample in samples]), len(samples), spec)
    names = builder.info.features[label_key].names
    return Dataset(unit_pixels(np.stack(images)), y, class_names(y, names, spec), spec)


def _parse(spec: str) -> tuple[str, str]:
    name, slash, split = spec.removeprefix("tfds:").rpartition("/")
    if not slash:
        name, split = split, "train"
    if not name or not split:
        raise ValueError(f"{spec}: must be tfds:NAME, tfds:NAME/SPLIT or tfds:NAME/CONFIG/SPLIT")
    return name, split


def _data_dir() -> str | None:
    # tensorflow-datasets reads TFDS_DATA_DIR once, when it is imported; a later change should count too.
    if "TFDS_DATA_DIR" in os.environ:
        return os.environ["TFDS_DATA_DIR"]
    if "JAXLEAK_DATA_DIR" in os.environ:
        return str(Path(os.environ["JAXLEAK_DATA_DIR"]) / "tfds")
    return None


def _prepared(spec: str, name: str) -> Any:
    """Find the builder of a dataset that is prepared on disk."""
    import tensorflow_datasets

    data_dir = _data_dir()
    try:
        builder = tensorflow_datasets.builder(name, data_dir=data_dir)
    except Exception as error:  # a dataset's own code runs here, and may import what is not installed
        # For an unknown name, the following lines of the error list every dataset there is.
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{spec}: tensorflow-datasets knows no {name!r}, and none is prepared in "
            f"{data_dir or 'its default folder'}: {reason}"
        ) from error
    if not builder.is_prepared():
        raise FileNotFoundError(
            f"{spec} is not prepared in {builder.data_dir}, and is not downloaded by itself; "
            f"{_how_to_prepare(name, data_dir)}"
        )
    return builder


def _how_to_prepare(name: str, data_dir: str | None) -> str:
    where = f", data_dir={data_dir!r}" if data_dir else ""
    return (
        "to prepare it, run tensorflow_datasets.builder("
        f"{name!r}{where}, file_format='array_record').download_and_prepare() "
        "on a machine with network (and TensorFlow, which most datasets need to be written)"
    )


def _features(spec: str, info: Any) -> tuple[str, str]:
    """Find the keys of the image and of the label."""
    from tensorflow_datasets.core import features

    keys = info.supervised_keys if info.supervised_keys is not None else ("image", "label")
    if len(keys) != 2 or not all(isinstance(key, str) and key in info.features for key in keys):
        raise ValueError(f"{spec}: needs an image and a label, but its features are {', '.join(info.features)}")
    image, label = (info.features[key] for key in keys)
    if not isinstance(image, features.Image) or image.np_dtype != np.uint8:
        raise ValueError(f"{spec}: feature {keys[0]!r} must be a uint8 image, got {image}")
    if not isinstance(label, features.ClassLabel):
        raise ValueError(f"{spec}: feature {keys[1]!r} must be a class label, got {label}")
    return keys[0], keys[1]
