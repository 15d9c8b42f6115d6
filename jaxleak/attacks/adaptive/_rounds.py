"""The attack of someone who knows that a defense sends fake gradients in place of the aggregated ones."""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import models
from jaxleak._base import Attack, Batch, Loss, PyTree
from jaxleak._own_keys import Purpose, own_key
from jaxleak.attacks._cafe.censored import cafe_censored
from jaxleak.attacks._cafe.decoder import synthetic_slices
from jaxleak.attacks._cafe.exact import CafeExactPlan
from jaxleak.attacks._cafe.feature_inversion import FeatureInversionOptions
from jaxleak.attacks._cafe.ordinal import cafe_ordinal, kernel_to_bias_ratio
from jaxleak.defenses import Defense
from jaxleak.defenses.mechanisms import RankedNoise
from jaxleak.objectives import cross_entropy

#: For an attacker who sees only the order of entries: how often Step II alternates between predictions and orders, and
#: how often each of these sweeps sees every sample.
SWEEPS, VISITS = 6, 8

RoundsAttack = Literal["cafe_censored", "cafe_ordinal"]


class InformedRounds(NamedTuple):
    """An attack on aggregated gradients by someone who knows the defense, and its plan."""

    attack: Attack  # watches the rounds and solves them
    plan: CafeExactPlan  # how many rounds that takes


def rounds_attack(defense: Defense) -> RoundsAttack | None:
    """The name of the attack that `informed_rounds` makes against a defense; None if it has none.

    If the unit of the noise is 1 or each tensor's own size, enough entries of every tensor arrive true. If the size of
    the whole gradient is the unit for all tensors, some tensors (usually biases) may be cut off almost everywhere, and
    only the order of their entries is left.

    Args:
        defense: as the clients have it.
    """
    noise = _ranked_noise(defense)
    if noise is None:
        return None
    if noise.kept == "small":
        return "cafe_ordinal" if noise.unit == "gradient" else "cafe_censored"
    # If no entry is kept and the noise has an absolute size, the uploads do not reveal how large any gradient is.
    return None if noise.unit == "absolute" else "cafe_ordinal"


def informed_rounds(
    defense: Defense,
    model: models.SplitModel,
    plan: CafeExactPlan,
    *,
    params: PyTree,
    loss: Loss = cross_entropy,
    inversion: FeatureInversionOptions | None = None,
    invert: bool = True,
    seed: int = 0,
) -> InformedRounds:
    """The attack on aggregated gradients of someone who knows the defense and its strength.

    Beyond that the attacker has only the frozen model and the rounds.

    Args:
        defense: as the clients have it, from `jaxleak.defenses`.
        model: the attacked model, with its extractor.
        plan: from `attacks.plan_cafe_exact`, for one worker. If only the order of entries is left, the returned plan is
            longer: Step I has twice as many rounds, and each of the `SWEEPS` sweeps of Step II visits every sample
            `VISITS` times.
        params: the model's frozen parameters.
        loss: the clients' loss.
        inversion: options of Step III.
        invert: whether `reconstruct` runs Step III, see `attacks.cafe_exact`.
        seed: random seed of the synthetic slices and restarts of Step III.

    Returns:
        An `InformedRounds`.

    Raises:
        ValueError: on a defense against which no such attack is known (`rounds_attack`), or a plan for several workers.
    """
    name, noise = rounds_attack(defense), _ranked_noise(defense)
    if name is None or noise is None:
        raise ValueError(
            "defense must declare noise that is ordered like the gradient (`mechanisms.RankedNoise`) and keeps entries "
            f"or tells their size, since no attacker of rounds is known otherwise; it declares {defense.mechanism}"
        )
    if name == "cafe_censored":
        attack = cafe_censored(model, plan, loss=loss, inversion=inversion, invert=invert, seed=seed)
        return InformedRounds(attack, plan)
    plan = plan._replace(
        output_rounds=2 * plan.output_rounds,
        feature_rounds=SWEEPS * math.ceil(VISITS * plan.num_samples / plan.batch_size),
    )
    scale = 1.0
    if noise.kept == "none" and noise.unit == "gradient":
        scale = kernel_to_bias_ratio(own_gradient(model, params, plan.batch_size, loss=loss))
    attack = cafe_ordinal(
        model,
        plan,
        reading="clamped" if noise.kept == "small" else "paired",
        variance=noise.variance,
        kernel_scale=scale,
        sweeps=SWEEPS,
        loss=loss,
        inversion=inversion,
        invert=invert,
        seed=seed,
    )
    return InformedRounds(attack, plan)


def _ranked_noise(defense: Defense) -> RankedNoise | None:
    noise = None if defense.mechanism is None else defense.mechanism.noise
    return noise if isinstance(noise, RankedNoise) else None


def own_gradient(model: models.SplitModel, params: PyTree, batch_size: int, *, loss: Loss = cross_entropy) -> PyTree:
    """The frozen model's gradient on a batch that the attacker makes up: random shapes and noise, random labels.

    The batch contains nobody's data. Colour, grey and tabular slices are drawn in the same way, and each party's slices
    are drawn separately.

    Args:
        model: under attack.
        params: frozen parameters of the model.
        batch_size: K.
        loss: the clients' loss.

    Returns:
        The gradient of all parameters behind the extractor.
    """
    for_slices, for_labels = jax.random.split(own_key(Purpose.SAMPLES))
    slices = synthetic_slices(int(jax.random.bits(for_slices)), batch_size * model.parties, model.slice_shape)
    x = jnp.asarray(slices).reshape(batch_size, model.parties, *model.slice_shape)
    y = jax.random.randint(for_labels, (batch_size,), 0, model.num_classes)
    head = models.frozen_features(model)

    def share(params: PyTree, batch: Batch) -> PyTree:
        return jax.grad(lambda p: loss(head.apply(p, batch.x), batch.y))(params)

    features = jax.jit(model.features)(params, x)
    return jax.jit(share)(params, Batch(features, y, jnp.arange(batch_size, dtype=jnp.int32)))
