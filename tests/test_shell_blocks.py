"""The parsers accept the commands that the pages print; the commands do not run."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
import tyro

from jaxleak.__main__ import STUDIES, parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Pattern of our programs: a module after `python -m`, or a command of `jaxleak`.
PROGRAMS = re.compile(r"python -m ((?:experiments|docs|benchmarks)\.\w+)|jaxleak (\w+)")


def commands(page):
    """The commands of our programs in a page's shell blocks, as lists of words."""
    shell, found = None, []
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            shell = None if shell is not None else line.strip() in ("```", "```sh", "```bash", "```console")
        elif shell and PROGRAMS.match(line.strip().removeprefix("$ ")):
            found.append(shlex.split(line.strip().removeprefix("$ "), comments=True))
    return found


ALL = [(page.relative_to(ROOT).as_posix(), words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{page}-{i}" for i, (page, _) in enumerate(ALL)])
def test_a_printed_command_is_understood(page, words):
    del page
    if words[0] == "python":
        module = importlib.import_module(words[2])
        if hasattr(module, "Args"):
            tyro.cli(module.Args, args=words[3:])
    elif words[1] in STUDIES:
        tyro.cli(importlib.import_module(f"{STUDIES[words[1]][0]}.options").Args, args=words[2:])
    else:
        parser().parse_args(words[1:])


def test_commands_are_found():
    assert len(ALL) >= 23
    assert {words[1] for _, words in ALL if words[0] == "jaxleak"} >= {"audit", "invert"}
