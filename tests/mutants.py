"""Mutation testing: small mistakes are put into the source one at a time, and the tests should notice each of them.

    make mutants                                      # the sample that docs/reliability/mutants.md reports
    python tests/mutants.py --count 20 --seed 5       # another sample

Cosmic Ray finds the places where a mistake fits, makes the mistake in a copy of the working tree, and reverts it. The
syntax tree shows which tests mention names that the mutated module defines, directly or through helpers of their file.
These tests run until one fails, and tests that mention rare names run first. Then whole test files run: those with most
of the module's own names, those of the same area, and the conventions that hold everywhere. A mutant survives if all
pass. Tests that pytest does not collect here (slow tests and those of missing libraries) are not picked, since they
could not fail. Results are stored line by line, and a second call continues after the last line. At the end, a file of
the same name that ends in .json summarises them.
"""

import argparse
import ast
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import cosmic_ray.ast
import cosmic_ray.mutating
import cosmic_ray.plugins
import numpy as np
import pytest
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]

#: Source files that are mutated, since a mistake there could change a measured number.
SOURCES = ("jaxleak/**/*.py",)

#: The part of the library that is not mutated: it only stores and draws measured numbers.
NOT_MEASURED = "jaxleak/study/*.py"

#: Mistakes that a person could make, by family. The sample takes turns between families, since most places are numbers.
#: Exchanged operators that only cause a type error would inflate the score, and are left out.
MISTAKES = {
    "arithmetic": (
        *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul")),
        *(
            "ReplaceBinaryOperator_FloorDiv_Mul",
            "ReplaceBinaryOperator_Mod_FloorDiv",
            "ReplaceUnaryOperator_Delete_USub",
        ),
    ),
    "comparison": tuple(
        f"ReplaceComparisonOperator_{pair}"
        for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "Gt_LtE", "Eq_NotEq", "Is_IsNot")
    ),
    "logic": (
        *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
        *("ReplaceUnaryOperator_Delete_Not", "AddNot", "ZeroIterationForLoop"),
    ),
    "number": ("NumberReplacer",),
}

#: Largest number of tests per mutant; those that mention most names of its module are chosen.
TESTS_PER_MUTANT = 25

#: Number of whole test files per mutant that are chosen because they mention its module's own names.
FILES_PER_MUTANT = 3

#: Test files by area that run as a whole, after the single tests.
AREAS = {
    "jaxleak/attacks/_cafe": ("attacks_cafe", "cafe_exact", "cafe_censored", "least_squares", "feature_inversion"),
    "jaxleak/attacks/_inversion": (
        *("inversion", "priors", "presets", "row_space", "smoothing", "label_rules", "white_point", "loss_probe"),
    ),
    "jaxleak/attacks/_vertical": ("vflrecon", "vflrecon_free", "vfl_selection"),
    "jaxleak/attacks/adaptive": ("adaptive", "adaptive_noise"),
    "jaxleak/attacks/presets": ("presets", "inversion"),
    "jaxleak/audit": ("audit", "reliability", "checks", "verdict", "agreement"),
    "jaxleak/capture": ("capture",),
    "jaxleak/_command/cafe_scale": ("cli", "resumed", "sources"),
    "jaxleak/_command/invert": ("invert", "captured_payload", "resumed"),
    "jaxleak/_command": ("command",),
    "jaxleak/data": ("data", "data_images", "encoding", "partitions", "client_partitions"),
    "jaxleak/defenses": ("defenses", "defense_dp", "defense_updates", "defense_representation", "vfl_defenses"),
    "jaxleak/metrics": ("metrics",),
    "jaxleak/models/_door": (
        "door",
        "door_kinks",
        "door_layers",
        "from_torch",
        "torch_normalisation",
        "torch_operators",
        "capture",
    ),
    "jaxleak/models": ("models", "classifiers", "activations", "conv", "fast_convolutions", "weights"),
    "jaxleak/objectives": ("objectives", "distances", "gradient_regularization"),
    "jaxleak/study/updates": ("invert", "grants", "poison", "generative", "fedleak", "defense_study"),
    "jaxleak/study/rounds": ("cafe_tables", "grants", "poison"),
    "jaxleak/study/parties": ("vfl_problem", "vfl_tables", "grants", "poison"),
    "jaxleak/protocols": ("protocols", "client", "federated_averaging", "split_training", "encryption"),
    "jaxleak/_validate": ("validate", "refusals"),
    "jaxleak/_compiled": ("compiled",),
    "jaxleak/": ("threats", "checkpoint", "public_names"),
    "experiments/_cafe": ("cafe_tables", "grants", "poison"),
}

#: Test files that apply to every module.
CONVENTIONS = ("signatures",)

#: Seconds after which a round of tests is stopped, since a mistake may cause an endless loop.
PATIENCE = 600


def mutations(mistakes: Iterable[str]) -> list[MutationSpec]:
    """Every place in `SOURCES` (without `NOT_MEASURED`) where one of these mistakes fits, in a fixed order."""
    operators = {mistake: cosmic_ray.plugins.get_operator(f"core/{mistake}")() for mistake in mistakes}
    found = []
    for path in sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)} - set(ROOT.glob(NOT_MEASURED))):
        nodes = list(cosmic_ray.ast.ast_nodes(cosmic_ray.ast.get_ast_from_path(path)))
        skipped = _without_effect(ast.parse(path.read_text()))
        for mistake, operator in operators.items():
            places = (place for node in nodes for place in operator.mutation_positions(node))
            for occurrence, (start, end) in enumerate(places):
                if not any(first <= start[0] <= last for first, last in skipped):
                    name = str(path.relative_to(ROOT))
                    found.append(MutationSpec(name, f"core/{mistake}", occurrence, start, end))
    return found


def sample(count: int, seed: int) -> tuple[list[MutationSpec], int]:
    """Draw `count` mutants in turn from the families of mistakes; returns them and the number of all mutants."""
    rng = np.random.default_rng(seed)
    families = [mutations(mistakes) for mistakes in MISTAKES.values()]
    shuffled = [[family[i] for i in rng.permutation(len(family))] for family in families]
    turns = [spec for turn in itertools.zip_longest(*shuffled) for spec in turn if spec is not None]
    return turns[:count], len(turns)


def _without_effect(tree: ast.Module) -> list[tuple[int, int]]:
    """Lines where a mutation has no effect to test: decorators (caches and compilation) and texts of error messages."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines += [(part.lineno, part.end_lineno or part.lineno) for part in node.decorator_list]
        if isinstance(node, ast.JoinedStr):
            lines.append((node.lineno, node.end_lineno or node.lineno))
    return lines


def collected() -> set[str]:
    """The tests that run here, as "file::function" or "file::class".

    Pytest ends with an error if it is asked for other tests, and this is not the failure of a test.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "--no-header", "-p", "no:cacheprovider", "tests"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {"::".join(line.split("[")[0].split("::")[:2]) for line in listed if line.startswith("tests/")}


def covering(available: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """The available tests and test files for every source file; those that mention rare names come first."""
    found = (_tests(path) for path in sorted((ROOT / "tests").glob("test_*.py")))
    tests = {name: words for named in found for name, words in named.items() if name in available}
    frequency = Counter(word for words in tests.values() for word in words)
    sources = [path for top in ("jaxleak", "experiments") for path in sorted((ROOT / top).rglob("*.py"))]
    imported = {path: _imports(path) for path in sources}
    covered = {}
    modules = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources}
    for path in sources:
        group, weights, files = {modules[path]}, Counter(), Counter()
        for nearness in (1.0, 0.1, 0.01):  # the module; its importers; their importers
            names = {name for user in sources if modules[user] in group for name in _defines(user)}
            for test, words in tests.items():
                weight = sum(1 / frequency[word] for word in names & words)
                weights[test] += nearness * weight
                if nearness == 1 and weight:
                    files[test.split("::")[0]] += weight
            group = {modules[user] for user, found in imported.items() if group & found}
        ranked = sorted((test for test in weights if weights[test]), key=lambda test: (-weights[test], test))
        whole = [file for file, _ in files.most_common(FILES_PER_MUTANT)]
        covered[str(path.relative_to(ROOT))] = (ranked[:TESTS_PER_MUTANT], whole)
    return covered


def _tests(path: Path) -> dict[str, set[str]]:
    """The tests of a file, each with all words in it and in the file's helpers, fixtures and tables that it uses."""
    own = {}
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        for target in targets:
            name = getattr(target, "name", getattr(target, "id", None))
            if name is not None:
                own[name] = own.get(name, set()) | _mentions(node)
    found = {}
    for name in own:
        if name.lower().startswith("test"):
            words, before = own[name], set()
            while words != before:
                words, before = words.union(*(own[word] for word in words & own.keys())), words
            found[f"tests/{path.name}::{name}"] = words
    return found


def _mentions(tree: ast.AST) -> set[str]:
    words = set()
    for node in ast.walk(tree):
        fields = ("id", "attr", "name", "arg")
        words |= {getattr(node, field) for field in fields if isinstance(getattr(node, field, None), str)}
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    return words


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def _defines(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def fail_by_themselves(failed: list[str], picked: Iterable[str], known: dict[tuple[str, ...], bool]) -> bool:
    """Whether tests also fail or cannot run without a mutation, so that their failure means nothing.

    Args:
        failed: the test that failed, or an empty list if pytest named none.
        picked: the tests that were run.
        known: results of earlier calls.
    """
    tests = tuple(failed or picked)
    if tests not in known:
        code = subprocess.run(shlex.split(_command(tests)), capture_output=True, timeout=PATIENCE).returncode
        # A case that exists only in the mutant (which may lengthen a list of cases) is not found without the mutation.
        known[tests] = code not in ((0, pytest.ExitCode.USAGE_ERROR) if failed else (0,))
    return known[tests]


def run(
    chosen: list[MutationSpec], tests_of: dict[str, tuple[list[str], list[str]]], available: set[str], results: Path
) -> Iterator[dict[str, str]]:
    """Test every mutant without a line in `results`; yields the lines of all mutants.

    Raises:
        RuntimeError: if tests fail without any mutation, or a mutation cannot be made.
    """
    done = {row["mutant"]: row for row in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    known: dict[tuple[str, ...], bool] = {}
    runnable = {test.split("::")[0] for test in available}
    for spec in chosen:
        name = _name(spec)
        if name not in done:
            path = str(spec.module_path)
            area = next(files for area, files in AREAS.items() if path.startswith(area))
            tests, own = tests_of[path]
            whole = dict.fromkeys([*own, *(f"tests/test_{file}.py" for file in (*area, *CONVENTIONS))])
            row = {"mutant": name, "outcome": "survived", "by": ""}
            for part in filter(None, (tests, [file for file in whole if file in runnable])):
                found = cosmic_ray.mutating.mutate_and_test((spec,), _command(part), PATIENCE)
                if found.test_outcome is TestOutcome.INCOMPETENT or found.diff is None:
                    raise RuntimeError(f"{name} could not be made: {found.output}")
                row["diff"] = found.diff
                if found.test_outcome is TestOutcome.KILLED:
                    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", found.output or "", re.MULTILINE)
                    given_up = found.output == "timeout"
                    # Without a failed test, either Python itself ended or pytest could not run the picked tests.
                    if not given_up and fail_by_themselves(failed[:1], part, known):
                        raise RuntimeError(f"{' '.join(failed[:1] or part)} fails without any mutation")
                    row["outcome"] = "given up" if given_up else "killed"
                    row["by"] = failed[0] if failed else ""
                    break
            done[name] = row
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield done[name]


def _command(tests: Iterable[str]) -> str:
    return shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests])


def _name(spec: MutationSpec) -> str:
    return f"{spec.module_path}:{spec.start_pos[0]}:{spec.start_pos[1]} {spec.operator_name} {spec.occurrence}"


def _in_a_copy() -> Path:
    """Copy the working tree without ignored files, so that source files of the copy may be changed."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    copy = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in filter(None, files):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def main() -> None:
    """Draw the sample, test it, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=80, help="size of the sample")
    parser.add_argument("--seed", type=int, default=0, help="draws the sample")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="keeps the results")
    args = parser.parse_args()
    chosen, everything = sample(args.count, args.seed)
    available = collected()
    tests_of = covering(available)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # Programs of unchanged code are compiled once.
    cache = {"JAX_COMPILATION_CACHE_DIR": str(args.out.parent / "compiled")}
    os.environ |= cache | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
    copy = _in_a_copy()
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)  # commands that tests start in other folders also run the mutated code
    try:
        rows = []
        for row in run(chosen, tests_of, available, args.out.resolve()):
            rows.append(row)
            print(f"{len(rows)}/{len(chosen)} {row['outcome']}: {row['mutant']}", flush=True)
    finally:
        shutil.rmtree(copy)
    survivors = [row for row in rows if row["outcome"] != "killed"]
    print(f"{len(rows) - len(survivors)} of {len(rows)} mutants noticed, drawn with seed {args.seed} of {everything}")
    metrics = {"made": len(rows), "noticed": len(rows) - len(survivors), "places": everything}
    kept = [{name: row[name] for name in ("mutant", "outcome", "by")} for row in rows]
    command = f"python tests/mutants.py --count {args.count} --seed {args.seed}"
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    summary = {"command": command, "commit": commit.stdout.strip(), "metrics": metrics, "mutants": kept}
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    for row in survivors:
        print(f"\n{row['outcome']}: {row['mutant']}\n{row['diff']}")


if __name__ == "__main__":
    main()
