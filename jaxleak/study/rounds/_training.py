"""Training without an attack, which shows how much accuracy a defense costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import audit, protocols, threats
from jaxleak._base import Attack, PyTree
from jaxleak.objectives import cross_entropy
from jaxleak.study.rounds._problem import Problem
from jaxleak.study.rounds._settings import Setting, defense_named, optimizer_of


def training(setting: Setting, problem: Problem) -> dict[str, Any]:
    """Train without an attack, and measure the loss on the private set and the accuracy on held-out samples.

    Args:
        setting: a setting of kind "training".
        problem: the private set, and held-out samples.

    Returns:
        `curve`: triples of iteration, loss and accuracy in [0, 1]. If a gradient is not finite, the curve ends with one
        triple for the next iteration that would have been recorded, with a loss and an accuracy of NaN.
    """
    key = jax.random.key(setting.seed)
    protocol = protocols.vertical(
        problem.model,
        num_samples=setting.num_samples,
        batch_size=setting.batch_size,
        optimizer=optimizer_of(setting),
        defense=defense_named(setting.defense, batch_size=setting.batch_size),
    )
    private, test = problem.private, problem.held_out
    watch = Attack(lambda key, template: jnp.zeros(()), lambda key, state, observation: (state, {}), _no_reconstruction)

    @jax.jit
    def evaluate(params: PyTree) -> tuple[jax.Array, jax.Array]:
        def logits(x: jax.Array) -> jax.Array:
            return jax.lax.map(lambda one: problem.model.apply(params, one[None])[0], x, batch_size=100)

        loss = cross_entropy(logits(private.x), private.y)
        return loss, jnp.mean(jnp.argmax(logits(test.x), axis=-1) == test.y)

    curve: list[tuple[int, float, float]] = []

    def record(done: int, state: audit.RunState, _: dict[str, np.ndarray]) -> None:
        loss, accuracy = evaluate(state.protocol.params)
        curve.append((done, float(loss), float(accuracy)))

    start = audit.start(watch, protocol, private, key=key)
    chunk = max(10, setting.iterations // 40)  # records the rounds of Table 11, multiples of 1000
    record(0, start, {})
    try:
        audit.run(
            watch,
            protocol,
            threats.HONEST_BUT_CURIOUS_SERVER,
            private,
            key=key,
            rounds=setting.iterations,
            state=start,
            chunk=chunk,
            callbacks=[record],
        )
    except FloatingPointError:
        curve.append((min(curve[-1][0] + chunk, setting.iterations), float("nan"), float("nan")))
    return {"curve": curve}


def _no_reconstruction(state: PyTree, observation: Any) -> Any:
    raise ValueError("training without an attack reconstructs nothing")
