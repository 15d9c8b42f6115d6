"""What holds for every dataset that was loaded."""

import numpy as np


def check_dataset(data, shape, classes):
    """Images or rows of this shape in [0, 1], labels below the number of classes."""
    assert data.x.shape == shape
    assert data.x.dtype == np.float32
    assert data.x.min() >= 0
    assert data.x.max() <= 1
    assert data.y.shape == shape[:1]
    assert data.y.dtype == np.int32
    assert data.y.min() >= 0
    assert data.y.max() < len(data.classes) == classes
    assert all(isinstance(name, str) for name in data.classes)
