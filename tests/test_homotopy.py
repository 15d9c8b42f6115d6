"""The study of the smoothing homotopy: the runs it starts, the results it stores. Only the last test runs attacks."""

import json

import numpy as np
import pytest

from experiments import homotopy
from jaxleak.study.updates import Case, Outcome, _inversions


@pytest.fixture
def calls(monkeypatch):
    """Case, seed and variables of every attack; each attack is a stub that scores its seed."""
    made = []

    def attack(case, seed, *, variables, callbacks, checkpoints):
        made.append((case, seed, variables))
        callbacks[0](1, None, {"distance": np.ones((1, 1))})
        names = (
            "psnr",
            "psnr_up_to_scale",
            "psnr_grey",
            "ssim",
            "cosine_distance",
            "label_accuracy",
            "answered",
            "gradient_matched",
            "seconds",
        )
        image = np.full((1, 4, 4, 3), 0.5, np.float32)
        return Outcome(image, image, dict.fromkeys(names, float(seed)), np.ones(1))

    monkeypatch.setattr(_inversions, "attack", attack)
    monkeypatch.setattr(
        _inversions, "trained", lambda case, training, seed, folder: (f"weights {seed}", {"test_accuracy": 0.5})
    )
    return made


def _run(tmp_path, **options):
    options = {"rows": ("resnet10_16-b1",), "seeds": (3, 5), "iterations": 10, "out": tmp_path} | options
    homotopy.main(homotopy.Args(**options))
    return json.loads((tmp_path / "results.json").read_text())["cells"]


@pytest.mark.slow
def test_both_variants_see_the_same_seeds_and_differ_in_their_kinks_only(calls, tmp_path):
    cells = _run(tmp_path)
    assert [(cell["id"], cell["ours"], cell["spread"], cell["each"]) for cell in cells] == [
        ("resnet10_16-b1/homotopy", 4.0, 1.0, [3.0, 5.0]),
        ("resnet10_16-b1/exact", 4.0, 1.0, [3.0, 5.0]),
    ]
    assert [(case.exact_kinks, case.width, case.iterations, seed, weights) for case, seed, weights in calls] == [
        (exact, 16, 10, seed, None) for exact in (False, True) for seed in (3, 5)
    ]


@pytest.mark.slow
def test_warm_weights_reach_the_attack_and_their_accuracy_the_results(calls, tmp_path):
    (cell,) = _run(tmp_path, variants=("homotopy",), weights="warm", data="digits")
    assert [weights for _, _, weights in calls] == ["weights 3", "weights 5"]
    assert cell["test_accuracy"] == 0.5


def test_terms_add_one_variant_each(calls, tmp_path):
    cells = _run(tmp_path, variants=("homotopy",), terms=True, seeds=(0,))
    assert [cell["id"].split("/")[1] for cell in cells] == ["homotopy", *homotopy.TERMS]
    assert {case.tv for case, _, _ in calls} == {None, 0.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ("resnet99",)}, "rows must be one of"),
        ({"variants": ("smooth",)}, "variants must be one of"),
        ({"iterations": 0}, "iterations must be > 0, got 0"),
        ({"weights": "warm"}, "crops of the same photographs, which overlap, so weights"),
    ],
)
def test_bad_options_are_refused_at_once(calls, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        _run(tmp_path, **options)
    assert not calls


@pytest.mark.slow
def test_a_finished_run_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setitem(homotopy.HOMOTOPY_ROWS, "mlp-b4", Case(model="mlp"))
    options = {"rows": ("mlp-b4",), "seeds": (0,), "iterations": 2, "variants": ("exact",), "data": "digits"}
    first, second = _run(tmp_path, **options), _run(tmp_path, **options)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 1
    for cell in (*first, *second, *lines):
        cell.pop("seconds")
    assert first == second
    assert lines[0]["psnr"] == first[0]["ours"]
