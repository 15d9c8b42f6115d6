"""Read weights from folders that Orbax has written; like safetensors files, they hold nothing that could run."""

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxleak._orbax import quiet

#: File that describes the tree of a folder; Orbax writes it last but one.
_TREE_FILE = "_METADATA"


def read_folder(
    path: pathlib.Path, compare: Callable[[dict[str, tuple[tuple[int, ...], np.dtype]]], None]
) -> dict[str, np.ndarray]:
    """Read the arrays of a folder, by dotted name.

    Args:
        path: a folder that a `StandardCheckpointer` has written; or the folder of a `CheckpointManager` or of
            `jaxleak.checkpoint.Checkpoints`, of which the newest step is read.
        compare: called with every array's shape and dtype before any of them is read.

    Raises:
        ValueError: if `path`, which the message names, is no such folder or a damaged one; and what `compare` raises.
    """
    folder = _tree_folder(path.absolute(), path)
    with quiet(), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        tree = _or_damaged(path, lambda: handler.metadata(folder).tree)
        compare({name: (tuple(leaf.shape), np.dtype(leaf.dtype)) for name, leaf in _named(path, tree).items()})
        # All leaves are restored as NumPy arrays, wherever the saved arrays lay.
        plain = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        restored = _or_damaged(path, lambda: handler.restore(folder, args=ocp.args.PyTreeRestore(restore_args=plain)))
        return _named(path, restored)


def _tree_folder(absolute: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
    numbered = [step for parent in (absolute, absolute / "steps") for step in parent.glob("*") if step.name.isdigit()]
    newest = [max(numbered, key=lambda step: int(step.name)) / "default"] if numbered else []
    for folder in (absolute, absolute / "default", *newest):
        if (folder / _TREE_FILE).is_file():
            return folder
    raise ValueError(f"{path}: a folder that holds no checkpoint of Orbax")


def _named(path: pathlib.Path, tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(keys, simple=True, separator="."): leaf for keys, leaf in leaves}
    for name, leaf in named.items():
        if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
            raise ValueError(f"{path}: {name} must be an array, got {type(leaf).__name__}")
    return named


def _or_damaged(path: pathlib.Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ValueError(f"{path}: a damaged checkpoint of Orbax: {reason}") from error
