"""Which tests of mended faults fail on the code in which the faults were found: `make old-faults`.

The code is that of one commit and the tests are those of a later one, which were written for the same names. What the
tests import and the code lacks is None. A test that fails for that reason shows no fault, and is counted apart, as far
as its error says so. This file is the command, and inside of it the plugin of pytest that makes the missing names.
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

#: The code that an outside look took apart, and the tests that were written then.
CODE, TESTS = "fa70a23", "a7f5686"
#: Test files, with the words that choose tests of them.
CHOSEN = {
    "test_sources": "",
    "test_checkpoint": "",
    "test_resumed": "",
    "test_reliability": "full_disk",
    "test_refusals": "",
}
#: No answer within so many seconds counts as a failure: what should be refused is being computed.
PATIENCE = 40
#: Set for processes that tests start; what Python runs at their start makes the names there, too.
CHILD = "JAXLEAK_OLD_FAULTS"
AT_START = f"import os\nif {CHILD!r} in os.environ:\n    import old_faults\n    old_faults.pytest_configure()\n"
#: What an error says that comes from a name which is None.
LACKING = re.compile(r"NoneType|ModuleNotFoundError|ImportError|has no attribute|unexpected keyword argument")
KINDS = ("failed", "lacking", "passed")


def of_project(name):
    return name.split(".")[0] in ("jaxleak", "experiments")


def module_of(name):
    """A module of the old code; an empty one where there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        sys.modules[name] = types.ModuleType(name)
        parent, _, last = name.rpartition(".")
        setattr(module_of(parent), last, sys.modules[name])
        return sys.modules[name]


def pytest_configure():
    """Make every name None that the tests import and the old code lacks, in processes that tests start, too."""
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
    """How many tests of a file fail, fail for a name that is lacking, and pass."""
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
    """Count and print the tests of each file."""
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
