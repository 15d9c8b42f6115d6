"""The folder to which a run writes; this module imports nothing heavy."""

from pathlib import Path


def default_out(experiment: str, name: str) -> Path:
    """Return the default folder of a run, `runs/<experiment>/<name>` below the current folder."""
    return Path("runs") / experiment / name


def require_own_folder(out: str | Path) -> None:
    """Raise `ValueError` if `--out` is the current folder (or empty, which means the same), as a run would fill it."""
    if Path(out) == Path():
        raise ValueError("--out must name a folder of its own; an empty name, or a dot, is the current folder")
