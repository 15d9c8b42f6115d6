"""Sentences of a report on what the clients of a study of defenses compute, and on their privacy."""

from collections.abc import Sequence

from jaxleak.defenses import SHORTHAND_DELTA, noise_multiplier_shorthand
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._own_defense import kind_of_defense


def about_clients(cases: Sequence[Case]) -> list[str]:
    """Write sentences on the steps of the clients, and on the privacy of their noise.

    Args:
        cases: cases of a study.
    """
    steps = " or ".join(map(str, sorted({case.local_steps for case in cases})))
    said = [
        f"For an upload a client takes {steps} step{'s' if steps != '1' else ''} of plain gradient descent, without "
        "momentum; `jaxleak invert` attacks one simulated upload of other clients (--local-steps, --local-epochs, "
        "--momentum, with --defense), and `jaxleak audit` a recorded one.",
        "The epsilon of a strength is the papers' shorthand: the noise multiplier z is sqrt(2 log(1 / delta)) / "
        f"epsilon, with delta {SHORTHAND_DELTA:g} and clip 1. The true epsilon at the same delta is by accounting for "
        "every client's uploads over all rounds.",
    ]
    private = dict.fromkeys(
        (case.defense, case.strength)
        for case in cases
        if case.defense is not None and kind_of_defense(case.defense).private
    )
    levels = [f"{name} {e:g} has {noise_multiplier_shorthand(e, SHORTHAND_DELTA):.4g}" for name, e in private]
    return said + ([f"Noise multipliers: {', '.join(levels)}."] if levels else [])
