"""What a user installs: the sdist, the wheel that is built from it, and the commands in an empty folder."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Few samples, and as little work on them as shows that all parts are there.
SMALL = {
    "demo": "--data digits --num-samples 24 --batch-size 6 --images 2 --out run",
    "invert": "--model mlp --data digits --pool 8 --iterations 2 --out run",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel that is built from what it holds."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")

    def build(target, source):
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
        subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
        return next(folder.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[target]))

    sdist = build("sdist", ROOT)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    return sdist, build("wheel", next((folder / "sdist").iterdir()))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A function that runs Python with the unpacked wheel and its dependencies, in a folder, and nothing of the clone.

    Without `site`, the path file that makes the clone importable in this environment is not read.
    """
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(folder)
    path = [str(folder), *(sysconfig.get_path(name) for name in ("purelib", "platlib"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "JAX_PLATFORMS": "cpu"}

    def run(where, *words):
        command = [sys.executable, "-S", *words]
        return subprocess.run(
            command, cwd=where, env=environment, capture_output=True, text=True, check=True, timeout=600
        ).stdout

    run.folder = folder
    return run


def test_the_wheel_holds_the_package_alone(built):
    with zipfile.ZipFile(built[1]) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"jaxleak"}


def test_nothing_of_the_clone_is_on_the_path(installed, tmp_path):
    program = "import importlib.util, jaxleak; print(jaxleak.__file__); print(importlib.util.find_spec('experiments'))"
    assert installed(tmp_path, "-c", program).split() == [str(installed.folder / "jaxleak" / "__init__.py"), "None"]


def test_the_command_is_the_modules_main(installed, tmp_path):
    program = (
        "from importlib.metadata import distribution; (point,) = distribution('jaxleak').entry_points; "
        "print(point.name, point.load().__module__)"
    )
    assert installed(tmp_path, "-c", program).split() == ["jaxleak", "jaxleak.__main__"]
    listed = installed(tmp_path, "-m", "jaxleak", "--help")
    assert all(f"\n    {name} " in listed for name in ("audit", "models", *SMALL))


def test_models_are_printed(installed, tmp_path):
    assert "params/head/kernel " in installed(tmp_path, "-m", "jaxleak", "models", "--model", "lenet")


@pytest.mark.parametrize("name", SMALL)
def test_a_study_runs_from_an_empty_folder(installed, tmp_path, name):
    installed(tmp_path, "-m", "jaxleak", name, *SMALL[name].split())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "complete"
    assert results["provenance"]["commit"].startswith("version ")
    assert (tmp_path / "run" / "figures" / "contact_sheet.png").stat().st_size > 0
