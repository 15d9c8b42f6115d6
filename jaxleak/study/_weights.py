"""Reading a model's weights from a file of any library, or from a folder that Orbax has written."""

from pathlib import Path

import jax
import numpy as np

from jaxleak import capture, models
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.capture._arrays import COUNTER
from jaxleak.capture._names import held_of, in_order
from jaxleak.models._classifier import digest_of

__all__ = ["read_weights", "read_weights_and_counters"]


def read_weights(path: Path, model: models.Classifier) -> PyTree:
    """Read the model's variables from a file with any library's parameter names, or from a folder of Orbax.

    Args:
        path: a safetensors, npz or PyTorch file, or a folder, see `models.load_weights`.
        model: the model; running statistics are read if it has some.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if a parameter is missing, of another shape or not finite. Also if the file has a constant of the
            network, such as a buffer of PyTorch's `FrozenBatchNorm2d`, with another value than the model.
    """
    return read_weights_and_counters(path, model)[0]


def read_weights_and_counters(path: Path, model: models.Classifier) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Same as `read_weights`, with PyTorch's counters of batches in that file by name; a folder or npz file has none.

    The file is read once. Arguments and errors are those of `read_weights`.

    Raises:
        FileNotFoundError: see `read_weights`.
        ValueError: see `read_weights`.
    """
    like = jax.eval_shape(model.init, jax.random.key(0))
    if path.is_dir():
        return models.load_weights(path, like), {}
    arrays = in_order(capture.read_arrays(path)[0], model.listed, list(named_leaves(like["params"])), what=str(path))
    held = held_of(arrays, [name for name, _ in model.constants], None, what=str(path))
    for name, digest in model.constants:
        if name in held and digest_of(held[name]) != digest:
            raise ValueError(
                f"{path}: {name} is a constant of the network, and not the one that the module has: load these weights "
                "into the module itself before it is handed over, net.load_state_dict(torch.load(...)) in PyTorch"
            )
    variables = {"params": capture.fit(arrays, like["params"], what=str(path))}
    for name in like.keys() - variables.keys():
        try:
            variables[name] = capture.fit(arrays, like[name], what=str(path)) if like[name] else like[name]
        except ValueError as error:
            raise ValueError(f"{path} holds the parameters, but not all running statistics ({error})") from error
    for leaf in jax.tree.leaves(variables):
        if not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(f"{path} holds weights that are not finite")
    return variables, {name: array for name, array in arrays.items() if name.endswith(COUNTER)}
