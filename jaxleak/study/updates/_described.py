"""Descriptions of an attack's resolved settings in words: for results.json, and as rows of a report's table."""

import inspect
from collections.abc import Mapping
from typing import Any

from jaxleak import attacks
from jaxleak._in_words import in_words
from jaxleak.attacks import presets
from jaxleak.attacks._inversion import priors
from jaxleak.attacks._inversion.engine import resolved_smoothing
from jaxleak.attacks._inversion.gradient_term import Gradients
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.attacks._inversion.smoothing import Smoothing
from jaxleak.study.updates._attacker import labels_in_words, resolved
from jaxleak.study.updates._case import Case


def iterations_of_preset(attack: str) -> int | None:
    """Return a preset's default number of iterations, > 0; None for an attack without one."""
    if attack not in presets.PRESETS:
        return None
    own = inspect.signature(presets.PRESETS[attack]).parameters["iterations"].default
    return int(own)


def described_settings(case: Case, settings: attacks.Settings | None, setup: Setup) -> dict[str, Any]:
    """Describe settings by name, in values that JSON can keep.

    Args:
        case: the case, which says what is attacked and with which attack.
        settings: settings with which the attack runs; None for a closed form.
        setup: model, client and batch size of the attack, which resolve settings that are "auto".
    """
    if settings is None:
        return {"attack": case.attack, "labels_from": "solved for together with the images"}
    smoothing = resolved_smoothing(settings, setup.model, setup.batch_size)
    weighed = priors.resolved(settings.priors, setup, settings.candidate)
    compare = settings.compare
    plain = isinstance(compare, Gradients) and compare == Gradients(compare.distance)
    found = {
        "attack": case.attack,
        "iterations": settings.iterations,
        "iterations_of_preset": iterations_of_preset(case.attack),
        "restarts": case.restarts,
        "candidate": in_words(settings.candidate.init),
        "free_pixels": resolved(case).free_pixels,
        "comparison": in_words(settings.gradients.distance if plain else compare),
        "optimizer": in_words(settings.optimizer),
        "priors": [{"name": prior.name, "kind": prior.kind, "weight": weight} for weight, prior in weighed],
        "smoothing": None if smoothing is None else smoothing._asdict(),
        "labels": settings.labels,
        "labels_from": labels_in_words(settings.labels),
        "white_point": settings.white_point,
    }
    if settings.group > 1:
        found |= {"group": settings.group, "consistency": settings.consistency}
    if settings.regularization.blend:
        found["regularization"] = in_words(settings.regularization)
    if settings.shifts:
        found["shifts"] = in_words(settings.shifts)
    if settings.enhance is not None:
        found["enhance"] = in_words(settings.enhance)
    return found if case.epoch_copies is None else found | {"epoch_copies": case.epoch_copies}


def iterations_in_words(settings: Mapping[str, Any]) -> str:
    """Say how many iterations an attack took, and how this compares with the preset's default if they differ.

    `settings` are those of `described_settings`, and have `iterations`.
    """
    taken, own = settings["iterations"], settings["iterations_of_preset"]
    said = f"{taken:,} iteration{'s' * (taken != 1)}"
    if own is None or own == taken:
        return said
    return f"{said}; the preset's own number is {own:,}, so that this search is {'short' if taken < own else 'long'}er"


def settings_in_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Make rows (name, value in words) by which a reader compares attacks; `settings` as from `described_settings`."""
    if "iterations" not in settings:  # a closed form
        return [("labels", settings["labels_from"])]
    weighed = {prior["name"]: prior for prior in settings["priors"]}
    variation = weighed.pop("tv", None)
    others = [f"{_prior(prior)}" for prior in weighed.values()]
    smoothing = settings["smoothing"]
    free = ", which may leave [0, 1]" if settings["free_pixels"] else ""
    rows = [
        ("iterations", iterations_in_words(settings)),
        ("what is searched", f"{settings['candidate']}{free}"),
        ("comparison with the update", settings["comparison"]),
        ("total variation", "none" if variation is None else _prior(variation)),
        ("other priors", ", ".join(others) or "none"),
        ("optimizer", settings["optimizer"]),
        ("smoothing of kinks", "none" if smoothing is None else in_words(Smoothing(**smoothing))),
        ("labels", settings["labels_from"]),
    ]
    further = ("regularization", "group", "consistency", "shifts", "enhance", "epoch_copies")
    rows += [(name.replace("_", " "), in_words(settings[name])) for name in further if name in settings]
    return rows + [("quantile made white", f"{settings['white_point']:g}")] * bool(settings["white_point"])


def _prior(prior: Mapping[str, Any]) -> str:
    kind = f" ({prior['kind']})" if prior["kind"] else ""
    return f"{prior['name']}{kind}, weight {prior['weight']:.4g}"
