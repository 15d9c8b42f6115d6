"""What distinguishes one gradient inversion from another, and what settings may not say."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import optax

from jaxleak import _validate
from jaxleak.attacks._inversion.candidates import Candidate
from jaxleak.attacks._inversion.label_rules import LABEL_RULES
from jaxleak.attacks._inversion.row_space import RowSpace, check_row_space
from jaxleak.attacks._inversion.smoothing import Smoothing
from jaxleak.models import Classifier
from jaxleak.objectives import Distance, GradientRegularization, Selection

TVKind = Literal["anisotropic", "isotropic", "sum", "truncated", "relative"]
TV_KINDS: tuple[TVKind, ...] = ("anisotropic", "isotropic", "sum", "truncated", "relative")

#: Where labels come from. "none" is for attacks that read none; their answers hold -1 in the place of labels.
LABEL_STRATEGIES = ("given", "joint", "none", *LABEL_RULES)


class Settings(NamedTuple):
    """All that distinguishes one gradient inversion from another; `jaxleak.attacks.presets` makes them.

    A candidate or an enhancement that was trained carries a grant that is no part of `Threat`, which is about rounds:
    public data. Whoever makes such settings passes the trained generator in, and answers for what it has seen.
    """

    candidate: Candidate
    distance: Distance
    optimizer: optax.GradientTransformation
    iterations: int  # > 0, the length that schedules are made for
    labels: str = "calibrated"  # "given", "joint", the name of a rule of `LABEL_RULES`, or, for row_space only, "none"
    selection: Selection | None = None  # which gradient entries are compared; None compares all
    tv: float | Literal["auto"] = 0.0  # weight of the total variation; "auto": `recommended_tv`
    # Means over differences; the sum of all of them; CAFE's `truncated_tv`, a sum per image; or the first of them over
    # the pixels' standard deviation.
    tv_kind: TVKind = "anisotropic"
    tv_threshold: float = 0.0  # xi of the kind "truncated"
    activation: float = 0.0  # weight of the absolute activations
    activation_reduction: Literal["mean", "sum"] = "mean"  # over their entries
    l2: float = 0.0  # weight of the images' mean Euclidean norm
    latent: float = 0.0  # weight of the candidate's own prior
    batch_norm: float = 0.0  # weight of the distance between normalisation statistics
    group: int = 1  # G candidates that descend together
    consistency: float = 0.0  # weight of their distance to their mean
    regularization: GradientRegularization = GradientRegularization()
    smoothing: Smoothing | Literal["auto"] | None = None  # "auto": `recommended_smoothing`, if the model has kinks
    gradient_free: bool = False  # the optimizer evaluates the objective itself, as `cma_es`, and gets no gradients
    enhance: Callable[[jax.Array], jax.Array] | None = None  # of the answer's images, after the score was taken
    row_space: RowSpace | None = None  # compare row spaces, which takes no distance, selection or labels
    white_point: float = 0.0  # where gradients hide the images' scale, this quantile of the answer becomes 1; 0: off


def check_settings(s: Settings, model: Classifier) -> None:
    """Refuse what no attack on this model could mean.

    Raises:
        ValueError: naming the field and its range.
    """
    _validate.count(iterations=s.iterations, group=s.group)
    _validate.non_negative(
        activation=s.activation, l2=s.l2, batch_norm=s.batch_norm, consistency=s.consistency, latent=s.latent
    )
    if s.tv != "auto":
        _validate.non_negative(tv=s.tv)
    _validate.one_of(TV_KINDS, tv_kind=s.tv_kind)
    _validate.one_of(("mean", "sum"), activation_reduction=s.activation_reduction)
    _validate.non_negative(tv_threshold=s.tv_threshold)
    if s.tv_threshold and s.tv_kind != "truncated":
        raise ValueError(f'tv_threshold is read by tv_kind="truncated" only, got {s.tv_kind!r}')
    _validate.in_range(0, 1, white_point=s.white_point)
    _validate.one_of(LABEL_STRATEGIES, labels=s.labels)
    if s.labels == ("joint" if s.row_space else "none"):
        raise ValueError(f"row_space goes without labels, and nothing else does; got labels={s.labels!r}")
    if not (s.smoothing in (None, "auto") or isinstance(s.smoothing, Smoothing)):
        raise ValueError(f"smoothing must be None, 'auto' or from attacks.smoothing, got {s.smoothing!r}")
    if s.consistency and s.group == 1:
        raise ValueError("consistency couples a group of candidates, so group must be > 1, got 1")
    if s.latent and s.candidate.prior is None:
        raise ValueError("latent > 0 weighs the candidate's own prior, but this candidate has none")
    if s.gradient_free and s.regularization.blend:
        raise ValueError("gradient regularization blends gradients, but gradient_free=True computes none")
    if s.row_space is not None:
        check_row_space(s.row_space)
        if s.group > 1 or s.gradient_free or s.selection is not None:
            raise ValueError("row_space has no group, no selection of gradient entries and no search without gradients")
        if not s.candidate.of_pixels:
            raise ValueError("row_space tries shifts of the candidate's pixels, which this candidate does not have")
        plan = s.smoothing
        if isinstance(plan, Smoothing) and plan != Smoothing(plan.start, plan.end):
            raise ValueError("row_space sharpens by its own clock: smoothing takes a start and an end only")
    if s.batch_norm and not model.has_batch_norm:
        raise ValueError("batch_norm > 0 matches normalisation statistics, but this model has no batch normalisation")
