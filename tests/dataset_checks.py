"""Assertions that hold for every loaded dataset."""

import numpy as np


def check_dataset(data, shape, classes):
    """Assert that images or rows have this shape and lie in [0, 1], and that labels lie below the number of classes."""
    assert data.x.shape == shape
    assert data.x.dtype == np.float32
    assert data.x.min() >= 0
    assert data.x.max() <= 1
    assert data.y.shape == shape[:1]
    assert data.y.dtype == np.int32
    assert data.y.min() >= 0
    assert data.y.max() < len(data.classes) == classes
    assert all(isinstance(name, str) for name in data.classes)
