"""One gradient inversion from end to end: data, a client, what the threat grants, the attack, and the scores."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments._defenses import adaptive as defense_adaptive
from experiments._defenses import registry as defense_registry
from experiments._fedleak.partitions import client_samples
from experiments._inversion.case import HELD_OUT, Case, check_combinations
from experiments._inversion.public_data import generator_for
from jaxleak import _validate, attacks, audit, data, defenses, metrics, models, objectives, protocols, threats
from jaxleak._base import Attack, Batch, Observation, Protocol, PyTree
from jaxleak.attacks import presets
from jaxleak.audit import InversionRun
from jaxleak.checkpoint import Checkpoints


class Victim(NamedTuple):
    """The side of the client and the server."""

    model: models.Classifier
    protocol: Protocol
    share: protocols.ClientShare
    private: Batch


class Outcome(NamedTuple):
    """One seed's result, scored with the truth in hand."""

    truth: np.ndarray  # (B, H, W, C)
    estimate: np.ndarray  # (B, H, W, C), matched one to one with `truth`
    scores: dict[str, float]
    curve: np.ndarray  # (iterations,) the data distance along the run, of the first restart


#: Attacks without iterations, to which the engine's settings do not apply.
CLOSED_FORM = {"patch_embedding": attacks.patch_embedding}
ATTACKS = (*presets.PRESETS, *CLOSED_FORM)


def check(case: Case) -> None:
    """Raise `ValueError` on unknown names or options out of range, before any data are loaded."""
    _validate.positive(pool=case.pool, federation=case.federation, restarts=case.restarts, clients=case.clients)
    _validate.positive(batch_size=case.batch_size, local_steps=case.local_steps)
    _validate.one_of(ATTACKS, attack=case.attack)
    _validate.one_of(models.CLASSIFIERS, model=case.model)
    check_combinations(case, case.attack in CLOSED_FORM)
    if case.activation_penalty is not None:
        _validate.non_negative(activation_penalty=case.activation_penalty)
    if case.matched_percent is not None:
        _validate.positive(matched_percent=case.matched_percent)
        _validate.in_range(0, 100, matched_percent=case.matched_percent)
    if case.homotopy is not None:
        first, last = case.homotopy
        _validate.positive(homotopy=first)
        if not first <= last:
            raise ValueError(f"homotopy must not fall, got {first} to {last}")
    if case.attack not in CLOSED_FORM:
        settings(case)
    elif case.images != 1:
        raise ValueError(f"{case.attack} solves for one image behind one gradient, got {case.images} images")
    elif case.adaptive:
        raise ValueError(f"{case.attack} knows no defenses, so adaptive must be False, got True")
    _validate.non_negative(attacked_round=case.attacked_round, skip=case.skip)
    if case.defense is not None:
        if not case.strength:
            raise ValueError(f"strength of {case.defense} must be given; 0 would defend nothing")
        defense_registry.build(case.defense, case.strength, local_steps=case.local_steps)
        if case.attacked_round and defense_registry.REGISTRY[case.defense].memory:
            raise ValueError(
                f"{case.defense} adds to an upload what earlier ones left out, which one client's round does not have: "
                f"attacked_round must be 0, got {case.attacked_round}"
            )
    elif case.strength or case.adaptive:
        raise ValueError("strength and adaptive are of a defense, and defense names none")


def iterations_of(case: Case) -> int:
    """How often the attack looks at the update."""
    return 1 if case.attack in CLOSED_FORM else case.iterations


def build_attack(
    case: Case,
    model: models.Classifier,
    share: protocols.ClientShare,
    generator: attacks.PublicGenerator | None = None,
) -> Attack:
    """The attack of `case` on what `share` gives."""
    if case.attack in CLOSED_FORM:
        return CLOSED_FORM[case.attack](model, batch_size=case.images)
    return attacks.inversion(model, share, settings(case, generator), batch_size=case.images)


def settings(case: Case, generator: attacks.PublicGenerator | None = None) -> attacks.Settings:
    """The preset of `case` with the case's changes.

    Without a generator, settings of attacks that need one are only good for being read.
    """
    options: dict[str, Any] = {"batch_size": case.images} if case.attack == "fedleak" else {}
    if case.attack in presets.GENERATIVE:
        _validate.positive(
            public_samples=case.public_samples, latent_size=case.latent_size, generator_epochs=case.generator_epochs
        )
        options = {"generator": generator or _untrained(case.latent_size)}
    if case.attack == "gradinversion":
        options = {"granted_statistics": case.granted_statistics}
    if case.attack == "bayes":
        if case.noise is not None:
            options["noise"] = case.noise
        if case.noise_scale is not None:
            _validate.positive(noise_scale=case.noise_scale)
            options["scale"] = case.noise_scale
    s = presets.preset(case.attack, case.iterations, **options)
    changes: dict[str, Any] = {}
    if case.labels is not None:
        changes["labels"] = case.labels
    if case.exact_kinks:
        changes["smoothing"] = None
    elif case.homotopy is not None:
        changes["smoothing"] = attacks.smoothing(*case.homotopy, finish=case.finish, progress_below=case.progress_below)
    if case.tv is not None:
        changes["tv"] = case.tv
    if case.tv_kind is not None:
        changes["tv_kind"] = case.tv_kind
    if case.activation_penalty is not None:
        changes["activation"] = case.activation_penalty
    if case.matched_percent is not None:
        changes["selection"] = objectives.top_share(case.matched_percent, per_tensor=case.per_tensor)
    if case.blend is not None:
        changes["regularization"] = objectives.gradient_regularization(
            case.blend,
            length=case.probe_length,
            probe=case.probe,  # type: ignore[arg-type]
            exact=case.exact_curvature,
        )
    if case.white_point is not None:
        changes["white_point"] = case.white_point
    if case.generator:
        changes["candidate"] = attacks.generator_weights()
        changes["optimizer"] = presets.signed(presets.cosine_decay_adam(1e-2, case.iterations))
    if case.optimizer is not None:
        _validate.one_of(("adam", "annealed"), optimizer=case.optimizer)
        _validate.positive(step_size=case.step_size)
        changes["optimizer"] = _optimizer(case)
    if case.terms is not None:
        for name in case.terms:
            _validate.one_of(_TERMS, terms=name)
        changes["distance"] = objectives.weighted([(1.0, _TERMS[name]) for name in case.terms])
    return s._replace(**changes)


def _untrained(latent_size: int) -> attacks.PublicGenerator:
    codes = jnp.zeros(latent_size)
    return attacks.PublicGenerator(None, codes, codes, (), 0, np.zeros((0, 2)))


_TERMS = {name: getattr(objectives, name) for name in ("relative_l1", "mean_l1", "l1", "cosine", "squared_l2")}


def _optimizer(case: Case) -> optax.GradientTransformation:
    cycle = optax.cosine_decay_schedule(case.step_size, 1000)
    annealed = optax.adam(lambda count: cycle(count % 1000))
    adam = annealed if case.optimizer == "annealed" else presets.cosine_decay_adam(case.step_size, case.iterations)
    return presets.signed(adam) if case.attack == "inverting_gradients" else adam


def threat_for(case: Case) -> threats.Threat:
    """The narrowest threat that the case works under; printed, so that nobody overlooks a grant."""
    s = None if case.attack in CLOSED_FORM else settings(case)
    return threats.Threat(
        index=False,
        labels=s is not None and s.labels == "given",
        statistics=s is not None and s.batch_norm > 0,
        running_statistics=case.batch_norm == "eval",
    )


def victim(case: Case, seed: int, variables: PyTree = None) -> Victim:
    """The client's data and protocol. The seed changes the data drawn, the weights and the batch."""
    dataset = data.load(case.data, case.taken, seed)
    if dataset.x.ndim != 4:
        raise ValueError(f"data must be images (N, H, W, C), got {case.data} of shape {dataset.x.shape}")
    model, share, protocol = _client(case, dataset.x.shape[1:], len(dataset.classes))
    if case.weights is not None:
        variables = models.load_weights(case.weights, jax.eval_shape(model.init, jax.random.key(0)))
    dataset = dataset._replace(x=dataset.x[case.skip :], y=dataset.y[case.skip :])
    own = client_samples(case.partition, dataset, case.federation, case.images, seed)
    if variables is not None or len(own) != case.pool:
        protocol = _protocol(case, share, variables, threat_for(case).statistics, len(own))
    x, y = dataset.x[own], dataset.y[own]
    private = Batch(jnp.asarray(x)[:, None], jnp.asarray(y, jnp.int32), jnp.arange(len(own)))
    return Victim(model, protocol, share, private)


#: Of secure aggregation: entries up to 30 for three clients, in steps of 2^-24.
FRACTION_BITS = 24

#: All of a case that the client's program depends on; cases that differ elsewhere share its compilation.
_CLIENT_FIELDS = (
    "model", "activation", "width", "init", "mean", "std", "pool",
    "batch_size", "local_steps", "clients", "learning_rate", "batch_norm", "defense", "strength",
)  # fmt: skip


def _client(
    case: Case, image_shape: tuple[int, ...], num_classes: int
) -> tuple[models.Classifier, protocols.ClientShare, Protocol]:
    client = Case(**{name: getattr(case, name) for name in _CLIENT_FIELDS})
    return _compiled_client(client, threat_for(case).statistics, image_shape, num_classes)


def build_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> models.Classifier:
    """The case's model for images (H, W, channels)."""
    options = {name: getattr(case, name) for name in ("activation", "width", "init") if getattr(case, name) is not None}
    model = models.build(case.model, image_shape, num_classes, **options)
    if case.mean is None or case.std is None:
        return model
    return models.normalized(model, case.mean, case.std)


@functools.cache
def _compiled_client(
    case: Case, with_statistics: bool, image_shape: tuple[int, ...], num_classes: int
) -> tuple[models.Classifier, protocols.ClientShare, Protocol]:
    model = build_model(case, image_shape, num_classes)
    share = protocols.ClientShare(
        model,
        local_steps=case.local_steps,
        learning_rate=case.learning_rate,
        clients=case.clients,
        batch_norm=case.batch_norm,  # type: ignore[arg-type]
    )
    return model, share, _protocol(case, share, None, with_statistics)


def _protocol(
    case: Case,
    share: protocols.ClientShare,
    variables: PyTree,
    with_statistics: bool,
    num_samples: int | None = None,
) -> Protocol:
    defense = client_defense(case, share.model)
    return protocols.client(
        share,
        num_samples=case.pool if num_samples is None else num_samples,
        batch_size=case.batch_size,
        variables=variables,
        defense=defense,
        neighbours=defense_registry.NEIGHBOURS if defense is not None and defense.place == "client_payloads" else 0,
        secure_aggregation=FRACTION_BITS if share.clients > 1 else None,
        with_statistics=with_statistics,
    )


def client_defense(case: Case, model: models.Classifier) -> defenses.Defense | None:
    """The defense of the case's clients, where it has one."""
    if case.defense is None:
        return None
    mixes = model.has_batch_norm and case.batch_norm == "train"
    return defense_registry.build(case.defense, case.strength, local_steps=case.local_steps, mixes_examples=mixes)


def _attack(
    case: Case,
    image_shape: tuple[int, ...],
    num_classes: int,
    generator: attacks.PublicGenerator | None,
    variables: PyTree,
) -> Attack:
    """The attack of `case`, who sees these `variables`; one that does not read them serves all seeds."""
    # Only who knows the defense has a round, see `_compiled`.
    if case.attacked_round and case.defense is not None and defense_adaptive.reads_weights(case.defense):
        return _attack_on(case, image_shape, num_classes, generator, variables)
    return _compiled_attack(case, image_shape, num_classes, generator)


def _attack_on(
    case: Case,
    image_shape: tuple[int, ...],
    num_classes: int,
    generator: attacks.PublicGenerator | None,
    variables: PyTree = None,
) -> Attack:
    # Whom the client's own samples are drawn from, and what its upload passes through, is not the attack's.
    model, share, _ = _client(replace(case, defense=None, strength=0.0), image_shape, num_classes)
    shown = protocols.averaged_share(share) if case.estimate else share
    if not case.adaptive or case.defense is None:
        return build_attack(case, model, shown, generator)
    knowing, adapted = defense_adaptive.informed(
        case.defense,
        case.strength,
        model,
        shown,
        settings(case, generator),
        case.images,
        round_=case.attacked_round,
        variables=variables,
    )
    if case.labels is not None:  # what was asked for goes before what who knows the defense would choose
        adapted = adapted._replace(labels=case.labels)
    return attacks.inversion(model, knowing, adapted, batch_size=case.images)


_compiled_attack = functools.cache(_attack_on)


def leaves_read(case: Case, model: models.Classifier) -> tuple[str, ...] | None:
    """Which part of the update the case's attack reads, as in `attacks.leaves_read`; None is the whole."""
    if case.attack in CLOSED_FORM:
        return None
    return attacks.leaves_read(model, settings(case), batch_size=case.images)


def observe(case: Case, seed: int, side: Victim) -> tuple[Observation, Batch]:
    """What the server sees of one round, of which no more is granted than the attack reads, and the truth."""
    key = jax.random.key(seed)
    state = jax.jit(side.protocol.init)(audit.init_key(key))
    state = state._replace(round=jnp.asarray(case.attacked_round, state.round.dtype))
    _, transcript = jax.jit(side.protocol.round)(jax.random.fold_in(key, 1), state, side.private)
    threat = threat_for(case)._replace(payload=leaves_read(case, side.model))
    return threats.view(threat, transcript), transcript.private


def where_seen(payload: PyTree, simulated: PyTree) -> PyTree:
    """`simulated` without the leaves that the payload lacks."""
    return jax.tree.map(lambda a, b: None if a is None else b, payload, simulated, is_leaf=lambda a: a is None)


def attack(
    case: Case,
    seed: int,
    *,
    variables: PyTree = None,
    callbacks: tuple[Callable[[int, InversionRun, dict[str, np.ndarray]], None], ...] = (),
    checkpoints: Checkpoints | None = None,
    devices: Sequence[jax.Device] = (),
) -> Outcome:
    """Run `case` with one seed, and score it; `variables`, `devices` and the rest as in `victim` and `audit.invert`."""
    side = victim(case, seed, variables)
    observation, truth = observe(case, seed, side)
    shape = tuple(side.model.image_shape)
    generator = generator_for(case, seed, shape)
    engine = _attack(_compiled(case), shape, side.model.num_classes, generator, observation.params)
    begin = time.perf_counter()
    found, _, infos = audit.invert(
        engine,
        observation,
        audit.template_of(side.private),
        key=jax.random.key(seed),
        iterations=iterations_of(case),
        restarts=case.restarts,
        microbatch=case.microbatch,
        callbacks=callbacks,
        checkpoints=checkpoints,
        devices=devices,
    )
    x = jax.block_until_ready(found.x)
    seconds = time.perf_counter() - begin
    scores, estimate = score(np.asarray(truth.x[:, 0]), np.asarray(x[:, 0]))
    scores |= {"score": float(found.score[0]), "matched": float(found.recovered[0]), "seconds": seconds}
    if case.labels != "none":  # without labels nobody knows the answer's gradient
        simulated = jax.jit(side.share)(observation.params, Batch(x, found.y, jnp.arange(case.images)))
        simulated = where_seen(observation.payload, simulated)
        scores |= {
            "cosine_distance": float(objectives.cosine(observation.payload, simulated)),
            "l2_distance": float(jnp.sqrt(objectives.squared_l2(observation.payload, simulated))),
            "label_accuracy": metrics.label_multiset_accuracy(np.asarray(truth.y), np.asarray(found.y)),
        }
    distance = np.asarray(infos.get("distance", np.zeros(0)))
    # One column per restart; no rows where a finished run was resumed.
    curve = distance[:, 0] if distance.ndim == 2 else distance
    return Outcome(np.asarray(truth.x[:, 0]), estimate, scores, curve)


def score(truth: np.ndarray, estimate: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """Truth-side scores, and the estimates in the order of the truth that they match one to one.

    Estimates are clipped to [0, 1] first, as whoever looks at them would: some attacks leave their pixels free.
    """
    estimate = np.clip(estimate, 0, 1)
    matched = estimate[metrics.match_one_to_one(truth, estimate)]
    scores = {
        "psnr": float(np.mean(metrics.psnr(truth, matched))),
        "psnr_best_match": float(np.mean(metrics.best_match_psnr(truth, estimate))),
        "psnr_up_to_scale": float(np.mean(metrics.psnr_up_to_scale(truth, matched))),
        "ssim": float(np.mean(metrics.ssim(truth, matched))),
        "psnr_grey": float(np.mean(metrics.grey_psnr(truth))),
    }
    return scores, matched


def _compiled(case: Case) -> Case:
    # What the attack's program does not depend on: equal programs are compiled once.
    if not case.adaptive:
        case = replace(case, defense=None, strength=0.0, attacked_round=0)  # unknown to the attacker
    return replace(
        case,
        weights=None,
        restarts=1,
        microbatch=None,
        data="natural_patches",
        pool=case.images,
        skip=0,
        partition="iid",
        federation=100,
        public_data=HELD_OUT,
    )
