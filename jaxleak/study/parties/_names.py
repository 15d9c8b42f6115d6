"""Names of a vertical run's attacks and scores in reports, tables and legends."""

from collections.abc import Iterable

#: Names of the attacks and of the baselines, as legends show them.
ATTACK_LABELS = {
    "shared": "VFLRecon that knows all initial parameters",
    "own_bottom": "VFLRecon that knows its own initial parameters",
    "independent": "VFLRecon that knows no initial parameters",
    "free": "clusters of gradients, without a shadow run",
    "baseline": "own features alone, the best of several models",
    "baseline_network": "own features alone, the paper's network",
}
#: What a score of an attack measures, by the beginning of the score's name.
_MEASURED = {
    "label_accuracy": "labels right",
    "label_balanced": "labels right, mean over classes",
    "label_confidence": "confidence that the attack claims in its labels, whose names it may exchange",
    "feature_mse": "error of features",
    "feature_gain": "share of the features' variance, beyond what the attacker alone finds",
}
#: Names of the attacks that only some runs compare with, besides `ATTACK_LABELS`.
_COMPARED = {
    "fu_free_top": "direct attack of Fu et al. on an undefended run, a top model without parameters",
    "fu_completion": "passive attack of Fu et al. on an undefended run, a completed bottom model",
    "baseline_even": "own features alone, the best of several models, classes taken for equally frequent",
    "most_frequent": "always the attacker's most frequent class",
    "li_norm": "norms of gradients, Li et al.",
    "li_direction": "directions of gradients, Li et al., beside the surest positive",
    "regression_shared": "regression on cut gradients, all initial parameters known",
    "label_holder": "label holder, by what the parties send, all initial parameters known",
    "label_holder_alone": "label holder, by labels and own features alone",
    "aligned": "regression on gradients and recovered labels",
    "free_labels": "regression on own features and recovered labels",
}
#: Names of the scores that no attack has.
_OTHERS = {
    "feature_variance": "variance of the features",
    "feature_variance_label_holder": "variance of the features that the label holder lacks",
    "correlation_original": "correlation of two features, true",
    "correlation_reconstructed": "correlation of two features, reconstructed",
    "correlation_error": "error of correlations between features",
    "shadow_records": "number of records in the shadow run",
    "victim_records": "number of records in the real run",
    "task_accuracy": "task's accuracy",
    "task_balanced_accuracy": "task's accuracy, mean over classes",
    "task_accuracy_most_frequent": "task's accuracy of always the most frequent class",
    "task_accuracy_undefended": "task's accuracy without the defense",
    "task_balanced_accuracy_undefended": "task's accuracy without the defense, mean over classes",
    "task_accuracy_change": "task's accuracy, change by the defense",
    "task_balanced_accuracy_change": "task's accuracy, mean over classes, change by the defense",
}
_ADAPTIVE = "_adaptive"


def attack_name(name: str) -> str:
    """Name an attack in words; an attack with the suffix `_adaptive` knows the defense."""
    plain = name.removesuffix(_ADAPTIVE)
    label = (ATTACK_LABELS | _COMPARED).get(plain, plain.replace("_", " "))
    return label + (", and knows the defense" if plain != name else "")


#: First letters of scores' names in the order of a report: the scores for which a case was run come first.
_ORDER = (
    "label_balanced", "label_accuracy", "label_", "feature_gain", "feature_mse", "feature_variance", "correlation",
    "task_balanced", "task", "",
)  # fmt: skip


def in_report(scores: Iterable[str]) -> list[str]:
    """Sort scores in the order of a report: labels, features, the task, and the rest."""
    return sorted(scores, key=lambda name: (next(i for i, start in enumerate(_ORDER) if name.startswith(start)), name))


def score_name(score: str) -> str:
    """Name a score of `run_case` in words, such as `labels right: own features alone, the paper's network`."""
    if score in _OTHERS:
        return _OTHERS[score]
    for beginning, measured in _MEASURED.items():
        if score.startswith(f"{beginning}_"):
            return f"{measured}: {attack_name(score.removeprefix(f'{beginning}_'))}"
    if score.startswith("chose_"):
        field, task, attack = score.removeprefix("chose_").split("_", 2)
        return f"{field} read for {task}: {attack_name(attack)}"
    return score.replace("_", " ")
