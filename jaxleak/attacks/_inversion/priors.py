"""Priors: what an inversion knows about images beyond the update, such as total variation or activations.

`Settings.priors` holds any number of priors with their weights. To add a prior, write a function that makes a `Prior`,
and add an entry to a preset.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Observation, PyTree
from jaxleak.attacks._inversion.candidates import Candidate
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.models import Outputs
from jaxleak.models._activations import Sharpness
from jaxleak.objectives import (
    activation_penalty,
    batch_norm_distance,
    l2_prior,
    mean_total_variation,
    relative_total_variation,
    summed_total_variation,
    truncated_tv,
)

Variation = Literal["anisotropic", "isotropic", "sum", "truncated", "relative"]
VARIATIONS: tuple[Variation, ...] = ("anisotropic", "isotropic", "sum", "truncated", "relative")


class Evidence:
    """What a prior may look at: one candidate, and the outputs of the attacker's model for it.

    Attributes:
        candidate: how variables become images.
        observation: what the attacker was granted.
        variables: what is optimised, a tree.
        x: (B, H, W, channels), the images in [0, 1].
        outputs: the model's outputs for the images; kinks are smoothed if the attack smooths them.
    """

    def __init__(
        self,
        setup: Setup,
        candidate: Candidate,
        observation: Observation,
        variables: PyTree,
        x: jax.Array,
        sharpness: Sharpness,
    ):
        """Hold what all priors of one iteration share.

        Args:
            setup: what the inversion was built for.
            candidate: how variables become images.
            observation: what the attacker was granted.
            variables: what is optimised.
            x: (B, H, W, channels), the images in [0, 1] that `candidate` has decoded from `variables`.
            sharpness: beta > 0, how sharp smoothed kinks are in this iteration, a scalar; None where they are exact.
        """
        self.candidate, self.observation, self.variables, self.x = candidate, observation, variables, x
        self._setup, self._sharpness = setup, sharpness

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The model's outputs for the images at the current sharpness; all priors share one forward pass."""
        return self._setup.model.apply(
            self.observation.params, self.x, mode=self._setup.mode, sharpness=self._sharpness
        )


class Prior(NamedTuple):
    """A measure of how unlikely a candidate is.

    name: the name by which `Settings.weighing` finds the prior.
    value: `Evidence -> ()`.
    kind: tells several priors of one name apart; an empty string if there is only one.
    check: `(setup, candidate) -> None`; raises `ValueError` if the prior does not apply to this model or candidate.
    recommended: `Setup -> float`, the weight that "auto" stands for; None if there is no recommendation.
    reads_statistics: whether the threat must grant the batch's statistics.
    """

    name: str
    value: Callable[[Evidence], jax.Array]
    kind: str = ""
    check: Callable[[Setup, Candidate], None] = lambda setup, candidate: None
    recommended: Callable[[Setup], float] | None = None
    reads_statistics: bool = False


#: A pair of a weight >= 0 and a prior. The weight may be "auto" if the prior recommends one.
Weighted: TypeAlias = tuple[float | Literal["auto"], Prior]


def recommended_tv(*, coupled_kinks: bool, batch_size: int) -> float:
    """The weight > 0 of the total variation that worked best in `experiments.homotopy`.

    The variation is a mean over differences, and is added to a distance of about 1. The weight grows with sqrt(B),
    since more images share one gradient. It is three times as large if statistics of the batch couple the kinks, as in
    a ResNet of ReLUs in training mode. In such networks gradients lead to the images only from nearby
    (`experiments.basin`).
    """
    return (0.3 if coupled_kinks else 0.1) * math.sqrt(batch_size)


def natural_tv(height: int, width: int) -> float:
    """The weight > 0, in nats, of `variation_prior("sum")` that makes it the prior of natural photographs.

    Together with a likelihood in nats (`objectives.gaussian_likelihood`), the objective is then a negative
    log-posterior, up to a constant. The density of images is `exp(-weight TV) / Z`, for every channel separately. Z is
    proportional to weight^-(HW - 1), so photographs with the variation TV are likeliest at the weight (HW - 1) / TV.
    Independent Laplace-distributed differences would give about twice this weight, as there are about two differences
    per pixel.

    TV follows from the mean difference between neighbouring pixels in [0, 1], measured on the photographs that
    scikit-image and scikit-learn ship (`data.load("photographs:SIZE")`). That mean is 0.157 SIZE^-0.3: 0.084 at 8
    pixels, 0.056 at 32 and 0.037 at 128, within 4 %. One number was thus measured on these ten photographs and their
    views: an attack on one of them knows slightly more than it should, and an attack on any other image does not.

    Args:
        height: H in pixels, >= 1.
        width: W in pixels, >= 1, and H W > 1.

    Raises:
        ValueError: on sizes out of range.
    """
    _validate.count(height=height, width=width)
    if height * width == 1:
        raise ValueError("height and width must make up more than one pixel, which has no neighbour")
    difference = 0.157 * math.sqrt(height * width) ** -0.3
    pairs = (height - 1) * width + height * (width - 1)
    return (height * width - 1) / (pairs * difference)


def variation_prior(kind: Variation = "anisotropic", *, threshold: float = 0.0) -> Prior:
    """The prior of total variation.

    Args:
        kind: "anisotropic" and "isotropic" are means over differences, "sum" is the sum of all of them, "truncated" is
            CAFE's `truncated_tv`, a sum per image, and "relative" is "anisotropic" divided by the pixels' standard
            deviation.
        threshold: xi of the kind "truncated", >= 0.

    Raises:
        ValueError: on an unknown kind, or a threshold that the kind does not read.
    """
    _validate.one_of(VARIATIONS, kind=kind)
    _validate.non_negative(threshold=threshold)
    if threshold and kind != "truncated":
        raise ValueError(f'threshold is read by kind="truncated" only, got {kind!r}')
    measures: dict[str, Callable[[jax.Array], jax.Array]] = {
        "anisotropic": mean_total_variation,
        "isotropic": lambda x: mean_total_variation(x, "isotropic"),
        "relative": relative_total_variation,
        "sum": summed_total_variation,
        "truncated": lambda x: truncated_tv(x, threshold),
    }
    measure = measures[kind]

    def recommended(setup: Setup) -> float:
        return recommended_tv(coupled_kinks=setup.coupled_kinks, batch_size=setup.batch_size)

    return Prior("tv", lambda evidence: measure(evidence.x), kind, recommended=recommended)


def size_prior() -> Prior:
    """The prior of image size: the mean over the batch of each image's Euclidean norm (GradInversion)."""
    return Prior("l2", lambda evidence: l2_prior(evidence.x))


def activation_prior(reduction: Literal["mean", "sum"] = "mean") -> Prior:
    """The prior of sparse activations: absolute activations of the network (FedLeak, section 4.2).

    Args:
        reduction: "mean" or "sum" over the activations.

    Raises:
        ValueError: on an unknown reduction.
    """
    _validate.one_of(("mean", "sum"), reduction=reduction)
    return Prior("activation", lambda evidence: activation_penalty(evidence.outputs.activations, reduction), reduction)


def statistics_prior() -> Prior:
    """The distance between the batch's normalisation statistics, which the threat must grant, and the candidate's.

    The inversion raises `ValueError` when it is built for a model without batch normalisation.
    """

    def check(setup: Setup, candidate: Candidate) -> None:
        del candidate
        if not setup.model.has_running_statistics:
            raise ValueError("batch_norm > 0 matches normalisation statistics, but this model keeps none")

    def value(evidence: Evidence) -> jax.Array:
        return batch_norm_distance(evidence.observation.statistics, evidence.outputs.statistics)

    return Prior("batch_norm", value, check=check, reads_statistics=True)


def latent_prior() -> Prior:
    """The candidate's own prior, such as that of a generator's latents.

    The inversion raises `ValueError` when it is built with a candidate that has none.
    """

    def check(setup: Setup, candidate: Candidate) -> None:
        del setup
        if candidate.prior is None:
            raise ValueError("latent > 0 weighs the candidate's own prior, but this candidate has none")

    def value(evidence: Evidence) -> jax.Array:
        assert evidence.candidate.prior is not None
        return evidence.candidate.prior(evidence.variables)

    return Prior("latent", value, check=check)


#: Functions that make a prior which settings do not have yet, in the order in which priors are added up.
MAKERS: dict[str, Callable[[], Prior]] = {
    "tv": variation_prior,
    "l2": size_prior,
    "activation": activation_prior,
    "batch_norm": statistics_prior,
    "latent": latent_prior,
}


def resolved(priors: Iterable[Weighted], setup: Setup, candidate: Candidate) -> tuple[tuple[float, Prior], ...]:
    """The priors with a weight > 0, with every "auto" replaced by a number.

    Raises:
        ValueError: naming a weight out of range, a weight "auto" for which there is no recommendation, or a prior that
            does not apply to this model or candidate.
    """
    found = []
    for weight, prior in priors:
        if weight == "auto":
            if prior.recommended is None:
                raise ValueError(f'{prior.name} has no recommended weight, so it must be a number, got "auto"')
            weight = prior.recommended(setup)
        _validate.non_negative(**{prior.name: weight})
        if weight:
            prior.check(setup, candidate)
            found.append((float(weight), prior))
    return tuple(found)


def total(priors: Iterable[tuple[float, Prior]], evidence: Evidence) -> jax.Array:
    """The weighted sum () of priors.

    Raises:
        ValueError: naming a prior of somebody's own that fails, or that returns something else than one real number.
    """
    value = jnp.zeros(())
    for weight, prior in priors:
        value += weight * _one_number(prior, evidence)
    return value


def _one_number(prior: Prior, evidence: Evidence) -> jax.Array:
    """The prior's single number () for a candidate; one number per image would not fit the distance of the batch."""
    try:
        found = jnp.asarray(prior.value(evidence))
    except Exception as error:  # whatever somebody's code does
        if prior.name in MAKERS:
            raise
        raise ValueError(
            f"prior {prior.name} fails on images of shape {evidence.x.shape}: {type(error).__name__}: {error}"
        ) from error
    if found.shape or not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(
            f"prior {prior.name} must return one real number for all images, an array of shape (), got {found.dtype} "
            f"of shape {found.shape}"
        )
    return found
