"""Checkpoints of long reconstructions: a thin wrapper of Orbax that knows which configuration it belongs to."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxleak._base import PyTree

CONFIG_FILE = "config.json"


class ConfigMismatchError(ValueError):
    """A folder's checkpoints belong to another configuration."""


class Checkpoints:
    """Numbered checkpoints of one run in one folder; the newest two are kept.

    Orbax writes into a temporary folder and renames it when complete, so a kill or a full disk in the middle of a
    save leaves the previous checkpoint valid.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any], *, fresh: bool = False):
        """Open or create `folder`.

        Args:
            folder: where the checkpoints live.
            config: what the run depends on; JSON-serialisable.
            fresh: delete what is there.

        Raises:
            ConfigMismatchError: if the folder holds checkpoints of another configuration; names the fields.
            OSError: if the folder cannot be written.
        """
        self.folder = Path(folder).absolute()
        if fresh and self.folder.exists():
            shutil.rmtree(self.folder)
        self._config = json.loads(json.dumps(config))
        config_file = self.folder / CONFIG_FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(
                self.folder / "steps",
                options=ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False),
            )
            # A run that never reached its first checkpoint binds nobody to its configuration.
            if self.latest_step() is not None and config_file.exists():
                _check_same(self._config, json.loads(config_file.read_text()), self.folder)
            config_file.write_text(json.dumps(self._config, indent=2))
        except OSError as error:
            raise OSError(f"cannot write checkpoints to {self.folder}: {error.strerror or error}") from error

    def save(self, step: int, tree: PyTree) -> None:
        """Write checkpoint `step`.

        Raises:
            OSError: if it cannot be written (a full disk, say); earlier checkpoints stay valid.
        """
        try:
            self._manager.save(step, args=ocp.args.StandardSave(tree), force=True)
        except Exception as error:
            valid = self._manager.latest_step()
            kept = "no earlier checkpoint exists" if valid is None else f"checkpoint {valid} stays valid"
            raise OSError(f"cannot write checkpoint {step} to {self.folder}: {error}; {kept}") from error

    def restore_latest(self, tree: PyTree) -> PyTree:
        """The newest readable checkpoint, shaped like `tree`; `tree` itself if there is none."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                return self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
            except Exception as error:  # Orbax and TensorStore raise many types for a damaged file
                print(f"checkpoint {step} in {self.folder} cannot be read ({error}); trying the one before")
                self._manager.delete(step)
        return tree

    def latest_step(self) -> int | None:
        """Number of the newest checkpoint, or None."""
        return self._manager.latest_step()


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
