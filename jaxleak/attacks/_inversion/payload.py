"""Whether a payload belongs to a model."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import PyTree


def check_payload(payload: PyTree, variables: PyTree) -> None:
    """Compare a payload with the model before a long run.

    Args:
        payload: a gradient tree, e.g. captured from another framework.
        variables: of the model that it should belong to.

    Raises:
        ValueError: naming the first leaf that is missing, unexpected, of another shape or dtype, or not finite.
    """
    check_shapes(payload, variables)
    for name, value in named_leaves(payload):
        if not np.all(np.isfinite(np.asarray(value))):
            raise ValueError(f"payload leaf {name} holds values that are not finite")


def check_shapes(payload: PyTree, variables: PyTree) -> None:
    """All that `check_payload` compares but the values, hence also for traced arrays and for shapes alone.

    Raises:
        ValueError: naming the first leaf that is missing, unexpected, or of another shape or dtype.
    """
    leaves = {name: dict(named_leaves(tree)) for name, tree in (("payload", payload), ("model", variables["params"]))}
    missing = sorted(leaves["model"].keys() - leaves["payload"].keys())
    extra = sorted(leaves["payload"].keys() - leaves["model"].keys())
    if missing or extra:
        what = f"lacks {', '.join(missing[:3])}" if missing else f"has unknown {', '.join(extra[:3])}"
        raise ValueError(f"payload of another model: it {what} (of {len(missing) + len(extra)} differing leaves)")
    for name, weight in leaves["model"].items():
        value = leaves["payload"][name]
        if value.shape != weight.shape:
            raise ValueError(f"payload leaf {name} must have shape {weight.shape}, got {value.shape}")
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"payload leaf {name} must hold floats, got {value.dtype}")


def named_leaves(tree: PyTree) -> list[tuple[str, jax.Array]]:
    """Every leaf with its path as text."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
