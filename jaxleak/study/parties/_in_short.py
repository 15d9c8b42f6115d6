"""The answer of a vertical run in a few sentences: what its strongest attacks found, beside what needs no gradient."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxleak.study.parties._names import attack_name
from jaxleak.study.reports import Section

#: Attacks on labels of the real run. Those of Fu et al. attack other runs, which have no defense.
_LABELS = ("shared", "own_bottom", "independent", "free", "li_norm", "li_direction")
#: Attacks on features of the other parties.
_FEATURES = ("shared", "own_bottom", "independent", "regression_shared", "aligned", "free_labels")
#: Answers of a party that sees no gradient.
_ALONE, _ALONE_EVEN = ("baseline", "baseline_network"), ("baseline", "baseline_network", "baseline_even")
_LABEL, _FEATURE = "label_balanced", "feature_mse"

_READING = (
    "The strongest attack is the one that scores best against the truth. An attacker does not know which one that is."
)


def in_short(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> Section:
    """What the strongest attacks found in each data set, beside answers that need no gradient, in a few sentences.

    Args:
        runs: by the name of the data, the scores of `run_case` (fractions, and errors in squared units of the
            standardised features) of at least one seed. The report tells their means over the seeds.

    Returns:
        A section with a paragraph for each data set. It tells of labels, of features of the other parties, of what the
        label holder reads, and of the cost of a defense, as far as there are scores of them.
    """
    return Section("In short", (*(_paragraph(name, seeds) for name, seeds in runs.items()), _READING))


def _paragraph(name: str, seeds: Sequence[Mapping[str, float]]) -> str:
    means = {
        score: float(np.mean([of[score] for of in seeds])) for score in seeds[0] if all(score in of for of in seeds)
    }
    told = [_labels(means), _features(means), _label_holder(means), _defense(means)]
    over = f" (means over {len(seeds)} seeds)" if len(seeds) > 1 else ""
    return f"{name}{over}: " + " ".join(filter(None, told))


def _labels(means: Mapping[str, float]) -> str:
    attacks = _of(means, _LABEL, _LABELS)
    if not attacks:
        return ""
    best = max(attacks, key=attacks.__getitem__)
    alone = max(_of(means, _LABEL, _ALONE_EVEN).values(), default=np.nan)
    return (
        f"Of the labels, the strongest attack ({attack_name(best)}) finds {attacks[best]:.0%}, as a mean over classes. "
        f"The attacker's own features alone find {alone:.0%}, and always the same class "
        f"{means[f'{_LABEL}_most_frequent']:.0%}."
    )


def _features(means: Mapping[str, float]) -> str:
    variance, attacks = means.get("feature_variance", 0.0), _of(means, _FEATURE, _FEATURES)
    if not attacks or not variance:
        return ""
    best = min(attacks, key=attacks.__getitem__)
    alone = min(_of(means, _FEATURE, _ALONE).values(), default=np.nan)
    return (
        f"Of the variance of the other parties' features, the strongest attack ({attack_name(best)}) explains "
        f"{_explained(attacks[best], variance)}, and the attacker's own features alone {_explained(alone, variance)}."
    )


def _label_holder(means: Mapping[str, float]) -> str:
    variance, name = means.get("feature_variance_label_holder", 0.0), f"{_FEATURE}_label_holder"
    attacks = _of(means, _FEATURE, ("label_holder",))
    if not attacks or not variance:
        return ""
    return (
        "The label holder, who knows all initial parameters, explains "
        f"{_explained(min(attacks.values()), variance)} of the variance of the features that it lacks by what the "
        f"parties send, and {_explained(means.get(f'{name}_alone', np.nan), variance)} without it."
    )


def _defense(means: Mapping[str, float]) -> str:
    if "task_balanced_accuracy_change" not in means:
        return ""
    change = 100 * means["task_balanced_accuracy_change"]
    return f"The defense changes the task's accuracy, as a mean over classes, by {change:+.1f} percentage points."


def _of(means: Mapping[str, float], measure: str, attacks: Iterable[str]) -> dict[str, float]:
    """The means that attacks have in a measure; one that knows the defense counts as an attack of its own."""
    names = [name for attack in attacks for name in (attack, f"{attack}_adaptive")]
    return {name: means[f"{measure}_{name}"] for name in names if np.isfinite(means.get(f"{measure}_{name}", np.nan))}


def _explained(error: float, variance: float) -> str:
    """A mean squared error as a share of the variance that is explained; an answer worse than the means has none."""
    return "none" if error >= variance else f"{1 - error / variance:.0%}"
