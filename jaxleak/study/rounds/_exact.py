"""Steps I and II of the exact engine against simulated parties that keep their forward features."""

from collections.abc import Callable, Iterable

import jax
from jax.sharding import Mesh

from jaxleak import _mesh, attacks, audit, models, protocols, threats
from jaxleak._base import Batch, Observation
from jaxleak.attacks import adaptive, aggregated
from jaxleak.attacks._cafe.exact import Solver, factorises
from jaxleak.checkpoint import Checkpoints
from jaxleak.defenses import Defense
from jaxleak.study.rounds._problem import Problem


def require_memory_of_rounds(num_samples: int, solver: Solver) -> None:
    """Raise, before any data are read, if the matrices of the exact engine do not fit in memory.

    Args:
        num_samples: size N > 0 of the private set.
        solver: solver of Steps I and II.

    Raises:
        MemoryError: if the solver factorises N x N matrices that do not fit; the message names the option that avoids
            this.
    """
    if factorises(num_samples, solver):
        # Parties take turns with one float64 matrix, beside the matrix of counts.
        advice = "--linear-solver matrix_free factorises nothing"
        audit.require_bytes(16 * num_samples**2, jax.local_devices(backend="cpu")[0], advice)


def observe_and_recover(
    problem: Problem,
    features: jax.Array,
    plan: aggregated.CafeExactPlan,
    *,
    key: jax.Array,
    horizontal: bool = False,
    defense: Defense | None = None,
    knows_defense: bool = False,
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
    mesh: Mesh | None = None,
    on_resume: Callable[[int], None] = lambda _: None,
) -> aggregated.Recovery:
    """Observe the rounds of the plan, then solve for V, H and labels.

    Args:
        problem: the attacked federation.
        features: (N, P, d1), the parties' forward features, see `forward_features`.
        plan: numbers of rounds; an attacker who knows the defense may observe more, see `adaptive.informed_rounds`.
        key: random key of the audit.
        horizontal: whether rounds are horizontal, with workers that hold whole samples, or vertical.
        defense: defense of the payload, or None.
        knows_defense: whether the attacker knows the defense.
        callbacks: functions that see the progress, see `audit.run`.
        checkpoints: checkpoints that save and resume the rounds, or None.
        mesh: devices that share the tables; needs a matrix-free plan.
        on_resume: function that is called before the first round with the number of rounds in the checkpoint, or 0
            without one.

    Returns:
        The recovered V, H and labels, and which samples have an answer.

    Raises:
        ValueError: if the attacker is to know the defense and no such attack exists, or if `attacks.cafe_exact` raises.
    """
    head = models.frozen_features(problem.model)
    if horizontal:
        protocol = protocols.horizontal(
            head,
            workers=plan.workers,
            num_samples=plan.num_samples,
            batch_size=plan.batch_size,
            defense=defense,
        )
    else:
        protocol = protocols.vertical(head, num_samples=plan.num_samples, batch_size=plan.batch_size, defense=defense)
    private = Batch(features, problem.private.y, problem.private.index)
    if defense is not None and knows_defense:
        attack, plan = adaptive.informed_rounds(defense, problem.model, plan, params=problem.params, invert=False)
    else:
        attack = attacks.cafe_exact(head, plan, invert=False, mesh=mesh)
    state = audit.start(attack, protocol, private, key=key)
    if mesh is not None:
        tables, private = aggregated.shard_cafe(head, plan, state.attack, private, mesh)
        state = _mesh.place(state._replace(attack=None), _mesh.replicated(mesh))._replace(attack=tables)
    if checkpoints is not None:
        state = checkpoints.restore_latest(state)
    on_resume(int(state.protocol.round))
    # Step I reads only bias gradients, so the parties need not simulate other gradients during its rounds.
    phases = ((threats.BIAS_GRADIENT_ONLY, plan.output_rounds), (threats.FIRST_LAYER_ONLY, plan.rounds))
    for threat, rounds in phases:
        state, _ = audit.run(
            attack,
            protocol,
            threat,
            private,
            key=key,
            rounds=rounds,
            state=state,
            chunk=max(25, plan.output_rounds // 8),
            callbacks=callbacks,
            checkpoints=checkpoints,
        )
    observation = Observation(state.protocol.round, state.protocol.params)
    recovery: aggregated.Recovery = attack.reconstruct(state.attack, observation).diagnosis
    return recovery
