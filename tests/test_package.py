"""The package that users install: metadata, the sdist, the wheel built from it, and the commands in an empty folder."""

import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from jaxleak.study import provenance

ROOT = Path(__file__).parent.parent
#: Options for few samples and little work, enough to show that all parts are included.
SMALL = {
    "demo": "--data digits --num-samples 24 --batch-size 6 --images 2 --out run",
    "invert": "--model mlp --data digits --pool 8 --iterations 2 --out run",
}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Modules with another name than their distribution.
DISTRIBUTIONS = {
    "PIL": "pillow", "flwr": "flwr", "orbax": "orbax-checkpoint", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "dp_accounting": "dp-accounting", "tensorflow_datasets": "tensorflow-datasets",
}  # fmt: skip


def declared(lines):
    """Names of the distributions in requirements such as "jax>=0.7"."""
    return {re.match(r"[\w-]+", line)[0] for line in lines}


@functools.cache
def third_party_imports():
    """Every imported module outside of the standard library and the package, with a file that imports it."""
    found = {}
    for path in sorted((ROOT / "jaxleak").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            found |= {name.split(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, "jaxleak"}}


def test_everything_that_is_imported_is_declared():
    """An import that comes only with another dependency works only until that dependency changes."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    known = declared(PROJECT["dependencies"]) | declared(extras)
    imports = third_party_imports()
    assert {"jax", "ml_dtypes", "torch"} <= imports.keys()
    assert {name: path for name, path in imports.items() if DISTRIBUTIONS.get(name, name) not in known} == {}


def test_what_is_declared_is_imported():
    used = {DISTRIBUTIONS.get(name, name) for name in third_party_imports()}
    assert declared(PROJECT["dependencies"]) - used == {"jaxlib"}  # jax imports it, and it has its own versions


def test_the_addresses_and_the_version_are_the_same_everywhere():
    citation = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    repository = PROJECT["urls"]["Repository"]
    assert citation["repository-code"] == repository
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert all(address.startswith(repository) for address in PROJECT["urls"].values())
    for address in PROJECT["urls"].values():
        if "/blob/main/" in address:
            assert (ROOT / address.partition("/blob/main/")[2]).is_file()
    # A version is released once, and then its changes are listed under its number.
    changes = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changes[0] == "Unreleased" or changes[0].startswith(PROJECT["version"])


def test_links_of_the_readme_on_an_index_page_lead_to_files_of_the_repository():
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    text = "![a](b.png) [c](d.md#e) [f](#g) [h](https://i.org)"
    expected = "![a](R/raw/main/b.png) [c](R/blob/main/d.md#e) [f](#g) [h](https://i.org)"
    assert hook.with_absolute_links(text, "R") == expected
    readme = (ROOT / "README.md").read_text()
    shown = hook.with_absolute_links(readme, PROJECT["urls"]["Repository"])
    targets = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(targets) == len(re.findall(r"\]\(", readme)) > 20
    for target in targets:
        file = re.fullmatch(rf"{PROJECT['urls']['Repository']}/(?:blob|raw)/main/([^#]+)(?:#.+)?", target)
        assert (ROOT / file[1]).is_file(), target


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from its files."""
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
    """A function that runs Python in a folder with the unpacked wheel and its dependencies, without the clone.

    Python runs without `site`, so it does not read the path file that makes the clone importable in this environment.
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
        metadata = archive.read(f"{next(name for name in tops if name.endswith('.dist-info'))}/METADATA").decode()
    assert {name for name in tops if not name.endswith(".dist-info")} == {"jaxleak"}
    assert not re.search(r"\]\((?!https://)", message_from_string(metadata).get_payload())


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


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_study_runs_from_an_empty_folder(installed, tmp_path, name):
    installed(tmp_path, "-m", "jaxleak", name, *SMALL[name].split())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["status"] == "complete"
    assert results["provenance"]["commit"].startswith("version ")
    assert (tmp_path / "run" / "figures" / "contact_sheet.png").stat().st_size > 0


@pytest.mark.skipif(
    sys.platform in ("win32", "darwin"), reason="the system does not tell which cores a process may use"
)
def test_the_cores_of_a_result_are_those_that_its_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert provenance()["cores"] == 1
