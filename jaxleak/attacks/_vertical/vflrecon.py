"""VFLRecon: labels and features of others from the change of one's own bottom model.

The attack of "Vulnerabilities of Data Protection in Vertical Federated Learning Training and Countermeasures": a
participant runs the same protocol on complete records of its own (the shadow run). There it trains a reconstruction
network R that maps its view of a step to what it wants to know, and then applies R to the real run step by step.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import _validate
from jaxleak._base import Attack, Batch, Observation, PartyRecord, PyTree, Reconstruction
from jaxleak.attacks._observed import Reads, require
from jaxleak.attacks._vertical.reconstruction_net import ReconstructionNet, train_network
from jaxleak.attacks._vertical.record_fields import FIELDS, PAPER_FIELDS, Record, item_widths, same_features
from jaxleak.models import BottomTopModel
from jaxleak.objectives._losses import soft_labels

Scales = Literal["entry", "item"]
ShadowInit = Literal["shared", "own_bottom", "independent"]
SHADOW_INITS: tuple[ShadowInit, ...] = ("shared", "own_bottom", "independent")

# One object, so that every network trained with it shares one compilation.
_ADAM = optax.adam(1e-3)

#: Explanation of sample numbers, for errors about a number that is out of range.
NUMBERS = (
    "samples are numbered from 0 on among those of the run, in the order in which the truth is kept; renumber rows of "
    "a whole table by np.searchsorted(victim, index), where victim has the rows of the run in ascending order"
)

LABEL_HIDDEN = (1000, 600, 200)
FEATURE_HIDDEN = (800, 500, 100)


def shadow_params(
    model: BottomTopModel,
    key: jax.Array,
    shadow_init: ShadowInit,
    *,
    party: int,
    initial: PyTree | None = None,
    own_bottom: PyTree | None = None,
) -> PyTree:
    """Initial parameters of the shadow run. The paper does not state them, and the attack depends on them.

    Args:
        model: the model of both runs.
        key: random key of everything that is drawn afresh.
        shadow_init: "shared" starts from the real run's initial parameters, of all parties and the top, which a
            participant only has if they come from a common seed. "own_bottom" starts from the attacker's own initial
            bottom, which it always has, and draws the others afresh. "independent" draws all afresh.
        party: the attacker.
        initial: all initial parameters, read for "shared" only.
        own_bottom: the attacker's initial bottom, read for "own_bottom" only.

    Raises:
        ValueError: if the parameters that `shadow_init` needs are missing, or it is unknown.
    """
    _validate.one_of(SHADOW_INITS, shadow_init=shadow_init)
    _validate.index_below(model.parties, party=party)
    if shadow_init == "shared":
        if initial is None:
            raise ValueError("shadow_init='shared' needs the real run's initial parameters")
        return initial
    params = jax.jit(model.init)(key)
    if shadow_init == "own_bottom":
        if own_bottom is None:
            raise ValueError("shadow_init='own_bottom' needs the attacker's own initial bottom")
        bottoms = list(params["bottom"])
        bottoms[party] = own_bottom
        params = {**params, "bottom": tuple(bottoms)}
    return params


def train_vflrecon(
    key: jax.Array,
    shadow: Observation,
    private: Batch,
    model: BottomTopModel,
    *,
    party: int,
    task: Literal["labels", "features"],
    fields: Sequence[str] = PAPER_FIELDS,
    hidden: Sequence[int] | None = None,
    epochs: int = 10,
    steps_per_batch: int = 4,
    optimizer: optax.GradientTransformation | None = None,
    held_out: jax.Array | None = None,
    scales: Scales = "item",
) -> ReconstructionNet:
    """Train the reconstruction network R on a shadow run.

    Args:
        key: random key of R's start and of the order of its batches.
        shadow: what the party saw of its own shadow run, leaves with a leading axis of steps (`audit.watch`), or of
            several runs (`join_runs`). A single run of few records is one path of the parameters, which R memorises.
        private: the attacker's complete shadow records.
        model: the model of both runs.
        party: the attacker.
        task: "labels" trains with cross-entropy, "features" with the mean square error on all others' features.
        fields: what a record holds, some of `FIELDS`. The default is the paper's, in which most entries are parameters.
        hidden: widths of R's hidden layers; None is the paper's 1000-600-200 for labels and 800-500-100 for features.
        epochs: passes over all steps of the shadow run, > 0.
        steps_per_batch: steps whose samples make one batch of R, > 0.
        optimizer: the optimizer of R; None is Adam with rate 1e-3.
        held_out: (N,) bool, private samples whose targets R must not learn, for validation (`select_fields`); None
            holds back none.
        scales: "item" standardises every item of a record as a whole, "entry" every entry separately. The paper prints
            neither. Parameters hardly change during a run, and nearly in parallel: with a scale for each entry they
            dominate the other items, and R hardly learns. The loss of R on the shadow run shows this to the attacker.

    Returns:
        R. Features are answered in the unit of the shadow records, each column within the smallest interval that
        holds both [0, 1] and the column's range in the shadow records.

    Raises:
        ValueError: on fields that are unknown or that the record lacks, an unknown scale or task, a shadow run without
            this party's record or with another party's, a party, records or labels that do not fit the model or the
            run, or if `held_out` does not fit or leaves nothing to learn.
        FloatingPointError: if the loss is not finite.
    """
    _validate.one_of(("labels", "features"), task=task)
    _validate.one_of(("entry", "item"), scales=scales)
    _validate.count(epochs=epochs, steps_per_batch=steps_per_batch)
    _validate.some_of(FIELDS, fields=fields)
    seen = require(shadow, Reads("train_vflrecon", index=True, party=True))
    _check_shadow(model, seen.party, seen.index, private, party)
    samples = len(private.x)
    if task == "labels":
        _validate.batch_labels(private.y, samples, model.num_classes)
    if held_out is not None and (held_out.shape != (samples,) or held_out.dtype != bool or bool(held_out.all())):
        raise ValueError(
            f"held_out must have shape ({samples},), dtype bool and leave samples, "
            f"got {held_out.shape}, {held_out.dtype}"
        )
    target = targets_of(model, private, party, task)
    default_hidden = LABEL_HIDDEN if task == "labels" else FEATURE_HIDDEN
    net = train_network(
        key,
        seen.party,
        target[seen.index],
        Record(tuple(fields)),
        hidden=tuple(default_hidden if hidden is None else hidden),
        task=task,
        epochs=epochs,
        steps_per_batch=steps_per_batch,
        optimizer=_ADAM if optimizer is None else optimizer,
        weights=None if held_out is None else (~held_out)[seen.index].astype(jnp.float32),
        items=item_widths(seen.party, tuple(fields)) if scales == "item" else None,
    )
    return dataclasses.replace(net, party=party)


def _check_shadow(model: BottomTopModel, steps: PartyRecord, index: jax.Array, private: Batch, party: int) -> None:
    """Raise `ValueError` unless the party exists, and the record of all steps and the private records are its own."""
    _validate.index_below(model.parties, party=party)
    if steps.x.shape[-1] != model.widths[party]:
        raise ValueError(
            f"party must be the one whose record is shown: party {party} has {model.widths[party]} features, "
            f"got a record of {steps.x.shape[-1]}"
        )
    refuse_stranger("train_vflrecon", of_another(steps, party), party)
    last = int(index.max())
    if last >= len(private.x):  # JAX clamps an index that is out of range
        raise ValueError(f"private must hold every sample of the shadow run, got {len(private.x)}, and sample {last}")
    model.check_padding(private.x)
    # Without this check, targets of other records than those of the run would be learned silently.
    own = np.asarray(model.slices(private.x)[party])[np.asarray(index)]
    if not same_features(own, np.asarray(steps.x)).all():
        raise ValueError(
            f"private must be the records of the shadow run: the features that it gives party {party} are not those of "
            "the party whose record is shown"
        )


def of_another(seen: PartyRecord, party: int) -> jax.Array:
    """() bool: whether a record is known to be of another party."""
    return jnp.zeros((), bool) if seen.party is None else jnp.any(seen.party != party)


def refuse_stranger(who: str, another: jax.Array, party: int) -> None:
    """Raise `ValueError` if a record is of another party (`of_another`); a traced value cannot be checked."""
    if not isinstance(another, jax.core.Tracer) and bool(another):
        raise ValueError(
            f"party must be the one whose record is shown (threats.party_view): {who} is for party {party} and was "
            "shown the record of another one"
        )


def join_runs(runs: Sequence[Observation]) -> Observation:
    """Several stacked runs as one, along the axis of steps.

    R reads each step's record by itself, so it may learn from any number of shadow runs. Steps must agree in shape.

    Raises:
        ValueError: if there is no run.
    """
    if not runs:
        raise ValueError("join_runs needs at least one run")
    joined: Observation = runs[0] if len(runs) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *runs)
    return joined


def targets_of(model: BottomTopModel, private: Batch, party: int, task: str) -> jax.Array:
    """What R learns of every private sample: one-hot labels (N, C) or all others' features (N, sum of their d_p)."""
    if task == "labels":
        return soft_labels(private.y, model.num_classes)
    return victims_features(model, private.x, party)


def check_samples(template: Batch, num_samples: int) -> None:
    """Raise `ValueError` unless an attack answers for as many samples as the private set has."""
    if len(template.x) != num_samples:
        raise ValueError(
            f"num_samples must be the number of samples of the real run, {len(template.x)}, got {num_samples}"
        )


def victims_features(model: BottomTopModel, x: jax.Array, party: int | None) -> jax.Array:
    """All other parties' features side by side.

    Args:
        model: tells how many features each party has.
        x: (N, P, max d_p), padded samples in any unit.
        party: the attacker, in [0, P); None takes the features of all parties.

    Returns:
        (N, sum of the others' d_p), in the unit of `x`, as `assemble_victims` takes them.

    Raises:
        ValueError: if there is no such party, or no other one.
    """
    if party is not None:
        _validate.index_below(model.parties, party=party)
    others = [x_p for p, x_p in enumerate(model.slices(x)) if p != party]
    if not others:
        raise ValueError("model must have at least 2 parties, so that others have features, got 1")
    return jnp.concatenate(others, axis=1)


def assemble_victims(model: BottomTopModel, own: jax.Array, victims: jax.Array, party: int) -> jax.Array:
    """Padded samples (N, P, max d_p) from the attacker's own features and its estimate of all others'."""
    x = jnp.zeros((len(own), model.parties, *model.slice_shape))
    offset = 0
    for p, width in enumerate(model.widths):
        if p == party:
            x = x.at[:, p, :width].set(own)
        else:
            x = x.at[:, p, :width].set(victims[:, offset : offset + width])
            offset += width
    return x


class VflreconState(NamedTuple):
    """The networks, and sums over the sightings of every sample. Memory O(N (C + sum d_p))."""

    # The networks are here, because compiled code would hold millions of closed-over parameters as constants.
    labels_net: ReconstructionNet | None
    features_net: ReconstructionNet | None
    log_probability: jax.Array  # (N, C)
    victims: jax.Array  # (N, sum of the others' d_p)
    own: jax.Array  # (N, d_party), the attacker's own features
    seen: jax.Array  # (N,) int32, sightings
    guess: jax.Array  # (N,) int32, a random label: the answer for a sample that never took part
    another: jax.Array  # () bool, whether a record was of another party
    last: jax.Array  # () int32, the largest sample number that was seen


def vflrecon(
    model: BottomTopModel,
    *,
    party: int,
    num_samples: int,
    labels: ReconstructionNet | None = None,
    features: ReconstructionNet | None = None,
) -> Attack:
    """Apply trained reconstruction networks to the real run, step by step (VFLRecon, section IV, step 3).

    The paper does not say whether a sample counts once or once per epoch. Here a sample that is seen again gets the
    average of its log-probabilities and of its features. After one epoch the two readings are the same.

    Args:
        model: the model of the real run.
        party: the attacker.
        num_samples: number N of samples of the real run.
        labels: R for labels, from `train_vflrecon`; without it all labels of the answer are -1, since none were sought.
        features: R for features; without it the victims' slices of the answer are zero.

    Returns:
        An `Attack`; its score is one minus the probability of the answered label (without `labels`: 0), and 1 for a
        sample that never took part or had a record that is not finite.

    Raises:
        ValueError: if neither network is given, the party does not exist or a network is another party's; in `init`, if
            N is not the template's number of samples; and in `reconstruct`, if the records were another party's or a
            sample's number is not below N.
    """
    _validate.count(num_samples=num_samples)
    _validate.index_below(model.parties, party=party)
    if labels is None and features is None:
        raise ValueError("vflrecon needs a network for labels or one for features")
    for name, net in (("labels", labels), ("features", features)):
        trained = getattr(net, "party", None)
        if trained not in (None, party):
            raise ValueError(f"party must be that of the network for {name}, {trained}, got {party}")
    others = sum(model.widths) - model.widths[party]
    reads = Reads("vflrecon", index=True, party=True)

    def init(key: jax.Array, template: Batch) -> VflreconState:
        check_samples(template, num_samples)
        return VflreconState(
            labels,
            features,
            jnp.zeros((num_samples, model.num_classes)),
            jnp.zeros((num_samples, others)),
            jnp.zeros((num_samples, model.widths[party])),
            jnp.zeros(num_samples, jnp.int32),
            jax.random.randint(key, (num_samples,), 0, model.num_classes),
            jnp.zeros((), bool),
            jnp.zeros((), jnp.int32),
        )

    def step(
        key: jax.Array, state: VflreconState, observation: Observation
    ) -> tuple[VflreconState, dict[str, jax.Array]]:
        del key
        granted = require(observation, reads)
        index, seen = granted.index, granted.party
        log_probability, victims = state.log_probability, state.victims
        confidence = jnp.zeros(())
        if state.labels_net is not None:
            log_p = jax.nn.log_softmax(state.labels_net(seen))
            log_probability = log_probability.at[index].add(log_p)
            confidence = jnp.exp(log_p.max(axis=1)).mean()
        if state.features_net is not None:
            victims = victims.at[index].add(state.features_net(seen))
        state = state._replace(
            log_probability=log_probability,
            victims=victims,
            own=state.own.at[index].set(seen.x),
            seen=state.seen.at[index].add(1),
            another=state.another | of_another(seen, party),
            last=jnp.maximum(state.last, index.max()),
        )
        return state, {"confidence": confidence, "samples_seen": jnp.sum(state.seen > 0)}

    def reconstruct(state: VflreconState, observation: Observation) -> Reconstruction:
        del observation
        refuse_stranger(reads.who, state.another, party)
        if not isinstance(state.last, jax.core.Tracer) and state.last >= num_samples:
            raise ValueError(
                f"num_samples must be above the number of every sample, got {num_samples} and {state.last}: {NUMBERS}"
            )
        count = jnp.maximum(state.seen, 1)[:, None]
        probability = jax.nn.softmax(state.log_probability / count)
        # A record that is not finite, as a stored run may hold, leaves its samples without an answer.
        finite = jnp.isfinite(state.log_probability).all(axis=1) & jnp.isfinite(state.victims).all(axis=1)
        known = (state.seen > 0) & finite
        if labels is None:  # all probabilities are equal, and argmax would name class 0
            y, score = jnp.full(num_samples, -1, jnp.int32), jnp.zeros(num_samples)
        else:
            y = jnp.where(known, probability.argmax(axis=1).astype(jnp.int32), state.guess)
            score = 1 - probability.max(axis=1)
        x = assemble_victims(model, state.own, jnp.where(known[:, None], state.victims / count, 0.0), party)
        return Reconstruction(x, y, jnp.where(known, score, 1.0), known)

    return Attack(init, step, reconstruct)


def flat_observations(observations: Observation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flatten stacked observations to sample ids (T B,), own features (T B, d) and cut gradients (T B, e).

    Units are those of the observations.

    Raises:
        ValueError: if the threat withholds the sample ids or a party's record.
    """
    seen = require(observations, Reads("flat_observations", index=True, party=True))
    x, gradient = np.asarray(seen.party.x), np.asarray(seen.party.output_gradient)
    return np.asarray(seen.index).ravel(), x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
