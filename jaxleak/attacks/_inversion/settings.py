"""The settings that distinguish one gradient inversion from another, and the checks on them."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import optax

from jaxleak import _validate
from jaxleak.attacks._inversion.candidates import Candidate
from jaxleak.attacks._inversion.data_term import Comparison
from jaxleak.attacks._inversion.evolution import is_gradient_free
from jaxleak.attacks._inversion.gradient_term import Gradients
from jaxleak.attacks._inversion.label_rules import LABEL_RULES
from jaxleak.attacks._inversion.priors import MAKERS, Prior, Weighted
from jaxleak.attacks._inversion.shift_search import ShiftPlan
from jaxleak.attacks._inversion.smoothing import Smoothing
from jaxleak.models import Classifier
from jaxleak.objectives import GradientRegularization


class Settings(NamedTuple):
    """All that distinguishes one gradient inversion from another; `jaxleak.attacks.presets` makes them.

    Change single fields by `_replace`, weights of priors by `weighing`, and the distance by `comparing`. Weights have
    no unit: each multiplies one term of the objective. For scale: the cosine distance between gradients is in [0, 2].

    Attributes:
        candidate: the variables that are optimised, and how they decode to images: `client_updates.pixels`, or a
            generator's codes.
        compare: the data term: `client_updates.Gradients`, `client_updates.AnyLoss` or `client_updates.RowSpaces`.
        optimizer: any optimizer of optax, or `client_updates.cma_es`, which searches without gradients.
        iterations: number of iterations > 0, for which the schedules are made.
        labels: "given" (granted to the attacker), "joint" (optimised with the images, as distributions over the
            classes), the name of a rule of `attacks.LABEL_RULES`, or "none", where the data term reads none. Rules
            assume that the loss's gradient with respect to the logits is a multiple of that of the mean cross-entropy,
            (softmax - label) / B. A sum over the batch or slightly smoothed labels also work; other losses of the
            client are refused.
        priors: what is known about images: pairs of a weight >= 0 and a prior.
        group: G >= 1 candidates that descend together.
        consistency: weight >= 0 of their distance to their mean; needs G > 1.
        regularization: FedLeak's gradient regularization; by default none.
        smoothing: schedule of the sharpness with which kinks are smoothed; "auto" takes the recommended schedule if the
            model has kinks; None keeps them exact.
        shifts: plan of which shifts of the images are tried at which iterations; () tries none.
        enhance: function from images (B, H, W, channels) to enhanced ones of the same shape. It is applied to the
            answer after its score was computed.
        white_point: in [0, 1]; where gradients hide the scale of the images, this quantile of the answer becomes 1.
            0 leaves the scale as it is.

    A trained candidate or enhancement needs a grant that `Threat` does not cover, because `Threat` is about rounds:
    public data. Whoever makes such settings passes in the trained generator, and is responsible for what it was trained
    on.
    """

    candidate: Candidate
    compare: Comparison
    optimizer: optax.GradientTransformation
    iterations: int
    labels: str = "calibrated"
    priors: tuple[Weighted, ...] = ()
    group: int = 1
    consistency: float = 0.0
    regularization: GradientRegularization = GradientRegularization()
    smoothing: Smoothing | Literal["auto"] | None = None
    shifts: ShiftPlan = ()
    enhance: Callable[[jax.Array], jax.Array] | None = None
    white_point: float = 0.0

    @property
    def gradient_free(self) -> bool:
        """Whether the optimizer evaluates the objective itself and gets no gradients, like `cma_es`."""
        return is_gradient_free(self.optimizer)

    @property
    def reads_statistics(self) -> bool:
        """Whether the threat must grant the batch's normalisation statistics."""
        return any(prior.reads_statistics for weight, prior in self.priors if weight)

    def weight(self, name: str) -> float | Literal["auto"]:
        """The weight of the prior of this name; 0 where there is none."""
        return next((weight for weight, prior in self.priors if prior.name == name), 0.0)

    def weighing(self, *priors: Prior, **weights: float | Literal["auto"]) -> "Settings":
        """The same settings with other priors or other weights: `settings.weighing(tv=0.1, activation=0)`.

        Args:
            priors: each replaces the prior of the same name and keeps its weight; if there was none, the weight is 0.
            weights: weights by the prior's name: "tv", "l2", "activation", "batch_norm" or "latent". A prior that the
                settings lack is added.

        Raises:
            ValueError: on an unknown name, a weight that is neither a number >= 0 nor "auto", or if the settings hold
                two priors of one name, so that the name is ambiguous.
        """
        for prior in priors:
            _validate.made(Prior, "client_updates.Prior(name, value)", priors=prior)
        names = [prior.name for _, prior in self.priors]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ValueError(f"priors must have names of their own to be weighed by name, got {twice[0]} twice")
        found = {prior.name: (weight, prior) for weight, prior in self.priors}
        found |= {prior.name: (self.weight(prior.name), prior) for prior in priors}
        for name, weight in weights.items():
            _validate.one_of(tuple(dict.fromkeys((*MAKERS, *found))), prior=name)
            if isinstance(weight, str) and weight != "auto":
                raise ValueError(f'{name} must be a weight >= 0 or "auto", got {weight!r}')
            if not isinstance(weight, str):
                _validate.non_negative(**{name: weight})
            found[name] = (weight, found[name][1] if name in found else MAKERS[name]())
        order = [*MAKERS, *found]
        return self._replace(priors=tuple(sorted(found.values(), key=lambda entry: order.index(entry[1].name))))

    @property
    def gradients(self) -> Gradients:
        """The comparison of gradients; raises `ValueError` if the settings compare something else."""
        if not isinstance(self.compare, Gradients):
            raise ValueError(
                "distance and selection belong to a comparison of gradients, but these settings compare "
                f"{type(self.compare).__name__}"
            )
        return self.compare

    def comparing(self, **changes: Any) -> "Settings":
        """Change the distance or other fields of the comparison: `settings.comparing(distance=own)`.

        Args:
            changes: fields of `client_updates.Gradients`; a distance is `(observed, simulated) -> ()`, and both are
                trees of gradients.

        Raises:
            ValueError: on a name that is no field, or if the settings compare something else than gradients.
        """
        for name in changes:
            _validate.one_of(Gradients._fields, **{"a field of the comparison": name})
        return self._replace(compare=self.gradients._replace(**changes))


def check_settings(s: Settings) -> None:
    """Refuse settings that make no sense for any attack.

    Raises:
        ValueError: naming the field and its range.
    """
    _validate.count(iterations=s.iterations, group=s.group)
    _validate.made(Candidate, "client_updates.pixels", candidate=s.candidate)
    _validate.made(optax.GradientTransformation, "optax.adam(0.1) or optax.adam(schedule)", optimizer=s.optimizer)
    _validate.non_negative(consistency=s.consistency)
    _validate.in_range(0, 1, white_point=s.white_point)
    missing = [name for name in ("reads_labels", "leaves", "term") if not hasattr(s.compare, name)]
    if missing:
        raise ValueError(
            f"compare must be a Comparison, such as client_updates.Gradients(distance), got {s.compare!r} without "
            f"{', '.join(missing)}"
        )
    for entry in s.priors:
        if isinstance(entry, Prior) or len(entry) != 2 or not isinstance(entry[1], Prior):
            raise ValueError(
                "priors must be pairs (weight, prior), such as (0.1, variation_prior()), and a prior of your own is "
                f"client_updates.Prior(name, value) with a function value(evidence) -> (); got {entry!r}"
            )
    if s.labels == ("none" if s.compare.reads_labels else "joint"):
        name = type(s.compare).__name__
        reads = f"but {name} reads them" if s.compare.reads_labels else f"but {name} reads none"
        choose = '"given", "joint" or a rule' if s.compare.reads_labels else '"none", "given" or a rule'
        does = "is for comparisons that read no labels" if s.compare.reads_labels else "optimises labels"
        raise ValueError(f"labels={s.labels!r} {does}, {reads}: choose {choose}")
    if not (s.smoothing in (None, "auto") or isinstance(s.smoothing, Smoothing)):
        raise ValueError(
            f"smoothing must be None, 'auto' or from attacks.client_updates.smoothing, got {s.smoothing!r}"
        )
    if isinstance(s.smoothing, Smoothing):
        s.smoothing.check()
    s.regularization.check()
    if s.consistency and s.group == 1:
        raise ValueError("consistency couples a group of candidates, so group must be > 1, got 1")
    if s.gradient_free and s.regularization.blend:
        raise ValueError("gradient regularization blends gradients, but this optimizer asks for none")
    if s.shifts and (s.group > 1 or s.gradient_free):
        raise ValueError("shifts are tried by one candidate that descends: no group, and no search without gradients")


def leaves_read(model: Classifier, settings: Settings, *, batch_size: int) -> tuple[str, ...] | None:
    """The leaves of the payload that an inversion reads: paths like "head", each with all below; None is all.

    A comparison of row spaces reads a few layers, and the head if a rule infers labels. All other leaves may be
    encrypted, frozen or lost.

    Args:
        model: the model under attack.
        settings: settings of the inversion.
        batch_size: B, images behind the payload, >= 1.

    Raises:
        ValueError: if no layer's row space says anything about so many images.
    """
    leaves = settings.compare.leaves(model, batch_size)
    if leaves is None:
        return None
    return (*leaves, *model.head_names) if settings.labels in LABEL_RULES else leaves
