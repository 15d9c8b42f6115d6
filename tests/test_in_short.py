"""The answer of a vertical run in a few sentences."""

import pytest

from jaxleak.study.parties import in_short

SCORES = {
    "label_balanced_shared": 0.6,
    "label_balanced_free": 0.8,
    "label_balanced_fu_free_top": 1.0,  # attacks another run
    "label_balanced_baseline": 0.3,
    "label_balanced_baseline_even": 0.35,
    "label_balanced_most_frequent": 0.1,
    "feature_variance": 0.1,
    "feature_mse_shared": 0.08,
    "feature_mse_aligned": 0.06,
    "feature_mse_baseline": 0.15,
    "feature_mse_label_holder": 0.05,
    "feature_variance_label_holder": 0.2,
    "feature_mse_label_holder_alone": 0.1,
}


def test_the_strongest_attacks_stand_beside_what_needs_no_gradient():
    section = in_short({"digits": [SCORES]})
    assert section.heading == "In short"
    told, reading = section.text
    assert told == (
        "digits: Of the labels, the strongest attack (clusters of gradients, without a shadow run) finds 80%, as a "
        "mean over classes. The attacker's own features alone find 35%, and always the same class 10%. Of the variance "
        "of the other parties' features, the strongest attack (regression on gradients and recovered labels) explains "
        "40%, and the attacker's own features alone none. The label holder, who knows all initial parameters, explains "
        "75% of the variance of the features that it lacks by what the parties send, and 50% without it."
    )
    assert "An attacker does not know which one that is." in reading


def test_seeds_are_averaged_and_an_attack_that_knows_the_defense_may_be_the_strongest():
    knows = {"label_balanced_shared_adaptive": 1.0, "task_balanced_accuracy_change": -0.02}
    told = in_short({"digits": [SCORES | knows, SCORES | knows | {"label_balanced_shared_adaptive": 0.8}]}).text[0]
    assert told.startswith("digits (means over 2 seeds): Of the labels, the strongest attack")
    assert "knows all initial parameters, and knows the defense) finds 90%" in told
    assert told.endswith("The defense changes the task's accuracy, as a mean over classes, by -2.0 percentage points.")


@pytest.mark.parametrize("lacking", ["label_balanced", "feature_mse"])
def test_what_was_not_scored_is_not_told(lacking):
    left = {name: value for name, value in SCORES.items() if not name.startswith(lacking)}
    told = in_short({"digits": [left], "lfw": [SCORES | {"feature_mse_aligned": float("nan")}]}).text
    assert ("Of the labels" in told[0], "explains" in told[0]) == (
        lacking != "label_balanced",
        lacking != "feature_mse",
    )
    assert "(VFLRecon that knows all initial parameters) explains 20%" in told[1]
