"""The attacker of a case: the attack's settings and threat, resolved once, and the checks of the case's options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import _validate, attacks, defenses, models, objectives, protocols, threats
from jaxleak._base import Attack
from jaxleak._own_files import require_named
from jaxleak.attacks import adaptive, client_updates, presets
from jaxleak.study.updates._case import (
    HELD_OUT,
    ITERATIVE,
    OF_GENERATORS,
    OPTIONS_OF_BUILT_IN,
    SYNTHETIC,
    Case,
    check_combinations,
    check_of_client,
    given_options,
)
from jaxleak.study.updates._names import ATTACKS
from jaxleak.study.updates._own_attack import own_settings
from jaxleak.study.updates._own_defense import compared_with_mechanism, keeps_state, kind_of_defense


class ClosedForm(NamedTuple):
    """An attack that solves equations; the settings of the iterative engine do not apply to it."""

    build: Callable[[models.Classifier, protocols.ClientShare, int], Attack]  # model, client and number of images
    iterations: int
    one_image: bool  # whether the attack is for exactly one image, or else for several


#: Attacks that solve equations, by name.
CLOSED_FORM = {
    "patch_embedding": ClosedForm(lambda model, share, n: attacks.patch_embedding(model, batch_size=n), 1, True),
    "spear": ClosedForm(
        lambda model, share, n: attacks.spear(model, share, batch_size=n), client_updates.SPEAR_ITERATIONS, False
    ),
}


def check(case: Case) -> None:
    """Raise `ValueError` if names are unknown or options are out of range, before any data are loaded.

    `FileNotFoundError` says that the file of the user's own model, attack or defense does not exist.
    """
    _validate.count(pool=case.pool, federation=case.federation, restarts=case.restarts, clients=case.clients)
    _validate.count(batch_size=case.batch_size, local_steps=case.local_steps, iterations=case.iterations)
    _validate.count(local_epochs=case.local_epochs)
    _validate.below_one(momentum=case.momentum)
    optional = {"width": case.width, "microbatch": case.microbatch}
    _validate.count(**{name: value for name, value in optional.items() if value is not None})
    require_named(ATTACKS, attack=case.attack)
    if case.own_attack:
        own_settings(case)
    _check_model(case)
    if case.loss == "other":
        raise ValueError("loss must be known to this attack, got 'other'; jaxleak audit --loss other works without it")
    _validate.one_of(objectives.LOSSES, loss=case.loss)
    check_combinations(case, _readers(), case.attack in CLOSED_FORM)
    if case.activation_penalty is not None:
        _validate.non_negative(activation_penalty=case.activation_penalty)
    if case.epoch_copies is not None:
        _validate.non_negative(epoch_copies=case.epoch_copies)
    if case.matched_percent is not None:
        _validate.positive(matched_percent=case.matched_percent)
        _validate.in_range(0, 100, matched_percent=case.matched_percent)
    if case.homotopy is not None:
        first, last = case.homotopy
        _validate.positive(homotopy=first)
        if not first <= last:
            raise ValueError(f"homotopy must not fall, got {first} to {last}")
    solves = case.attack in CLOSED_FORM
    if solves:
        one = CLOSED_FORM[case.attack].one_image
        if case.total_steps != 1 or (case.images == 1) != one:
            images = "1 image" if case.images == 1 else f"{case.images} images"
            behind = images if case.total_steps == 1 else f"{case.total_steps} steps"
            wanted = "one image" if one else "several images"
            raise ValueError(f"{case.attack} solves for {wanted} behind one gradient, got {behind}")
    if case.adaptive and (solves or isinstance(resolved(case).settings.compare, client_updates.AnyLoss)):
        raise ValueError(f"{case.attack} knows no defenses, so adaptive must be False, got True")
    _validate.non_negative(attacked_round=case.attacked_round, skip=case.skip)
    if case.defense is not None:
        kind = kind_of_defense(case.defense)
        if not case.strength:
            raise ValueError(f"strength of {case.defense} must be given; 0 would defend nothing")
        known = defenses.client_defense(kind, case.strength, local_steps=case.total_steps)
        if case.adaptive and known.mechanism is None:
            raise ValueError(
                f"adaptive is an attacker who knows the defense, and {case.defense} declares no mechanism by which it "
                "could be known: see jaxleak.defenses.mechanisms"
            )
        if case.adaptive and case.own_defense:
            compared_with_mechanism(case)
        if case.prior is not None and not adaptive.reads_prior(known):
            raise ValueError(f"prior stands beside the likelihood of noise, which {case.defense} does not have")
        if case.attacked_round and (kind.memory or (case.own_defense and keeps_state(known))):
            raise ValueError(
                f"{case.defense} keeps a state from one upload to the next, and the attacked round is run alone: "
                f"attacked_round must be 0, got {case.attacked_round}"
            )
    elif case.strength or case.adaptive:
        raise ValueError("strength and adaptive are of a defense, and defense names none")


def _check_model(case: Case) -> None:
    require_named(models.CLASSIFIERS, model=case.model)
    if not case.own_model:
        return
    for option in OPTIONS_OF_BUILT_IN:
        if getattr(case, option) is not None:
            raise ValueError(f"{option} is for built-in networks, and model is {case.model}: set it in that file")


def check_effect(case: Case, model: models.Classifier | None = None) -> None:
    """Raise `ValueError` on options that a user gave and that change nothing in this case.

    `check` accepts such options, since a study may set an option for all of its cases although some do not read it.

    Args:
        case: a case that `check` accepts.
        model: the model under attack; without it, options whose effect depends on the model are not checked.
    """
    check_of_client(case)
    given = given_options(case)
    if case.exact_kinks and _preset(case, None).smoothing is None:
        raise ValueError(f"exact_kinks changes nothing, since {case.attack} smooths no kinks; leave it out")
    if model is None:
        return
    if not model.has_batch_norm:
        for option in ("batch_norm", "white_point"):
            if option in given:
                raise ValueError(
                    f"{option} changes nothing, since {case.model} has no batch normalisation; leave it out"
                )
    for option in ("homotopy", "exact_kinks"):
        if option in given and not model.has_kinks:
            has = f"{case.model} with {case.activation}" if case.activation else case.model
            raise ValueError(f"{option} changes nothing, since {has} has no kinks; leave it out")


@dataclass(frozen=True)
class Resolved:
    """The attack of a case with all settings resolved, and the threat it needs; `resolved` makes one per case."""

    case: Case
    threat: threats.Threat  # narrowest threat under which the attack works
    iterations: int  # iterations of the attack; an attack of a closed form has a fixed number
    iterative: attacks.Settings | None  # None for an attack of a closed form

    @property
    def settings(self) -> attacks.Settings:
        """Settings of the iterative engine; raises `ValueError` for an attack of a closed form, which has none."""
        if self.iterative is None:
            raise ValueError(f"{self.case.attack} has a closed form and no settings")
        return self.iterative

    def build(self, model: models.Classifier, share: protocols.ClientShare) -> Attack:
        """Build the attack.

        Args:
            model: the model under attack.
            share: function that computes what the client uploads.

        Raises:
            ValueError: if settings do not go together, or do not fit the model.
        """
        if self.iterative is None:
            return CLOSED_FORM[self.case.attack].build(model, share, self.case.images)
        if self.case.epoch_copies is not None:
            return attacks.epoch_copies(
                model, share, self.iterative, batch_size=self.case.images, weight=self.case.epoch_copies
            )
        return attacks.inversion(model, share, self.iterative, batch_size=self.case.images)

    @property
    def labels_from(self) -> str:
        """How the attack gets the labels, in words."""
        return labels_in_words("none" if self.iterative is None else self.iterative.labels)

    @property
    def free_pixels(self) -> bool:
        """Whether the attack optimises pixels without keeping them in [0, 1], as DLG does."""
        if self.iterative is None or not self.iterative.candidate.of_pixels:
            return False
        beyond = jnp.array([-2.0, 3.0])
        return bool(jnp.any(self.iterative.candidate.project(beyond) == beyond))

    @property
    def knows_noise(self) -> str:
        """A sentence that names what replaces the attack's own distance; an empty text if nothing replaces it."""
        if not self.case.adaptive or self.case.defense is None:
            return ""
        if not adaptive.reads_prior(kind_of_defense(self.case.defense).build(self.case.strength)):
            return ""
        return (
            f"Knowing the noise of {self.case.defense}, the attacker compares by its likelihood, in the place of the "
            f"distance and the variation of {self.case.attack}."
        )

    def leaves(self, model: models.Classifier) -> tuple[str, ...] | None:
        """Return the part of the update that the attack reads, as `client_updates.leaves_read` does; None is all."""
        if self.iterative is None:
            return None
        return client_updates.leaves_read(model, self.iterative, batch_size=self.case.images)

    def granted(self, model: models.Classifier) -> str:
        """Say in words what the attacker is given; commands print this text, so that no assumption is overlooked."""
        case, read = self.case, self.leaves(model)
        update = "one update" if read is None else f"{', '.join(read)} of one update"
        extra = [name for name in ("labels", "statistics", "running_statistics") if getattr(self.threat, name)]
        if case.local_steps * case.local_epochs > 1:
            extra.insert(0, "the number of local steps and their learning rate")
        if case.attack in presets.GENERATIVE and case.public_data != SYNTHETIC:
            source = f"{case.data}, held out" if case.public_data == HELD_OUT else case.public_data
            extra.append(f"public images ({source})")
        return ", ".join(["the model", update, "the batch size", *extra])


def labels_in_words(labels: str) -> str:
    """Say in words how an attack with this value of `Settings.labels` gets the labels."""
    words = {"given": "granted", "joint": "optimised with the images", "none": "not needed by the attack"}
    return words.get(labels, f"inferred by the rule {labels}")


@functools.lru_cache(maxsize=256)
def resolved(case: Case, generator: client_updates.PublicGenerator | None = None) -> Resolved:
    """Resolve the attack of a case; equal cases share one result.

    Args:
        case: the case, which names the attack, the settings, and the client's mode of batch normalisation.
        generator: trained generator for attacks that need one. Without it, their settings can be read but not run.

    Raises:
        ValueError: if settings are out of range or do not go together.
    """
    s = None if case.attack in CLOSED_FORM else _changed(_preset(case, generator), case)
    threat = threats.Threat(
        index=False,
        labels=s is not None and s.labels == "given",
        statistics=s is not None and s.reads_statistics,
        running_statistics=case.batch_norm == "eval",
    )
    return Resolved(case, threat, CLOSED_FORM[case.attack].iterations if s is None else case.iterations, s)


def _readers() -> dict[str, tuple[str, ...]]:
    """Map every option that only some attacks read, as an argument of their presets, to the names of these attacks."""
    taken = {name: inspect.signature(make).parameters for name, make in presets.PRESETS.items()}
    own = [field.name for field in fields(Case) if field.name not in (*ITERATIVE, "iterations")]
    by_presets = {option: tuple(name for name, arguments in taken.items() if option in arguments) for option in own}
    return {
        **{option: names for option, names in by_presets.items() if names},
        **dict.fromkeys(OF_GENERATORS, tuple(presets.GENERATIVE)),
    }


def _preset(case: Case, generator: client_updates.PublicGenerator | None) -> attacks.Settings:
    """Make the preset with those options of the case that its function takes; None leaves an option's default."""
    if case.own_attack:
        return own_settings(case)
    options = {
        option: getattr(case, option)
        for option, names in _readers().items()
        if case.attack in names and option not in OF_GENERATORS and getattr(case, option) is not None
    }
    if case.attack in presets.GENERATIVE:
        _validate.positive(
            public_samples=case.public_samples, latent_size=case.latent_size, generator_epochs=case.generator_epochs
        )
        options["generator"] = generator or _untrained(case.latent_size)
    return presets.preset(case.attack, case.iterations, **options)


def _changed(s: attacks.Settings, case: Case) -> attacks.Settings:
    """Change the settings by the options of the case that apply to every preset."""
    changes: dict[str, Any] = {}
    if case.labels is not None:
        changes["labels"] = case.labels
    if case.exact_kinks:
        changes["smoothing"] = None
    elif case.homotopy is not None:
        changes["smoothing"] = client_updates.smoothing(
            *case.homotopy, finish=case.finish, progress_below=case.progress_below
        )
    if case.tv is not None:
        s = s.weighing(tv=case.tv)
    if case.tv_kind is not None:
        _validate.one_of(("anisotropic", "isotropic", "sum", "relative"), tv_kind=case.tv_kind)
        if s.weight("tv") == 0:
            raise ValueError(
                f"tv_kind is the form of a variation that {case.attack} weighs with 0 here; give tv > 0 as well, or "
                "leave it out"
            )
        s = s.weighing(client_updates.variation_prior(case.tv_kind))
    if case.activation_penalty is not None:
        s = s.weighing(activation=case.activation_penalty)
    compared: dict[str, Any] = {}
    if case.matched_percent is not None:
        compared["selection"] = objectives.top_share(case.matched_percent, per_tensor=case.per_tensor)
    if case.blend is not None:
        changes["regularization"] = objectives.gradient_regularization(
            case.blend,
            length=case.probe_length,
            probe=case.probe,  # type: ignore[arg-type]
            exact=case.exact_curvature,
            reselect=case.reselect,
        )
    if case.white_point is not None:
        changes["white_point"] = case.white_point
    if case.generator:
        changes["candidate"] = client_updates.generator_weights()
        changes["optimizer"] = presets.signed(presets.cosine_decay_adam(1e-2, case.iterations))
    if case.optimizer is not None:
        _validate.one_of(_OPTIMIZERS, optimizer=case.optimizer)
        _validate.positive(step_size=case.step_size)
        optimizer = _OPTIMIZERS[case.optimizer](case.step_size, case.iterations)
        changes["optimizer"] = presets.signed(optimizer) if case.attack in presets.KEEPING_SIGNS else optimizer
    if case.terms is not None:
        for name in case.terms:
            _validate.one_of(_TERMS, terms=name)
        compared["distance"] = objectives.weighted([(1.0, _TERMS[name]) for name in case.terms])
    return (s.comparing(**compared) if compared else s)._replace(**changes)


def _untrained(latent_size: int) -> client_updates.PublicGenerator:
    codes = jnp.zeros(latent_size)
    return client_updates.PublicGenerator(None, codes, codes, (), 0, np.zeros((0, 2)))


_TERMS = {name: getattr(objectives, name) for name in ("relative_l1", "mean_l1", "l1", "cosine", "squared_l2")}


#: Functions that make an optimizer from a step size and the number of iterations.
_OPTIMIZERS: dict[str, Callable[[float, int], optax.GradientTransformation]] = {
    "adam": presets.cosine_decay_adam,
    "annealed": lambda size, _: optax.adam(_beginning_anew(size)),
    "descent": lambda size, iterations: optax.sgd(optax.cosine_decay_schedule(size, iterations)),
}


def _beginning_anew(step_size: float) -> optax.Schedule:
    cycle = optax.cosine_decay_schedule(step_size, 1000)
    return lambda count: cycle(count % 1000)
