"""The reports of the VFLRecon study: of its data sets, and of its tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxleak.study import RunFolder
from jaxleak.study.reports import Section, command_line, write_markdown

_READING = (
    "Accuracies are shares of the labels, and errors mean squared errors per feature on the scale of the encoding, of "
    "the samples that took part. The name's end says how the shadow run starts, or which other attack it is; baseline "
    "is what the attacker's own features say without any gradient."
)


def write_study(
    folder: RunFolder, args: Any, runs: Mapping[str, Sequence[dict[str, float]]], captions: Mapping[str, str]
) -> None:
    """Report scores by data set.

    Args:
        folder: of the run.
        args: the options.
        runs: data set to the scores of every seed.
        captions: of the figures that were drawn.
    """
    names = sorted({name for scores in runs.values() for score in scores for name in score if "seconds" not in name})
    rows = [
        [name, *(with_spread([score[name] for score in scores if name in score]) for scores in runs.values())]
        for name in names
    ]
    write_markdown(
        folder,
        "What one party of vertical training learns about the others",
        command=command_line("python -m experiments.vflrecon", args),
        seeds=range(args.seeds),
        sections=[Section("Scores", (_READING,), ("score", *runs), rows)],
        captions=captions,
    )


def with_spread(values: Sequence[float]) -> str:
    """The mean over seeds, and their deviation where there are several."""
    if not values:
        return "-"
    return f"{np.mean(values):.4f}" + (f" +- {np.std(values):.4f}" if len(values) > 1 else "")
