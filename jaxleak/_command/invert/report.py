"""The report.md of an inversion: the answer, its numbers, the captions of the pictures, and how it was done."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxleak._command.invert.options import Args
from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.study import Progress, RunFolder, plots
from jaxleak.study._data_names import data_in_short
from jaxleak.study.reports import Measure, Section, command_line, markdown_table, measured, write_markdown
from jaxleak.study.updates import RECOGNISED_ABOVE, Case, Outcome, resolved
from jaxleak.study.updates._described import settings_in_rows
from jaxleak.study.updates._own_defense import believed_mechanism

_AGREEMENT = (
    "Agreement is the SSIM between the images of the two best independent starts: evidence that an image is right "
    "which needs no truth. Undetermined is the share of images in whose place another one explains the update as well, "
    "so that the starts may agree on what the prior prefers; it is searched where the gradient is matched."
)
_MATCHED = (
    "A matched gradient (cosine distance below .01) says that the answer explains the update, and not that it is the "
    "image."
)
_CAPTIONS = {
    "contact_sheet.png": "Private images above their reconstructions (and those of the second best start, where there "
    "is one). Below each are the PSNR, which needs the truth, and what the attack says of its answer without it.",
    "distance.png": "The distance between the client's gradient and that of the candidate images along the search, a "
    "colour per seed; lower is a closer match.",
}
_CAPTIONS_CAPTURED = {
    "contact_sheet.png": "Images that the attack found, in no particular order, and below them those of the second "
    "best start, where there is one. No private image is known to compare with.",
    "distance.png": "The distance between the captured update and the gradient of the candidate images along the "
    "search; lower is a closer match, which does not say by itself that the images are right.",
}
#: Measures that the report shows for each seed, and the terminal for the mean over seeds; results.json has all numbers.
MEASURES = (
    Measure("PSNR", "psnr", "dB"),
    Measure("PSNR of a grey image", "psnr_grey", "dB"),
    Measure("SSIM", "ssim", form=".2f"),
    Measure("recognised", "recognised", "%"),
    Measure("labels right", "label_accuracy", "%"),
    Measure(f"gradient matched to {MATCHED_BELOW:g}", "gradient_matched", "%"),
    Measure("cosine distance of the gradients", "cosine_distance", form=".2g"),
    Measure("cosine distance of random images", "cosine_distance_random", form=".2g"),
    Measure("agreement", "agreement", form=".2f"),
    Measure("undetermined", "undetermined", "%"),
)
#: Measures that the terminal shows in addition if there are several seeds.
SPREAD = (Measure("PSNR, deviation over the seeds", "psnr_spread", "dB"), Measure("seeds", "seeds", form="g"))
#: Measures that the report and the terminal show if the truth is unknown.
MEASURES_CAPTURED = (
    Measure("images with an answer", "answered", "%"),
    Measure(f"gradient matched to {MATCHED_BELOW:g}", "gradient_matched", "%"),
    Measure("cosine distance of the gradients", "cosine_distance", form=".2g"),
    Measure("the attack's own score (lower is better)", "score", form=".3g"),
    Measure("agreement of two starts, mean", "agreement", form=".2f"),
    Measure("images that the update leaves undetermined", "undetermined", "%"),
)


def watching(progress: Progress, phase: str, iterations: int) -> Callable[[int, Any, dict[str, np.ndarray]], None]:
    """Make a callback of `audit.invert` that shows the pace, and the distance that the best start has reached."""

    def show(done: int, _: Any, infos: dict[str, np.ndarray]) -> None:
        progress.update(phase, done, iterations, f"distance {float(np.min(infos['distance'][-1])):.3g}")

    return show


def draw_distances(folder: RunFolder, curves: Mapping[str, np.ndarray]) -> None:
    """Draw the distance to the update along the search, as distance.png.

    Args:
        folder: the run's folder.
        curves: maps a label to the attack's distances (iterations,). A curve without iterations is left out; if no
            curve is left, there is no figure.
    """
    series = {label: (np.arange(len(curve)), curve) for label, curve in curves.items() if len(curve)}
    if series:
        plots.curves(
            folder.figure("distance.png"), series, title="How close the gradient came", xlabel="iteration",
            ylabel="distance to the update (lower is closer)", log_y=True,
        )  # fmt: skip


def write(
    folder: RunFolder, options: Args, granted: str, outcomes: Sequence[Outcome], settings: Mapping[str, Any]
) -> None:
    """Write the report of attacks on simulated clients.

    Args:
        folder: the run's folder, with its figures drawn.
        options: the command's options.
        granted: what the attacker is given, in words.
        outcomes: one outcome per seed.
        settings: settings of the attack, from `settings_as_run`.
    """
    case, scores = options.case, [outcome.scores for outcome in outcomes]
    columns = [measure for measure in MEASURES if measure.key in scores[0]]
    rows = [
        [str(seed), *(measure.text(of_seed[measure.key]) for measure in columns)]
        for seed, of_seed in zip(options.seeds, scores, strict=True)
    ]
    recognised = sum(round(of_seed["recognised"] * case.images) for of_seed in scores)
    mean = {name: np.mean([of_seed[name] for of_seed in scores]) for name in ("psnr", "psnr_grey", "ssim")}
    write_markdown(
        folder,
        f"{case.attack} on {case.model}, {data_in_short(case.data)}",
        answer=f"The attack recovered {recognised} of {len(outcomes) * case.images} images so well that a person would "
        f"recognise them: the mean PSNR is {mean['psnr']:.1f} dB, where grey images have {mean['psnr_grey']:.1f} dB, "
        f"and the mean SSIM is {mean['ssim']:.2f}.",
        command=command_line("jaxleak invert", options),
        seeds=options.seeds,
        sections=[
            Section(
                "Found",
                (
                    "Each row is one client, whose data, weights and start are drawn with the seed; its scores are "
                    f"means over its images. Recognised is the share with an SSIM above {RECOGNISED_ABOVE:g}.",
                    *_reading("agreement" in scores[0]),
                ),
                ("seed", *(measure.name for measure in columns)),
                rows,
            )
        ],
        method=(_method(options, granted), *_set(settings)),
        captions=_CAPTIONS,
    )


def write_captured(
    folder: RunFolder, options: Args, granted: str, metrics: Mapping[str, float], settings: Mapping[str, Any]
) -> None:
    """Write the report of an attack on an update from elsewhere.

    Args:
        folder: the run's folder, with its figures drawn.
        options: the command's options.
        granted: what the attacker is given, in words.
        metrics: the metrics of results.json.
        settings: settings of the attack, from `settings_as_run`.
    """
    count, verb = options.case.images, "matches" if metrics["gradient_matched"] > 0 else "does not match"
    answer = (
        f"The attack found {count} image{'s' * (count > 1)} whose gradient {verb} the update; the truth is not known, "
        "so that nothing here says by itself that they are the client's."
    )
    write_markdown(
        folder,
        f"{options.case.attack} on a captured update",
        answer=answer,
        command=command_line("jaxleak invert", options),
        seeds=options.seeds,
        sections=[
            Section(
                "Found",
                _reading("agreement" in metrics),
                ("measure", "value"),
                measured(MEASURES_CAPTURED, metrics),
            )
        ],
        method=(_method(options, granted), *_set(settings)),
        captions=_CAPTIONS_CAPTURED,
    )


def _set(settings: Mapping[str, Any]) -> tuple[str, str]:
    text = (
        "It was set as follows; what the options leave open is as the preset, the model and the defense decide it. "
        "Weights have no unit: each multiplies a term beside the comparison with the update."
    )
    return text, "\n".join(markdown_table(("setting", "value"), settings_in_rows(settings)))


def _reading(agreement: bool) -> tuple[str, ...]:
    return (_MATCHED, _AGREEMENT) if agreement else (_MATCHED,)


def _method(options: Args, granted: str) -> str:
    case = options.case
    client = f"A client computed its update of {case.model} from {case.images} image{'s' * (case.images > 1)}"
    if case.defense is not None:
        knows = "which the attacker knows" if case.adaptive else "which the attacker does not know"
        client += f" and defended it with {case.defense} of strength {case.strength:g}, {knows}"
    starts = "one start" if case.restarts == 1 else f"{case.restarts} independent starts"
    found = f"{client}. The attacker is granted {granted}. The attack {case.attack} searched from {starts}."
    return f"{found} {of_informed(case)}".rstrip()


def of_informed(case: Case) -> str:
    """Say what an attacker who knows the defense compares by, and how far a user's own mechanism can be believed."""
    believes = believed_mechanism(case) if case.adaptive and case.own_defense else ""
    return f"{resolved(case).knows_noise} {believes}".strip()
