"""How an attacker compares a candidate with an upload behind noise of a known kind: one function for each kind."""

import functools

import jax
import jax.numpy as jnp

from jaxleak import objectives
from jaxleak._base import Batch, PyTree, loss_of
from jaxleak._own_keys import Purpose, own_key
from jaxleak.attacks import presets
from jaxleak.attacks._inversion.priors import natural_tv, variation_prior
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.defenses._representation import OfClient
from jaxleak.defenses.mechanisms import (
    GaussianNoise,
    LaplaceNoise,
    Noise,
    PrivateNoise,
    ProportionalNoise,
    TensorNoise,
)

#: Number of shadow clients, with random images, labels and weights, on which a defense's noise is measured.
SHADOWS = 4
#: Smallest variance of an entry under proportional noise, as a share of the mean square of all entries.
_FLOOR = 0.1
#: Standard deviation assumed for tensors without noise, as a share of the largest deviation.
_CLEAN = 0.01

#: Share of `natural_tv` beside a likelihood. The likeliest image is flatter than real images, and private images may
#: have more contrast than photographs. On the victims of docs/defenses.md the full prior was too strong: their answers
#: became flat. The share was then chosen among 1, 1/2, 1/4, 1/8 and 1/16 on crops of photographs, faces, and digits of
#: other seeds, which are drawn from the same data set.
NATURAL_SHARE = 0.25


@functools.singledispatch
def comparing(noise: Noise | None, client: KnownClient, settings: Settings) -> Settings:
    """The settings of an attacker who knows this noise; without noise they stay as they are."""
    assert noise is None, noise
    return settings


@comparing.register
def _gaussian(noise: GaussianNoise, client: KnownClient, settings: Settings) -> Settings:
    deviation = noise.deviation * noise.decay**client.round
    deviation /= client.batch_size if noise.of_sum else 1
    return _knowing(client, settings, objectives.profile_likelihood(objectives.gaussian_likelihood(deviation), 0.5))


@comparing.register
def _laplace(noise: LaplaceNoise, client: KnownClient, settings: Settings) -> Settings:
    return _knowing(client, settings, objectives.profile_likelihood(objectives.laplace_likelihood(noise.scale), 1.0))


@comparing.register
def _proportional(noise: ProportionalNoise, client: KnownClient, settings: Settings) -> Settings:
    return settings.comparing(distance=proportional_likelihood(noise.deviation))


@comparing.register
def _by_tensor(noise: TensorNoise, client: KnownClient, settings: Settings) -> Settings:
    return _knowing(client, settings, tensor_likelihood(noise, client))


@comparing.register
def _private(_: PrivateNoise, client: KnownClient, settings: Settings) -> Settings:
    weighed = objectives.layer_weighted(settings.gradients.distance, shadow_weights(client))
    return settings.comparing(distance=weighed)


def proportional_likelihood(deviation: float) -> objectives.Distance:
    """Squared differences over the variance of noise that is `deviation` times as large as the observed entry.

    The distance is a mean over entries and not a likelihood: if noise made an entry large, the entry's weight falls. A
    true likelihood would use the candidate's own entries b: `(a - b)^2 / (2 v) + log(v) / 2` with `v = deviation^2 b^2`
    and a floor below b^2. It was tried on crops of photographs and was no better. An attacker who does not know the
    noise may do better than both.
    """

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        leaves = list(zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), strict=True))
        entries = sum(a.size for a, _ in leaves)
        floor = _FLOOR * sum((jnp.sum(a**2) for a, _ in leaves), jnp.zeros(())) / entries
        safe = jnp.where(floor > 0, floor, 1.0)
        squares = sum((jnp.sum((a - b) ** 2 / (a**2 + safe)) for a, b in leaves), jnp.zeros(()))
        return squares / (entries * deviation**2)

    return distance


def tensor_likelihood(noise: TensorNoise, client: KnownClient) -> objectives.Distance:
    """Squared differences over the variance of the noise in that tensor, on the entries that are not noise alone.

    The noise follows from the weights, where none are given from weights that the attacker draws as the model's are
    drawn.
    """
    seen = client.model.init(own_key(Purpose.WEIGHTS)) if client.variables is None else client.variables
    deviations = [float(noise.deviation(leaf)) for leaf in jax.tree.leaves(seen["params"])]
    floor = (_CLEAN * max(deviations)) ** 2 or 1.0

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        total = jnp.zeros(())
        for a, b, deviation in zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), deviations, strict=True):
            total += jnp.sum(jnp.where(noise.kept(a), (a - b) ** 2, 0.0)) / (2 * (deviation**2 + floor))
        return total

    return distance


def shadow_weights(client: KnownClient) -> tuple[float, ...]:
    """Signal / (signal + noise) of each tensor, in (0, 1], measured on clients that the attacker makes up.

    Shadow clients have uniform images and random labels, and random weights if none are given. The measurement uses
    nothing of the victim except the model that the server sent to it.
    """
    defense, model, share, images = client.defense, client.model, client.share, client.batch_size

    @jax.jit
    def one(key: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        keys = jax.random.split(key, 4)
        own = model.init(keys[0]) if client.variables is None else client.variables
        x = jax.random.uniform(keys[1], (images, *model.image_shape))
        y = jax.random.randint(keys[2], (images,), 0, model.num_classes)
        payload = share(own, Batch(x[:, None], y, jnp.arange(images)))
        known = OfClient(model=model, variables=own, x=x, y=y, mode=share.batch_norm, loss=loss_of(share))
        sent = defense.apply(keys[3], payload, **known, round=client.round)
        pairs = list(zip(jax.tree.leaves(payload), jax.tree.leaves(sent), strict=True))
        return [jnp.mean(a**2) for a, _ in pairs], [jnp.mean((b - a) ** 2) for a, b in pairs]

    shadows = own_key(Purpose.SHADOWS)
    measured = [one(jax.random.fold_in(shadows, number)) for number in range(SHADOWS)]
    signals = [sum(map(float, of)) for of in zip(*(signal for signal, _ in measured), strict=True)]
    noises = [sum(map(float, of)) for of in zip(*(noise for _, noise in measured), strict=True)]
    return tuple(s / (s + n) if s else 1.0 for s, n in zip(signals, noises, strict=True))


def _knowing(client: KnownClient, settings: Settings, likelihood: objectives.Distance) -> Settings:
    # A likelihood is in nats, so prior weights that were chosen for another distance no longer fit.
    compared = settings.comparing(distance=likelihood, selection=None)
    if settings.weight("latent"):
        # The generator, trained on public data, is itself the prior. Its latents are standard normal, and the
        # candidate's prior is their cost in nats per latent.
        shape = client.batch_size, *client.model.image_shape
        drawn, _ = jax.eval_shape(lambda key: settings.candidate.init(key, shape), own_key(Purpose.WEIGHTS))
        return compared.weighing(tv=0.0, activation=0.0, latent=float(sum(x.size for x in jax.tree.leaves(drawn))))
    if not client.natural:
        return compared.weighing(tv=presets.bayes(settings.iterations).weight("tv"), activation=0.0)
    height, width, _ = client.model.image_shape
    return compared.weighing(variation_prior("sum"), tv=NATURAL_SHARE * natural_tv(height, width), activation=0.0)
