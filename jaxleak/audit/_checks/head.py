"""The gradient of the last dense layer (the head), and what it shows by itself: ranks, counts, signs.

For the mean cross-entropy of n samples with softmax outputs p and features f, the bias has the gradient `db_c = mean
p_c - n_c / n` and the kernel `dW = mean f (p - onehot(y))^T`, as in `jaxleak.attacks._inversion.label_rules`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak.attacks._inversion.rows import sizes_of_all_rows
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode

#: Singular values below this share of the largest are rounding.
RANK_ABOVE = 2e-5
#: Allowance of checks for the rounding of float32.
SLACK = 1e-3
#: What float32 may leave of a softmax output that is subtracted from 1. A client that sends 16 bits may compute in
#: them, and they leave their own unit.
_SOFTMAX = 4 * 6e-8
#: Relative error from which on the logits are not those of the last dense layer; float32 leaves 1e-6.
_OTHER_LOGITS = 1e-4
#: Images that are simulated to learn what the head reads and what follows it.
_IMAGES = 64
#: Entries below this share of the largest are rounding.
_ENTRY = 1e-6


class Head(NamedTuple):
    """The last dense layer; the bias may be missing."""

    kernel_gradient: np.ndarray  # (F, C)
    bias_gradient: np.ndarray | None  # (C,)
    kernel: np.ndarray  # (F, C)
    bias: np.ndarray | None  # (C,)
    precision: Precision = FULL  # format in which the gradient was sent
    positive: bool = False  # whether the features are at least zero, as behind a ReLU
    # Whether the network has one logit z, read as (0, z): one column was sent, and the other is its negative.
    one_logit: bool = False

    def slack(self, samples: int) -> float:
        """What rounding may add to a number of labels among `samples` samples."""
        return SLACK + samples * self.bias_rounding

    @property
    def bias_rounding(self) -> float:
        """What rounding may add to an entry of the bias gradient."""
        assert self.bias_gradient is not None
        return self.precision.error(self.bias_gradient, self.bias)

    @property
    def kernel_rounding(self) -> float:
        """What rounding may add to the kernel's gradient, as a norm: no entry or singular value moves by more."""
        return self.precision.error(self.kernel_gradient, self.kernel)

    @property
    def rounding(self) -> float:
        """The larger of the relative roundings of the kernel's gradient and of the bias's."""
        parts = ((self.kernel_gradient, self.kernel), (self.bias_gradient, self.bias))
        return max(self.precision.relative(part, weights) for part, weights in parts if part is not None)

    @property
    def of_softmax(self) -> float:
        """What rounding of softmax outputs leaves, relative to the bias gradient; it is large if samples are fitted."""
        if self.bias_gradient is None:
            return 0.0
        size = max(float(np.linalg.norm(self.bias_gradient)), 1e-300)
        return max(_SOFTMAX, self.precision.unit) * float(np.sqrt(self.kernel.shape[1])) / size


def head_of(
    model: Classifier, payload: PyTree, variables: PyTree, precision: Precision = FULL, mode: BatchNormMode = "train"
) -> Head | None:
    """The gradient and the weights of the model's last dense layer, as float64.

    The result is None where this layer is not known, or where something follows it (a scale of the logits, for example,
    or a gate). It is also None where the weights are used elsewhere in the network, as the gradient then has other
    parts.
    """
    if not model.head or sizes_of_all_rows(model, _IMAGES, mode).get(model.head_names[0], (0,))[0] != _IMAGES:
        return None
    gradient = model.head_of(payload, gradient=True)
    weights = model.head_of(variables["params"], gradient=False)
    positive = _reads_positive(model, variables, mode)
    if positive is None:
        return None

    def read(leaf: jax.Array | None) -> np.ndarray | None:
        return None if leaf is None else np.asarray(leaf, np.float64)

    return Head(
        np.asarray(gradient.kernel, np.float64),
        read(gradient.bias),
        np.asarray(weights.kernel, np.float64),
        read(weights.bias),
        precision,
        positive,
        model.one_logit,
    )


def _reads_positive(model: Classifier, variables: PyTree, mode: BatchNormMode) -> bool | None:
    """Whether no feature of simulated images is negative; None if the logits are not those of the last dense layer."""
    rng = np.random.default_rng(0)
    images = rng.random((_IMAGES, *model.image_shape), np.float32)
    # Few features may all be positive for images that are alike, so half of these images are black and white in parts.
    share = np.linspace(0.0, 1.0, _IMAGES // 2, dtype=np.float32)[:, None, None, None]
    images[::2] *= np.linspace(0.1, 1.0, _IMAGES // 2, dtype=np.float32)[:, None, None, None]
    images[1::2] = images[1::2] < share
    logits, features = outputs(model, mode, variables, images)
    if not ends_with_head(model, variables["params"], logits, features):
        return None
    return bool(np.asarray(features).min() >= 0)


def ends_with_head(model: Classifier, params: PyTree, logits: jax.Array, features: jax.Array) -> bool:
    """Whether the logits (B, C) are those of the last dense layer, which reads these features (B, F).

    A constant that is added to all logits of an image changes no softmax, and is allowed.
    """
    weights = model.head_of(params, gradient=False)
    bias = 0.0 if weights.bias is None else np.asarray(weights.bias, np.float64)
    expected = np.asarray(features, np.float64) @ np.asarray(weights.kernel, np.float64) + bias
    centred = [array - array.mean(axis=1, keepdims=True) for array in (np.asarray(logits, np.float64), expected)]
    allowed = max(_OTHER_LOGITS, 10 * float(jnp.finfo(logits.dtype).eps))
    return bool(np.abs(centred[0] - centred[1]).max() <= allowed * max(np.abs(centred[0]).max(), 1e-30))


@jitted_for_few(0, 1)
def outputs(model: Classifier, mode: BatchNormMode, variables: PyTree, images: Any) -> tuple[jax.Array, ...]:
    """Logits (B, C) of images (B, H, W, channels), and the features that the model returns with them."""
    return model.apply(variables, images, mode=mode)[:2]


def counted(head: Head, samples: int, sign: int = 1) -> np.ndarray:
    """(C,) the least number of samples of every class that there must be among `samples` samples."""
    assert head.bias_gradient is not None
    return np.ceil(np.maximum(-sign * samples * head.bias_gradient - head.slack(samples), 0)).astype(int)


def rank_of(head: Head, above: float = RANK_ABOVE) -> int:
    """A lower bound on the rank of the kernel's gradient, to which every sample adds one at most.

    Args:
        head: from `head_of`.
        above: share of the largest singular value above which another one counts.
    """
    values = np.linalg.svd(head.kernel_gradient, compute_uv=False)
    # Rounding moves no singular value by more than the norm of its errors (Weyl's inequality).
    return int((values > max(above * values[0], head.kernel_rounding)).sum())


def highest_rank(head: Head, samples: int) -> int:
    """The rank that `samples` different samples give."""
    features, classes = head.kernel_gradient.shape
    return min(samples, classes - 1, features)


def columns_of(head: Head) -> tuple[int, int, int]:
    """How many columns of the kernel's gradient have no negative entry, no positive one, and neither.

    With features f >= 0, a class that is not in the batch has the column mean(f p_c) >= 0. If the sign of the update is
    reversed, this column is <= 0. A column within rounding has neither and counts in all three numbers.
    """
    gradient = head.kernel_gradient
    rows = np.abs(gradient).max(axis=1)
    gradient = gradient[rows > _ENTRY * rows.max()]
    allowed = _ENTRY * np.abs(gradient).max() + head.kernel_rounding
    positive, negative = (gradient >= -allowed).all(axis=0), (gradient <= allowed).all(axis=0)
    return int(positive.sum()), int(negative.sum()), int((positive & negative).sum())
