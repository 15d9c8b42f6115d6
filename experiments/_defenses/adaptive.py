"""Attackers who know the defense: what they simulate, and how they compare it with what they saw.

None of them is given anything but the defense, its strength and the observation. Gaussian noise without bias has the
candidate's own gradient as its mean, so that expectation over transformations changes nothing for it; there the
likelihood of the noise is what knowledge buys.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments._defenses import registry
from jaxleak import _own_keys, objectives
from jaxleak._base import Batch, PyTree
from jaxleak.attacks import LABEL_RULES, Settings, presets
from jaxleak.defenses import Defense
from jaxleak.defenses._gaussian import clip_factor
from jaxleak.defenses._outpost import NOISE, prune_small, risk
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare

#: Samples of a random transform that the candidate's payload is averaged over.
SAMPLES = 4
#: Shadow clients, of random images, labels and weights, that a defense's noise is measured on.
SHADOWS = 4
#: The least variance of an entry whose noise grows with it, as a share of the mean square of all entries.
_FLOOR = 0.1
#: The deviation that tensors without noise are given, as a share of OUTPOST's largest deviation.
_CLEAN = 0.01

Share = Callable[..., PyTree]


def reads_weights(name: str) -> bool:
    """Whether who knows the defense of this name draws on the weights of the attacked model."""
    return registry.REGISTRY[name].adaptation in ("outpost", "shadow")


def informed(
    name: str,
    strength: float,
    model: Classifier,
    share: ClientShare,
    settings: Settings,
    images: int,
    *,
    round_: int = 0,
    variables: PyTree = None,
) -> tuple[Share, Settings]:
    """What the attacker runs who knows that the client has this defense.

    | defense | adaptation |
    |---|---|
    | quantization | the transform on the candidate's gradient, straight-through, averaged over samples if random |
    | Soteria, sparsification | only entries that arrived non-zero are compared |
    | withheld or encrypted largest entries | the same; and labels are optimised with the images, for the head's \
gradient, which label rules read, is among those entries |
    | feature dropout | the mean of the candidate's gradients under masks of the attacker's own |
    | OUTPOST | likelihood of its noise, tensor by tensor, on the entries that it cannot have pruned |
    | Gaussian, Laplace, DP | likelihood of the known noise, and the known clipping of the candidate's gradient |
    | DP + Soteria | both of these |
    | magnitude and cancelling noise | likelihood of the noise that the observed entry tells |
    | Guardian | layers weighed by signal and noise, as measured on shadow clients that run it |

    Args:
        name: of the registry.
        strength: of the defense.
        model: under attack.
        share: what the client computes before its defense.
        settings: of the attack that does not know.
        images: behind one payload.
        round_: of the payload, for noise that decays.
        variables: of the model under attack, where `reads_weights` and they are not as drawn; None draws some.

    Raises:
        ValueError: on an unknown defense or a strength out of range.
    """
    defense = registry.build(name, strength, local_steps=share.local_steps)
    kind = registry.REGISTRY[name].adaptation
    if kind == "transform":
        return straight_through(share, defense, 1 if name == "quantization" else SAMPLES), settings
    if kind == "dropout":
        return dropped_features(share, defense), settings
    if kind == "support":
        return share, settings.comparing(selection=observed_support)
    if kind == "withheld":
        inferred = settings.labels in LABEL_RULES
        labels = "joint" if inferred else settings.labels
        return share, settings.comparing(selection=observed_support)._replace(labels=labels)
    if kind in ("gaussian", "laplace"):
        noise = {"gaussian": objectives.gaussian_likelihood, "laplace": objectives.laplace_likelihood}[kind]
        return share, _knowing(settings, noise(strength))
    if kind in ("magnitude", "cancelling"):
        # The noise that a neighbour hands over goes by its own entries, of which all that is known is that they are
        # about as large.
        deviation = strength * math.sqrt(1 + registry.NEIGHBOURS) if kind == "cancelling" else strength
        return share, settings.comparing(distance=proportional_likelihood(deviation))
    if kind == "outpost":
        return share, _knowing(settings, outpost_likelihood(model, strength, variables))
    if kind == "shadow":
        weights = shadow_weights(defense, model, share, images, variables)
        return share, settings.comparing(distance=objectives.layer_weighted(settings.gradients.distance, weights))
    sigma = registry.sigma_at(name, strength, round_) * registry.CLIP
    if kind == "update":
        return clipped(share, registry.CLIP), _knowing(settings, objectives.gaussian_likelihood(sigma))
    s = _knowing(settings, objectives.gaussian_likelihood(sigma / images))
    s = s.comparing(selection=observed_support) if kind == "private+support" else s
    return clipped_examples(share, registry.CLIP), s


def straight_through(share: Share, defense: Defense, samples: int) -> Share:
    """`share` behind the defense, the mean of `samples` draws; its derivative is that of `share` alone."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        # The same draws in every iteration: an objective that jitters would keep a random iterate as its best.
        keys = jax.random.split(_own_keys.own_key(_own_keys.TRANSFORMS), samples)
        drawn = jax.vmap(lambda key: defense.apply(key, jax.lax.stop_gradient(payload)))(keys)
        return jax.tree.map(lambda own, new: own + jax.lax.stop_gradient(new.mean(axis=0) - own), payload, drawn)

    return _described_as(share, shared)


def dropped_features(share: ClientShare, defense: Defense) -> Share:
    """The mean gradient under `SAMPLES` draws of the client's dropout, the same draws in every iteration."""
    keys = jax.random.split(_own_keys.own_key(_own_keys.MASKS), SAMPLES)

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        known = {"model": share.model, "variables": params, "x": batch.x[:, 0], "y": batch.y, "mode": share.batch_norm}
        # What the client would have shared otherwise is not used: the weights only stand for its shapes.
        drawn = jax.vmap(lambda key: defense.apply(key, params["params"], **known, sharpness=sharpness))(keys)
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), drawn)

    return _described_as(share, shared)


def observed_support(observed: PyTree, simulated: PyTree) -> PyTree:
    """The estimated mask of a defense that zeroes entries: those that arrived non-zero, the same in every iteration.

    Label rules need no such care where small entries are left out: the head's are among the largest, and a hole in them
    stands for a number near zero.
    """
    mask = jax.tree.map(lambda leaf: (leaf != 0).astype(leaf.dtype), observed)
    return objectives.fixed_share(mask)(observed, simulated)


def clipped(share: Share, clip: float) -> Share:
    """`share` with the whole payload clipped to norm `clip`."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        factor = clip_factor(payload, clip)
        return jax.tree.map(lambda leaf: factor * leaf, payload)

    return _described_as(share, shared)


def clipped_examples(share: Share, clip: float) -> Share:
    """`share` with every example's gradient clipped to norm `clip`."""

    def shared(params: PyTree, batch: Batch, *, sharpness: jax.Array | None = None) -> PyTree:
        one = clipped(share, clip)
        each = jax.vmap(lambda x, y, i: one(params, Batch(x[None], y[None], i[None]), sharpness=sharpness))
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), each(*batch))

    return _described_as(share, shared)


def _described_as(share: Share, shared: Share) -> Share:
    # Attacks read from a share how many steps and clients it has, and its mode of batch normalisation.
    vars(shared).update(vars(share))
    return shared


def proportional_likelihood(deviation: float) -> objectives.Distance:
    """Squared differences over the variance of noise that is `deviation` times as large as the observed entry."""

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        leaves = list(zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), strict=True))
        entries = sum(a.size for a, _ in leaves)
        floor = _FLOOR * sum((jnp.sum(a**2) for a, _ in leaves), jnp.zeros(())) / entries
        safe = jnp.where(floor > 0, floor, 1.0)
        squares = sum((jnp.sum((a - b) ** 2 / (a**2 + safe)) for a, b in leaves), jnp.zeros(()))
        return squares / (entries * deviation**2)

    return distance


def outpost_likelihood(model: Classifier, ratio: float, variables: PyTree = None) -> objectives.Distance:
    """Squared differences over the variance of OUTPOST's noise in that tensor, on the entries that survive pruning.

    Only its most informative entries carry noise, and an entry that was pruned may carry nothing but noise; so what is
    compared is, in every tensor, as many entries as survive, the largest that arrived. The noise follows from the
    spread of the weights, where none are given of weights that the attacker draws as the model's are drawn.
    """
    seen = model.init(_own_keys.own_key(_own_keys.WEIGHTS)) if variables is None else variables
    deviations = [float(NOISE * risk(leaf)) for leaf in jax.tree.leaves(seen["params"])]
    floor = (_CLEAN * max(deviations)) ** 2 or 1.0

    def distance(observed: PyTree, simulated: PyTree) -> jax.Array:
        total = jnp.zeros(())
        for a, b, sd in zip(jax.tree.leaves(observed), jax.tree.leaves(simulated), deviations, strict=True):
            kept = prune_small(a, ratio) != 0
            total += jnp.sum(jnp.where(kept, (a - b) ** 2, 0.0)) / (2 * (sd**2 + floor))
        return total

    return distance


def shadow_weights(
    defense: Defense, model: Classifier, share: ClientShare, images: int, variables: PyTree = None
) -> tuple[float, ...]:
    """Per tensor signal / (signal + noise), in (0, 1], of the defense on clients that the attacker makes up.

    Shadow clients have uniform images and random labels, and random weights where none are given: nothing of the victim
    enters but the model that the server sent it.
    """

    @jax.jit
    def one(key: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        keys = jax.random.split(key, 4)
        own = model.init(keys[0]) if variables is None else variables
        x = jax.random.uniform(keys[1], (images, *model.image_shape))
        y = jax.random.randint(keys[2], (images,), 0, model.num_classes)
        payload = share(own, Batch(x[:, None], y, jnp.arange(images)))
        known = {"model": model, "variables": own, "x": x, "y": y, "mode": share.batch_norm}
        sent = defense.apply(keys[3], payload, **known, round=0)
        pairs = list(zip(jax.tree.leaves(payload), jax.tree.leaves(sent), strict=True))
        return [jnp.mean(a**2) for a, _ in pairs], [jnp.mean((b - a) ** 2) for a, b in pairs]

    shadows = _own_keys.own_key(_own_keys.SHADOWS)
    measured = [one(jax.random.fold_in(shadows, number)) for number in range(SHADOWS)]
    signals = [sum(map(float, of)) for of in zip(*(signal for signal, _ in measured), strict=True)]
    noises = [sum(map(float, of)) for of in zip(*(noise for _, noise in measured), strict=True)]
    return tuple(s / (s + n) if s else 1.0 for s, n in zip(signals, noises, strict=True))


def _knowing(settings: Settings, likelihood: objectives.Distance) -> Settings:
    # A likelihood has units, so the weights of the priors are those of the attack that works with one.
    bayes = presets.bayes(settings.iterations)
    weights = {name: bayes.weight(name) for name in ("tv", "activation")}
    return settings.comparing(distance=likelihood, selection=None).weighing(**weights)
