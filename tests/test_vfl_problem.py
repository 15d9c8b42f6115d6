"""The vertical study's set-up: what is refused before any training, and that shadow and victim share no row."""

import numpy as np
import pytest

from experiments._vfl_problem import Case, vertical_problem
from experiments.vflrecon import Args, summarise


def test_shadow_and_victim_are_disjoint_and_dealt_alike():
    problem = vertical_problem(Case("breast_cancer", share=0.2, parties=3), seed=1)
    assert problem.model.widths == (6, 12, 12)
    assert problem.shadow.x.shape == (189, 3, 12)
    rows = np.concatenate([np.asarray(batch.x).reshape(-1, 36) for batch in (problem.shadow, problem.victim)])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert np.asarray(problem.shadow.x).min() == 0
    assert np.asarray(problem.shadow.x).max() == 1
    np.testing.assert_array_equal(problem.own(problem.victim), np.asarray(problem.victim.x)[:, 0, :6])


def test_refused_before_training():
    for case, message in (
        (Case("breast_cancer", shadow_records=10), "shadow_records must be at least batch_size=16, got 10"),
        (Case("breast_cancer", batch_size=64, victim_records=40), "victim_records must be at least"),
        (Case("breast_cancer", parties=31), "number of features, 30, got 31"),
        (Case("breast_cancer", share=1.5), "share must be in"),
    ):
        with pytest.raises(ValueError, match=message):
            vertical_problem(case, seed=0)


def test_summaries_hold_means_and_spreads():
    runs = {"a": [{"m": 1.0}, {"m": 3.0}], "b": [{"m": 6.0, "only": 1.0}]}
    assert summarise(runs) == {
        "m": 4.0, "m_a": 2.0, "m_a_std": 1.0, "m_b": 6.0, "m_b_std": 0.0, "only": 1.0, "only_b": 1.0, "only_b_std": 0.0
    }  # fmt: skip


def test_options_become_a_case():
    case = Args(share=0.25, parties=4, optimizer="sgd").case("digits")
    assert (case.data, case.share, case.parties, case.optimizer) == ("digits", 0.25, 4, "sgd")
