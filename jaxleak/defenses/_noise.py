"""Defenses that add noise: independent, proportional to magnitudes, or cancelling between clients."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak.defenses._base import SPLIT_PLACES, Defense, per_leaf
from jaxleak.defenses.mechanisms import GaussianNoise, LaplaceNoise, Mechanism, ProportionalNoise


def gaussian_noise(scale: float, *, place: str = "payload") -> Defense:
    """Add Gaussian noise of standard deviation `scale` to every entry of the value at `place`.

    Without clipping there is no (epsilon, delta): see `clipped_gaussian` and `dp_sgd`. In split vertical training only
    `label_dp_scale` states one. VFLRecon's table V adds noise of variance 0.001, 0.01 and 0.1 (`scale` is the square
    root) to the output of the top model, while its discussion speaks of gradients. Choose `place` to measure either. At
    "bottom_output" the noise is on the embeddings that the parties send, and hides features from the label holder.
    Gradients here are of the mean loss and shrink with 1 / B, while outputs do not: the same scale is a much larger
    relative noise on gradients.

    Args:
        scale: >= 0, in units of the value at `place`; 0 is the identity.
        place: "payload" of a client, or one of `SPLIT_PLACES` in split vertical training.

    Raises:
        ValueError: on a scale out of range or an unknown place.
    """
    return _added(scale, place, jax.random.normal, GaussianNoise)


def laplace_noise(scale: float, *, place: str = "payload") -> Defense:
    """Add Laplace noise with density exp(-|t| / scale) / (2 scale) to every entry of the payload.

    Its standard deviation is sqrt(2) times `scale`. Without clipping the 1-norm there is no epsilon.

    Args:
        scale: >= 0, in units of the payload; 0 is the identity.
        place: "payload", or one of `SPLIT_PLACES` in split vertical training, as for `gaussian_noise`.

    Raises:
        ValueError: on a scale out of range or an unknown place.
    """
    return _added(scale, place, jax.random.laplace, LaplaceNoise)


def magnitude_noise(scale: float) -> Defense:
    """Add Gaussian noise of standard deviation `scale * |g|` to every entry g (FedLeak, 2025, section 7).

    FedLeak proposes this noise because attacks rely on the largest entries. An entry keeps its sign unless `scale` is
    large (with probability 0.84 at scale 1), and zeros stay zero: positions of zeros are not protected.

    Args:
        scale: >= 0, without unit; 0 is the identity.

    Raises:
        ValueError: on a scale out of range.
    """
    _validate.non_negative(scale=scale)
    mechanism = Mechanism(noise=ProportionalNoise(scale) if scale else None)
    return per_leaf("payload", lambda key, leaf: leaf + _proportional(key, leaf, scale), mechanism=mechanism)


def cancelling_noise(scale: float, clients: int) -> Defense:
    """Magnitude-proportional noise that cancels in the sum over clients (FedLeak, 2025, section 7).

    Client i draws noise M_i, Gaussian with standard deviation `scale * |g_i|` per entry, adds it to its update and
    hands -M_i to client i + 1 (the last one to the first), which adds it to its own update. The server must not see
    what is handed over. If both neighbours of a client collude with the server, they can remove the client's noise. The
    sum of all uploads is the sum of all updates up to float32 rounding; `protocols` has an exact form with masks in
    integers.

    Args:
        scale: >= 0, without unit; 0 is the identity.
        clients: number of clients >= 2.

    Returns:
        A `Defense` at "client_payloads"; every leaf is (clients, ...).

    Raises:
        ValueError: on values out of range; when applied to leaves without an axis of `clients` clients.
    """
    _validate.non_negative(scale=scale)
    _validate.count(clients=clients)
    if clients < 2:
        raise ValueError(f"clients must be >= 2, got {clients}: the noise of a single client has no partner to cancel")

    def cancel(key: jax.Array, leaf: jax.Array) -> jax.Array:
        if leaf.ndim < 1 or leaf.shape[0] != clients:
            raise ValueError(f"leaves must be ({clients}, ...), one row per client, got shape {leaf.shape}")
        noise = _proportional(key, leaf, scale)
        return leaf + (noise - jnp.roll(noise, 1, axis=0))

    # The noise from a neighbour is proportional to the neighbour's entries, which are only known to be about as large.
    mechanism = Mechanism(noise=ProportionalNoise(scale * math.sqrt(2)) if scale else None)
    return per_leaf("client_payloads", cancel, mechanism=mechanism)


def _proportional(key: jax.Array, leaf: jax.Array, scale: float) -> jax.Array:
    return scale * jnp.abs(leaf) * jax.random.normal(key, leaf.shape)


def _added(
    scale: float,
    place: str,
    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array],
    noise: type[GaussianNoise] | type[LaplaceNoise],
) -> Defense:
    """Independent noise of one scale in every entry; only "payload" declares a mechanism that attacks can use."""
    _validate.non_negative(scale=scale)
    _validate.one_of(("payload", *SPLIT_PLACES), place=place)
    mechanism = Mechanism(noise=noise(scale) if scale else None) if place == "payload" else None
    return per_leaf(place, lambda key, leaf: leaf + scale * draw(key, leaf.shape), mechanism=mechanism)
