"""FedLeak beside the attacks that it is compared with: the same images, labels, model and number of iterations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from experiments._fedleak.jobs import Job
from experiments._fedleak.report import console
from experiments._fedleak.runs import UpdateJobs
from jaxleak import _validate
from jaxleak.study import Progress, RunFolder, default_out, plots, sheets
from jaxleak.study.runner import Runner, runner_in
from jaxleak.study.updates import Case, settings

#: Attacks by the name that is printed. All of them get their labels from one rule and nothing from the truth. iDLG
#: descends by Adam, so that an iteration is one gradient for everybody; its own L-BFGS does not score better, and its
#: line search takes several.
ATTACKS = {
    "FedLeak": Case(attack="fedleak"),
    "iDLG": Case(attack="idlg", optimizer="adam"),
    "Inverting Gradients": Case(attack="inverting_gradients"),
    "SAPAG": Case(attack="sapag"),
}
#: Attacks that train a generator on public data; they are shown only where such data are named.
GENERATIVE = {"GGL": Case(attack="ggl"), "ROG": Case(attack="rog")}
LABELS = "calibrated"
ITERATIONS = 400
BATCH = 4

SHOWN = ("psnr", "psnr_best_match", "psnr_grey", "ssim", "cosine_distance", "label_accuracy", "seconds")


def main(
    seeds: tuple[int, ...], out: Path | None, *, fresh: bool, iterations: int | None, public_data: str | None
) -> dict[str, float]:
    """Attack one client's batch of natural image patches with everything; returns the metrics.

    Args:
        seeds: each changes data, weights and start together.
        out: run folder.
        fresh: forget finished runs.
        iterations: of every attack, > 0; None takes `ITERATIONS`.
        public_data: what GGL and ROG train their generators on; None leaves both out.
    """
    iterations = ITERATIONS if iterations is None else iterations
    _validate.count(iterations=iterations)
    common: dict[str, Any] = {"iterations": iterations, "labels": LABELS, "batch_size": BATCH}
    cases = {name: replace(case, **common) for name, case in ATTACKS.items()}
    if public_data is not None:
        cases |= {name: replace(case, **common, public_data=public_data) for name, case in GENERATIVE.items()}
    config = {"seeds": seeds, "public_data": public_data, **common}
    folder = RunFolder(out or default_out("fedleak", "demo"), "fedleak", config, fresh=fresh)
    print(
        f"{BATCH} image patches behind one gradient of a small ReLU ConvNet, {iterations} iterations; the attacker has "
        "the model and the gradient, and infers the labels"
    )
    if public_data is not None:
        print(f"GGL and ROG are granted a generator beyond that, trained on {public_data}")
    scores: dict[str, dict[str, list[float]]] = {}
    with Progress() as progress:
        runner = runner_in(folder, UpdateJobs(folder, fresh=fresh, watch=progress.update), fresh=fresh)
        runner.check([Job("invert", case) for case in cases.values()], seeds)
        folder.log_again()
        for name, case in cases.items():
            assert settings(case).labels != "given"
            with folder.phase(name):
                results = [runner(Job("invert", case), seed).scores for seed in seeds]
            scores[name] = {key: [result[key] for result in results] for key in SHOWN}
            folder.log(attack=name, **{key: float(np.mean(values)) for key, values in scores[name].items()})
    means = {name: {key: float(np.mean(values)) for key, values in of.items()} for name, of in scores.items()}
    baselines = [name for name in means if name != "FedLeak"]
    ours = means["FedLeak"]
    metrics = {
        "psnr_fedleak": ours["psnr"],
        "psnr_best_baseline": max(means[name]["psnr"] for name in baselines),
        **{f"psnr_{cases[name].attack}": means[name]["psnr"] for name in baselines},
        "psnr_grey": ours["psnr_grey"],
        "psnr_spread": float(np.std(scores["FedLeak"]["psnr"])),
        "ssim_fedleak": ours["ssim"],
        "cosine_distance": ours["cosine_distance"],
        "label_accuracy": ours["label_accuracy"],
        "seconds": sum(folder.seconds.values()),
    }
    _show(means, scores)
    _draw(folder, runner, cases, seeds[0])
    folder.finish(metrics)
    print(folder.contents())
    return metrics


def _show(means: dict[str, dict[str, float]], scores: dict[str, dict[str, list[float]]]) -> None:
    table = Table(
        Column("attack", no_wrap=True),
        "PSNR, dB",
        "best match",
        "grey image",
        "SSIM",
        "cosine distance",
        "labels",
        "seconds",
    )
    for name, mean in means.items():
        spread = scores[name]["psnr"]
        table.add_row(
            name,
            f"{mean['psnr']:.2f}" + (f" +- {np.std(spread):.2f}" if len(spread) > 1 else ""),
            f"{mean['psnr_best_match']:.2f}",
            f"{mean['psnr_grey']:.2f}",
            f"{mean['ssim']:.3f}",
            f"{mean['cosine_distance']:.4f}",
            f"{mean['label_accuracy']:.0%}",
            f"{mean['seconds']:.0f}",
        )
    console().print(table)
    print("PSNR in dB, one to one and by the best match. At or below the grey image's, nothing was recovered.")


def _draw(folder: RunFolder, runner: Runner, cases: dict[str, Case], seed: int) -> None:
    results = {name: runner(Job("invert", case), seed) for name, case in cases.items()}
    rows = {"truth": next(iter(results.values())).arrays["truth"]}
    rows |= {f"{name}: {r.scores['psnr']:.1f} dB": r.arrays["estimate"] for name, r in results.items()}
    sheets.comparison_sheet(folder.figure("contact_sheet.png"), rows)
    curves = {name: (np.arange(len(r.arrays["curve"])), r.arrays["curve"]) for name, r in results.items()}
    curves = {name: (x, np.maximum(y / y[0], 1e-12)) for name, (x, y) in curves.items() if len(y)}
    plots.curves(
        folder.figure("distance.png"),
        curves,
        xlabel="iteration",
        ylabel="gradient distance, each attack's own, against its start",
        log_y=True,
    )
