"""The exact check of known images where the client's loss is not known: whether any loss of the outputs explains it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Batch, Observation, PyTree
from jaxleak.attacks._inversion.any_loss import any_loss_share, seen_by_any_loss, why_not_any_loss
from jaxleak.audit._checks.differences import batch_of, furthest, minus, said_of, shaken
from jaxleak.audit._checks.finding import DEFENSE_OTHER, MIXED_MODES, Finding
from jaxleak.audit._checks.head import head_of
from jaxleak.audit._checks.precision import Precision
from jaxleak.audit._checks.symmetry import in_other_mode, normalised_as, other_layouts, stored_as
from jaxleak.protocols import ClientShare

#: Name of the finding on known images.
KNOWN_IMAGES = "known images"
#: Ridge of the equations for the derivatives of the loss. Images that are known to differ need hardly any, and a ridge
#: a hundred times as large leaves a misfit of 1e-5.
_RIDGE = 1e-5


def check_images_without_loss(
    share: ClientShare, variables: PyTree, payload: PyTree, images: np.ndarray, precision: Precision
) -> list[Finding]:
    """One finding: whether some loss and some labels give these images the update.

    The loss enters the update through its derivatives by the outputs. The last layer's gradient gives linear equations
    for these (`AnyLossShare`). With their solution, the gradients of all other layers follow from the images.

    Args:
        share: what the client computes, but for its loss.
        variables: the weights at which it did, as is claimed.
        payload: the update, in units of a gradient of any scale.
        images: (B, H, W, channels) in the unit that the model reads.
        precision: format in which the update was sent.

    Returns:
        Passed; failed, where a mode of normalisation or a layout explains the difference; or suspicious, since a loss
        may also read more than the outputs. No finding where the equations do not hold, as after several steps, or
        where something follows the last dense layer.
    """
    model, mode = share.model, share.batch_norm
    if why_not_any_loss(model, share, len(images)) or head_of(model, payload, variables, precision, mode) is None:
        return []
    x = np.asarray(images, np.float32)
    batch = batch_of(x, np.zeros(len(x), np.int32))
    off = _difference(share, variables, batch, precision)
    worst, leaf, error = off(payload)
    if worst <= 1:
        return [Finding(KNOWN_IMAGES, "passed", said_of(worst, leaf, error))]
    evidence = "Whatever the loss and the labels are: " + said_of(worst, leaf, error)
    other = in_other_mode(share, variables)
    if other is not None and _difference(other, variables, batch, precision)(payload)[0] <= 1:
        return [Finding(KNOWN_IMAGES, "failed", evidence, *normalised_as(other))]
    for name, layout, changed in other_layouts(variables["params"], payload):
        if off(changed)[0] <= 1:
            return [Finding(KNOWN_IMAGES, "failed", evidence, *stored_as(name, layout))]
    modes = f"{MIXED_MODES}, " if share.model.has_running_statistics else ""
    cause = (
        "weights of another round or model, images that were normalised in another way, other images than those of the "
        f"update, products in TF32 or in 16 bits, {modes}a loss that reads more than the network's outputs, such as "
        "features or weights, or a defense"
    )
    return [Finding(KNOWN_IMAGES, "suspicious", evidence, cause, ("--weights", "--mean", "--std", DEFENSE_OTHER))]


def _difference(
    share: ClientShare, variables: PyTree, batch: Batch, precision: Precision
) -> Callable[[PyTree], tuple[float, str, float]]:
    """`payload -> furthest leaf` from the images' update under the loss and the labels that fit the payload best."""
    sent = jax.jit(any_loss_share(share.model, share.batch_norm, _RIDGE))

    def furthest_of(payload: PyTree) -> tuple[float, str, float]:
        seen = seen_by_any_loss(share.model, Observation(jnp.zeros((), jnp.int32), variables, payload)).params
        expected = sent(seen, batch)
        rounding = minus(sent(seen, shaken(batch)), expected)
        return furthest(payload, expected, rounding, precision, variables["params"])

    return furthest_of
