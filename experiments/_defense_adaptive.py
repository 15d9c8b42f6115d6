"""Attackers who know the defense: what they simulate, and how they compare it with what they saw.

None of them is given anything but the defense, its strength and the observation. Gaussian noise without bias has the
candidate's own gradient as its mean, so that expectation over transformations changes nothing for it; there the
likelihood of the noise is what knowledge buys.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments import _defense_registry as registry
from jaxleak import objectives
from jaxleak._base import Batch, PyTree
from jaxleak.attacks import Settings, presets
from jaxleak.defenses import Defense
from jaxleak.defenses._gaussian import clip_factor
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

#: Samples of a random transform that the candidate's payload is averaged over.
SAMPLES = 4
#: Shadow clients, of random images, labels and weights, that a defense's noise is measured on.
SHADOWS = 4
#: Of the mean square: entries of a noise that grows with them have a smallest variance.
_FLOOR = 1e-3

Share = Callable[..., PyTree]


def informed(
    name: str, strength: float, model: Classifier, share: ClientShare, settings: Settings, images: int
) -> tuple[Share, Settings]:
    """What the attacker runs who knows that the client has this defense.

    | defense | adaptation |
    |---|---|
    | quantization | the transform on the candidate's gradient, straight-through, averaged over samples if random |
    | Soteria, OUTPOST, sparsification, withheld parts | only entries that arrived non-zero are compared |
    | Gaussian, Laplace, DP | likelihood of the known noise, and the known clipping of the candidate's gradient |
    | DP + Soteria | both of these |
    | magnitude noise | squared differences in units of the noise that the observed entry tells |
    | Guardian | layers weighed by signal and noise, as measured on shadow clients that run it |

    Args:
        name: of the registry.
        strength: of the defense.
        model: under attack.
        share: what the client computes before its defense.
        settings: of the attack that does not know.
        images: behind one payload.

    Raises:
        ValueError: on an unknown defense or a strength out of range.
    """
    defense = registry.build(name, strength, local_steps=share.local_steps)
    kind = registry.REGISTRY[name].adaptation
    if kind == "transform":
        return straight_through(share, defense, 1 if name == "quantization" else SAMPLES), settings
    if kind == "support":
        return share, settings._replace(selection=observed_support)
    if kind in ("gaussian", "laplace"):
        return share, _bayes(settings, kind, strength)
    if kind == "magnitude":
        return share, settings._replace(distance=in_units_of_noise)
    if kind == "shadow":
        weights = shadow_weights(defense, model, share, images)
        return share, settings._replace(distance=objectives.layer_weighted(settings.distance, weights))
    sigma = registry.sigma_of(strength) * registry.CLIP
    if kind == "update":
        return clipped(share, registry.CLIP), _bayes(settings, "gaussian", sigma)
    s = _bayes(settings, "gaussian", sigma / images)
    s = s._replace(selection=observed_support) if kind == "private+support" else s
    return clipped_examples(share, registry.CLIP), s


def straight_through(share: Share, defense: Defense, samples: int) -> Share:
    """`share` behind the defense, the mean of `samples` draws; its derivative is that of `share` alone."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        # The same draws in every iteration: an objective that jitters would keep a random iterate as its best.
        keys = jax.random.split(jax.random.key(0), samples)
        drawn = jax.vmap(lambda key: defense.apply(key, jax.lax.stop_gradient(payload)))(keys)
        return jax.tree.map(lambda own, new: own + jax.lax.stop_gradient(new.mean(axis=0) - own), payload, drawn)

    return shared


def observed_support(observed: PyTree, simulated: PyTree) -> PyTree:
    """The estimated mask of a defense that zeroes entries: those that arrived non-zero, the same in every iteration."""
    mask = jax.tree.map(lambda leaf: (leaf != 0).astype(leaf.dtype), observed)
    return objectives.fixed_share(mask)(observed, simulated)


def clipped(share: Share, clip: float) -> Share:
    """`share` with the whole payload clipped to norm `clip`."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        factor = clip_factor(payload, clip)
        return jax.tree.map(lambda leaf: factor * leaf, payload)

    return shared


def clipped_examples(share: Share, clip: float) -> Share:
    """`share` with every example's gradient clipped to norm `clip`."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        one = clipped(share, clip)
        each = jax.vmap(lambda x, y, i: one(params, Batch(x[None], y[None], i[None]), sharpness=sharpness))
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), each(*batch))

    return shared


def in_units_of_noise(observed: PyTree, simulated: PyTree) -> jax.Array:
    """Mean of squared differences over the squared observed entry, which noise in proportion to it is as large as."""
    leaves = list(zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), strict=True))
    entries = sum(a.size for a, _ in leaves)
    floor = _FLOOR * sum((jnp.sum(a**2) for a, _ in leaves), jnp.zeros(())) / entries
    safe = jnp.where(floor > 0, floor, 1.0)
    return sum((jnp.sum((a - b) ** 2 / (a**2 + safe)) for a, b in leaves), jnp.zeros(())) / entries


def shadow_weights(defense: Defense, model: Classifier, share: ClientShare, images: int) -> tuple[float, ...]:
    """Per tensor signal / (signal + noise), in (0, 1], of the defense on clients that the attacker makes up.

    Shadow clients have random weights, uniform images and random labels: nothing of the victim enters.
    """

    @jax.jit
    def one(key: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        keys = jax.random.split(key, 4)
        variables = model.init(keys[0])
        x = jax.random.uniform(keys[1], (images, *model.image_shape))
        y = jax.random.randint(keys[2], (images,), 0, model.num_classes)
        payload = share(variables, Batch(x[:, None], y, jnp.arange(images)))
        sent = defense.apply(keys[3], payload, model=model, variables=variables, x=x, y=y, round=0)
        pairs = list(zip(jax.tree.leaves(payload), jax.tree.leaves(sent), strict=True))
        return [jnp.mean(a**2) for a, _ in pairs], [jnp.mean((b - a) ** 2) for a, b in pairs]

    measured = [one(jax.random.fold_in(jax.random.key(0), number)) for number in range(SHADOWS)]
    signals = [sum(map(float, of)) for of in zip(*(signal for signal, _ in measured), strict=True)]
    noises = [sum(map(float, of)) for of in zip(*(noise for _, noise in measured), strict=True)]
    return tuple(s / (s + n) if s else 1.0 for s, n in zip(signals, noises, strict=True))


def _bayes(settings: Settings, noise: str, scale: float) -> Settings:
    # Labels and smoothing are no matter of the noise: they stay those of the attack that does not know.
    known = presets.bayes(settings.iterations, noise=noise, scale=scale)
    return known._replace(labels=settings.labels, smoothing=settings.smoothing)
