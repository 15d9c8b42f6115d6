"""Federated rounds that CAFE attacks: the private set, the simulated parties, the attack, and the scores.

`vertical_problem` and `horizontal_problem` make a `Problem`. `observe_and_recover` observes the problem's rounds and
solves them with the exact engine; `steps_one_and_two` and `step_three` descend as the paper does.
"""

from jaxleak.study.rounds._descent import Tables, reconstruction_metrics, step_three, steps_one_and_two, table_r2
from jaxleak.study.rounds._exact import observe_and_recover, require_memory_of_rounds
from jaxleak.study.rounds._problem import (
    Problem,
    channel_peak_psnr,
    forward_features,
    horizontal_problem,
    image_psnr,
    relative_errors,
    sources_of_rounds,
    vertical_problem,
)

__all__ = [
    "Problem",
    "Tables",
    "channel_peak_psnr",
    "forward_features",
    "horizontal_problem",
    "image_psnr",
    "observe_and_recover",
    "reconstruction_metrics",
    "relative_errors",
    "require_memory_of_rounds",
    "sources_of_rounds",
    "step_three",
    "steps_one_and_two",
    "table_r2",
    "vertical_problem",
]
