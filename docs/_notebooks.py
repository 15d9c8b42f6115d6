"""Run the notebooks in `examples/` and keep what they print and draw, which their pages show: `make notebooks`.

A name of a notebook as an argument runs that one alone. All of them take about five minutes on two cores.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import types
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTPUTS = ROOT / "docs" / "examples"


def cells(notebook: str) -> list[tuple[bool, str, int]]:
    """The cells of a notebook in jupytext's percent format: whether each is text, its body, and the lines before it."""
    found = []
    for match in re.finditer(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", notebook, re.MULTILINE):
        before = notebook.count("\n", 0, match.start(2))
        found.append((match[1].strip() == "[markdown]", match[2], before))
    return found


def run(path: Path) -> list[str]:
    """Run a notebook; returns the output of every code cell, and copies the pictures to those of the pages."""
    module, printed, home = types.ModuleType("__main__"), [], os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for is_text, body, before in cells(path.read_text()):
                if is_text:
                    continue
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    # Keep line numbers, so that an error shows the line of the notebook.
                    exec(compile("\n" * before + body, str(path), "exec"), module.__dict__)
                printed.append(said.getvalue())
            shutil.copytree(
                "pictures", OUTPUTS / "pictures", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.svg")
            )
        finally:
            os.chdir(home)
    return printed


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all of them."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        if not names or path.stem in names:
            printed = run(path)
            (OUTPUTS / f"{path.stem}.json").write_text(json.dumps(printed, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
