"""Printed numbers of the papers, from experiments/paper/*.toml."""

import functools
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "paper"


@functools.cache  # studies call this hundreds of times, and do not change the result
def tables(paper: str) -> dict[str, dict[str, Any]]:
    """Result tables of `paper` by id, each with `title`, `metric`, `setting` and its list of `cell`s."""
    with (FOLDER / f"{paper}.toml").open("rb") as file:
        return {table["id"]: table for table in tomllib.load(file)["table"]}
