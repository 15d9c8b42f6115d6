"""Weights that a model is given: a file of any library's, or a folder of Orbax."""

from pathlib import Path

import jax
import numpy as np

from jaxleak import capture, models
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.capture._names import in_order

__all__ = ["read_weights"]


def read_weights(path: Path, model: models.Classifier) -> PyTree:
    """The model's variables out of a file of any naming, or a folder of Orbax.

    Args:
        path: a safetensors, npz or PyTorch file, or a folder, see `models.load_weights`.
        model: the model; running statistics are read if it has some.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: naming the first parameter that is missing, of another shape or not finite.
    """
    like = jax.eval_shape(model.init, jax.random.key(0))
    if path.is_dir():
        return models.load_weights(path, like)
    arrays, _ = capture.read_arrays(path)
    arrays = in_order(arrays, model.listed, list(named_leaves(like["params"])), what=str(path))
    variables = {name: capture.fit(arrays, tree, what=str(path)) if tree else tree for name, tree in like.items()}
    for leaf in jax.tree.leaves(variables):
        if not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(f"{path} holds weights that are not finite")
    return variables
