"""Checkpoints of long reconstructions: a thin wrapper of Orbax that records the configuration of the run.

Orbax and JAX are imported where they are used: they take seconds, and a command's --help needs none of them.
"""

import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxleak import _processes
from jaxleak._base import PyTree
from jaxleak._configuration import ConfigMismatchError, check_same, described, difference
from jaxleak._lock import FolderInUseError, lock_folder
from jaxleak._orbax import quiet
from jaxleak._replacing import replacing

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

__all__ = ["Checkpoints", "ConfigMismatchError", "FolderInUseError"]

CONFIG_FILE = "config.json"
STEPS = "steps"
DAMAGED = "damaged"

#: In a checkpoint's folder, Orbax keeps the metadata of `save` in this file and the arrays in this subfolder.
_METADATA_FILE, _ARRAYS = "_CHECKPOINT_METADATA", "default"
#: Entries of that metadata: a checksum of the arrays, their shapes and dtypes; and the checkpoint's number, its
#: configuration, its history, what it was computed from, and the attack's settings.
_CHECKSUM, _SHAPES, _DTYPES = "crc32", "shapes", "dtypes"
_STEP, _OWNER, _HISTORY, _ORIGIN, _SETTINGS = "step", "configuration", "history", "origin", "settings"
#: What begins a text in that metadata. Orbax reads a text that is JSON, and changes the types of what is in it.
_AS_TEXT = "JSON: "


class Checkpoints:
    """Numbered checkpoints of one run in one folder; the newest two are kept.

    Orbax writes into a temporary folder and renames it when complete, so a kill or a full disk in the middle of a save
    leaves the previous checkpoint valid. Each checkpoint has a checksum, because damaged values could be read without
    an error. It also has a digest of the configuration, because a folder may be a copy from elsewhere. While this
    object lives, other processes are kept out of the folder. In a run of several processes, each process makes this
    object and makes the same calls, on a folder that all of them see; the first process writes what is not sharded.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any], *, fresh: bool = False):
        """Open or create `folder`.

        Args:
            folder: where the checkpoints live.
            config: what the run depends on: numbers, texts, functions, arrays, and lists and dictionaries of these,
                such as an attack's settings. A function counts by its name and by the numbers, texts, arrays and
                functions that it was made of. An array counts by its `fingerprint`.
            fresh: start over. Existing checkpoints are not read. The first `save` deletes them, so that a run that
                fails before it has anything to save loses nothing.

        Raises:
            ConfigMismatchError: if the folder holds checkpoints of another configuration; the message names the fields.
            FolderInUseError: if another process writes to the folder.
            OSError: if the folder cannot be written.
            ValueError: if the configuration holds a value that cannot be written to a file.
        """
        self.folder = Path(folder).absolute()
        self._config = json.loads(json.dumps(described(config)))
        self._fields = {name: tuple(getattr(value, "_fields", ())) for name, value in config.items()}
        self._owner = hashlib.sha256(json.dumps(self._config, sort_keys=True).encode()).hexdigest()
        self._origin: dict[str, Any] = {}
        self._settings: str | None = None
        try:
            if _processes.is_writer():
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = lock_folder(self.folder)
            _all_wait("checkpoints_opened")
            self._manager = None if fresh else self._begin()
        except FolderInUseError:
            raise
        except OSError as error:
            raise OSError(f"cannot write checkpoints to {self.folder}: {error.strerror or error}") from error

    def _begin(self) -> "ocp.CheckpointManager":
        self._bind()
        return self._open()

    def _begin_anew(self) -> "ocp.CheckpointManager":
        if _processes.is_writer():
            for name in (STEPS, DAMAGED):
                if (self.folder / name).exists():
                    shutil.rmtree(self.folder / name)
            (self.folder / CONFIG_FILE).unlink(missing_ok=True)
        _all_wait("checkpoints_deleted")
        return self._begin()

    def _open(self) -> "ocp.CheckpointManager":
        if _processes.is_writer():
            # Remove what a killed save left. We hold the lock, so nobody is writing there. Orbax cleans up later, if at
            # all.
            for leftover in (self.folder / STEPS).glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover)
            # Orbax reads all checkpoints when it opens, and takes their form from the newest, so none may be damaged.
            for step in self._steps():
                if (problem := self._problem(step)) is not None:
                    self._set_aside(step, problem)
        _all_wait("damaged_checkpoints_moved")
        import orbax.checkpoint as ocp

        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        return ocp.CheckpointManager(self.folder / STEPS, options=options)

    def _steps(self) -> list[int]:
        """Numbers of all folders whose names are those of checkpoints, the newest first."""
        names = [path.name for path in (self.folder / STEPS).glob("[0-9]*") if path.name.isdecimal()]
        return sorted((int(name) for name in names if str(int(name)) == name), reverse=True)

    def _metadata(self, step: int) -> dict[str, Any]:
        """The metadata that `save` wrote of a checkpoint; raises `ValueError` with what is wrong with its folder."""
        folder = self.folder / STEPS / str(step)
        if not (folder / _ARRAYS).is_dir():
            raise ValueError("its arrays are missing")
        try:
            said = json.loads((folder / _METADATA_FILE).read_bytes())["custom_metadata"]
            found = {**said, _CHECKSUM: said[_CHECKSUM]}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"its file {_METADATA_FILE} is missing or damaged") from error
        if found.get(_STEP, step) != step:
            raise ValueError(f"it is a copy of checkpoint {found[_STEP]}")
        return found

    def _problem(self, step: int) -> str | None:
        """What is wrong with a checkpoint, as far as its metadata shows without its arrays; None if nothing is."""
        try:
            found = self._metadata(step)
        except ValueError as error:
            return str(error)
        return None if found.get(_OWNER, self._owner) == self._owner else "it belongs to another configuration"

    def _bind(self) -> None:
        """Compare this run's configuration with that of the checkpoints, and write it to the folder."""
        file = self.folder / CONFIG_FILE
        # A run that never reached its first checkpoint binds nobody to its configuration.
        owners = {found.get(_OWNER, self._owner) for found in map(self._metadata_if_any, self._steps()) if found}
        if owners and file.exists():
            try:
                then = dict(json.loads(file.read_text()).items())
            except (ValueError, AttributeError, RecursionError) as error:
                raise ConfigMismatchError(
                    f"{file} is damaged, so nobody knows what its checkpoints belong to; "
                    "choose another folder or start over with fresh=True (--fresh)"
                ) from error
            check_same(self._config, then, self._fields, self.folder)
        elif owners and self._owner not in owners:
            raise ConfigMismatchError(
                f"{file} is missing, and its checkpoints belong to another configuration; "
                "choose another folder or start over with fresh=True (--fresh)"
            )
        if _processes.is_writer():
            with replacing(file) as partial:
                partial.write_text(json.dumps(self._config, indent=2))

    def _metadata_if_any(self, step: int) -> dict[str, Any]:
        try:
            return self._metadata(step)
        except ValueError:
            return {}

    def bind(self, origin: dict[str, Any], *, settings: str | None = None) -> None:
        """Record what the next checkpoints are computed from; `audit.run` and `audit.invert` call this.

        Checkpoints without such a record are accepted as they are.

        Args:
            origin: descriptions by `jaxleak._identity`, by the names that messages use; JSON-serialisable.
            settings: the attack's settings by name, a JSON object. It refuses nothing, and says where settings differ
                that `origin` finds to be others.

        Raises:
            ConfigMismatchError: if the newest checkpoint was computed from something else; the message names what
                differs.
        """
        from jaxleak import _identity

        step = self.latest_step()
        said = {} if step is None else self._metadata_if_any(step)
        if then := said.get(_ORIGIN, {}):
            differing = [name for name, now in origin.items() if not _identity.same(now, dict(then).get(name))]
            if differing:
                others = ", another ".join(differing)
                raise ConfigMismatchError(
                    f"{self.folder} holds checkpoint {step} of another run, with another {others}; "
                    f"choose another folder or start over with fresh=True (--fresh){_other_settings(said, settings)}"
                )
        self._origin, self._settings = origin, settings

    def save(self, step: int, tree: PyTree, history: dict[str, np.ndarray] | None = None) -> None:
        """Write checkpoint `step`.

        Args:
            step: number of the checkpoint.
            tree: the checkpoint's arrays; their shapes are the same in every checkpoint of a folder.
            history: further arrays, which record the run so far; their shapes may change from one checkpoint to the
                next.

        Raises:
            OSError: if the checkpoint cannot be written (a full disk, say); earlier checkpoints stay valid.
        """
        import orbax.checkpoint as ocp

        manager = self._manager = self._manager or self._begin_anew()
        tree = _storable(tree)
        said: dict[str, Any] = {_STEP: step, _OWNER: self._owner, _SHAPES: _shapes(tree), _DTYPES: _dtypes(tree)}
        if self._origin:
            said[_ORIGIN] = self._origin
        if self._settings is not None:
            said[_SETTINGS] = _AS_TEXT + self._settings
        if history:
            history = _storable(history)
            said[_HISTORY] = {name: [list(array.shape), array.dtype.name] for name, array in history.items()}
            tree = (tree, history)
        try:
            with quiet():
                manager.save(
                    step,
                    args=ocp.args.StandardSave(tree),
                    custom_metadata={**said, _CHECKSUM: _checksum(tree)},
                    force=True,
                )
        except Exception as error:
            valid = manager.latest_step()
            kept = "no earlier checkpoint exists" if valid is None else f"checkpoint {valid} stays valid"
            reason = _first_line(error)
            raise OSError(f"cannot write checkpoint {step} to {self.folder}: {reason}; {kept}") from error

    def restore_latest(self, tree: PyTree) -> PyTree:
        """The newest readable checkpoint, shaped like `tree`; `tree` itself if there is none.

        A checkpoint that cannot be read is reported and moved to `damaged/`, and the one before it is tried.

        Raises:
            ConfigMismatchError: if the checkpoint is intact but holds other arrays than `tree` has.
        """
        return self.restore_with_history(tree)[0]

    def restore_with_history(self, tree: PyTree) -> tuple[PyTree, dict[str, np.ndarray]]:
        """Same as `restore_latest`, with the history that was saved with that checkpoint; empty if there is none."""
        import jax
        import orbax.checkpoint as ocp

        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _storable(tree))
        while self._manager is not None and (step := self._manager.latest_step()) is not None:
            problem, restored, history = self._restore(self._manager, step, abstract)
            if not _processes.any_process(problem is not None):
                return jax.tree.map(lambda leaf, stored: leaf if _is_empty(leaf) else stored, tree, restored), history
            if _processes.is_writer():
                self._set_aside(step, problem or "in another process")
            _all_wait("damaged_checkpoint_moved")
            self._manager.close()
            self._manager = self._open()
        return tree, {}

    def _restore(
        self, manager: "ocp.CheckpointManager", step: int, abstract: PyTree
    ) -> tuple[str | None, PyTree, dict[str, np.ndarray]]:
        """Restore a checkpoint: None with its tree and history, or else what is wrong with it."""
        if (problem := self._problem(step)) is not None:
            return problem, None, {}
        said = self._metadata(step)
        if said.get(_SHAPES, _shapes(abstract)) != _shapes(abstract):
            raise ConfigMismatchError(
                f"checkpoint {step} in {self.folder} holds other arrays than this run has, as another version of the "
                "program writes them; choose another folder or start over with fresh=True (--fresh)"
            )
        abstract = self._as_stored(step, said.get(_DTYPES, {}), abstract)
        import jax
        import orbax.checkpoint as ocp

        try:
            shapes = said.get(_HISTORY, {})
            history = {name: jax.ShapeDtypeStruct(tuple(shape), dtype) for name, (shape, dtype) in shapes.items()}
            target = (abstract, history) if history else abstract
            with quiet():
                restored = manager.restore(step, args=ocp.args.StandardRestore(target))
            found = _checksum(restored)
        except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
            return _first_line(error), None, {}
        if None not in (said[_CHECKSUM], found) and said[_CHECKSUM] != found:
            return "its checksum does not fit its values", None, {}
        restored, history = restored if history else (restored, {})
        return None, restored, {name: np.asarray(array) for name, array in history.items()}

    def _as_stored(self, step: int, stored: dict[str, str], abstract: PyTree) -> PyTree:
        """The arrays of this run in the dtypes of a checkpoint, where JAX itself would convert to that dtype."""
        import jax

        from jaxleak._tree import named_leaves, replaced

        leaves, made = named_leaves(abstract), {}
        for name, wanted in _dtypes(abstract).items():
            leaf, held = leaves[name], stored.get(name, wanted)
            if held == wanted:
                continue
            # A run may begin from arrays of 64 bits, which JAX converts to its own dtype.
            if held != str(jax.dtypes.canonicalize_dtype(leaf.dtype)):
                raise ConfigMismatchError(
                    f"checkpoint {step} in {self.folder} holds {name} as {held}, and this run has {wanted}: "
                    "jax_enable_x64 or the inputs differ; choose another folder or start over with fresh=True (--fresh)"
                )
            made[name] = jax.ShapeDtypeStruct(leaf.shape, held, sharding=getattr(leaf, "sharding", None))
        return replaced(abstract, made)

    def _set_aside(self, step: int, problem: str) -> None:
        print(
            f"checkpoint {step} in {self.folder} cannot be read ({problem}); it is now in {DAMAGED}/{step}, and the "
            "newest one that can be read is used"
        )
        aside = self.folder / DAMAGED / str(step)
        aside.parent.mkdir(exist_ok=True)
        if aside.is_dir():
            shutil.rmtree(aside)
        os.replace(self.folder / STEPS / str(step), aside)

    def latest_step(self) -> int | None:
        """Number of the newest checkpoint, or None."""
        return None if self._manager is None else self._manager.latest_step()


def _all_wait(where: str) -> None:
    if _processes.several_processes():
        import orbax.checkpoint as ocp

        ocp.utils.sync_global_processes(f"jaxleak:{where}")


def _storable(tree: PyTree) -> PyTree:
    import jax

    return jax.tree.map(lambda leaf: np.zeros(()) if _is_empty(leaf) else leaf, tree)


def _shapes(tree: PyTree) -> str:
    from jaxleak._tree import named_leaves

    shapes = {name: list(np.shape(leaf)) for name, leaf in named_leaves(tree).items()}
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()


def _dtypes(tree: PyTree) -> dict[str, str]:
    """The dtypes of the arrays by name; a Python number has none."""
    from jaxleak._tree import named_leaves

    return {name: str(leaf.dtype) for name, leaf in named_leaves(tree).items() if hasattr(leaf, "dtype")}


def _is_empty(leaf: Any) -> bool:
    # Orbax refuses arrays without entries. They hold nothing but a shape, so a zero is stored in their place.
    return np.size(leaf) == 0


def _checksum(tree: PyTree) -> int | None:
    """CRC-32 of all leaves in order; None where this process does not hold all of them."""
    import jax

    total = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return None
        total = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), total)
    return total


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _other_settings(said: dict[str, Any], now: str | None) -> str:
    """The end of a message that says which settings of a checkpoint's metadata are others now, if they are known."""
    then = said.get(_SETTINGS)
    if not isinstance(then, str) or now is None:
        return ""
    before, after = (json.loads(text.removeprefix(_AS_TEXT)) for text in (then, now))
    names = [name for name in after if name in before and before[name] != after[name]]
    differing = [difference(name, before[name], after[name]) for name in names]
    return f". Settings that differ: {'; '.join(differing)}" if differing else ""
