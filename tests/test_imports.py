"""The layers ("floors") of the package: a module imports only from lower floors or from its own package."""

import ast
import graphlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import experiments
import jaxleak
from experiments._vfl import cells, options
from jaxleak import attacks, defenses, models
from jaxleak._lazy import lazy
from jaxleak.attacks import party_records, presets
from jaxleak.study import parties, updates
from jaxleak.study.updates import _names

ROOT = Path(jaxleak.__file__).parent
FLOORS = {
    **dict.fromkeys(
        (
            "_base",
            "_compiled",
            "_configuration",
            "_identity",
            "_in_words",
            "_jitted",
            "_lazy",
            "_lock",
            "_magnitudes",
            "_memory",
            "_mesh",
            "_near_names",
            "_orbax",
            "_own_files",
            "_own_keys",
            "_precision",
            "_processes",
            "_random_streams",
            "_registry",
            "_replacing",
            "_stated",
            "_steps",
            "_tree",
            "_validate",
        ),
        0,
    ),
    **dict.fromkeys(("capture", "models", "data", "objectives", "defenses", "metrics"), 1),
    **dict.fromkeys(("protocols", "threats", "attacks"), 2),
    **dict.fromkeys(("audit", "checkpoint"), 3),
    "study": 4,
    **dict.fromkeys(("_command", "__main__"), 5),
}
OPEN_FLOORS = (0, 3, 5)  # their modules may import each other
ALSO_ALLOWED = {("objectives", "models"), ("defenses", "models"), ("defenses", "objectives")}
# These are lower floors but still forbidden: an attack must not use true data and scores.
FORBIDDEN = {("attacks", "metrics"), ("attacks", "data")}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def _imports(path):
    """Yield the absolute names of all imports of a file, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "jaxleak":
                yield from (f"jaxleak.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _unit(name):
    return name.split(".")[1]


def violations(own, imported):
    if own == imported or (own, imported) in ALSO_ALLOWED:
        return False
    if (own, imported) in FORBIDDEN:
        return True
    same_open_floor = FLOORS[own] == FLOORS[imported] and FLOORS[own] in OPEN_FLOORS
    return not (FLOORS[imported] < FLOORS[own] or same_open_floor)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in FLOORS, f"{own} has no floor: add it to FLOORS"
    for name in _imports(path):
        assert name.split(".")[0] not in ("experiments", "tests", "benchmarks"), f"{path} imports {name}"
        if name.startswith("jaxleak."):
            assert not violations(own, _unit(name)), f"{own} may not import {name}"


def test_the_rule_itself():
    assert not violations("attacks", "models")
    assert not violations("audit", "checkpoint")
    for own, imported in [("attacks", "protocols"), ("protocols", "attacks"), ("models", "objectives"), *FORBIDDEN]:
        assert violations(own, imported)


def test_no_circle_among_the_studies():
    """The imports between folders of experiments/ have no cycle."""
    root = Path(experiments.__file__).parent
    used = {}
    for path in root.rglob("*.py"):
        own = path.relative_to(root).parts[0].removesuffix(".py")
        names = {name.split(".")[1] for name in _imports(path) if name.startswith("experiments.")}
        used.setdefault(own, set()).update(names - {own})
    tuple(graphlib.TopologicalSorter(used).static_order())  # raises a CycleError that names the cycle
    assert used["_ledger"] >= {"_cafe", "_fedleak", "_vfl"}  # the names are those of folders


def test_the_studies_stay_small():
    """The code of users' commands belongs to the package, and experiments/ holds only the studies of papers."""
    root = Path(experiments.__file__).parent
    assert 0 < sum(len(path.read_text().splitlines()) for path in root.rglob("*.py")) <= 6000


IMPORT_ALL_WITHOUT = """
import importlib, sys
from pathlib import Path
import psutil  # before `resource` is hidden, which it needs on Linux only

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
seen = 0
for package in map(Path, sys.argv[1:]):
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        seen += 1
        try:
            importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        except ModuleNotFoundError as error:
            if error.name != "torch":  # which is an extra
                raise
print(seen)
"""


@pytest.mark.slow
def test_nothing_needs_modules_that_windows_lacks():
    """Every module of the library and of the studies can be imported without `fcntl` and similar modules.

    The test uses its own process, since a second copy of the package here would have other classes of the same names.
    """
    packages = [ROOT, Path(experiments.__file__).parent]
    program = [sys.executable, "-c", IMPORT_ALL_WITHOUT, *map(str, packages)]
    ran = subprocess.run(program, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) == sum(1 for package in packages for _ in package.rglob("*.py"))


#: Packages that take a second or more to import; a command that only prints its help must not need them.
HEAVY = ("jax", "flax", "optax", "orbax", "matplotlib", "sklearn", "scipy", "skimage")
LIGHT = (
    "jaxleak.__main__", "jaxleak._command.cafe_scale.options", "jaxleak._command.invert.options",
    "jaxleak._command.sweep.options", "experiments.agreement", "experiments.audited", "experiments.basin",
    "experiments.cafe_scale", "experiments.homotopy", "experiments.invert", "experiments.mistakes",
    "experiments.numbers", "experiments.reproduce", "experiments.sweep", "experiments.vflrecon",
)  # fmt: skip


def test_options_are_read_before_anything_heavy_is_imported():
    """The test uses its own process, since this one has already imported everything."""
    program = f"import {', '.join(LIGHT)}, jaxleak.study, sys; jaxleak.study.run_command; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(ran.stdout.split())
    assert set(LIGHT) <= set(ran.stdout.split())


def test_a_study_finds_the_submodules_that_it_names():
    """The test uses its own process, since other tests may have imported the submodules here."""
    program = "from experiments import basin; print(basin.updates.basin.NOISE, basin.updates.diagnostics.STRENGTHS)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT.parent, capture_output=True, check=True)


def test_a_function_of_a_lazy_package_imports_its_module_when_it_is_called(monkeypatch, tmp_path):
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package" / "_slow.py").write_text("def double(x, *, plus=0):\n    return 2 * x + plus\n")
    (tmp_path / "slow_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    find = lazy("slow_package", {"double": "_slow"}, functions=("double",))
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "jax")
        double = find("double")
        assert "slow_package._slow" not in sys.modules
        assert double(3, plus=1) == 7
    assert find("double") is sys.modules["slow_package._slow"].double
    with pytest.raises(AttributeError, match="has no attribute 'triple'"):
        find("triple")


def test_names_that_options_list_are_those_of_the_engine():
    assert (*presets.PRESETS, *updates.CLOSED_FORM) == _names.ATTACKS
    assert tuple(models.CLASSIFIERS) == _names.MODELS
    assert tuple(models.ACTIVATIONS) == _names.ACTIVATIONS
    assert tuple(attacks.LABEL_RULES) == _names.LABEL_RULES
    assert tuple(defenses.CLIENT_DEFENSES) == _names.DEFENSES
    assert tuple(cells.TABLES) == options.TABLES
    assert party_records.SHADOW_INITS == options.STARTS
    assert get_args(parties.FieldName) == party_records.FIELDS
    assert get_args(parties.OptimizerName) == tuple(parties.OPTIMIZERS)
    said = re.search(
        r'"""Defense of the real run, one in each run: (.*?), or FILE.py:NAME',
        inspect.getsource(parties.SplitSetup),
        re.DOTALL,
    )
    assert re.split(r",\s+", said[1]) == ["none", *defenses.SPLIT_DEFENSES]
