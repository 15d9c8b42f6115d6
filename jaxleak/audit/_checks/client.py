"""The exact check, where some of the client's images are known: what the client should have sent, and what it did."""

from typing import Any

import jax
import numpy as np

from jaxleak import _validate
from jaxleak._base import Batch, PyTree
from jaxleak.audit._checks.contents import check_contents
from jaxleak.audit._checks.differences import batch_of, furthest, inner, minus, norm_of, ratios, said_of, scaled, shaken
from jaxleak.audit._checks.finding import (
    ADDED_UP,
    DEFENSE_OTHER,
    LOSS_OTHER,
    MIXED_MODES,
    REVERSED,
    TURN,
    Finding,
    Mended,
    Status,
    failed,
    only_clipped,
)
from jaxleak.audit._checks.known_without_loss import KNOWN_IMAGES, check_images_without_loss
from jaxleak.audit._checks.precision import FULL, Precision, precision_of
from jaxleak.audit._checks.symmetry import in_other_mode, normalised_as, other_layouts, stored_as
from jaxleak.audit._received import compiled
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

#: An error up to this many times the tolerance may still be another machine's rounding, which can flip a kink.
_FAILED_ABOVE = 10.0
#: Relative change of weights and images, eight times what rounding a factor to TF32 changes. The client's products add
#: up many errors, which may move a kink. A smaller change here might leave every kink on its side.
_COARSE = 2.0**-8
#: A client in TF32 may be off by this many times what `_COARSE` changes in the gradient.
_TIMES_COARSE = 2.0
#: A client that sends numbers of 16 bits may have computed in 16 bits, and may be off by this many times more: PyTorch
#: on an H200 was off by up to 5.6 times the change in bfloat16.
_OF_MIXED = 8.0
#: Share of a leaf's norm above which no rounding of products is taken for the cause. TF32, emulated in the convolutions
#: of a ResNet10 and a ResNet18, was off by up to 0.16, and PyTorch's bfloat16 on an H200 by up to 0.08.
_AT_MOST = 0.3
#: The cause of a difference that rounding the factors of products explains, and for which no audit needs to stop.
_ROUNDED_PRODUCTS = (
    "products in TF32, which PyTorch takes for convolutions on NVIDIA's GPUs unless it is told not to, or in 16 bits; "
    "if the client computed in float32, "
)


def check_client(
    model: Classifier,
    variables: PyTree,
    payload: PyTree,
    images: Any,
    labels: Any,
    *,
    batch_norm: str = "train",
    reduction: str = "mean",
    local_steps: int = 1,
    local_epochs: int = 1,
    learning_rate: float = 1e-4,
    momentum: float = 0.0,
    precision: Precision | None = None,
) -> list[Finding]:
    """Compare an update with what the client must have sent, for a batch whose images are known.

    Args:
        model: the network.
        variables: the weights at which the client began.
        payload: the update, a tree like `variables["params"]`, in units of a gradient.
        images: (B, H, W, channels) or (B, channels, H, W) in the units that the model reads, for all local steps in
            order. They must be whole batches, since every image contributes to the gradient.
        labels: (B,) integers.
        batch_norm: mode of the client's normalisation layers.
        reduction: how the loss is reduced over a batch, "mean" or "sum".
        local_steps: number of local steps of the client in an epoch, >= 1.
        local_epochs: number of passes over the images, >= 1, each in the order of the first.
        learning_rate: step size of the local steps on the loss as it is reduced, > 0.
        momentum: momentum of the local steps, in [0, 1).
        precision: the format in which the update was sent; None recognises 16 bits by the payload's values.

    Returns:
        Findings on the arrays, and one on the gradient: passed; failed, with the leaf that is furthest off and the
        mistake that explains it; or suspicious, if it is off by no more than a few times what is allowed, or by no more
        than products in TF32 explain. A leaf that is zero in theory is compared with what rounding leaves in it.

    Raises:
        ValueError: on arguments out of range, or images and labels of other shapes.
    """
    _validate.one_of(("mean", "sum"), reduction=reduction)
    _validate.count(local_steps=local_steps)
    # A step on a sum over B samples is one on their mean with a learning rate B times as large.
    parts = max(len(labels) // local_steps, 1) if reduction == "sum" else 1
    share = ClientShare(
        model, local_steps=local_steps, local_epochs=local_epochs, learning_rate=learning_rate * parts,
        momentum=momentum, batch_norm=batch_norm,  # type: ignore[arg-type]
    )  # fmt: skip
    return _compared(share, variables, payload, images, labels, parts=parts, precision=precision)


def _compared(
    share: ClientShare,
    variables: PyTree,
    payload: PyTree,
    images: Any,
    labels: Any,
    *,
    parts: int = 1,
    precision: Precision | None = None,
) -> list[Finding]:
    """The findings of `check_client`, for a client given by what it computes, which sends `parts` times that."""
    findings = check_contents(payload, variables)
    if failed(findings):
        return findings
    model = share.model
    x, given = np.asarray(images, np.float32), np.asarray(labels)
    y = given.astype(np.int32)
    if x.shape[1:] != tuple(model.image_shape) and x.shape[1:] == (*model.image_shape[2:], *model.image_shape[:2]):
        x = x.transpose(0, 2, 3, 1)  # PyTorch's order
    if x.shape[1:] != tuple(model.image_shape) or y.shape != x.shape[:1]:
        raise ValueError(f"images must be (B, {model.image_shape}) and labels (B,), got {x.shape} and {y.shape}")
    if not np.isfinite(x).all():
        raise ValueError("images must be finite")
    if (y != given).any():
        raise ValueError(f"labels must be integers, got {given[y != given][0]:g}")
    _validate.labels_in_range(y, model.num_classes)
    batch = batch_of(x, y)
    sent = compiled(share)
    expected = scaled(sent(variables, batch), parts)
    rounding = minus(scaled(sent(variables, shaken(batch)), parts), expected)
    precision = precision_of(jax.tree.leaves(payload), payload) if precision is None else precision
    params = variables["params"]
    worst, leaf, error = furthest(payload, expected, rounding, precision, params)
    evidence = said_of(worst, leaf, error)
    if worst <= 1:
        return [*findings, Finding(KNOWN_IMAGES, "passed", evidence)]
    if (other := in_other_mode(share, variables)) is not None:
        mirrored = scaled(compiled(other)(variables, batch), parts)
        if furthest(payload, mirrored, rounding, precision, params)[0] <= 1:
            return [*findings, Finding(KNOWN_IMAGES, "failed", evidence, *normalised_as(other))]
    clip = norm_of(payload) / parts if share.total_steps == 1 else None
    explained = _explained(payload, expected, rounding, len(x), precision, params, clip)
    cause, options = explained or _unexplained(share)
    status: Status = "failed" if worst > _FAILED_ABOVE else "suspicious"
    if explained is None:
        coarse = minus(scaled(sent(*_coarse(variables, batch)), parts), expected)
        more = _OF_MIXED if precision.unit else 1.0
        allowed = {"times": more * _TIMES_COARSE, "relative": more * _COARSE, "most": _AT_MOST, "share": precision.unit}
        exact = ratios(payload, expected, rounding, precision, params)
        near = ratios(payload, expected, coarse, precision, params, **allowed)
        if all(min(exact[leaf], near[leaf])[0] <= 1 for leaf in exact):
            status, cause = "suspicious", _ROUNDED_PRODUCTS + cause
    return [*findings, Finding(KNOWN_IMAGES, status, evidence, cause, options)]


def check_known_images(
    share: ClientShare,
    variables: PyTree,
    payload: PyTree,
    truth: tuple[np.ndarray, np.ndarray | None] | None,
    *,
    defended: bool,
    precision: Precision | None = None,
    loss_known: bool = True,
) -> list[Finding]:
    """One finding: whether the images that are said to be behind the update give this update.

    Args:
        share: what the client computes, as is claimed.
        variables: the weights at which it did, as is claimed.
        payload: the update, in units of a gradient of the mean loss.
        truth: images (B, H, W, channels) and labels (B,). Without images there is no finding, and without labels only
            where the loss is not known.
        defended: whether the client defends its update, which breaks exact equations; then there is no finding.
        precision: as in `check_client`.
        loss_known: whether the client's loss is known; if not, the finding is that of `check_images_without_loss`.

    Returns:
        The last finding of `check_client`. After several local steps it fails no update: the client may have taken
        the images in another order than that of the truth, or in new orders in later epochs.
    """
    if truth is None or defended:
        return []
    if not loss_known:
        precision = precision_of(jax.tree.leaves(payload), payload) if precision is None else precision
        return check_images_without_loss(share, variables, payload, truth[0], precision)
    if truth[1] is None:
        return []
    *_, found = _compared(share, variables, payload, *truth, precision=precision)
    if found.name != KNOWN_IMAGES or found.status != "failed":
        return [found] if found.name == KNOWN_IMAGES else []
    if share.total_steps > 1:
        order = "images in another order, as from a loader that shuffles"
        return [found._replace(status="suspicious", cause=f"{order}; or {found.cause}")]
    return [found._replace(options=("--truth", *found.options))]


def _explained(
    payload: PyTree,
    expected: PyTree,
    rounding: PyTree,
    samples: int,
    precision: Precision = FULL,
    params: PyTree | None = None,
    clip: float | None = None,
) -> Mended | None:
    """A cause that explains a difference, with its options; `clip` is the norm of an update that is one gradient."""
    scale = inner(payload, expected) / max(inner(expected, expected), 1e-30)
    if scale and furthest(payload, scaled(expected, scale), scaled(rounding, scale), precision, params)[0] <= 1:
        if np.isclose(scale, samples, rtol=1e-3) and samples > 1:
            return "the loss is a sum over the batch", ("--reduction sum",)
        if np.isclose(scale * samples, 1, rtol=1e-3) and samples > 1:
            return "the loss is a mean over the batch, or was divided by its size twice", ("--reduction mean",)
        if np.isclose(scale, -1, rtol=1e-3):
            return REVERSED, (TURN,)
        return _multiple(scale, samples, clip)
    for leaf, layout, changed in other_layouts(expected, payload):
        if furthest(changed, expected, rounding, precision, params)[0] <= 1:
            return stored_as(leaf, layout)
    return None


def _unexplained(share: ClientShare) -> Mended:
    """Causes and options of a difference that nothing else explains."""
    modes = f"{MIXED_MODES}, " if share.model.has_running_statistics else ""
    steps = ""
    options: tuple[str, ...] = ("--weights", "--mean", "--std", LOSS_OTHER, DEFENSE_OTHER)
    if share.total_steps > 1:
        steps = "another learning rate, momentum, number or order of steps, "
        options = ("--learning-rate", "--momentum", "--local-steps", *options)
    return (
        f"{steps}weights of another round or model, images that were normalised in another way, another loss, other "
        f"images than those of the update, {modes}a defense, or mixed precision",
        options,
    )


def _multiple(scale: float, samples: int, clip: float | None) -> Mended:
    cause, options = f"the update is {scale:.4g} times the gradient", ("--learning-rate", "--local-steps", "--kind")
    if 1.5 < scale < samples and np.isclose(scale, round(scale), rtol=1e-3):
        return f"{cause}: {ADDED_UP}, a learning rate or a number of steps", (LOSS_OTHER, "--reduction", *options)
    if 0 < scale < 1:
        return f"{cause}: clipping, a learning rate or a number of steps", (only_clipped(clip), *options)
    return cause, ("--reduction", *options)


def _coarse(variables: PyTree, batch: Batch) -> tuple[PyTree, Batch]:
    """Weights and images, each changed by a few times as much as rounding to TF32 may change a factor."""
    rng = np.random.default_rng(1)

    def rounded(leaf: Any) -> Any:
        return np.asarray(leaf) * (1 + _COARSE * rng.standard_normal(np.shape(leaf), np.float32))

    return {**variables, "params": jax.tree.map(rounded, variables["params"])}, batch._replace(x=rounded(batch.x))
