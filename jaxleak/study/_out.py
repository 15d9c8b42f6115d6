"""Which folder a run writes to; known before anything heavy is imported."""

from pathlib import Path


def default_out(experiment: str, name: str) -> Path:
    """`runs/<experiment>/<name>` below the current folder."""
    return Path("runs") / experiment / name


def require_own_folder(out: str | Path) -> None:
    """Raise `ValueError` if `--out` is the current folder, which an empty name also means and which would be filled."""
    if Path(out) == Path():
        raise ValueError("--out must name a folder of its own; an empty name, or a dot, is the current folder")
