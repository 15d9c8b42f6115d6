"""What it costs to believe some images of an attack and not others, counted with the truth in hand."""

import numpy as np


def believed_rates(believed: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """What it costs to believe these images: false alarms, and right images that are missed.

    Args:
        believed: (I,) bool, the images that a rule believes without the truth.
        right: (I,) bool, the images that are right by the truth.

    Returns:
        images, right, believed and believed_wrong, which are counts; wrong_share, of the believed ones;
        false_alarm_rate, the share of the wrong images that are believed; found_share, the share of the right images
        that are believed. NaN where there is nothing to divide by.
    """
    wrong = int((believed & ~right).sum())
    return {
        "images": len(right),
        "right": int(right.sum()),
        "believed": int(believed.sum()),
        "believed_wrong": wrong,
        "wrong_share": wrong / believed.sum() if believed.any() else float("nan"),
        "false_alarm_rate": wrong / (~right).sum() if (~right).any() else float("nan"),
        "found_share": (believed & right).sum() / right.sum() if right.any() else float("nan"),
    }
