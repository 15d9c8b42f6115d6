"""Label attacks on split learning with which VFLRecon is compared: Li et al. and Fu et al.

These attacks learn nothing: each reads labels off the cut gradients, one for each row of a record. A sample has a row
for each of its visits. `labels[index] = answer`, with the numbers `index` of `flat_observations`, puts the answers back
by sample; the last of several visits decides. The code runs in NumPy on the host.
"""

import numpy as np

from jaxleak import _validate


def norm_labels(gradients: np.ndarray, positive_share: float) -> np.ndarray:
    """The norm attack of Li et al., "Label Leakage and Protection in Two-party Split Learning" (ICLR 2022).

    For binary labels |dL/do| = 1 - p(true label), which is larger for the class that the model finds harder, as a rule
    the rarer one. The norm of the cut gradient is larger for this class, too. The paper scores norms by AUC. Here, the
    rows with the largest norms are given the rarer label, as many as its expected share.

    Args:
        gradients: (n, e).
        positive_share: expected share of label 1 in (0, 1), e.g. that of the shadow records, and not the share of the
            rarer class. If it is above 1/2, label 0 is the rare class and gets the large norms; passing the share of
            the rarer class instead would exchange all labels.

    Returns:
        Labels (n,), int32 integers in {0, 1}, one for each row of the gradients and in their order, not one for each
        sample: `labels[index] = answer` puts them back by sample. If the cut falls between rows of equal norm, these
        rows have the label -1; scores of labels leave them out.

    Raises:
        ValueError: if the share is not in (0, 1), or gradients is not a non-empty (n, e) or not finite.
    """
    _check(gradients)
    _validate.in_range(0, 1, positive_share=positive_share)
    if positive_share in (0, 1):
        raise ValueError(f"positive_share must be in (0, 1), got {positive_share}")
    rare_share = min(positive_share, 1 - positive_share)
    norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
    count = round(rare_share * len(norms))
    rare = np.zeros(len(norms), bool)
    order = np.argsort(-norms, kind="stable")
    rare[order[:count]] = True
    labels = np.where(rare, positive_share <= 0.5, positive_share > 0.5).astype(np.int32)
    if 0 < count < len(norms) and norms[order[count - 1]] == norms[order[count]]:  # the order of rows would decide
        labels[norms == norms[order[count]]] = -1
    return labels


def direction_labels(gradients: np.ndarray, anchor: np.ndarray, anchor_label: int = 1) -> np.ndarray:
    """The direction attack of Li et al.: gradients of samples with the same label lie in the same half-space.

    For binary labels the cut gradients of the two classes point in opposite directions, so the sign of the cosine
    with the gradient of one sample whose label is known tells the label.

    Args:
        gradients: (n, e).
        anchor: (e,) gradient of the sample with the known label.
        anchor_label: 0 or 1.

    Returns:
        Labels (n,), int32 integers in {0, 1}, one for each row of the gradients and in their order, not one for each
        sample: `labels[index] = answer` puts them back by sample. A row of zeros has no direction, and the label -1;
        scores of labels leave such rows out.

    Raises:
        ValueError: if shapes do not fit, values are not finite, the label is not binary or the anchor is zero.
    """
    _check(gradients)
    _validate.made(np.ndarray, "gradients[number]", anchor=anchor)
    if anchor.shape != gradients.shape[1:]:
        raise ValueError(f"anchor must have shape {gradients.shape[1:]}, got {anchor.shape}")
    if anchor_label not in (0, 1):
        raise ValueError(f"anchor_label must be 0 or 1, got {anchor_label}")
    _validate.finite_arrays(anchor=anchor)
    if not np.any(anchor):
        raise ValueError("anchor must not be zero")
    same = gradients.astype(np.float64) @ anchor.astype(np.float64) > 0
    labels = np.where(same, anchor_label, 1 - anchor_label)
    return np.where(gradients.any(axis=1), labels, -1).astype(np.int32)


def sign_labels(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fu et al., "Label Inference Attacks Against Vertical Federated Learning" (USENIX Security 2022), direct attack.

    If the top model is a plain sum of the bottoms' outputs, the cut gradient is dL/do = p - onehot(y): the only
    negative entry is at the label.

    Args:
        gradients: (n, C), cut gradients under a top model without parameters (`models.bottom_top(top=None)`).

    Returns:
        Labels (n,) int32, one for each row of the gradients and in their order (`labels[index] = answer` puts them back
        by sample), -1 for a row of zeros; and (n,) bool: exactly one entry is negative, so the label is certain.

    Raises:
        ValueError: if gradients is not a non-empty (n, C) or not finite.
    """
    _check(gradients)
    labels = np.where(gradients.any(axis=1), gradients.argmin(axis=1), -1)
    return labels.astype(np.int32), (gradients < 0).sum(axis=1) == 1


def _check(gradients: np.ndarray) -> None:
    _validate.made(np.ndarray, "np.asarray(observations.party.output_gradient)", gradients=gradients)
    if gradients.ndim != 2 or gradients.size == 0:
        raise ValueError(f"gradients must be a non-empty (n, e), got {gradients.shape}")
    _validate.finite_arrays(gradients=gradients)
