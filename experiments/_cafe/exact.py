"""Steps I and II of the exact engine against simulated parties that keep their forward features."""

from collections.abc import Callable, Iterable

import jax
from jax.sharding import Mesh

from experiments._cafe.problem import Problem
from jaxleak import _mesh, attacks, audit, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.checkpoint import Checkpoints
from jaxleak.defenses import Defense


def observe_and_recover(
    problem: Problem,
    features: jax.Array,
    plan: attacks.CafeExactPlan,
    *,
    key: jax.Array,
    horizontal: bool = False,
    defense: Defense | None = None,
    adaptive: bool = False,
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
    mesh: Mesh | None = None,
    on_resume: Callable[[int], None] = lambda _: None,
) -> attacks.Recovery:
    """Watch the rounds of the plan, then solve for V, H and labels.

    Args:
        problem: what is attacked.
        features: (N, P, d1), see `forward_features`.
        plan: how many rounds.
        key: of the audit.
        horizontal: the plan's workers hold whole samples.
        defense: acts on the payload.
        adaptive: the attacker knows that the defense is fake gradients.
        callbacks: see `audit.run`.
        checkpoints: saves and resumes the rounds.
        mesh: devices that share the tables; needs a matrix-free plan.
        on_resume: called with the number of rounds in the checkpoint, 0 without one, before any further round.
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
    attack = attacks.cafe_censored(head, plan) if adaptive else attacks.cafe_exact(head, plan, mesh=mesh)
    state = audit.start(attack, protocol, private, key=key)
    if mesh is not None:
        tables, private = attacks.shard_cafe(head, plan, state.attack, private, mesh)
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
    recover = attacks.recover_censored if adaptive else attacks.recover
    return recover(head, state.protocol.params, plan, state.attack)
