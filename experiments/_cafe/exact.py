"""Steps I and II of the exact engine against simulated parties that keep their forward features."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments._cafe.problem import Problem, forward_features
from jaxleak import _mesh, attacks, audit, data, models, protocols, threats
from jaxleak._base import Attack, Batch
from jaxleak.checkpoint import Checkpoints
from jaxleak.defenses import Defense

#: What the attacker knows of the defense: nothing, or the reading of fake gradients and the unit of their noise
#: (`defenses.fake_gradients`; a cap in units of 1 or of each tensor leaves enough entries of all tensors).
Knowledge = Literal["nothing", "clamped", "clamped-gradient", "paired-gradient", "paired-tensor"]

#: Who has only the order alternates between predictions and orders this often.
SWEEPS = 6


def observe_and_recover(
    problem: Problem,
    features: jax.Array,
    plan: attacks.CafeExactPlan,
    *,
    key: jax.Array,
    horizontal: bool = False,
    defense: Defense | None = None,
    knows: Knowledge = "nothing",
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
        knows: of the defense.
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
    attack, recover = _attacker(problem, head, plan, knows, mesh)
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
    return recover(head, state.protocol.params, plan, state.attack)


def _attacker(
    problem: Problem, head: models.SplitModel, plan: attacks.CafeExactPlan, knows: Knowledge, mesh: Mesh | None
) -> tuple[Attack, Callable[..., attacks.Recovery]]:
    """The attack on the rounds, and what solves its final state."""
    if knows == "nothing":
        return attacks.cafe_exact(head, plan, mesh=mesh), attacks.recover
    if knows == "clamped":
        return attacks.cafe_censored(head, plan), attacks.recover_censored
    recover = functools.partial(attacks.recover_ordinal, sweeps=SWEEPS)
    if knows == "clamped-gradient":
        return attacks.cafe_ordinal(head, plan, reading="clamped", sweeps=SWEEPS), recover
    kernel_scale = attacks.size_ratio(_own_gradient(problem, plan.batch_size)) if knows == "paired-gradient" else 1.0
    return attacks.cafe_ordinal(head, plan, kernel_scale=kernel_scale, sweeps=SWEEPS), recover


def _own_gradient(problem: Problem, batch_size: int) -> Any:
    """The first dense layer's gradient on photographs of the attacker's own, with labels at random."""
    side, parties = problem.dataset.x.shape[1], problem.model.parties
    own = data.load(f"natural_patches:{side}", batch_size, 0)
    tiles, _ = data.image_tiles(own.x, parties)
    index = jnp.arange(batch_size, dtype=jnp.int32)
    labels = jax.random.randint(jax.random.key(0), (batch_size,), 0, problem.model.num_classes)
    features = forward_features(problem._replace(private=Batch(jnp.asarray(tiles), labels, index)))
    head = models.frozen_features(problem.model)
    protocol = protocols.vertical(head, num_samples=batch_size, batch_size=batch_size)
    state = protocol.init(jax.random.key(0))._replace(params=problem.params)
    _, transcript = jax.jit(protocol.round)(jax.random.key(0), state, Batch(features, labels, index))
    return transcript.payload
