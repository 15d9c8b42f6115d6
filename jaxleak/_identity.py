"""Short descriptions of what a computation depends on, so that a later process can check that it resumes the same."""

import hashlib
import json
from typing import Any

import jax
import numpy as np

from jaxleak import _configuration
from jaxleak._base import PyTree
from jaxleak._tree import named_leaves

#: Share of an array's norm by which two sketches of it may differ. Rounding on another device changes a sketch far
#: less, and other data far more.
_ROUNDING = 1e-3


def of_key(key: jax.Array) -> str:
    """A digest of a random key, whether it is typed or raw."""
    return hashlib.sha256(repr(np.asarray(_configuration.without_type(key)).tolist()).encode()).hexdigest()


def of_text(text: str | None) -> str | None:
    """A digest of a text; None of none."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def text_of(settings: Any) -> str:
    """A description of an attack's settings in JSON, without the last digits of numbers."""
    return json.dumps(_configuration.described(settings, (id(settings),), coarse=True))


def of_arrays(tree: PyTree) -> dict[str, Any]:
    """A sketch of all arrays of a tree, to be compared by `same`.

    A sketch is not a hash, because a device that sums in another order computes the same observation with other last
    bits.

    Returns:
        By the name of each array, its shape, its norm, and its inner product with fixed signs.
    """
    return {name: _sketch(leaf) for name, leaf in named_leaves(tree).items()}


def same(now: Any, then: Any) -> bool:
    """Whether two descriptions of this module mean the same; `then` may come from a damaged file."""
    if not isinstance(now, dict):
        return bool(now == then)
    return isinstance(then, dict) and now.keys() == then.keys() and all(_close(now[name], then[name]) for name in now)


def _sketch(leaf: Any) -> list[Any]:
    # A state begins with infinite losses, which JSON cannot hold.
    values = np.nan_to_num(
        np.asarray(_configuration.without_type(leaf), np.float64), nan=2.0, posinf=1.0, neginf=-1.0
    ).ravel()
    signs = np.random.default_rng(0).integers(0, 2, values.size, dtype=np.int8) * 2 - 1
    return [list(np.shape(leaf)), float(np.linalg.norm(values)), float(values @ signs)]


def _close(now: list[Any], then: Any) -> bool:
    try:
        shape, norm, product = then
        return bool(shape == now[0] and max(abs(norm - now[1]), abs(product - now[2])) <= _ROUNDING * now[1])
    except (TypeError, ValueError):
        return False
