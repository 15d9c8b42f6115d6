"""Checks that an attack can descend a distance. Otherwise the attack would fail, and the client would look safe."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import PyTree
from jaxleak.objectives._distances import Distance

#: Sizes of the entries of the first gradient, and the share of another random gradient in the second. Several are tried
#: because a distance may be flat between gradients of one size or far apart, as a narrow kernel is.
_SIZES, _SHARES = (1.0, 1e-2, 1e-4), (1.0, 0.1)
#: Packages whose functions need no check.
_KNOWN = ("jaxleak", "jax", "jaxlib", "numpy", "builtins")


def check_distance(distance: Distance, like: PyTree) -> None:
    """Refuse functions that an attack cannot descend: similarities, constants, or no finite values or slopes.

    The function is called on pairs of random gradients of several sizes. It passes if one pair has a usable value and
    slope, since a distance may be flat elsewhere. Passing does not prove that a distance is right.

    Args:
        distance: `(observed, simulated) -> ()`, zero or smallest where both are equal.
        like: a tree in the structure and the shapes of a gradient, of arrays or of `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: if the function fails or does not return one real number; if no pair has a finite number with a
            finite slope; if it does not depend on the simulated gradient; or if it is nowhere smaller between equal
            gradients than between different ones.
    """
    rng = np.random.default_rng(0)
    first, second = (
        jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32).astype(leaf.dtype), like)
        for _ in range(2)
    )
    found: list[tuple[float, float, float]] = []
    measured = jax.jit(functools.partial(_measured, distance))  # a callable object may have no hash
    _require_one_number(distance, first, second)
    for size, share in itertools.product(_SIZES, _SHARES):
        try:
            with jax.ensure_compile_time_eval():  # attacks may be made inside of a compiled program
                apart, slope, equal = map(float, measured(*_pair(first, second, size, share)))
        except jax.errors.ConcretizationTypeError:  # it reads a value that is still traced
            return
        if np.isfinite([apart, slope]).all() and slope and equal < apart:
            return
        found.append((apart, slope, equal))
    usable = [row for row in found if np.isfinite(row[:2]).all()]
    if not usable:
        raise ValueError(
            "distance must be a finite number with a finite slope, and is neither between random gradients: it is "
            f"{found[0][0]:g}, and the largest entry of its slope is {found[0][1]:g}"
        )
    if not any(slope for _, slope, _ in usable):
        raise ValueError(
            "distance must depend on its second argument, the simulated gradient, and its derivative by that one is "
            "0 between random gradients; an attack that descends it does not move"
        )
    apart, _, equal = usable[0]
    raise ValueError(
        f"distance must be smaller the more alike two gradients are, and is {equal:.4g} between equal ones and "
        f"{apart:.4g} between different ones; a similarity needs the other sign"
    )


def is_foreign(distance: Any) -> bool:
    """Whether a function, or any function that it is built from, is from outside of jaxleak and needs the check."""
    if isinstance(distance, functools.partial):
        return is_foreign(distance.func) or any(map(is_foreign, distance.args))
    if isinstance(distance, tuple | list):
        return any(map(is_foreign, distance))
    if not callable(distance):
        return False
    root = (getattr(distance, "__module__", None) or "").partition(".")[0]
    if root not in _KNOWN:
        return True
    cells = getattr(distance, "__closure__", None) or () if root == "jaxleak" else ()
    return any(is_foreign(cell.cell_contents) for cell in cells)


def _require_one_number(distance: Distance, first: PyTree, second: PyTree) -> None:
    try:
        found: Any = jax.eval_shape(distance, first, second)
    except Exception as error:  # whatever somebody's code does
        raise ValueError(
            f"distance fails on two gradients in the shapes of this model: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape or not jnp.issubdtype(found.dtype, jnp.floating):
        got = found if isinstance(found, jax.ShapeDtypeStruct) else type(found).__name__
        raise ValueError(f"distance must return one real number, an array of shape (), got {got}")


def _pair(first: PyTree, second: PyTree, size: float, share: float) -> tuple[PyTree, PyTree]:
    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return ((1 - share) * a + share * b) * np.asarray(size, a.dtype)

    return jax.tree.map(lambda a: a * np.asarray(size, a.dtype), first), jax.tree.map(near, first, second)


def _measured(distance: Distance, first: PyTree, second: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The distance of two gradients, the largest entry of its slope in the second, and the first's own distance."""
    apart, slope = jax.value_and_grad(distance, argnums=1)(first, second)
    largest = jnp.stack([jnp.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(slope)]).max()
    return apart, largest, distance(first, first)
