"""Checks before any attack: whether an update can come from the client that it is said to come from."""

import jax

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.audit._checks.adam import check_not_adam, nearest_to_zero
from jaxleak.audit._checks.client import check_client, check_known_images
from jaxleak.audit._checks.contents import check_contents, check_rounding
from jaxleak.audit._checks.differences import norm_of
from jaxleak.audit._checks.equations import check_defended_head, check_head
from jaxleak.audit._checks.finding import Finding, failed
from jaxleak.audit._checks.head import Head, head_of
from jaxleak.audit._checks.laws import find_sizes, vanishing
from jaxleak.audit._checks.precision import Precision, precision_of
from jaxleak.audit._checks.statement import check_statement
from jaxleak.audit._checks.symmetry import check_symmetries
from jaxleak.audit._checks.unread import check_unread
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import AdamStep
from jaxleak.protocols import ClientShare

_EQUATIONS = "equations of the head and the network"


def check_update(
    share: ClientShare,
    variables: PyTree,
    payload: PyTree,
    *,
    batch_size: int,
    defended: bool = False,
    key: jax.Array | None = None,
    precision: Precision | None = None,
) -> list[Finding]:
    """Whether a payload can come from the stated client, and if not, the likeliest mistake.

    The payload is compared with what every mean of cross-entropies and every network of this kind must obey. No image
    is needed, and images are simulated only to learn what rounding leaves.

    Args:
        share: what the client computes, as is claimed: the model, local steps, mode of batch normalisation.
        variables: the weights at which it did, as is claimed.
        payload: a tree like `variables["params"]`, in units of a gradient of the mean loss.
        batch_size: B >= 1 of each local step.
        defended: whether the client is known to defend its update, which breaks exact equations; then only the
            arrays' names, shapes and values are checked.
        key: random key of simulated images; None uses a fixed one.
        precision: the format in which the payload was sent, which widens what the checks allow; None recognises 16 bits
            by the payload's values.

    Returns:
        One `Finding` per check, the cheapest check first.

    Raises:
        ValueError: if the batch size is not >= 1.
    """
    _validate.count(batch_size=batch_size)
    return checked_update(
        share, variables, payload, batch_size=batch_size, defended=defended, key=key, precision=precision
    )[0]


def checked_update(
    share: ClientShare,
    variables: PyTree,
    payload: PyTree,
    *,
    batch_size: int,
    defended: bool,
    defense: Defense | None = None,
    key: jax.Array | None = None,
    precision: Precision | None = None,
    loss_known: bool = True,
) -> tuple[list[Finding], Head | None]:
    """The findings of `check_update`, and the head's gradient if the head is known; an unknown defense is None.

    The head's gradient is also None if the loss is no cross-entropy, since nothing is then known of what it must obey.
    """
    key = jax.random.key(0) if key is None else key

    def without_gradient() -> list[str]:
        if not share.model.has_running_statistics or share.batch_norm == "eval":
            return []
        return vanishing(find_sizes(share, variables, batch_size, key))

    findings = check_contents(payload, variables, defense, vanishing=without_gradient)
    if failed(findings):
        return findings, None
    precision = precision_of(jax.tree.leaves(payload), payload) if precision is None else precision
    samples = batch_size * share.local_steps * share.clients
    if not defended:
        findings += check_unread(share, payload, samples, loss_known=loss_known)
    if not loss_known:
        why = "The loss is not stated to be the cross-entropy of classes, which these equations are of."
        findings.append(Finding(_EQUATIONS, "not applicable", why))
        findings += check_rounding(precision, payload, variables)
        return findings + check_statement(defense, payload, variables, precision, samples=samples), None
    uneven = share.momentum > 0 and share.total_steps > 1
    step = None if defense is None or defense.mechanism is None else defense.mechanism.simulation
    of_gradient = nearest_to_zero(step, payload, variables) if isinstance(step, AdamStep) else payload
    head = head_of(share.model, of_gradient, variables, precision, share.batch_norm)
    if defended:
        why = "The client defends its update, which breaks exact equations."
        findings.append(Finding(_EQUATIONS, "not applicable", why))
        findings += check_statement(defense, payload, variables, precision, samples=samples)
        return findings + check_defended_head(head, samples, defense, uneven=uneven), head
    if precision.unit:
        evidence = f"All numbers are those of {precision.name}. What the checks allow is widened by its rounding."
        findings.append(Finding("precision", "passed", evidence))
    findings += check_rounding(precision, payload, variables)
    equations = check_head(
        head, samples, steps=share.total_steps, epochs=share.local_epochs, uneven=uneven, norm=norm_of(payload)
    )
    equations += check_symmetries(share, variables, payload, batch_size, key, precision)
    # A step of Adam comes first, since it explains the other findings. An update that obeys all equations is a
    # gradient, whatever the sizes of its entries.
    return findings + (check_not_adam(payload) if failed(equations) else []) + equations, head


__all__ = [
    "Finding",
    "check_client",
    "check_known_images",
    "check_update",
    "checked_update",
    "failed",
    "precision_of",
]
