"""What a study of defenses prints, draws, and leaves in its report."""

import math
from typing import Any

import numpy as np
from rich.table import Column, Table

from experiments._defenses.verdicts import Verdict, verdicts
from jaxleak._own_files import short_name
from jaxleak.study import RunFolder, plots, reports
from jaxleak.study.rows import console, print_grouped, show_table, value_of
from jaxleak.study.runner import Result, Runner
from jaxleak.study.updates import (
    Inversion,
    by_local_steps,
    draw_reconstructions,
    kind_of_defense,
    leak_order,
    reads_nothing,
    steps_in_words,
    unhelped,
)

_HEADER = (
    "defense", "strength", "steps", "accuracy", "change", "leak, PSNR dB", "adaptive, dB", "no prior, dB",
    "leak change, dB", "SSIM", "adaptive SSIM", "no prior SSIM", "recognised", "adaptive recognised", "grey, dB",
    "average, dB", "cosine distance", "labels", "adaptive labels", "bits/entry", "true epsilon",
)  # fmt: skip
#: Least width of a terminal, in characters, for all columns in one table; a narrower terminal gets several tables.
_WIDTH = 220
_PARTS = ((3, 4), (5, 6, 7), (8, 14, 15), (9, 10, 11), (12, 13), (16, 17, 18), (19, 20))
#: Largest number of reconstructions on a contact sheet.
_SHEET_ROWS = 12
#: Explanation in the report of how the numbers were made.
METHOD = (
    "Every point is one defense at one strength. Accuracy is that of the same federated training with the defense, on "
    "samples held out. The leak is the PSNR of what the attack finds in one upload, images matched one to one. A grey "
    "image shows nothing, and the average training image is a blur that often scores more than the grey one: only an "
    "answer above both may show a sample, so look at the pictures and at the share recognised. Labels: the share of "
    "the batch's labels that the attacker got right, in any order. Changes are against the run without defense and "
    "with the same local steps, the leak's that of the best attacker. Who knows noise of a known likelihood compares "
    "by it, not by the attack's own distance: once with a prior of photographs and once with next to none. Bits per "
    "entry: without a defense 32.",
)
#: Captions of the figures, by patterns of their names.
CAPTIONS = {
    "*-images.png": "Private images above what the first attacks reconstruct with the first seed, with the mean PSNR.",
    "*": "What each defense costs in accuracy, and what leaks through it. Points at the top left are best. Dashed: the "
    "attacker does not know the defense; solid: it knows the defense and its strength.",
}


def cells_of(row: dict[str, Any]) -> list[str]:
    """The printed columns of a row that was run."""
    epsilon, plain = row.get("true_epsilon"), row["defense"] is None and row["clients"] == 1
    return [
        short_name(row["defense"] or "") or ("none" if plain else "secure_aggregation"),
        "" if plain else f"{row['strength']:g}",
        str(row["local_steps"]),
        "diverged" if row["diverged"] else _with_spread(row, "accuracy", 3),
        "" if plain else _with_spread(row, "accuracy_change", 3, sign="+"),
        _with_spread(row, "psnr", 1),
        _with_spread(row, "psnr_adaptive", 1),
        _with_spread(row, "psnr_adaptive_weak", 1),
        "" if plain else _with_spread(row, "leak_change", 1, sign="+"),
        f"{row['ssim']:.2f}",
        value_of("ssim_adaptive", ".2f")(row),
        value_of("ssim_adaptive_weak", ".2f")(row),
        f"{row['recognised']:.0%}",
        value_of("recognised_adaptive", ".0%")(row),
        f"{row['psnr_grey']:.1f}",
        f"{row['psnr_average']:.1f}",
        f"{row['cosine_distance']:.2g}",
        f"{row['label_accuracy']:.0%}",
        value_of("label_accuracy_adaptive", ".0%")(row),
        f"{row['bits_per_entry']:.3g}",
        "" if epsilon is None else f"{epsilon:.3g}",
    ]


def _with_spread(row: dict[str, Any], name: str, digits: int, *, sign: str = "") -> str:
    if not math.isfinite(row.get(name, math.nan)):
        return ""
    spread = f" +- {row[f'{name}_spread']:.{digits}f}" if len(row["seeds"]) > 1 else ""
    return f"{row[name]:{sign}.{digits}f}{spread}"


def show(rows: list[dict[str, Any]]) -> None:
    """Print the rows that ran, as one table if the terminal is wide enough, then the others with their reasons."""
    ran = [cells_of(row) for row in rows if "accuracy" in row]
    terminal = console()
    if ran and terminal.width >= _WIDTH:
        show_table(_HEADER, ran)
    for part in _PARTS if ran and terminal.width < _WIDTH else ():
        table = Table(
            Column(_HEADER[0], overflow="fold", min_width=24), *(Column(_HEADER[n], overflow="fold") for n in part)
        )
        for cells in ran:
            table.add_row(_named(*cells[:3]), *(cells[n] for n in part))
        terminal.print(table)
    for text in reads_nothing(rows).values():
        print(text)
    print_grouped("not run", [(row["not_run"], row["id"]) for row in rows if row.get("not_run")])


def _named(defense: str, strength: str, steps: str) -> str:
    """A short name of a study's point: defense, strength, and the number of local steps unless it is 1."""
    return " ".join(filter(None, (defense, strength))) + ("" if steps == "1" else f", {steps} steps")


def figure_name(study: str, steps: int) -> str:
    """The file's name of a study's figure for clients of so many local steps."""
    return f"{study}-steps{steps}.png"


def draw(
    folder: RunFolder, study: str, rows: list[dict[str, Any]], runner: Runner, attacks: dict[str, Inversion]
) -> None:
    """Draw the trade-off, and what the attacks reconstruct with the first seed.

    Args:
        folder: run folder, which gets the figures.
        study: name of the study.
        rows: rows of the study's points.
        runner: runner that keeps the reconstructions.
        attacks: attacks by their label on the contact sheet; those that did not run are left out.
    """
    ran = [row for row in rows if "accuracy" in row]
    if not ran:
        return
    silent = reads_nothing(ran)
    for steps, those in by_local_steps(ran).items():
        curves: dict[str, list[dict[str, Any]]] = {}
        undefended = None
        for row in those:
            if row["defense"] is None and row["clients"] == 1:
                undefended = (row["psnr"], row["accuracy"])
            if row["defense"] is not None or study == "fedleak-fig7":
                curves.setdefault(row["curve"].removesuffix(f", {steps} steps"), []).append(row)
        grey, average = (float(np.mean([row[f"psnr_{of}"] for row in those])) for of in ("grey", "average"))
        title = f"{study}, {steps_in_words(steps)}: " + (
            "the attack reads nothing even without a defense,\nso that this figure says nothing about the defenses"
            if steps in silent
            else "a number beside a point is the defense's strength"
        )
        plots.trade_off(
            folder.figure(figure_name(study, steps)),
            curves,
            undefended=undefended,
            grey=grey,
            average=average,
            title=title,
        )
    if results := _of_the_same_images(runner, attacks, ran[0]["seeds"][0]):
        draw_reconstructions(folder.figure(f"{study}-images.png"), results)


def _of_the_same_images(runner: Runner, attacks: dict[str, Inversion], seed: int) -> dict[str, Result]:
    """Results by label of attacks that ran on the same batch, at most as many as a sheet has room for."""
    ran = {label: runner(job, seed) for label, job in attacks.items() if runner.done(job, seed)}
    # Batches of other sizes hold other images, and one sheet cannot compare different images.
    shapes = {label: result.arrays["truth"].shape for label, result in ran.items()}
    same = [label for label, shape in shapes.items() if shape == next(iter(shapes.values()))]
    return {label: ran[label] for label in same[:_SHEET_ROWS]}


def sections(
    study: str, rows: list[dict[str, Any]], settings: list[str], outcomes: list[dict[str, Any]]
) -> list[reports.Section]:
    """The sections of a study that was run here.

    Args:
        study: name of the study.
        rows: rows of the study's points.
        settings: sentences on the settings, each a list item.
        outcomes: statements of the paper without a number to compare with ours.
    """
    ran = [row for row in rows if "accuracy" in row]
    found = [
        reports.Section(study, [reports.bullets(settings)], _HEADER, [cells_of(row) for row in ran]),
        *judged(study, verdicts(study, rows)),
    ]
    if printed := [cell for row in ran for cell in row["printed"]]:
        shown = [[c["id"], c["metric"], f"{c['relation']} {c['paper']:g}", f"{c['ours']:.3g}"] for c in printed]
        text = (
            "The paper's numbers, read off its figure by its authors, on other data and a larger model. Beside them "
            "stands, for a PSNR, that of the best match, where several images may share a reconstruction:"
        )
        found.append(reports.Section(f"{study}: the paper", [text], ("cell", "metric", "paper", "ours"), shown))
    if outcomes:
        said = [f"`{o['id']}`: {o['outcome']}, {o['relation']} {o['paper']:g} {o['unit']}" for o in outcomes]
        found.append(reports.Section(f"{study}: what the paper says besides", [reports.bullets(said)]))
    found += readings(study, {name: kind_of_defense(name).interpretation for row in ran if (name := row["defense"])})
    if orders := leak_order(ran) + unhelped(ran):
        text = "From least leak to most (mean over seeds of the best attacker, among those who have a number above):"
        found.append(reports.Section(f"{study}: the order of the defenses", [text, reports.bullets(orders)]))
    return found


def judged(study: str, conclusions: list[Verdict]) -> list[reports.Section]:
    """A section with the paper's conclusions beside ours; empty if there are none."""
    words = {True: "holds", False: "does not hold", None: "not run"}
    shown = [[v.where, v.paper, v.ours, words[v.holds]] for v in conclusions]
    heading = f"{study}: what the paper concludes, and whether it holds here"
    return [reports.Section(heading, (), ("", "paper", "ours", ""), shown)] if shown else []


def readings(study: str, own: dict[str, str]) -> list[reports.Section]:
    """A section on defenses that differ from the published ones, if any; `own` maps a defense to the difference."""
    told = [f"{name}: {text}." for name, text in own.items() if text]
    heading = f"{study}: not as published, or not published in full"
    return [reports.Section(heading, [reports.bullets(told)])] if told else []
