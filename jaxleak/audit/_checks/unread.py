"""Whether the update changes parameters that the network's outputs do not depend on, such as an auxiliary head."""

import numpy as np

from jaxleak._base import PyTree
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER, Finding, Status
from jaxleak.audit._program import unread_parameters
from jaxleak.capture._names import dotted
from jaxleak.protocols import ClientShare

#: Name of the finding.
UNREAD = "parameters without an influence"
_LEAVE_OUT = "--model, --weights and --update without these parameters, if nothing but their own loss trains them"


def check_unread(share: ClientShare, payload: PyTree, samples: int, *, loss_known: bool = True) -> list[Finding]:
    """A finding, if parameters that no output depends on have a gradient: no loss of the outputs gives them one.

    Which parameters these are is read from the network's program, not from simulated gradients, since a unit that is
    dead for some images is not dead for all.

    Args:
        share: what the client computes, as is claimed.
        payload: the update, in units of a gradient; not one of a client who defends it.
        samples: number of samples of all local steps and clients.
        loss_known: whether the loss is stated to be the cross-entropy; if not, the update cannot contradict it.
    """
    leaves = named_leaves(payload)
    unread = [name for name in unread_parameters(share.model, share.batch_norm, samples) if np.any(leaves[name])]
    if not unread:
        return []
    which = f"{dotted(unread[0])} and {len(unread) - 1} more have" if len(unread) > 1 else f"{dotted(unread[0])} has"
    evidence = f"The network's outputs do not depend on some parameters that the update changes: {which} a gradient."
    cause = (
        "the client's loss has a second term, which reads more than the network's outputs (such as the loss of an "
        "auxiliary head, or weight decay)"
    )
    if not loss_known:
        cause += "; what that term adds to the gradients of other parameters is not attacked"
    status: Status = "failed" if loss_known else "suspicious"
    return [Finding(UNREAD, status, evidence, cause, (LOSS_OTHER, DEFENSE_OTHER, _LEAVE_OUT))]
