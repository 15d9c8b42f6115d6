"""Save and load weights as safetensors, which hold arrays and nothing that could run, or load a folder of Orbax."""

import os
import pathlib
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from jaxleak._base import PyTree
from jaxleak._replacing import replacing

#: The dtypes of weights by their names in the safetensors format.
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


def save_weights(path: str | os.PathLike[str], variables: PyTree) -> None:
    """Write variables as safetensors under flat names, such as `params.stem.kernel`.

    A file of that name is replaced only once the new one is complete.

    Args:
        path: the file to write; its folder exists.
        variables: nested dictionaries, tuples and lists of arrays.

    Raises:
        ValueError: if two leaves have the same flat name, or if a dtype is none of those that this module writes.
    """
    leaves = {name: np.asarray(leaf, order="C") for name, leaf in _flat(variables).items()}
    for name, leaf in leaves.items():
        if leaf.dtype not in _NAMES:
            raise ValueError(f"{name}: dtype must be one of {', '.join(map(str, _NAMES))}, got {leaf.dtype}")
    with replacing(pathlib.Path(path)) as partial:
        safetensors.numpy.save_file(leaves, partial)


def load_weights(path: str | os.PathLike[str], like: PyTree) -> PyTree:
    """Read what `save_weights` wrote, or a folder of Orbax.

    Names, shapes and dtypes are compared with `like` before any array is read, so that a file cannot make this
    allocate more than `like` occupies.

    Args:
        path: a safetensors file; or a folder that Orbax's `StandardCheckpointer` or `jaxleak.checkpoint.Checkpoints`
            has written, of which the newest step is read.
        like: a tree with the structure of the variables. Its leaves are arrays, or shapes as
            `jax.eval_shape(model.init, key)` gives them.

    Returns:
        The tree of `like` with NumPy arrays.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: naming the path and the first mismatch: a name that is missing or not expected, another shape or
            dtype, a value that is not finite; or if it is neither a safetensors file nor a folder of Orbax.
    """
    expected = _flat(like, shapes_only=True)
    if os.path.isdir(path):
        # The import takes a second, so a caller who reads only files does not pay for it.
        from jaxleak.models._orbax_weights import read_folder

        def compare(stored: dict[str, tuple[tuple[int, ...], np.dtype]]) -> None:
            _compare(path, expected, {name: (shape, _NAMES.get(t, str(t))) for name, (shape, t) in stored.items()})

        loaded = read_folder(pathlib.Path(path), compare)
    elif os.path.isfile(path):
        loaded = _read_file(path, expected)
    else:
        raise FileNotFoundError(f"no such file: {path}")
    for name, array in loaded.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"{path}: {name} holds values that are not finite")
    return jax.tree.unflatten(jax.tree.structure(like), [loaded[name] for name in expected])


def _read_file(path: str | os.PathLike[str], expected: dict[str, Any]) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, no mapping
            _compare(path, expected, {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()})
            return {name: file.get_tensor(name) for name in expected}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file, or a damaged one: {error}") from error


def _flat(tree: PyTree, *, shapes_only: bool = False) -> dict[str, Any]:
    """Leaves by dotted name, in the order of `jax.tree.leaves`."""
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in flat:
            raise ValueError(f"two leaves have the same name {name!r}")
        flat[name] = leaf if shapes_only else np.asarray(leaf)
    return flat


def _compare(path: Any, expected: dict[str, Any], stored: dict[str, tuple[tuple[int, ...], str]]) -> None:
    """Raise `ValueError` unless names, shapes and dtypes, as the format names them, are the expected ones."""
    missing = [name for name in expected if name not in stored]
    if missing:
        raise ValueError(f"{path}: {missing[0]} is missing ({len(missing)} of {len(expected)} names are)")
    surplus = sorted(name for name in stored if name not in expected)
    if surplus:
        raise ValueError(f"{path}: {surplus[0]} is not expected (nor are {len(surplus) - 1} others)")
    for name, leaf in expected.items():
        shape, dtype = stored[name]
        _same(path, name, "shape", tuple(leaf.shape), shape)
        _same(path, name, "dtype", _NAMES.get(np.dtype(leaf.dtype)), dtype)


def _same(path: Any, name: str, what: str, expected: Any, found: Any) -> None:
    if found != expected:
        raise ValueError(f"{path}: {name} must have {what} {expected}, got {found}")
