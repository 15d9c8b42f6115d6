"""Vertical training between parties, of which one attacks: records, real and shadow run, attacks, and scores.

A `SplitCase` says what is trained and attacked, for any data set (`npz:FILE` among them). `run_case` runs it once and
scores every attack on the same observations; `SplitJobs` makes cases the jobs of a `jaxleak.study.runner`, and
`draw_pictures` draws the results. All of them use `split_problem`, which makes the `SplitProblem` of a case: disjoint
shadow and victim records, and the protocols of the real run and of shadow runs with and without the real run's defense.
Every name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from jaxleak._lazy import lazy

if TYPE_CHECKING:
    from jaxleak.study.parties._about import about_run
    from jaxleak.study.parties._by_column import column_section
    from jaxleak.study.parties._case import (
        FieldName,
        OptimizerName,
        SplitCase,
        SplitSetup,
    )
    from jaxleak.study.parties._in_short import in_short
    from jaxleak.study.parties._jobs import SplitJob, SplitJobs, runs_for, seconds_of
    from jaxleak.study.parties._names import ATTACK_LABELS, in_report, score_name
    from jaxleak.study.parties._pictures import draw_correlations, draw_pictures, draw_strips
    from jaxleak.study.parties._problem import (
        ADVERSARY,
        IMAGE_WIDTHS,
        OPTIMIZERS,
        PLAIN_RATES,
        THREAT,
        Records,
        SplitProblem,
        records_of,
        sources_of_parties,
        split_problem,
    )
    from jaxleak.study.parties._runs import Runs, run_case, task_scores
    from jaxleak.study.parties._truth import correlations

_MODULE_OF = {
    "column_section": "_by_column",
    **dict.fromkeys(("FieldName", "OptimizerName", "SplitCase", "SplitSetup"), "_case"),
    "in_short": "_in_short",
    **dict.fromkeys(("SplitJob", "SplitJobs", "runs_for", "seconds_of"), "_jobs"),
    **dict.fromkeys(("ATTACK_LABELS", "in_report", "score_name"), "_names"),
    **dict.fromkeys(("draw_correlations", "draw_pictures", "draw_strips"), "_pictures"),
    **dict.fromkeys(
        (
            "ADVERSARY",
            "IMAGE_WIDTHS",
            "OPTIMIZERS",
            "PLAIN_RATES",
            "Records",
            "SplitProblem",
            "THREAT",
            "records_of",
            "sources_of_parties",
            "split_problem",
        ),
        "_problem",
    ),
    **dict.fromkeys(("Runs", "run_case", "task_scores"), "_runs"),
    "about_run": "_about",
    "correlations": "_truth",
}

__all__ = [
    "ADVERSARY",
    "ATTACK_LABELS",
    "FieldName",
    "IMAGE_WIDTHS",
    "OPTIMIZERS",
    "OptimizerName",
    "PLAIN_RATES",
    "Records",
    "Runs",
    "SplitCase",
    "SplitJob",
    "SplitJobs",
    "SplitProblem",
    "SplitSetup",
    "THREAT",
    "about_run",
    "column_section",
    "correlations",
    "draw_correlations",
    "draw_pictures",
    "draw_strips",
    "in_report",
    "in_short",
    "records_of",
    "run_case",
    "runs_for",
    "score_name",
    "seconds_of",
    "sources_of_parties",
    "split_problem",
    "task_scores",
]

__getattr__ = lazy(__name__, _MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
