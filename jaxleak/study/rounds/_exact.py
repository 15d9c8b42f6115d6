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
    """Refuse what the exact engine cannot do in memory, known from N alone, before any data are read.

    Args:
        num_samples: N > 0.
        solver: of Steps I and II.

    Raises:
        MemoryError: if N x N matrices are to be factorised and do not fit; names the option that avoids it.
    """
    if factorises(num_samples, solver):  # one float64 matrix per party in turn, beside that of the counts
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
    """Watch the rounds of the plan, then solve for V, H and labels.

    Args:
        problem: what is attacked.
        features: (N, P, d1), see `forward_features`.
        plan: how many rounds; who knows the defense may watch more, see `adaptive.informed_rounds`.
        key: of the audit.
        horizontal: the plan's workers hold whole samples.
        defense: acts on the payload.
        knows_defense: whether the attacker knows it.
        callbacks: see `audit.run`.
        checkpoints: saves and resumes the rounds.
        mesh: devices that share the tables; needs a matrix-free plan.
        on_resume: called with the number of rounds in the checkpoint, 0 without one, before any further round.

    Raises:
        ValueError: on a defense that the attacker should know while no such attack is known, and as `cafe_exact` does.
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
    # Step I reads only bias gradients, so that is all the parties need to simulate until then.
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
