"""A study's report.md: its command restores the same options, and it lists everything that ran or did not run."""

import dataclasses
import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro
from tiny_studies import studies  # noqa: F401

from experiments import cafe_scale, fedleak, invert, vflrecon
from experiments._fedleak.jobs import Replacements
from jaxleak.study import RunFolder, plots
from jaxleak.study.cell_reports import write_cells, write_rows
from jaxleak.study.distributed import Devices
from jaxleak.study.reports import Section, command_line, write_markdown
from jaxleak.study.rows import value_of
from jaxleak.study.updates import Case, Federation

CHANGED = {
    "cafe_tables": {"table": ("table2",), "seeds": (1, 2), "datasets": ("mnist",), "budget": 2.5},
    "fedleak": {"table": ("table15",), "sizes": Replacements(exact_kinks=True, width=8), "only": "a b"},
    "defenses": {"study": ("further",), "federation": Federation(rounds=3), "adaptive": False},
    "invert": {"case": Case(model="mlp", tv=0.5, mean=(0.1, 0.2), far=True), "seeds": (1, 2), "devices": 2},
    "cafe_scale": {"preset": "mnist", "num_samples": 9, "where": Devices(coordinator="a:1", num_processes=2)},
    "vflrecon": {"features": False, "shadow_init": ("shared",), "data": ("npz:a file",)},
}


@pytest.mark.parametrize("study", CHANGED)
def test_the_command_of_a_report_gives_the_options_back(study):
    arguments = importlib.import_module(f"experiments.{study}").Args
    options = dataclasses.replace(arguments(), **CHANGED[study])
    program, *words = shlex.split(command_line("study", dataclasses.replace(options, fresh=True, out=Path("away"))))
    assert program == "study"
    assert tyro.cli(arguments, args=words) == options


def test_options_of_dataclasses_in_options_have_their_prefix():
    changed = fedleak.Args(warm=dataclasses.replace(fedleak.Args().warm, rounds=7))
    words = shlex.split(command_line("study", changed))
    assert words == ["study", "--warm.rounds", "7"]
    assert tyro.cli(fedleak.Args, args=words[1:]) == changed


def test_a_report_has_the_sections_the_reasons_and_every_picture_with_its_caption(tmp_path):
    folder = RunFolder(tmp_path / "run", "study", {}, fresh=False)
    for name in ("loss-a.png", "other.png"):
        plots.curves(folder.figure(name), {"a": ([1, 2], [1, 2])}, xlabel="x", ylabel="y")
    sections = [
        Section("Found", ("A sentence.",), ("what", "value"), [["one", "1"]]),
        Section("Nothing", (), ("what",)),
    ]
    write_markdown(
        folder, "A study", command="study --a 1", seeds=(0, 3), sections=sections, answer="It is one.",
        method=("A method.",), not_run={"no data": ["b", "c"]},
        captions={"loss-*": "The loss.", "nothing.png": "Not drawn."},
    )  # fmt: skip
    text = (folder.path / "report.md").read_text()
    found = "## Found\n\nA sentence.\n\n| what | value |\n| --- | --- |\n| one | 1 |\n"
    assert text.startswith(f"# A study\n\n**It is one.**\n\n{found}")
    assert "## Nothing\n\n## Pictures\n\n![The loss.](figures/loss-a.png)\n\n*The loss.*" in text
    assert "\n## What was not run\n\n* no data: b, c\n\n## How it was made\n\nA method.\n\nSeeds: 0, 3. " in text
    assert text.endswith("\n```\nstudy --a 1\n```\n")
    assert "![other.png](figures/other.png)" in text
    assert "Not drawn" not in text
    assert str(folder.path / "report.md") in folder.contents()


def test_cells_stand_beside_the_papers_and_one_seed_has_no_spread(tmp_path):
    folder = RunFolder(tmp_path / "run", "vflrecon", {}, fresh=False, program="python -m experiments.vflrecon")
    row = {"unit": "%", "paper": 50.0, "ours": 60.25, "spread": 1.5, "note": ""}
    rows = [
        row | {"id": "table1/a", "seeds": [0, 1], "free": 99.5},
        row | {"id": "table2/b", "seeds": [0], "paper": None, "note": "with less"},
        {"id": "table2/c", "unit": "%", "paper": 1.0, "ours": None, "not_run": "no data: x"},
    ]
    write_cells(
        folder,
        "Tables",
        vflrecon.Args(seeds=2),
        rows,
        {"free": value_of("free"), "never": value_of("never")},
        seeds=range(2),
    )
    text = (folder.path / "report.md").read_text()
    assert "python -m experiments.vflrecon --seeds 2\n" in text
    assert "| a | 50 | 60.25 | 1.5 | +10.2 | % | 99.5 |" in text
    assert "| b | - | 60.25 | - | - | % |" in text
    assert "with less: table2/b." in text
    assert "* no data: x: table2/c" in text


def test_rows_of_any_study_show_their_numbers_and_words_and_leave_lists_out(tmp_path):
    folder = RunFolder(tmp_path / "run", "basin", {}, fresh=False, program="python -m experiments.basin")
    rows = [{"id": "a", "reach": 0.123456, "by_seed": [1.0], "right": True}, {"id": "b", "seeds_run": 3}]
    write_rows(folder, "Any", vflrecon.Args(), rows, seeds=(7,))
    text = (folder.path / "report.md").read_text()
    assert "python -m experiments.basin\n" in text
    assert "| id | reach | right | seeds run |\n" in text
    assert "| a | 0.1235 | True | - |\n| b | - | - | 3 |" in text
    own = RunFolder(tmp_path / "own", "mine", {}, fresh=False)
    write_rows(own, "Any", vflrecon.Args(seeds=2), rows, seeds=(7,))
    assert "\nmine --seeds 2\n" in (own.path / "report.md").read_text()


def _opens_with_the_answer_and_ends_with_the_command(text, answer, command):
    assert re.match(rf"# [^\n]+\n\n\*\*{answer}[^\n]+\*\*\n\n## Found\n", text)
    assert text.endswith(f"\n```\n{command}\n```\n")
    order = ("\n| ", "## Pictures", "## How it was made", "Seeds: ")
    assert sorted(order, key=text.index) == list(order)


def _pictures_are_there_and_captioned(folder):
    shown = re.findall(r"!\[(.+)\]\(figures/(.+)\)\n\n\*(.+)\*", (folder / "report.md").read_text())
    assert {name for _, name, _ in shown} == {path.name for path in (folder / "figures").glob("*.png")} != set()
    assert all(caption != name for caption, name, _ in shown)


def test_an_inversion_leaves_a_report(studies):  # noqa: F811
    studies.draw("invert", 0)
    studies.run("invert", seeds=(5, 7))
    text = (studies.out / "report.md").read_text()
    command = f"jaxleak invert --iterations 2 --model mlp --data {studies.spec} --pool 8 --seeds 5 7"
    _opens_with_the_answer_and_ends_with_the_command(text, "The attack recovered [0-2] of 2 images", command)
    _pictures_are_there_and_captioned(studies.out)
    assert re.findall(r"^\| (\d) \|", text, re.MULTILINE) == ["5", "7"]
    assert {path.name for path in (studies.out / "reconstructions").iterdir()} == {"seed_5.npz", "seed_7.npz"}


@pytest.mark.slow
def test_an_inversion_of_a_captured_update_leaves_a_report_without_a_truth(tmp_path):
    weights, payload, out = tmp_path / "w.safetensors", tmp_path / "p.npz", tmp_path / "out"
    case = Case(data="digits", model="mlp", pool=8, iterations=2)
    invert.main(invert.Args(case, save_payload=payload, save_weights=weights, out=tmp_path / "client"))
    args = invert.Args(dataclasses.replace(case, weights=weights), payload=payload, image_shape=(8, 8, 1), out=out)
    invert.main(args)
    text = (out / "report.md").read_text()
    _opens_with_the_answer_and_ends_with_the_command(
        text, "The attack found 1 image ", command_line("jaxleak invert", args)
    )
    _pictures_are_there_and_captioned(out)
    assert "PSNR" not in text


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exact", "nested"])
def test_cafe_at_scale_leaves_a_report(solver, tmp_path):
    args = cafe_scale.Args(
        data="digits", num_samples=8, batch_size=4, images=8, iterations=2, solver=solver, out=tmp_path
    )
    cafe_scale.main(args)
    text = (tmp_path / "report.md").read_text()
    command = f"jaxleak demo --data digits --num-samples 8 --batch-size 4 --solver {solver} --images 8 --iterations 2"
    _opens_with_the_answer_and_ends_with_the_command(text, "Gradients summed over batches of 4 samples", command)
    _pictures_are_there_and_captioned(tmp_path)
    metrics = json.loads((tmp_path / "results.json").read_text())["metrics"]
    assert f"| PSNR, mean over the samples | {metrics['psnr_mean']:.1f} dB |" in text


def test_cafe_at_several_sizes_leaves_a_report(tmp_path, monkeypatch):
    started = subprocess.run

    def run(command, **how):
        if command[0] != sys.executable:
            return started(command, **how)
        size = int(command[command.index("--num-samples") + 1])
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        names = ("seconds_steps_1_2", "peak_memory_gb", "psnr_mean", "answered_fraction", "feature_relative_error")
        (out / "results.json").write_text(json.dumps({"metrics": dict.fromkeys(names, size / 10_000)}))
        return subprocess.CompletedProcess([], returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    cafe_scale.main(cafe_scale.Args(preset="scale", out=tmp_path))
    text = (tmp_path / "report.md").read_text()
    answer = "At N = 10000 the attacker has an answer for 100.0% of the private samples"
    _opens_with_the_answer_and_ends_with_the_command(text, answer, "jaxleak demo --preset scale")
    _pictures_are_there_and_captioned(tmp_path)
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == ["1000", "3000", "10000"]
