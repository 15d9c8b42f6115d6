"""The side of the client and the server: model, data, defense, and the update that is shared."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from jaxleak import data, defenses, models, objectives, protocols
from jaxleak._base import Batch, Protocol, PyTree
from jaxleak.data._dataset import TooFewSamplesError
from jaxleak.study.sources import form_of
from jaxleak.study.updates._attacker import resolved
from jaxleak.study.updates._case import OPTIONS_OF_BUILT_IN, Case
from jaxleak.study.updates._own_defense import kind_of_defense
from jaxleak.study.updates._own_model import given_weights, own_model
from jaxleak.study.updates._partitions import client_samples


class Victim(NamedTuple):
    """The side of the client and the server."""

    model: models.Classifier
    protocol: Protocol
    share: protocols.ClientShare
    private: Batch


def victim(case: Case, seed: int, variables: PyTree = None) -> Victim:
    """Make the model, the protocol and the private data of a case's client.

    Args:
        case: the case under attack.
        seed: random seed of the drawn data, the weights and the batch.
        variables: weights, in place of those that the case names or draws.

    Raises:
        ValueError: if the data are no images, or too few for the case.
    """
    try:
        dataset = data.load(case.data, case.taken, seed)
    except TooFewSamplesError as error:
        asked = "--pool" if not case.skip else "--skip and --pool together"
        raise ValueError(f"{error}: choose a smaller {asked}") from error
    if dataset.x.ndim != 4:
        raise ValueError(f"data must be images (N, H, W, C), got {case.data} of shape {dataset.x.shape}")
    model, share, protocol = client_of(case, dataset.x.shape[1:], len(dataset.classes))
    if variables is None and case.weights is not None:
        variables = given_weights(case, model)
    dataset = dataset._replace(x=dataset.x[case.skip :], y=dataset.y[case.skip :])
    own = client_samples(case.partition, dataset, case.federation, case.images, seed)
    if variables is not None or len(own) != case.pool:
        protocol = _protocol(case, share, variables, resolved(case).threat.statistics, len(own))
    x, y = dataset.x[own], dataset.y[own]
    private = Batch(jnp.asarray(x)[:, None], jnp.asarray(y, jnp.int32), jnp.arange(len(own)))
    return Victim(model, protocol, share, private)


#: Fractional bits of the fixed-point numbers of secure aggregation: steps of 2^-24, entries up to 30 for three clients.
FRACTION_BITS = 24

#: Options on which the client's program depends; cases that differ only in other options share one compilation.
_CLIENT_FIELDS = (
    "model", "activation", "width", "init", "mean", "std", "pool",
    "batch_size", "local_steps", "local_epochs", "reshuffle", "clients", "learning_rate", "momentum", "batch_norm",
    "loss", "defense", "strength",
)  # fmt: skip


def client_of(
    case: Case, image_shape: tuple[int, ...], num_classes: int
) -> tuple[models.Classifier, protocols.ClientShare, Protocol]:
    """Make a client's model, its upload function and its protocol; equal clients share one compilation.

    Args:
        case: the case under attack.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
    """
    # Weights are an input of the client's program, but the constants of a user's own network are a part of the program.
    constants = case.weights if case.own_model else None
    client = Case(**{name: getattr(case, name) for name in _CLIENT_FIELDS}, weights=constants)
    return _compiled_client(client, resolved(case).threat.statistics, image_shape, num_classes)


def build_model(case: Case, image_shape: tuple[int, ...], num_classes: int) -> models.Classifier:
    """Build the model of a case.

    Args:
        case: case that names the model and the model's options.
        image_shape: (H, W, channels).
        num_classes: C >= 2.

    Raises:
        ValueError, FileNotFoundError: for a user's own model, as in `own_model`.
    """
    if case.own_model:
        model = own_model(case, image_shape, num_classes)
    else:
        chosen = {name: getattr(case, name) for name in OPTIONS_OF_BUILT_IN}
        given = {name: value for name, value in chosen.items() if value is not None}
        model = models.build(case.model, image_shape, num_classes, **given)
    if case.mean is None or case.std is None:
        return model
    return models.normalized(model, case.mean, case.std)


@functools.cache
def _compiled_client(
    case: Case, with_statistics: bool, image_shape: tuple[int, ...], num_classes: int
) -> tuple[models.Classifier, protocols.ClientShare, Protocol]:
    model = build_model(case, image_shape, num_classes)
    share = share_of(case, model)
    return model, share, _protocol(case, share, None, with_statistics)


def share_of(case: Case, model: models.Classifier) -> protocols.ClientShare:
    """Make the function that computes what the case's client uploads, for a given model."""
    return protocols.ClientShare(
        model,
        local_steps=case.local_steps,
        local_epochs=case.local_epochs,
        learning_rate=case.learning_rate,
        momentum=case.momentum,
        clients=case.clients,
        batch_norm=case.batch_norm,  # type: ignore[arg-type]
        loss=objectives.LOSSES[case.loss],
    )


def _protocol(
    case: Case,
    share: protocols.ClientShare,
    variables: PyTree,
    with_statistics: bool,
    num_samples: int | None = None,
) -> Protocol:
    defense = defense_of(case, share.model)
    return protocols.client(
        share,
        num_samples=case.pool if num_samples is None else num_samples,
        batch_size=case.batch_size,
        variables=variables,
        defense=defense,
        reshuffle=case.reshuffle,
        neighbours=0 if case.defense is None else kind_of_defense(case.defense).neighbours,
        secure_aggregation=FRACTION_BITS if share.clients > 1 else None,
        with_statistics=with_statistics,
    )


def require_defenses(cases: Sequence[Case]) -> None:
    """Refuse a defense that the cases' clients cannot have, such as DP-SGD where batch normalisation mixes examples.

    Args:
        cases: cases of one study, all of the same network and data.

    Raises:
        ValueError: if a client cannot have its defense, with the options that help.
    """
    model = build_model(cases[0], *form_of(cases[0].data))
    for case in cases:
        try:
            defense_of(case, model)
        except ValueError as error:
            if model.mixes_images("eval") or not model.mixes_images(case.batch_norm):  # type: ignore[arg-type]
                raise
            raise ValueError(
                f"{case.defense} on {case.model}: {error} (--batch-norm eval), or choose other defenses (--only)"
            ) from error


def defense_of(case: Case, model: models.Classifier) -> defenses.Defense | None:
    """Make the defense of the case's clients, or None without one."""
    if case.defense is None:
        return None
    mixes = model.mixes_images(case.batch_norm)  # type: ignore[arg-type]
    known = kind_of_defense(case.defense)
    return defenses.client_defense(known, case.strength, local_steps=case.total_steps, mixes_examples=mixes)
