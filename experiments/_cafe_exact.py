"""Steps I and II of the exact engine against simulated parties that keep their forward features."""

from collections.abc import Iterable

import jax

from experiments._cafe_problem import Problem
from jaxleak import attacks, audit, models, protocols, threats
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
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
) -> attacks.Recovery:
    """Watch the rounds of the plan, then solve for V, H and labels.

    Args:
        problem: what is attacked.
        features: (N, P, d1), see `forward_features`.
        plan: how many rounds.
        key: of the audit.
        horizontal: the plan's workers hold whole samples.
        defense: acts on the payload.
        callbacks: see `audit.run`.
        checkpoints: saves and resumes the rounds.
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
    attack = attacks.cafe_exact(head, plan)
    state = audit.start(attack, protocol, private, key=key)
    if checkpoints is not None:
        state = checkpoints.restore_latest(state)
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
    return attacks.recover(head, state.protocol.params, plan, state.attack)
