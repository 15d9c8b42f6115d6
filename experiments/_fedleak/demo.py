"""FedLeak beside the attacks that it is compared with: the same images, labels, model and number of iterations."""

from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Column, Table

from experiments._fedleak.jobs import Job
from experiments._fedleak.report import CAPTIONS
from experiments._fedleak.runs import UpdateJobs
from jaxleak import _validate
from jaxleak.study import Progress, RunFolder, default_out
from jaxleak.study.cell_reports import write_rows
from jaxleak.study.rows import console
from jaxleak.study.runner import runner_in
from jaxleak.study.updates import Case, draw_distances, draw_reconstructions, resolved

#: Attacks by their printed name. All infer labels by the same rule, and none sees the truth. iDLG descends by Adam
#: here, so that every attack takes one gradient per iteration. The line search of iDLG's own L-BFGS takes several, and
#: L-BFGS does not score better.
ATTACKS = {
    "FedLeak": Case(attack="fedleak"),
    "iDLG": Case(attack="idlg", optimizer="adam"),
    "Inverting Gradients": Case(attack="inverting_gradients"),
    "SAPAG": Case(attack="sapag"),
}
#: Attacks that train a generator on public data; they run only if `--public-data` names some.
GENERATIVE = {"GGL": Case(attack="ggl"), "ROG": Case(attack="rog")}
LABELS = "calibrated"
ITERATIONS = 400
BATCH = 4

#: Scores that are printed, each with its heading and number format.
SHOWN = {
    "psnr": ("PSNR, dB", ".2f"),
    "psnr_best_match": ("best match", ".2f"),
    "psnr_grey": ("grey image", ".2f"),
    "ssim": ("SSIM", ".3f"),
    "cosine_distance": ("cosine distance", ".4f"),
    "label_accuracy": ("labels", ".0%"),
    "seconds": ("seconds", ".0f"),
}


def main(args: Any) -> dict[str, float]:
    """Attack one client's batch of natural image patches with every attack; returns the metrics.

    Args:
        args: the `Args` of `experiments.fedleak`, of which `DEMO_OPTIONS` are read; GGL and ROG need public data.
    """
    seeds, fresh, public_data = args.seeds, args.fresh, args.sizes.public_data
    iterations = ITERATIONS if args.sizes.iterations is None else args.sizes.iterations
    _validate.count(iterations=iterations)
    common: dict[str, Any] = {"iterations": iterations, "labels": LABELS, "batch_size": BATCH}
    cases = {name: replace(case, **common) for name, case in ATTACKS.items()}
    config = {"seeds": seeds, "public_data": public_data, **common}
    out = args.out or default_out("fedleak", "demo")
    folder = RunFolder(out, "fedleak", config, fresh=fresh, program="python -m experiments.fedleak")
    print(
        f"{BATCH} image patches behind one gradient of a small ReLU ConvNet, {iterations} iterations; the attacker has "
        "the model and the gradient, and infers the labels"
    )
    if public_data is not None:
        cases |= {name: replace(case, **common, public_data=public_data) for name, case in GENERATIVE.items()}
        print(f"GGL and ROG are granted a generator beyond that, trained on {public_data}")
    scores: dict[str, dict[str, list[float]]] = {}
    with Progress() as progress:
        runner = runner_in(folder, UpdateJobs(folder, fresh=fresh, watch=progress.update), fresh=fresh)
        runner.check([Job(case) for case in cases.values()], seeds)
        folder.log_again()
        for name, case in cases.items():
            assert resolved(case).settings.labels != "given"
            with folder.phase(name):
                results = [runner(Job(case), seed).scores for seed in seeds]
            scores[name] = {key: [result[key] for result in results] for key in SHOWN}
            folder.log(attack=name, **{key: float(np.mean(values)) for key, values in scores[name].items()})
    means = {name: {key: float(np.mean(values)) for key, values in of.items()} for name, of in scores.items()}
    baselines = [name for name in means if name != "FedLeak"]
    ours = means["FedLeak"]
    metrics = {
        "psnr_fedleak": ours["psnr"],
        "psnr_best_baseline": max(means[name]["psnr"] for name in baselines),
        **{f"psnr_{cases[name].attack}": means[name]["psnr"] for name in baselines},
        "psnr_spread": float(np.std(scores["FedLeak"]["psnr"])),  # the deviation of these seeds alone (ddof 0)
        "ssim_fedleak": ours["ssim"],
        **{name: ours[name] for name in ("psnr_grey", "cosine_distance", "label_accuracy")},
        "seconds": sum(folder.seconds.values()),
    }
    _show(means, scores)
    first = {name: runner(Job(case), seeds[0]) for name, case in cases.items()}
    draw_reconstructions(folder.figure("contact_sheet.png"), first)
    draw_distances(folder.figure("distance.png"), first, relative=True)
    answer = (
        f"FedLeak (our settings) reconstructs {BATCH} images from one gradient at {ours['psnr']:.1f} dB, and the best "
        f"of the others at {metrics['psnr_best_baseline']:.1f} dB, where grey images have {ours['psnr_grey']:.1f} dB."
    )
    rows = [{"attack": name} | {SHOWN[key][0]: value for key, value in mean.items()} for name, mean in means.items()]
    title = "FedLeak beside other attacks on the same images"
    write_rows(folder, title, args, rows, answer=answer, seeds=seeds, captions=CAPTIONS)
    folder.finish(metrics)
    print(folder.contents())
    return metrics


def _show(means: dict[str, dict[str, float]], scores: dict[str, dict[str, list[float]]]) -> None:
    table = Table(Column("attack", no_wrap=True), *(heading for heading, _ in SHOWN.values()))
    for name, mean in means.items():
        spread = f" +- {np.std(scores[name]['psnr']):.2f}" if len(scores[name]["psnr"]) > 1 else ""
        shown = {score: format(mean[score], form) for score, (_, form) in SHOWN.items()}
        shown["psnr"] += spread
        table.add_row(name, *shown.values())
    console().print(table)
    print("PSNR in dB, one to one and by the best match. A blur may have more than a grey image, and shows nothing.")
