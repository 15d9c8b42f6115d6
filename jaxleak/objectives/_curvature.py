"""Gradient regularization: descend `D + lambda ||grad D||` without ever forming a Hessian (FedLeak, section 4.3).

The gradient of this sum is `p + lambda H p / ||p||` with p = grad D and H the Hessian of D. FedLeak replaces the
Hessian-vector product by a finite difference, which turns the sum into a blend of two gradients (its Eq. 13). The exact
product is implemented too, and tests compare the two.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import PyTree

Probe = Literal["ascent", "descent", "step"]
#: `(variables, selected) -> (value, aux)`, where `selected` fixes what the objective would otherwise choose anew.
Objective = Callable[[PyTree, Any], tuple[jax.Array, Any]]


class GradientRegularization(NamedTuple):
    """How gradient regularization forms the direction of a step."""

    blend: float = 0.0  # lambda' in [0, 1]; 0 is plain descent
    length: float = 1e-2  # k > 0, how far the probe goes
    probe: Probe = "ascent"
    exact: bool = False  # Hessian-vector product instead of the finite difference
    reselect: bool = False  # the probe chooses matched elements anew instead of keeping the first choice

    def check(self) -> None:
        """Raise `ValueError` naming a field that is out of its range."""
        _validate.in_range(0, 1, blend=self.blend)
        _validate.positive(length=self.length)
        _validate.one_of(("ascent", "descent", "step"), probe=self.probe)
        if self.exact and self.probe == "step":
            raise ValueError(
                'exact needs a probe along the gradient, so probe must be "ascent" or "descent", got "step"'
            )


def gradient_regularization(
    blend: float = 0.7,
    *,
    length: float = 1e-2,
    probe: Probe = "ascent",
    exact: bool = False,
    reselect: bool = False,
) -> GradientRegularization:
    """FedLeak's direction `(1 - lambda') grad D(x) + lambda' grad D(x + phi)`, phi = +-k grad D / ||grad D||.

    The paper's formula steps along the gradient ("ascent"), which penalises the gradient's norm; its toy example and
    its published code look at the point that descent would reach ("descent"), which rewards it.

    Args:
        blend: lambda' = lambda / k in [0, 1]; 0 costs nothing.
        length: k > 0, the probe's length over all variables together; the paper gives none.
        probe: "ascent", "descent", or "step": where the optimizer's own step would lead, whatever its length (the
            published code; `length` is then unused).
        exact: use `grad D +- lambda' k H grad D / ||grad D||`, the limit of small k with lambda' k held fixed.
        reselect: let the probe choose its own set Lambda of matched elements; Algorithm 1 uses one set for both
            gradients.

    Raises:
        ValueError: on arguments out of range.
    """
    made = GradientRegularization(blend, length, probe, exact, reselect)
    made.check()
    return made


def regularized_gradient(
    objective: Objective,
    variables: PyTree,
    regularization: GradientRegularization,
    *,
    selected: Callable[[Any], Any],
    step: Callable[[PyTree], PyTree],
) -> tuple[jax.Array, Any, PyTree]:
    """Value, aux, and the regularized direction of an objective.

    Args:
        objective: first called as `objective(variables, None)`. The second call passes what `selected` takes from the
            first call's aux, so that the probe keeps its choice of matched elements (FedLeak, Algorithm 1). With
            `regularization.reselect` it passes None again.
        variables: the point at which the direction is taken.
        regularization: how gradients are blended.
        selected: function from the first call's aux to the second argument of the second call.
        step: function from a gradient to the optimizer's update, for the probe "step".

    Returns:
        The objective's value () in its own unit and aux at `variables`, and the direction, of the structure of
        `variables`.
    """
    (value, aux), p = jax.value_and_grad(objective, has_aux=True)(variables, None)
    if regularization.blend == 0:
        return value, aux, p
    choice = None if regularization.reselect else selected(aux)

    def gradient(at: PyTree) -> PyTree:
        return jax.grad(lambda v: objective(v, choice)[0])(at)

    if regularization.probe == "step":
        phi = step(p)
    else:
        norm = _tree.norm(p)
        sign = 1.0 if regularization.probe == "ascent" else -1.0
        scale = sign * regularization.length / jnp.where(norm > 0, norm, 1.0)
        phi = jax.tree.map(lambda leaf: scale * leaf, p)
    if regularization.exact:
        _, curvature = jax.jvp(gradient, (variables,), (phi,))
        return value, aux, jax.tree.map(lambda a, b: a + regularization.blend * b, p, curvature)
    q = gradient(jax.tree.map(jnp.add, variables, phi))
    return value, aux, jax.tree.map(lambda a, b: (1 - regularization.blend) * a + regularization.blend * b, p, q)
