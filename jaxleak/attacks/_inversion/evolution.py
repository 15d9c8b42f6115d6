"""CMA-ES as an optimizer of the gradient-inversion engine: it evaluates the objective, never its gradient."""

import functools
import math
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from jaxleak import _validate
from jaxleak._base import PyTree

#: Number n of variables above which the covariance matrix is kept diagonal. A full matrix needs an eigendecomposition
#: of cost n^3 in every generation, and about n^2 evaluations to be learned.
DIAGONAL_ABOVE = 512
_LARGEST_POPULATION = 10**6


class EvolutionStrategy(optax.GradientTransformationExtraArgs):
    """An optimizer that evaluates the objective itself, with the extra arguments `value_fn` and `key`."""


def is_gradient_free(optimizer: optax.GradientTransformation) -> bool:
    """Whether an optimizer evaluates the objective itself and gets no gradients."""
    return isinstance(optimizer, EvolutionStrategy)


def cma_es(*, population: int | None = None, sigma: float = 0.5) -> EvolutionStrategy:
    """CMA-ES (Hansen 2016, arXiv:1604.00772) in the form of an optax optimizer; evosax computes it.

    The variables are the mean of the search distribution, which is also the answer that CMA-ES recommends. An update
    draws a population around the mean, evaluates `value_fn` at every member, and updates mean, step size and
    covariance. No gradients are computed. A member whose value is not finite ranks last. Above `DIAGONAL_ABOVE` numbers
    the covariance is diagonal (sep-CMA-ES, Ros & Hansen 2008).

    Args:
        population: members per generation, in [2, 1e6]; None takes 4 + floor(3 ln n) for n numbers (Hansen 2016,
            equation 48).
        sigma: initial step size in units of the variables, > 0.

    Returns:
        An optimizer whose `update` needs the extra arguments `value_fn` and `key`, which the engine passes.

    Raises:
        ValueError: on arguments out of range.
        ImportError: without evosax; the message names the package.
    """
    _validate.positive(sigma=sigma)
    if population is not None:
        _validate.count_in_range(2, _LARGEST_POPULATION, population=population)
    evosax()

    def init(variables: PyTree) -> Any:
        mean, _ = ravel_pytree(variables)
        strategy, params = _strategy(mean.size, population, sigma)
        # Nothing is drawn with this key; evosax's signature requires one.
        state = strategy.init(jax.random.key(0), mean, params)
        return state.replace(best_solution=mean)  # evosax leaves NaN there

    def update(
        gradient: PyTree, state: Any, variables: PyTree = None, *, value_fn: Any, key: jax.Array, **_: Any
    ) -> tuple[PyTree, Any]:
        del gradient
        mean, restore = ravel_pytree(variables)
        strategy, params = _strategy(mean.size, population, sigma)
        ask_key, tell_key = jax.random.split(key)
        # The engine may have projected the variables, so they replace the mean in the state.
        members, state = strategy.ask(ask_key, state.replace(mean=mean), params)
        # On a CPU, members one after the other are as fast, and need the memory of one gradient only.
        at_once = None if jax.default_backend() == "cpu" else len(members)
        values = jax.lax.map(lambda member: value_fn(restore(member)), members, batch_size=at_once)
        values = jnp.where(jnp.isfinite(values), values, jnp.inf)
        state, _ = strategy.tell(tell_key, members, values, state, params)
        return restore(state.mean - mean), state

    return EvolutionStrategy(init, update)


@functools.cache
def _strategy(size: int, population: int | None, sigma: float) -> tuple[Any, Any]:
    algorithms = evosax()
    members = population or 4 + int(3 * math.log(size))
    kind = algorithms.CMA_ES if size <= DIAGONAL_ABOVE else algorithms.Sep_CMA_ES
    # The result is cached across calls, so its constants must not be values of the first call's trace.
    with jax.ensure_compile_time_eval():
        strategy = kind(population_size=members, solution=jnp.zeros(size))
        params = strategy.default_params
        return strategy, params.replace(std_init=jnp.asarray(sigma, jnp.float32))


def evosax() -> ModuleType:
    """The module of algorithms of evosax.

    Raises:
        ImportError: if it is not installed; the message names the package.
    """
    try:
        from evosax import algorithms
    except ImportError as error:
        raise ImportError("CMA-ES needs evosax: pip install evosax") from error
    return algorithms
