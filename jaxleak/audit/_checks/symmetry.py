"""The check of the conservation laws, and which mistake explains laws that are broken."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from jaxleak._base import BatchNormMode, PyTree, total_steps
from jaxleak._tree import named_leaves, replaced
from jaxleak.audit._checks.contents import zero_layers
from jaxleak.audit._checks.differences import minus, scaled
from jaxleak.audit._checks.finding import DEFENSE_OTHER, EVAL_LAYERS, MIXED_MODES, Finding, Mended, Status
from jaxleak.audit._checks.laws import (
    VANISHING_BELOW,
    Laws,
    against,
    find_laws,
    find_sizes,
    shares_of_norm,
    slopes_along,
    vanishing,
)
from jaxleak.audit._checks.precision import FULL, Precision
from jaxleak.audit._checks.tokens import used_rows
from jaxleak.capture._names import matching
from jaxleak.models import freeze
from jaxleak.protocols import ClientShare

#: Name of the finding on the network's symmetries.
SYMMETRIES = "symmetries of the network"
#: A leaf whose gradient vanishes in theory was computed in another way if it has more than this share of the norm.
_VANISHES_BELOW = 1e-4
#: Multiple of a law's tolerance up to which images unlike the simulated ones may explain a violation. One flat image,
#: whose variance is near the epsilon of a normalisation, gave up to 16 for a right update, by the simulated images.
#: Weights a hundredth off give a hundred.
_FAILED_ABOVE = 30.0


def check_symmetries(
    share: ClientShare,
    variables: PyTree,
    payload: PyTree,
    batch_size: int,
    key: jax.Array,
    precision: Precision = FULL,
) -> list[Finding]:
    """Findings on the weights, the layout and the mode of batch normalisation at which an update was computed.

    Args:
        share: what the client computes, as is claimed.
        variables: the weights at which it did.
        payload: the update, in units of a gradient.
        batch_size: B of each local step.
        key: random key of simulated images.
        precision: format in which the payload was sent.
    """
    laws = find_laws(share, variables, batch_size, key, precision)
    broken = against(laws, variables, payload)
    if broken.worst > 1 and seems_one_hot(payload, share.model.image_shape):
        of_codes = find_laws(share, variables, batch_size, key, precision, one_hot=True)
        if of_codes.combinations.shape[1]:
            laws, broken = of_codes, against(of_codes, variables, payload)
    mode = None
    if share.model.has_running_statistics:
        trained = laws.sizes
        if share.batch_norm == "eval":
            trained = find_sizes(share.in_mode("train"), variables, batch_size, key, precision)
        mode = _mode(laws, payload, vanishing(trained), precision)
    if mode is not None and mode.status == "failed":
        return [mode]
    found = [] if mode is None else [mode]
    if laws.diverged:
        why = "On simulated images, the steps of this client diverge, so that nothing tells what rounding leaves."
        return [*found, Finding(SYMMETRIES, "not applicable", why)]
    if not broken.laws:
        why = "" if total_steps(share) == 1 else " Several steps leave fewer such directions than one."
        return [*found, Finding(SYMMETRIES, "not applicable", f"An update of this client can point anywhere.{why}")]
    evidence = (
        f"The network has {broken.laws} directions along which no gradient can point. Along the worst of "
        f"them, the update has {broken.worst:.2g} times what rounding leaves in simulated updates"
    )
    if broken.worst <= 1:
        return [*found, Finding(SYMMETRIES, "passed", evidence + ".")]
    cause, options = _cause(laws, variables, payload, batch_size, key, precision)
    status: Status = "failed" if broken.worst > _FAILED_ABOVE else "suspicious"
    return [*found, Finding(SYMMETRIES, status, evidence + ".", cause, options)]


def seems_one_hot(payload: PyTree, image_shape: tuple[int, ...]) -> bool:
    """Whether a matrix of the update has as many rows as codes have places, and most of them are zero."""
    height, width, channels = image_shape
    places = {height, width, height * width, height * width * channels}
    for leaf in map(np.asarray, jax.tree.leaves(payload)):
        for axis in range(leaf.ndim if leaf.ndim == 2 else 0):
            used = used_rows(leaf, axis)
            if len(used) in places and len(used) > 1 and 0 < 2 * used.sum() < len(used):
                return True
    return False


def _mode(laws: Laws, payload: PyTree, nothing: list[str], precision: Precision = FULL) -> Finding:
    """Whether the leaves that vanish in front of batch statistics are large, or no more than rounding.

    If some of them are large and others are not, the layers normalised in different modes.

    Args:
        laws: the laws of the client in the mode that is stated.
        payload: the update.
        nothing: leaves that vanish in training mode.
        precision: format in which the payload was sent. A client that sends 16 bits may have summed numbers of 16 bits,
            so that more than zero is left.
    """
    name, share = "mode of batch normalisation", laws.share
    shares = shares_of_norm(payload)
    if share.batch_norm == "train" and nothing:
        largest, leaf = max((shares[leaf], leaf) for leaf in nothing)
        evidence = f"{leaf} has {largest:.1e} of the gradient's norm, and none in theory in front of batch statistics"
        if largest > max(_VANISHES_BELOW, precision.unit):
            if mixed := [other for other in nothing if 0 < shares[other] < VANISHING_BELOW]:
                return Finding(
                    name, "failed", f"{evidence}. {mixed[0]} has {shares[mixed[0]]:.1e}.", MIXED_MODES, (EVAL_LAYERS,)
                )
            cause = "the client normalised by running statistics, or layers are exchanged"
            return Finding(name, "failed", evidence + ".", cause, ("--batch-norm eval",))
        return Finding(name, "passed", evidence + ".")
    telling = [leaf for leaf in nothing if laws.sizes[leaf][0] > _VANISHES_BELOW]
    if share.batch_norm == "eval" and telling:
        # A leaf of zeros was not recorded, or nothing reaches it; rounding leaves more than that.
        vanished = [leaf for leaf in telling if 0 < shares[leaf] < VANISHING_BELOW]
        leaf = vanished[0] if vanished else max(telling, key=lambda leaf: shares[leaf])
        evidence = (
            f"{leaf} has {shares[leaf]:.1e} of the gradient's norm; by running statistics, simulated clients have "
        )
        evidence += f"{laws.sizes[leaf][0]:.1e} and more"
        if any(shares[other] > _VANISHES_BELOW for other in telling) and vanished:
            return Finding(name, "failed", evidence + ".", MIXED_MODES, (EVAL_LAYERS,))
        if vanished:
            cause = "the client normalised by batch statistics, in front of which this gradient is zero"
            return Finding(name, "failed", evidence + ".", cause, ("--batch-norm train",))
        return Finding(name, "passed", evidence + ".")
    return Finding(name, "not applicable", "No leaf's gradient vanishes in this mode alone.")


def _cause(
    laws: Laws, variables: PyTree, payload: PyTree, batch_size: int, key: jax.Array, precision: Precision = FULL
) -> Mended:
    """The first mistake whose correction mends all laws."""
    share = laws.share
    if (other := in_other_mode(share, variables)) is not None:
        there = find_laws(other, variables, batch_size, key, precision)
        if there.combinations.shape[1] and against(there, variables, payload).worst <= 1:
            return normalised_as(other)
    if layers := _not_trained(laws, variables, payload, batch_size, key, precision):
        cause = f"the client did not train the layers {', '.join(layers)}, in which the update is zero throughout"
        return cause, (f"--frozen {' '.join(layers)}",)
    for leaf, layout, changed in other_layouts(variables["params"], payload):
        if against(laws, variables, changed).worst <= 1:
            return stored_as(leaf, layout)
    decay = _weight_decay(laws, variables, payload)
    if decay is not None:
        cause = f"the client's optimiser adds weight decay of {decay:.6g} to the gradient of the mean loss"
        return cause, _without_decay(share, decay, precision)
    return (
        "weights of another round (saved after the step, for example) or of another model, the gradient of a later "
        "local step, a layout of several layers, noise or another defense",
        ("--weights",),
    )


def _not_trained(
    laws: Laws, variables: PyTree, payload: PyTree, batch_size: int, key: jax.Array, precision: Precision
) -> list[str]:
    """The layers in which the update is zero, if all laws hold for the network with these layers as constants."""
    layers = zero_layers(named_leaves(payload))
    if not layers:
        return []
    names = matching(layers, list(named_leaves(payload)), what="frozen")
    frozen, trained = freeze(laws.share.model, variables, names)
    there = find_laws(laws.share.with_model(frozen), trained, batch_size, key, precision)
    return layers if against(there, trained, replaced(payload, dict.fromkeys(names))).worst <= 1 else []


def _without_decay(share: ClientShare, decay: float, precision: Precision) -> tuple[str, ...]:
    """How to take the decay off: the server knows the weights at which the client began."""
    if share.total_steps > 1:
        return (DEFENSE_OTHER,)
    if precision.of_weights:
        return f"--update plus {decay / precision.scale:.6g} times the weights before the step", DEFENSE_OTHER
    return f"--update minus {decay:.6g} times the weights (B times as much for a summed loss)", DEFENSE_OTHER


def _weight_decay(laws: Laws, variables: PyTree, payload: PyTree) -> float | None:
    """The multiple of the weights whose subtraction from the update mends all laws; None if there is none."""
    params = variables["params"]

    def worst(decay: float) -> float:
        return against(laws, variables, minus(payload, scaled(params, decay))).worst

    # The slopes are linear in the decay, and zero without it.
    slopes, unit = (slopes_along(laws, variables, tree) for tree in (payload, params))
    guess = float(slopes @ unit) / max(float(unit @ unit), 1e-300)
    # Round numbers are tried first. Some decay mends a single law, whatever broke it, but hardly a round one does.
    candidates = [float(f"{guess:.{digits}g}") for digits in ((1, 3, 6) if len(unit) > 1 else (1,))]
    return next((decay for decay in candidates if decay > 0 and worst(decay) <= 1), None)


def in_other_mode(share: ClientShare, variables: PyTree) -> ClientShare | None:
    """The client with the other mode of batch normalisation; None without one, or without its statistics."""
    other: BatchNormMode = "eval" if share.batch_norm == "train" else "train"
    known = other == "train" or variables.get("batch_stats")
    return share.in_mode(other) if known and share.model.has_running_statistics else None


def normalised_as(share: ClientShare) -> Mended:
    """Cause and option for an update of this client, which differs from the stated client in its mode."""
    return f'the client normalised in mode "{share.batch_norm}"', (f"--batch-norm {share.batch_norm}",)


def stored_as(leaf: str, layout: str) -> Mended:
    """Cause and option for an update that is right but for the order of one leaf, as `other_layouts` describes it."""
    return f"the update's {leaf} is stored in another layout: {layout}", ("--update",)


def other_layouts(params: PyTree, payload: PyTree) -> Iterator[tuple[str, str, PyTree]]:
    """Tuples of a leaf's name, a description of another order of the leaf, and the payload with this order.

    Two equal axes are exchanged, or channels are counted before positions instead of after them, or vice versa.
    """
    leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(payload).items()}
    treedef = jax.tree.structure(payload)
    channels = {size for leaf in named_leaves(params).values() if leaf.ndim == 4 for size in leaf.shape if size > 3}
    for name, leaf in leaves.items():
        others = []
        for a, b in itertools.combinations(range(leaf.ndim), 2):
            if leaf.shape[a] == leaf.shape[b] > 1:
                others.append((f"axes {a} and {b} are exchanged", np.swapaxes(leaf, a, b)))
        if leaf.ndim == 2:
            others += [reordered for axis in (0, 1) for reordered in _reordered(leaf, axis, channels)]
        for layout, changed in others:
            tree = [changed if other == name else value for other, value in leaves.items()]
            yield name, layout, jax.tree.unflatten(treedef, tree)


def _reordered(leaf: np.ndarray, axis: int, channels: set[int]) -> Iterator[tuple[str, np.ndarray]]:
    for count in sorted(channels):
        side = round((leaf.shape[axis] / count) ** 0.5)
        if side < 2 or side * side * count != leaf.shape[axis]:
            continue
        rows = np.arange(leaf.shape[axis])
        last = rows.reshape(count, side, side).transpose(1, 2, 0).ravel()
        first = rows.reshape(side, side, count).transpose(2, 0, 1).ravel()
        for order in (last, first):
            yield f"axis {axis} counts channels (C) before positions (H, W) or after", np.take(leaf, order, axis)
