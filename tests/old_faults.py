"""Which tests of mended faults fail on the code in which the faults were found: `make old-faults`.

The code comes from one commit and the tests from a later one, written for the same names. Names that the tests import
and the code lacks are None. A test that fails for this reason shows no fault, and is counted apart if its error shows
the reason. This file is both the command and the pytest plugin that makes the missing names.
"""

import argparse
import ast
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import types
from collections import Counter
from pathlib import Path

import pytest

#: Commits of the code that an outside review examined, and of the tests that were then written.
CODE, TESTS = "fa70a23", "a7f5686"
#: Test files, each with the expression for pytest's -k that chooses its tests.
CHOSEN = {
    "test_sources": "",
    "test_checkpoint": "",
    "test_resumed": "",
    "test_reliability": "full_disk",
    "test_refusals": "",
}
#: Seconds after which a test counts as failed: then the code computes what it should refuse.
PATIENCE = 40
#: Environment variable for processes that tests start; `AT_START` then makes the missing names there, too.
CHILD = "JAXLEAK_OLD_FAULTS"
AT_START = f"import os\nif {CHILD!r} in os.environ:\n    import old_faults\n    old_faults.pytest_configure()\n"
#: Texts in errors that come from a missing name.
LACKING = re.compile(r"NoneType|ModuleNotFoundError|ImportError|has no attribute|unexpected keyword argument")
KINDS = ("failed", "lacking", "passed")


def of_project(name):
    return name.split(".")[0] in ("jaxleak", "experiments")


def module_of(name):
    """A module of the old code, or an empty module if the old code has none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        sys.modules[name] = types.ModuleType(name)
        parent, _, last = name.rpartition(".")
        setattr(module_of(parent), last, sys.modules[name])
        return sys.modules[name]


def pytest_configure():
    """Set every name that the tests import and the old code lacks to None, also in processes that tests start."""
    folder = Path(__file__).parent.parent
    sys.path.insert(0, str(folder))
    os.environ[CHILD] = "1"
    for path in (folder / "tests").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and of_project(node.module):
                module = module_of(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        try:
                            importlib.import_module(f"{node.module}.{alias.name}")
                        except ModuleNotFoundError:
                            setattr(module, alias.name, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Stop a test that takes too long."""

    def stop(*_):
        raise TimeoutError(f"no answer within {PATIENCE} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report):
    """Print one word per test, for `counted`."""
    if report.when == "call" or (report.when == "setup" and report.failed):
        crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        kind = report.outcome if not (report.failed and LACKING.search(crash)) else "lacking"
        print(f"\n@ {kind} {report.nodeid}")


def unpacked(commit, folder, *paths):
    """Write the files of a commit to a folder."""
    archive = subprocess.run(
        ["git", "archive", commit, *paths], cwd=Path(__file__).parent.parent, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def counted(folder, file, words):
    """Count the tests of a file that fail, that fail for a missing name, and that pass."""
    command = [sys.executable, "-m", "pytest", "-p", "old_faults", "-p", "no:xdist", "-q", "--capture", "sys", "-rN"]
    ran = subprocess.run(
        [*command, "--show-capture", "no", "--tb", "no", "-k", words, f"tests/{file}.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "plugin")},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"{file} cannot run: {ran.stdout[-2000:]}")
    return Counter(re.findall(r"^@ (\w+) tests/", ran.stdout, re.MULTILINE))


def main():
    """Print the counts for each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--code", default=CODE, help="commit of the code (default %(default)s)")
    parser.add_argument("--tests", default=TESTS, help="commit of the tests (default %(default)s)")
    parser.add_argument("--only", default="", help="run only the files whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpacked(options.code, folder)
        for old in (folder / "tests").glob("*.py"):
            old.unlink()
        unpacked(options.tests, folder, "tests", "pyproject.toml")
        (folder / "plugin").mkdir()
        (folder / "plugin" / "old_faults.py").write_text(Path(__file__).read_text())
        (folder / "plugin" / "sitecustomize.py").write_text(AT_START)
        print(f"tests of {options.tests} on the code of {options.code}")
        for file, words in CHOSEN.items():
            if options.only in file:
                found = counted(folder, file, words)
                print(f"{file:17}", *(f"{kind} {found[kind]:3}" for kind in KINDS), flush=True)


if __name__ == "__main__":
    main()
