"""Studies of defenses that the runners of the CAFE and VFLRecon tables carry out; here they are only put together."""

import json
import os
from pathlib import Path
from typing import Any

from experiments import _plots, cafe_tables, vflrecon
from experiments._defense_report import table

CAFE = {"cafe-fake-gradients": "fake-gradients", "cafe-table11": "table11"}
VFL = {"vfl-table5": "table5", "vfl-table6": "table6"}
DELEGATED = (*CAFE, *VFL)
#: Private images. Who knows of fake gradients solves one system per feature: 21 GB for the paper's 800, 1.3 for these.
NUM_SAMPLES = {"cafe-fake-gradients": 200, "cafe-table11": 800}


def check(studies: tuple[str, ...], seeds: tuple[int, ...]) -> None:
    """Raise `ValueError` where a runner could not do what is asked for."""
    vertical = [study for study in studies if study in VFL]
    if vertical and seeds != tuple(range(len(seeds))):
        raise ValueError(f"{', '.join(vertical)} counts seeds from 0: seeds must be 0 to n - 1, got {seeds}")


def run(
    study: str, out: Path, *, seeds: tuple[int, ...], budget: float, iterations: int, fresh: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a study by its own module, in a folder below `out`.

    Args:
        study: one of `DELEGATED`.
        out: run folder of the whole command.
        seeds: for VFL studies 0 to n - 1.
        budget: minutes > 0.
        iterations: of CAFE's training under defenses (Table 11), where the paper has 8,000.
        fresh: forget what is there.

    Returns:
        Rows with `id`, `paper`, `ours`, `spread` or `not_run`; and figures, relative to `out`.
    """
    folder = out / study
    if study in CAFE:
        tables: Any = (CAFE[study],)
        cafe_tables.main(
            cafe_tables.Args(
                table=tables,
                budget=budget,
                seeds=seeds,
                iterations=iterations,
                images=4,
                num_samples=NUM_SAMPLES[study],
                out=folder,
                fresh=fresh,
            )
        )
    else:
        vflrecon.main(
            vflrecon.Args(
                table=(VFL[study],),  # type: ignore[arg-type]
                shadow_init=("shared",),
                seeds=len(seeds),
                budget=budget,
                out=folder,
                fresh=fresh,
            )
        )
    rows = json.loads((folder / "results.json").read_text())["cells"]
    if study in VFL:
        curves = trade_off_curves(rows)
        if curves:
            _plots.trade_off(
                folder / "figures" / f"{study}.png",
                curves,
                title=study,
                xlabel="label accuracy of the attack, % (leak)",
                ylabel="change of task accuracy, %",
            )
    figures = [os.path.relpath(path, out) for path in sorted((folder / "figures").glob("*.png"))]
    return rows, figures


def trade_off_curves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Points of a VFL table, by curve: the task's accuracy change against the label accuracy of both attackers.

    A defense without strength is a curve of one point. Only points whose both halves ran are there.
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


def markdown(study: str, rows: list[dict[str, Any]], figures: list[str]) -> str:
    """The section of such a study: paper, ours, spread, and what was not run."""
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
    lines = [f"## {study}", "", *(f"![{name}]({name})" for name in figures), ""]
    lines += [*table(("cell", "paper", "ours", "unit", "note"), ran), ""]
    diverged = [row["id"] for row in rows if isinstance(row["ours"], str)]
    if diverged:
        lines += [f"Diverged, so that there is no number: {', '.join(diverged)}.", ""]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["ours"] is None:
            reasons.setdefault(row["not_run"], []).append(row["id"])
    lines += [line for reason, ids in reasons.items() for line in (f"Not run ({reason}): {', '.join(ids)}.", "")]
    return "\n".join(lines)
