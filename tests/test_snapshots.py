"""Texts on the terminal equal those in `tests/snapshots`: help, messages and tables, at 80 columns.

After a wanted change, `JAXLEAK_UPDATE_SNAPSHOTS=1 python -m pytest tests/test_snapshots.py` writes the files anew.
"""

import functools
import importlib
import os
import sys
from pathlib import Path

import pytest

from experiments import cafe_tables
from experiments._defenses import report as defenses_report
from experiments._fedleak import report as fedleak_report
from experiments._vfl import study as vfl_study
from jaxleak.__main__ import main
from jaxleak._command.cafe_scale import report as demo_report
from jaxleak._command.invert import report as invert_report
from jaxleak.study import _command
from jaxleak.study.reports import print_measures
from jaxleak.study.rows import show_cells

FOLDER = Path(__file__).parent / "snapshots"
UPDATE = "JAXLEAK_UPDATE_SNAPSHOTS"
WIDTH, MOST_LINES = 80, 60
STUDIES = sorted(
    path.stem
    for path in (Path(__file__).parent.parent / "experiments").glob("[!_]*.py")
    if hasattr(importlib.import_module(f"experiments.{path.stem}"), "Args")
)
COMMANDS = ("", "audit", "models", "demo", "invert", "sweep")


@pytest.fixture(autouse=True)
def terminal(monkeypatch, tmp_path):
    """A terminal of 80 columns without colours, in an empty folder without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("JAXLEAK_DATA_DIR", "")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)


def widest(lines):
    """The number of columns of the widest line, without the usage, which is one line of any length."""
    return max(len(line) for line in lines if not line.startswith("usage:"))


def compare(name, text):
    """Assert that a text equals the stored one; returns its lines."""
    text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"
    file = FOLDER / f"{name}.txt"
    if os.environ.get(UPDATE):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), f"if this is wanted, run with {UPDATE}=1"
    return text.splitlines()


def study(name, *words, monkeypatch):
    """Run a study with typed options; returns its exit status."""
    module = importlib.import_module(f"experiments.{name}")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", f"experiments.{name}", *words])
    doc, groups = getattr(module, "HELP", module.__doc__), getattr(module, "GROUPS", None)
    with pytest.raises(SystemExit) as stop:
        _command.run_command(module.main, module.Args, doc, words=words, groups=groups)
    return stop.value.code


@pytest.mark.parametrize("name", STUDIES)
def test_help_of_a_study(name, monkeypatch, capsys):
    assert study(name, "--help", monkeypatch=monkeypatch) in (0, None)
    lines = compare(f"help-{name}", capsys.readouterr().out)
    assert len(lines) <= MOST_LINES
    assert widest(lines) <= WIDTH


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*filter(None, [command]), "--help"])
    assert stop.value.code in (0, None)
    lines = compare(f"help-jaxleak-{command}".removesuffix("-"), capsys.readouterr().out)
    assert len(lines) <= MOST_LINES
    assert widest(lines) <= WIDTH


#: Mistakes that a user may make, with the words of the command.
MISTAKES = {
    "typo-of-an-option": ("vflrecon", "--tabel", "table3"),
    "unknown-attack": ("invert", "--attack", "dgl"),
    "unknown-data": ("invert", "--data", "cifar11"),
    "missing-data-folder": ("invert", "--data", "cifar10"),
    "no-cell-matches": ("cafe_tables", "--only", "nothing"),
    "unread-option": ("invert", "--noise", "gaussian"),
    "budget-below-zero": ("fedleak", "--table", "table15", "--budget", "-1"),
    "seed-out-of-range": ("cafe_tables", "--seeds", "-1"),
    "unknown-fields": ("vflrecon", "--fields", "gradients"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_of_a_study(mistake, monkeypatch, capsys):
    name, *words = MISTAKES[mistake]
    code = study(name, *words, monkeypatch=monkeypatch)
    assert code not in (0, None)
    said = capsys.readouterr()
    compare(f"message-{mistake}", said.out + said.err + (code if isinstance(code, str) else ""))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown-command", ["audti"]),
        ("unknown-model", ["models", "--model", "resnet11"]),
        ("audit-without-options", ["audit"]),
        (
            "audit-of-a-missing-file",
            ["audit", "--model", "mlp", "--weights", "w.npz", "--update", "u.npz", "--out", "audit"],
        ),
    ],
)
def test_message_of_a_command(name, words, capsys):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code
    said = capsys.readouterr()
    # Some versions of argparse quote the choices.
    compare(f"message-{name}", (said.out + said.err).replace("'", ""))


ROW = {"unit": "dB", "paper": 43.15, "ours": 125.0, "spread": 0.5, "seeds": [0, 1], "note": "", "table": "table2"}
NOT_RUN = {"id": "table2/cafe/linnaeus5", "unit": "dB", "paper": 30.1, "ours": None, "not_run": "no data: linnaeus5"}


@pytest.mark.parametrize(
    ("name", "show", "more"),
    [
        (
            "cafe_tables",
            functools.partial(show_cells, beside=cafe_tables.BESIDE),
            {"solver": "exact", "iterations": None, "images": [40], "images_asked": [40]},
        ),
        ("fedleak", fedleak_report.show, {"psnr": 120.1, "psnr_grey": 9.3, "label_accuracy": 0.5}),
        (
            "vflrecon",
            functools.partial(show_cells, beside=vfl_study.BESIDE_COLUMNS),
            {"own_bottom": 24.44, "free": 100.0, "baseline": None},
        ),
    ],
)
def test_table_of_a_study(name, show, more, capsys):
    long = "table4/a cell whose name is longer than what is left of a line/mnist"
    show([ROW | more | {"id": "table2/cafe/mnist"}, ROW | more | {"id": long, "paper": None}, NOT_RUN | {"table": "t"}])
    assert widest(compare(f"table-{name}", capsys.readouterr().out)) <= WIDTH


def test_table_of_the_defenses(capsys):
    scores = (
        "accuracy", "accuracy_change", "psnr", "psnr_adaptive", "leak_change", "ssim", "ssim_adaptive", "recognised",
        "recognised_adaptive", "psnr_grey", "psnr_average", "cosine_distance", "label_accuracy",
        "label_accuracy_adaptive", "bits_per_entry",
    )  # fmt: skip
    row = {"clients": 1, "local_steps": 12, "diverged": False, "seeds": [0, 1], "true_epsilon": 3.5e9}
    row |= dict.fromkeys(scores, 0.25) | {f"{name}_spread": 0.125 for name in scores}
    rows = [
        row | {"defense": None, "strength": 0.0, "id": "none"},
        row | {"defense": "stochastic_quantization", "strength": 8.0, "id": "bits"},
        {"id": "guardian/10", "not_run": "beyond the budget"},
    ]
    defenses_report.show(rows)
    assert widest(compare("table-defenses", capsys.readouterr().out)) <= WIDTH


def test_scores_have_the_names_that_a_person_would_say(capsys):
    _command.print_metrics({"psnr": 31.25, "psnr_spread": 0.0, "ssim": 0.93, "seeds": 1, "status": "complete"})
    compare("scores-of-one-seed", capsys.readouterr().out)


@pytest.mark.parametrize("several", [False, True], ids=["one-seed", "seeds"])
def test_scores_of_an_inversion_are_those_of_its_report(several, capsys):
    found = {"psnr": 57.8739, "psnr_grey": 10.7113, "ssim": 0.9999, "recognised": 1.0, "label_accuracy": 1.0}
    found |= {
        "gradient_matched": 1.0,
        "cosine_distance": 6.6e-06,
        "cosine_distance_random": 0.31,
        "seconds": 44.5,
        "psnr_spread": 7.76,
        "seeds": 3,
    }
    print_measures((*invert_report.MEASURES, *(invert_report.SPREAD if several else ())), found)
    compare("scores-of-invert" + "-seeds" * several, capsys.readouterr().out)


def test_scores_of_the_demo_are_those_of_its_report(capsys):
    found = {"answered_fraction": 1.0, "certified_fraction": 0.97, "label_accuracy": 1.0, "psnr_mean": 114.2137}
    found |= {"psnr_min": 110.9, "ssim_mean": float("nan"), "output_condition": 812.3, "seconds_step_3": 21.7}
    found |= {"output_gradient_relative_error": 4.1e-07, "feature_relative_error": 6.0e-07}
    print_measures(demo_report.MEASURES, found)
    compare("scores-of-demo", capsys.readouterr().out)


def test_the_list_of_models(capsys):
    assert main(["models"]) == 0
    assert widest(compare("models", capsys.readouterr().out)) <= WIDTH
