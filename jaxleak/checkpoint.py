"""Checkpoints of long reconstructions: a thin wrapper of Orbax that knows which configuration it belongs to."""

import json
import logging
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxleak import _mesh
from jaxleak._base import PyTree
from jaxleak._lock import FolderInUseError, lock_folder

CONFIG_FILE = "config.json"
STEPS = "steps"
DAMAGED = "damaged"

_CHECKSUM = "crc32"


class ConfigMismatchError(ValueError):
    """A folder's checkpoints belong to another configuration."""


class Checkpoints:
    """Numbered checkpoints of one run in one folder; the newest two are kept.

    Orbax writes into a temporary folder and renames it when complete, so a kill or a full disk in the middle of a
    save leaves the previous checkpoint valid. Each carries a checksum, since damaged values would be read as they are.
    While this object lives, other processes are kept out of the folder. In a run of several processes each of them
    makes and calls this alike, on a folder that all of them see; the first one writes what is not sharded.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any], *, fresh: bool = False):
        """Open or create `folder`.

        Args:
            folder: where the checkpoints live.
            config: what the run depends on; JSON-serialisable.
            fresh: delete what is there.

        Raises:
            ConfigMismatchError: if the folder holds checkpoints of another configuration; names the fields.
            FolderInUseError: if another process writes to the folder.
            OSError: if the folder cannot be written.
        """
        self.folder = Path(folder).absolute()
        self._config = json.loads(json.dumps(config))
        try:
            if _mesh.is_writer():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = lock_folder(self.folder)
                if fresh:
                    self._delete_all()
            if _mesh.several_processes():
                ocp.utils.sync_global_processes("jaxleak:checkpoints_opened")
            self._manager = self._open()
            self._bind()
        except FolderInUseError:
            raise
        except OSError as error:
            raise OSError(f"cannot write checkpoints to {self.folder}: {error.strerror or error}") from error

    def _delete_all(self) -> None:
        for name in (STEPS, DAMAGED):
            if (self.folder / name).exists():
                shutil.rmtree(self.folder / name)
        (self.folder / CONFIG_FILE).unlink(missing_ok=True)

    def _open(self) -> ocp.CheckpointManager:
        if _mesh.is_writer():
            # What a kill left of a save; the lock is ours, so nobody writes there. Orbax cleans up later, if at all.
            for leftover in (self.folder / STEPS).glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        return ocp.CheckpointManager(self.folder / STEPS, options=options)

    def _bind(self) -> None:
        """Compare the configuration with that of the checkpoints, and write it down."""
        file = self.folder / CONFIG_FILE
        # A run that never reached its first checkpoint binds nobody to its configuration.
        if self.latest_step() is not None and file.exists():
            try:
                then = json.loads(file.read_text())
            except ValueError as error:
                raise ConfigMismatchError(
                    f"{file} is damaged, so nobody knows what its checkpoints belong to; "
                    "choose another folder or start over with fresh=True (--fresh)"
                ) from error
            _check_same(self._config, then, self.folder)
        if _mesh.is_writer():
            partial = file.with_name(file.name + ".partial")
            partial.write_text(json.dumps(self._config, indent=2))
            os.replace(partial, file)

    def save(self, step: int, tree: PyTree) -> None:
        """Write checkpoint `step`.

        Raises:
            OSError: if it cannot be written (a full disk, say); earlier checkpoints stay valid.
        """
        tree = jax.tree.map(lambda leaf: np.zeros(()) if _is_empty(leaf) else leaf, tree)
        try:
            self._manager.save(
                step,
                args=ocp.args.StandardSave(tree),
                custom_metadata={_CHECKSUM: _checksum(tree)},
                force=True,
            )
        except Exception as error:
            valid = self._manager.latest_step()
            kept = "no earlier checkpoint exists" if valid is None else f"checkpoint {valid} stays valid"
            reason = _first_line(error)
            raise OSError(f"cannot write checkpoint {step} to {self.folder}: {reason}; {kept}") from error

    def restore_latest(self, tree: PyTree) -> PyTree:
        """The newest readable checkpoint, shaped like `tree`; `tree` itself if there is none.

        A checkpoint that cannot be read is named, moved to `damaged/`, and the one before it is tried.
        """
        abstract = jax.tree.map(
            lambda leaf: np.zeros(()) if _is_empty(leaf) else ocp.utils.to_shape_dtype_struct(leaf), tree
        )
        for step in sorted(self._manager.all_steps(), reverse=True):
            problem, restored = self._restore(step, abstract)
            if not _mesh.any_process(problem is not None):
                return jax.tree.map(lambda leaf, stored: leaf if _is_empty(leaf) else stored, tree, restored)
            if _mesh.is_writer():
                print(
                    f"checkpoint {step} in {self.folder} cannot be read ({problem or 'in another process'}); it is now "
                    f"in {DAMAGED}/{step}, trying the one before"
                )
                (self.folder / DAMAGED).mkdir(exist_ok=True)
                shutil.rmtree(self.folder / DAMAGED / str(step), ignore_errors=True)
                os.replace(self.folder / STEPS / str(step), self.folder / DAMAGED / str(step))
            if _mesh.several_processes():
                ocp.utils.sync_global_processes("jaxleak:damaged_checkpoint_moved")
            self._manager.reload()
        return tree

    def _restore(self, step: int, abstract: PyTree) -> tuple[str | None, PyTree]:
        """What is wrong with a checkpoint, and its tree if nothing is."""
        # Orbax reports a damaged file with a traceback of its own, beside the exception that says it in one line.
        logger = logging.getLogger("absl")
        before = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            restored = self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
            stored = (self._manager.metadata(step).custom_metadata or {}).get(_CHECKSUM)
            found = _checksum(restored)
        except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
            return _first_line(error), None
        finally:
            logger.setLevel(before)
        damaged = None not in (stored, found) and stored != found
        return ("its checksum does not fit its values" if damaged else None), restored

    def latest_step(self) -> int | None:
        """Number of the newest checkpoint, or None."""
        return self._manager.latest_step()


def _is_empty(leaf: Any) -> bool:
    # Orbax refuses arrays without entries, whose shape says all there is to say; a zero is stored in their place.
    return np.size(leaf) == 0


def _checksum(tree: PyTree) -> int | None:
    """CRC-32 of all leaves in order; None where this process does not hold all of them."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return None
        total = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), total)
    return total


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _check_same(now: dict[str, Any], then: dict[str, Any], folder: Path) -> None:
    differing = [
        f"{name}: {then.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name)
    ]
    if differing:
        raise ConfigMismatchError(
            f"{folder} holds checkpoints of another configuration ({'; '.join(differing)}); "
            "choose another folder or start over with fresh=True (--fresh)"
        )
