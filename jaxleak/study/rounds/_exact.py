"""Steps I and II of the exact engine against simulated parties that keep their forward features."""

from collections.abc import Callable, Iterable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxleak import _mesh, attacks, audit, models, protocols, threats
from jaxleak._base import Attack, Batch, Observation, PyTree
from jaxleak._own_keys import Purpose, own_key
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe.decoder import synthetic_slices
from jaxleak.attacks._cafe.exact import Solver, factorises
from jaxleak.checkpoint import Checkpoints
from jaxleak.defenses import Defense
from jaxleak.study.rounds._problem import Problem

#: What the attacker knows of the defense: nothing, or the reading of fake gradients and the unit of their noise
#: (`defenses.fake_gradients`; a cap in units of 1 or of each tensor leaves enough entries of all tensors).
Knowledge = Literal["nothing", "clamped", "clamped-gradient", "paired-gradient", "paired-tensor"]

#: An attacker who has only the order of the entries alternates between predictions and orders this often.
SWEEPS = 6


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
    knows: Knowledge = "nothing",
    callbacks: Iterable[audit.Callback] = (),
    checkpoints: Checkpoints | None = None,
    mesh: Mesh | None = None,
    on_resume: Callable[[int], None] = lambda _: None,
) -> aggregated.Recovery:
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
    attack = _attacker(problem.model, problem.params, plan, knows, mesh)
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


def _attacker(
    model: models.SplitModel, params: PyTree, plan: aggregated.CafeExactPlan, knows: Knowledge, mesh: Mesh | None
) -> Attack:
    """The attack on the rounds, without Step III; no data come in here."""
    head = models.frozen_features(model)
    if knows == "nothing":
        return attacks.cafe_exact(head, plan, invert=False, mesh=mesh)
    if knows == "clamped":
        return attacks.cafe_censored(head, plan, invert=False)
    if knows == "clamped-gradient":
        return attacks.cafe_ordinal(head, plan, reading="clamped", sweeps=SWEEPS, invert=False)
    scale = 1.0
    if knows == "paired-gradient":
        scale = aggregated.kernel_to_bias_ratio(own_gradient(model, params, plan.batch_size))
    return attacks.cafe_ordinal(head, plan, kernel_scale=scale, sweeps=SWEEPS, invert=False)


def own_gradient(model: models.SplitModel, params: PyTree, batch_size: int) -> PyTree:
    """The frozen model's gradient on a batch that the attacker makes up: random shapes and noise, random labels.

    Nobody's data take part. Colour, grey and tabular slices are drawn alike, every party's by itself.

    Args:
        model: under attack.
        params: its frozen parameters.
        batch_size: K.
    """
    for_slices, for_labels = jax.random.split(own_key(Purpose.SAMPLES))
    slices = synthetic_slices(int(jax.random.bits(for_slices)), batch_size * model.parties, model.slice_shape)
    x = jnp.asarray(slices).reshape(batch_size, model.parties, *model.slice_shape)
    y = jax.random.randint(for_labels, (batch_size,), 0, model.num_classes)
    share = protocols.vertical(models.frozen_features(model), num_samples=batch_size, batch_size=batch_size).share
    features = jax.jit(model.features)(params, x)
    return jax.jit(share)(params, Batch(features, y, jnp.arange(batch_size, dtype=jnp.int32)))
