"""Studies of defenses that the runners of the CAFE and VFLRecon tables carry out; this module only combines them."""

import os
from pathlib import Path
from typing import Any

from experiments import cafe_tables, vflrecon
from experiments._defenses.report import readings
from experiments._defenses.verdicts import orders
from jaxleak.study import plots
from jaxleak.study.files import read_json
from jaxleak.study.reports import Section

CAFE = {"cafe-fake-gradients": "fake-gradients", "cafe-table11": "table11"}
VFL = {"vfl-table5": "table5", "vfl-table6": "table6"}
DELEGATED = (*CAFE, *VFL)
#: Differences between our defenses and the published ones, by the name of the reading in a cell's id.
READINGS = {
    "fake-repaired": "the printed algorithm with its slips repaired",
    "fake-capped": "repaired, with noise in units of the whole gradient's root mean square",
    "fake-relative": "repaired, with noise in units of each tensor's root mean square",
    "fake-paired": "noise replaces entries by rank, as the text has it, in units of the whole gradient's mean square",
    "fake-paired-tensor": "noise replaces entries by rank, as the text has it, in units of each tensor's mean square",
    "direction": "VFLDefender keeping the gradients' directions, where the printed form keeps signs only",
    "batch": "VFLDefender with one random magnitude per batch",
    "label-dp": "Gaussian noise on the top's output gradient, accounted for labels; not the paper's DP-SGD",
    "gradient": "noise on the top's output gradient, another reading of the paper's place",
    "cut": "noise on the gradients that leave for the parties, another reading of the paper's place",
}
#: Number of private images. An attacker who knows of fake gradients needs 21 GB for the paper's 800 and 1.3 GB for 200.
NUM_SAMPLES = {"cafe-fake-gradients": 200, "cafe-table11": 800}


def run(
    study: str, out: Path, *, seeds: tuple[int, ...], budget: float, iterations: int, fresh: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a study by its own module, in a folder below `out`.

    Args:
        study: one of `DELEGATED`.
        out: run folder of the whole command.
        seeds: random seeds.
        budget: time budget in minutes, > 0.
        iterations: iterations of CAFE's training under defenses (Table 11); the paper has 8,000.
        fresh: whether to delete earlier results.

    Returns:
        Rows with `id`, `paper`, `ours`, `spread` or `not_run`; and figures, relative to `out`.
    """
    folder = out / study
    common: dict[str, Any] = {"seeds": seeds, "budget": budget, "out": folder, "fresh": fresh}
    common["table"] = ((CAFE | VFL)[study],)
    if study in CAFE:
        sizes: dict[str, Any] = {"iterations": iterations, "images": 4, "num_samples": NUM_SAMPLES[study]}
        cafe_tables.main(cafe_tables.Args(**sizes, **common))
    else:
        vflrecon.main(vflrecon.Args(shadow_init=("shared",), **common))
    rows = read_json(folder / "results.json", _cells)
    if study in CAFE:
        _draw_fake_gradients(out, folder)
    else:
        curves = trade_off_curves(rows)
        if curves:
            plots.trade_off(
                folder / "figures" / f"{study}.png",
                curves,
                title=study,
                xlabel="labels that the attack finds, % (further left leaks less)",
                ylabel="change of the task's accuracy, % (higher is better)",
            )
    figures = [os.path.relpath(path, out) for path in sorted((folder / "figures").glob("*.png"))]
    return rows, figures


def _cells(results: Any) -> list[dict[str, Any]]:
    return [dict(cell.items()) for cell in results["cells"]]


def trade_off_curves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Points of a VFL table by curve: the change of the task's accuracy, and both attackers' label accuracy.

    A defense without a strength gives a curve of one point. A point needs both its training and its attack to have run.
    """
    utility, label = dict[str, float](), dict[str, float]()
    for row in rows:
        name, _, rest = row["id"].partition("/")
        if row.get("ours") is None:
            continue
        if name.endswith("-utility"):
            utility[rest.removeprefix("label/")] = row["ours"]
        elif name.endswith("-label"):
            label[rest] = row["ours"]
    curves: dict[str, list[dict[str, Any]]] = {}
    for rest, change in utility.items():
        if rest not in label and f"{rest}#adaptive" not in label:
            continue
        defense, _, reading = rest.partition("#")
        digits = defense.split("/")[0].removeprefix("noise")
        swept = digits.replace(".", "", 1).isdigit()
        curve = f"noise on the {reading or 'output'}" if swept else rest
        point: dict[str, float | None] = {"strength": float(digits) if swept else 0.0, "accuracy": change}
        point |= {"psnr": label.get(rest), "psnr_adaptive": label.get(f"{rest}#adaptive")}
        curves.setdefault(curve, []).append(point)
    return curves


def _draw_fake_gradients(out: Path, folder: Path) -> None:
    """Draw CAFE's trade-off into `folder` if both the study of the attack and that of the training have run."""
    stored = [out / study / "results.json" for study in CAFE]
    if not all(path.exists() for path in stored):
        return
    curves, undefended = loss_curves([row for path in stored for row in read_json(path, _cells)])
    if curves:
        plots.trade_off(
            folder / "figures" / "fake-gradients-trade-off.png",
            curves,
            undefended=undefended,
            title="fake gradients, CIFAR-10",
            ylabel="training loss (lower is better)",
        )


def loss_curves(rows: list[dict[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], tuple[float, float] | None]:
    """Points with and without fake gradients: the training loss after the last round, and both attackers' PSNR.

    Args:
        rows: rows of the tables "text-fake-gradients" and "table11".
    """
    numbers = {row["id"]: row["ours"] for row in rows if isinstance(row.get("ours"), int | float)}
    losses: dict[str, tuple[int, float]] = {}
    leaks: dict[str, float] = {}
    for name, value in numbers.items():
        plain, _, reading = name.partition("#")
        table, row, *rest = plain.split("/")
        if table == "table11" and row in ("fake", "true"):
            done = int(rest[0].removeprefix("iter"))
            losses[reading] = max(losses.get(reading, (-1, 0.0)), (done, value))
        elif table == "text-fake-gradients":
            leaks[reading] = value
    curves: dict[str, list[dict[str, Any]]] = {}
    for reading, (done, loss) in losses.items():
        if reading in leaks and reading:
            point: dict[str, float | None] = {"strength": float(done), "accuracy": loss}
            point |= {"psnr": leaks[reading], "psnr_adaptive": leaks.get(f"{reading}#adaptive")}
            curves[reading] = [point]
    plain_point = (leaks[""], losses[""][1]) if "" in leaks and "" in losses else None
    return curves, plain_point


def sections(study: str, rows: list[dict[str, Any]], figures: list[str]) -> list[Section]:
    """Sections of the report on a delegated study: figures, paper and ours with spread, cell order, and readings."""
    ran = [
        [
            row["id"],
            "" if row["paper"] is None else f"{row['paper']:g}",
            f"{row['ours']:.4g}" + (f" +- {row['spread']:.2g}" if len(row.get("seeds", ())) > 1 else ""),
            row["unit"],
            row.get("note") or "",
        ]
        for row in rows
        if row["ours"] is not None and not isinstance(row["ours"], str)
    ]
    text = [f"![{name}]({name})" for name in figures]
    if diverged := [row["id"] for row in rows if isinstance(row["ours"], str)]:
        text.append(f"Diverged, so that there is no number: {', '.join(diverged)}.")
    found = [Section(study, text, ("cell", "paper", "ours", "unit", "note"), ran)]
    if ordered := orders(_at_the_end(rows)):
        shown = [[what, paper, ours, "holds" if paper == ours else "does not hold"] for what, paper, ours in ordered]
        heading = f"{study}: the order of the cells, smallest first"
        found.append(Section(heading, (), ("", "paper", "ours", ""), shown))
    named = {part for row in rows if row["ours"] is not None for part in row["id"].split("#")[1:]}
    return found + readings(study, {name: told for name, told in READINGS.items() if name in named})


def _at_the_end(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, where those of a training are only kept for the last iteration that ran."""

    def done(row: dict[str, Any]) -> int:
        _, found, after = row["id"].partition("/iter")
        return int(after.partition("#")[0]) if found else -1

    last = max((done(row) for row in rows if row.get("ours") is not None), default=-1)
    return [row for row in rows if done(row) in (-1, last)]
