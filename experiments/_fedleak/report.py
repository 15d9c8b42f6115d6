"""Print and draw the results of FedLeak's tables; nothing here runs an attack."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # subpackages load when they are first used
from rich.table import Table

from experiments._fedleak.jobs import Job
from jaxleak.study import RunFolder, plots
from jaxleak.study.files import write_json
from jaxleak.study.rows import console, print_grouped, show_cells, value_of
from jaxleak.study.runner import Result, Runner
from jaxleak.study.updates import draw_distances, draw_reconstructions
from jaxleak.study.updates.diagnostics import STRENGTHS

#: Tables that sweep one setting and therefore show a trend.
SWEEPS = ("table9", "table15", "table16", "table17", "table18", "table19")

#: Captions of the figures, by patterns of their names.
CAPTIONS = {
    "*distance.png": "The distance that each attack minimises, over its iterations. Different attacks minimise "
    "different functions, so that their heights do not compare.",
    "sign_noise.png": "How far the client's gradient moves when noise of one sign per pixel is added to the images.",
    "steepness.png": "2 mu / L along the way of each attack. It is computed with the truth, which no attack sees.",
    "parabola-*.png": "Gradient descent on x^2 from 0.5, plain and with 0.3 of a second gradient. That is the gradient "
    "where the step would lead, as in the paper's example, or a short way up the slope, as in its Equation 13.",
    "*": "Private images above what every attack on them reconstructs, with its mean PSNR. Higher leaks more.",
}


#: Labels in the legend of Figure 10, by the choice of the point for the second gradient.
_BLENDED = {"step": "with the next point's gradient", "ascent": "with the gradient uphill"}
#: Columns beside a cell's number: heading to the function that gives the text.
BESIDE = {
    "grey": value_of("psnr_grey"),
    "one-to-one": value_of("psnr"),
    "up to scale": value_of("psnr_up_to_scale"),
    "cosine": value_of("cosine_distance"),
    "labels": value_of("label_accuracy", ".0%"),
}


def show(rows: list[dict[str, Any]]) -> None:
    """Print paper, ours and difference; the cells that did not run and why; and whether the paper's trends hold."""
    show_cells(rows, BESIDE)
    print_grouped("as run", [(row["note"], row["id"]) for row in rows if row.get("note")])
    for name in SWEEPS:
        if verdict := trend([row for row in rows if row["id"].startswith(f"{name}/") and row["ours"] is not None]):
            print(f"{name}: {verdict}")


def trend(rows: Sequence[dict[str, Any]]) -> str:
    """Compare the paper's best cell with ours: the margin in dB per seed, and Kendall's tau between the two orders."""
    if len(rows) < 3:
        return ""
    printed, ours = (max(rows, key=lambda row: row[name]) for name in ("paper", "ours"))
    margin = np.array(ours["values"]) - np.array(printed["values"])
    order = scipy.stats.kendalltau([row["paper"] for row in rows], [row["ours"] for row in rows]).statistic
    text = f"best in the paper {_last(printed)}, here {_last(ours)}"
    if ours is not printed:
        text += f" ({margin.mean():+.2f} dB, per seed {', '.join(f'{m:+.2f}' for m in margin)})"
    return f"{text}; Kendall's tau of the two orders {order:+.2f} over {len(rows)} cells, {len(margin)} seeds"


def label_rules(runner: Runner) -> dict[str, dict[str, dict[str, Any]]]:
    """Labels that every rule found, by data and batch size: percent with repeats counted, mean and spread over seeds.

    A rule that does not accept the batch size is left out. "distinct" is the most that a rule can find if it
    returns every label only once.
    """
    compared: dict[Job, list[Mapping[str, float]]] = {}
    for (job, _), result in runner.memory.items():
        if job.kind == "labels":
            compared.setdefault(job, []).append(result.scores)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for job, scores in compared.items():
        classes = f", {job.drawn_classes} classes drawn" if job.drawn_classes else ""
        rules = {name: 100 * np.array([of_seed[name] for of_seed in scores]) for name in scores[0]}
        found.setdefault(job.case.data + classes, {})[f"b{job.case.batch_size}"] = {
            name: {"mean": float(percent.mean()), "spread": float(percent.std())}
            for name, percent in rules.items()
            if not np.isnan(percent.mean())
        }
    return found


def show_label_rules(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Print all label rules side by side, if any were compared."""
    rows = [(name, batch, rules) for name, batches in found.items() for batch, rules in batches.items()]
    if not rows:
        return
    names = dict.fromkeys(name for _, _, rules in rows for name in rules if name != "distinct")
    table = Table("data", "B", "distinct labels at most", *names, title="labels found, %, repeats counted")
    for name, batch, rules in rows:
        cells = [f"{rules[n]['mean']:.1f}+-{rules[n]['spread']:.1f}" if n in rules else "-" for n in names]
        table.add_row(name, batch.removeprefix("b"), f"{rules['distinct']['mean']:.1f}", *cells)
    console().print(table)


def draw(folder: RunFolder, runner: Runner, seed: int) -> None:
    """Draw contact sheets and distance curves of runs on the same images, and the gradient distance by noise."""
    groups: dict[bytes, list[tuple[Job, Result]]] = {}
    for (job, of_seed), result in runner.memory.items():
        if of_seed == seed and "truth" in result.arrays:
            groups.setdefault(result.arrays["truth"].tobytes(), []).append((job, result))
    stored = []
    for number, members in enumerate(groups.values()):
        case = members[0][0].case
        name = f"{number}-{case.data.partition(':')[0]}-b{case.images}"
        jobs = [job for job, _ in members]
        results = {describe(job, jobs): result for job, result in members}
        draw_reconstructions(folder.figure(f"{name}.png"), results)
        draw_distances(folder.figure(f"{name}-distance.png"), results)
        for label, result in results.items():
            curve = result.arrays["curve"]
            stored.append({"run": label, "group": name, "distance": curve[:: max(1, len(curve) // 200)]})
    noise = {
        job.case.data: (np.array(STRENGTHS), np.array([result.scores[f"noise{s}"] for s in STRENGTHS]))
        for (job, of_seed), result in runner.memory.items()
        if job.kind == "fig1" and of_seed == seed
    }
    if noise:
        plots.curves(
            folder.figure("sign_noise.png"), noise, title="How far noise on the images moves the gradient",
            xlabel="noise of every pixel, in 1/255", ylabel="L2 distance of the gradients",
        )  # fmt: skip
    paths = {
        describe(job, [other for other, _ in runner.memory if other.kind == "path"]): result.arrays
        for (job, of_seed), result in runner.memory.items()
        if job.kind == "path" and of_seed == seed
    }
    if paths:
        positive = {label: (p["iteration"], np.maximum(p["ratio"], 1e-12)) for label, p in paths.items()}
        plots.curves(
            folder.figure("steepness.png"), positive, title="2 mu / L along each attack", xlabel="iteration",
            ylabel="2 mu / L (needs the truth)", log_y=True,
        )  # fmt: skip
    parabolas: dict[float, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for (job, of_seed), result in runner.memory.items():
        if job.kind == "fig10" and of_seed == seed:
            of_rate, x = parabolas.setdefault(job.case.step_size, {}), result.arrays["x"]
            of_rate[_BLENDED[job.case.probe] if job.case.blend else "plain descent"] = (np.arange(len(x)), x)
    for rate, series in parabolas.items():
        plots.curves(
            folder.figure(f"parabola-{rate:g}.png"), series, title="Descent on a parabola",
            xlabel=f"steps of size {rate:g} down x^2", ylabel="x (best: 0)",
        )  # fmt: skip
    write_json(folder.path / "curves.json", stored)


def describe(job: Job, others: Sequence[Job]) -> str:
    """The name of the attack, and every option in which it differs from another run on the same images."""
    mine = vars(job.case) | {"training": job.training}
    differing = [
        f"{name}={mine[name]}"
        for name in mine
        if name != "attack" and any((vars(o.case) | {"training": o.training})[name] != mine[name] for o in others)
    ]
    return " ".join([job.case.attack, *differing])


def _last(row: dict[str, Any]) -> str:
    return str(row["id"]).partition("/")[2]
