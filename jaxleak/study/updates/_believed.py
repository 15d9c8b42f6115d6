"""Error rates of a rule that believes some reconstructed images and not others, counted against the truth."""

import numpy as np


def believed_rates(believed: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """Count the errors of a rule that believes images: wrong images that are believed, and right images that are not.

    Args:
        believed: (I,) bool, the images that a rule believes without knowing the truth.
        right: (I,) bool, the images that are right according to the truth.

    Returns:
        The counts images, right, believed and believed_wrong; wrong_share, the share of the believed images that are
        wrong; false_alarm_rate, the share of the wrong images that are believed; and found_share, the share of the
        right images that are believed. A share is NaN if there is nothing to divide by.
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
