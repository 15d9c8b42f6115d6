"""Sentences on the rows of a trade-off: whether the attack reads anything, and how the defenses rank by their leak."""

import math
from collections.abc import Sequence
from typing import Any

from jaxleak._own_files import short_name

#: Least PSNR in dB that the attack needs, without a defense, above an image that shows nothing of a single sample.
_READS_NOTHING = 1.0

#: Explanation for defenses where knowing the defense does not help the attacker.
_UNHELPED = (
    "Knowing the defense helped no attacker here. Too few iterations or a mechanism of no use may be the reason, so "
    "that this is no sign of a strong defense:"
)


def by_local_steps(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Group rows that ran by the number of local steps; the numbers ascend."""
    found = sorted({row["local_steps"] for row in rows})
    return {steps: [row for row in rows if row["local_steps"] == steps] for steps in found}


def steps_in_words(steps: int) -> str:
    """Write a number of local steps in words."""
    return f"{steps} local step{'s' if steps > 1 else ''}"


def reads_nothing(rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Say for which numbers of local steps the attack reads nothing, even without a defense.

    An attack reads nothing if it recognises no image and has hardly more PSNR than a grey image or the average training
    image, whichever has more. A blur may have more than a grey image, although it shows nothing of a single sample.

    Args:
        rows: rows of one study from `run_trade_off`; rows that did not run are left out.

    Returns:
        One sentence by the number of local steps; numbers at which the attack reads something are missing.
    """
    said = {}
    for steps, those in by_local_steps([row for row in rows if "accuracy" in row]).items():
        plain = next((row for row in those if row["defense"] is None and row["clients"] == 1), None)
        if plain is None or plain["recognised"]:
            continue
        if not plain["psnr"] >= max(plain["psnr_grey"], plain["psnr_average"]) + _READS_NOTHING:
            said[steps] = (
                f"The attack reads nothing even without a defense ({steps_in_words(steps)}): it has "
                f"{plain['psnr']:.1f} dB, a grey image {plain['psnr_grey']:.1f} dB and the average training image "
                f"{plain['psnr_average']:.1f} dB. Neither the table nor the figure says anything about the defenses. "
                "First find an attack that reads the undefended update: with more --iterations, a smaller "
                "--batch-size, --labels given or another --attack."
            )
    return said


def leak_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences that rank defenses by their leak.

    Defenses that no attacker knew, and those of which an attacker who knew them could make nothing, are listed apart
    and not ranked.

    Args:
        rows: rows of one study that ran.
    """
    said, silent = [], reads_nothing(rows)
    for steps, those in by_local_steps(rows).items():
        of_steps = steps_in_words(steps)
        if steps in silent:
            said.append(f"Of {of_steps}: no order. {silent[steps]}")
            continue
        best = sorted((row for row in those if row["defense"]), key=lambda row: row["leak"])
        told = [row for row in best if math.isfinite(row.get("psnr_adaptive", math.nan))]
        blind = [row for row in told if row.get("blind")]
        parts = (
            ([row for row in told if row not in blind], ""),
            (blind, ", not ranked, since the attacker who knew them could make nothing of that"),
            ([row for row in best if row not in told], ", not ranked, since no attacker knew them"),
        )
        said += [f"Of {of_steps}{what}: {', '.join(map(_leak, part))}." for part, what in parts if part]
    return said


def unhelped(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence on the defenses that leak no more to an attacker who knows them; empty if there are none."""
    those = [row for row in rows if row["defense"] and "psnr_adaptive" in row and row["leak"] <= row["psnr"]]
    found = [f"{_at_strength(row)} ({row['psnr_adaptive']:.1f} dB, unaware {row['psnr']:.1f} dB)" for row in those]
    return [f"{_UNHELPED} {', '.join(found)}."] if found else []


def _leak(row: dict[str, Any]) -> str:
    return f"{_at_strength(row)} ({row['leak']:.1f} dB)"


def _at_strength(row: dict[str, Any]) -> str:
    return f"{short_name(row['defense'])} {row['strength']:g}"
