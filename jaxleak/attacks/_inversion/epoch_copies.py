"""Inversion of a client with several epochs in unknown orders: every epoch has its own copy of the images.

Dimitrov, Balunovic, Konstantinov and Vechev, *Data Leakage in Federated Averaging*, TMLR 2022. The client's K * E steps
use K * N different candidates one after the other. The mean image of every class is the same in all epochs, whatever
their orders, so a prior pulls these means together. In the end the copies are matched one to one and averaged.
"""

from typing import Any, runtime_checkable
from typing import Protocol as TypingProtocol

import jax
import jax.numpy as jnp
import optax

from jaxleak import _validate
from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction, Share, TransformedShare
from jaxleak.attacks._inversion import priors
from jaxleak.attacks._inversion.engine import InversionState, inversion, made_of
from jaxleak.attacks._inversion.labels import label_source
from jaxleak.attacks._inversion.settings import Settings, check_settings
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import Classifier


@runtime_checkable
class SeveralEpochs(Share, TypingProtocol):
    """A share whose client goes through its samples several times, such as `protocols.ClientShare`."""

    @property
    def local_epochs(self) -> int:
        """K >= 1 passes over the samples."""
        ...

    def in_one_epoch(self) -> Share:
        """The same steps, each on samples of its own."""
        ...


def epoch_copies(
    model: Classifier, share: Share, settings: Settings, *, batch_size: int, weight: float = 0.3
) -> Attack:
    """Reconstruct a client's batch from its update after several epochs, whose orders of the samples are unknown.

    The attack is like `inversion` with the same settings, except that `inversion` repeats the order of the first epoch.
    Here every epoch has its own copy of the N images, and a prior pulls the copies together whatever their order
    (Dimitrov et al. 2022). The attacker does not know the orders. It assumes that the labels of every epoch, granted or
    inferred, are in the order of the first epoch, although a client that reshuffles does not keep this order. "joint"
    labels are optimised separately for every copy.

    Our own reading: the prior compares the mean image of every class, or of all images where labels are "joint"; the
    paper compares means or maxima over all images, of pixels or of features of a network. The prior of single images is
    that of `settings`, weighed as for N images.

    Args:
        model: the model under attack.
        share: what the client ran, a `protocols.ClientShare` with `local_epochs` K > 1 and `local_steps` > 1.
        settings: see `jaxleak.attacks.presets`; they must compare gradients.
        batch_size: N >= 1, the number of samples behind the payload.
        weight: number >= 0 by which the squared difference of the epochs' mean images is multiplied, a mean over pairs
            of epochs, pixels and classes. A large one makes the copies agree, as `inversion` does.

    Returns:
        An `Attack`, driven and answered as that of `inversion`. An image is the mean of its K copies, which are matched
        to those of the first epoch one to one: as many as possible have its label, and then they are nearest. `score`
        and `gradient_matched` are of the copies before that, since the averaged images are those of no known order.

    Raises:
        ValueError: as `inversion`, and on a share without several epochs of several steps each, a weight out of range,
            or settings that compare no gradients.
    """
    _validate.count(batch_size=batch_size)
    _validate.non_negative(weight=weight)
    check_settings(settings)  # the engine below sees labels that are given or joint, and never the caller's
    epochs = getattr(share, "local_epochs", 1)
    if not isinstance(share, SeveralEpochs) or epochs == 1 or share.local_steps == 1:
        raise ValueError(
            "copies of the images are for epochs in different orders: share must be a protocols.ClientShare with "
            f"local_epochs > 1 and local_steps > 1, got {epochs} and {getattr(share, 'local_steps', 1)}"
        )
    if not settings.compare.reads_labels:
        raise ValueError(
            f"copies of the images take the client's steps, which {type(settings.compare).__name__} does not simulate"
        )
    once, one = Setup(model, share, batch_size), share.in_one_epoch()
    once.check_parts()

    def simulated(params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        return one(
            params, jax.tree.map(lambda leaf: _by_client(leaf, epochs, share.clients), batch), sharpness=sharpness
        )

    source = label_source(settings.labels, once)
    joint = settings.labels == "joint"
    weighed = priors.resolved(settings.priors, once, settings.candidate)

    def apart(evidence: priors.Evidence) -> jax.Array:
        labels = evidence.observation.labels
        if labels is None:  # they are optimised, for every copy by itself
            return epoch_distance(evidence.x, jnp.ones((batch_size, 1)), epochs)
        return epoch_distance(evidence.x, labels[:batch_size], epochs)

    engine = inversion(
        model,
        TransformedShare(share, simulated),
        settings._replace(
            priors=(*weighed, (weight, priors.Prior("epochs", apart))), labels="joint" if joint else "given"
        ),
        batch_size=epochs * batch_size,
    )
    reads = Reads("gradient inversion", params=True, leaves=None, labels=source.reads_labels)

    def seen(state: InversionState, observation: Observation) -> Observation:
        """The observation with the labels of all copies."""
        require(observation, reads)
        labels = source.fixed(observation, state.label_key)
        return observation._replace(labels=None if labels is None else jnp.tile(labels, (epochs, 1)))

    def init(key: jax.Array, template: Batch) -> InversionState:
        state: InversionState = engine.init(key, jax.tree.map(lambda leaf: _copied(leaf, epochs), template))
        return state

    def step(key: jax.Array, state: InversionState, observation: Observation) -> Any:
        return engine.step(key, state, seen(state, observation))

    def reconstruct(state: InversionState, observation: Observation) -> Reconstruction:
        found = engine.reconstruct(state, seen(state, observation))
        x = merged(found.x, found.y, epochs)
        return found._replace(
            x=x,
            **{name: getattr(found, name)[:batch_size] for name in ("y", "score", "answered", "gradient_matched")},
        )

    # The engine sees labels that are given or joint, so its own identity would be the same for every rule.
    return Attack(init, step, reconstruct, settings.iterations, made_of(settings, share, weight_of_epochs=weight))


def epoch_distance(x: jax.Array, labels: jax.Array, epochs: int) -> jax.Array:
    """The distance () >= 0 between the classes' mean images in different epochs.

    It is the squared difference, averaged over pairs of epochs, over pixels, and over classes weighted by their number
    of images. The order of images with the same label has no effect.

    Args:
        x: (K * N, H, W, C), epoch by epoch.
        labels: (N, classes) soft labels, the same in every epoch.
        epochs: K > 1.
    """
    sums = jnp.einsum("nc,enhwd->echwd", labels, x.reshape(epochs, -1, *x.shape[1:]))
    counts = labels.sum(axis=0)
    means = sums / jnp.where(counts > 0, counts, 1)[:, None, None, None]
    # The mean over pairs of squared differences is twice the unbiased variance.
    apart = 2 * means.var(axis=0, ddof=1).mean(axis=(1, 2, 3))
    return jnp.sum(apart * counts) / counts.sum()


def merged(x: jax.Array, y: jax.Array, epochs: int) -> jax.Array:
    """The mean (N, ...) of every image's copies, in the order of the first epoch.

    Every later epoch is matched to the first one to one: with as few differing labels as possible, and then with the
    least squared distance.

    Args:
        x: (K * N, ...), epoch by epoch.
        y: (K * N,) labels.
        epochs: K >= 1.
    """
    copies, labels = (leaf.reshape(epochs, -1, *leaf.shape[1:]) for leaf in (x, y))
    flat = copies.reshape(*copies.shape[:2], -1)

    def in_order(one: jax.Array, own: jax.Array, values: jax.Array) -> jax.Array:
        cost = jnp.mean((flat[0][:, None] - values[None]) ** 2, axis=2)
        cost = cost + (labels[0][:, None] != own[None]) * (1 + cost.sum())
        rows, columns = optax.assignment.hungarian_algorithm(cost)
        return one[jnp.zeros_like(columns).at[rows].set(columns)]

    later = jax.vmap(in_order)(copies[1:], labels[1:], flat[1:])
    return jnp.concatenate([copies[:1], later]).mean(axis=0)


def _by_client(leaf: jax.Array, epochs: int, clients: int) -> jax.Array:
    """Epoch by epoch and then client by client, (K * M * n, ...), to client by client and then epoch by epoch."""
    split = leaf.reshape(epochs, clients, -1, *leaf.shape[1:])
    return split.swapaxes(0, 1).reshape(leaf.shape)


def _copied(leaf: jax.Array, epochs: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((epochs * leaf.shape[0], *leaf.shape[1:]), leaf.dtype)
