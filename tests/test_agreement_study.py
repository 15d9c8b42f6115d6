"""The study of agreement: its counts, the seeds that choose and that judge, and its resumption."""

import json

import numpy as np
import pytest
from slowness import slow_among

from experiments import agreement as study
from jaxleak import metrics, protocols
from jaxleak.attacks import presets
from jaxleak.audit import Agreement
from jaxleak.study import updates
from jaxleak.study.runner import Cost
from jaxleak.study.updates import Outcome, _inversions


def made(agreement, ssim, *, seed, matched=True, defended=False, determined=True):
    agreement, ssim = np.asarray(agreement, float), np.asarray(ssim, float)
    size = len(ssim)
    full = {"matched": np.full(size, matched), "defended": np.full(size, defended), "seed": np.full(size, seed)}
    determined = np.broadcast_to(determined, size)
    return study.Images(agreement, agreement, ssim, determined=determined, **full)


def joined(*parts):
    return study.Images(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_an_image_with_a_rival_is_not_believed_by_all_rules_together():
    images = made([0.99, 0.99, 0.99, 0.2], [0.9, 0.9, 0.1, 0.9], seed=1, determined=[True, True, False, True])
    found = study.judge(images)
    assert (found["recommended/both/believed"], found["recommended/both/believed_wrong"]) == (3, 1)
    assert (found["recommended/all/believed"], found["recommended/all/believed_wrong"]) == (2, 0)


def test_rates_are_counts_of_the_believed():
    believed, right = np.array([1, 1, 1, 0, 0, 0, 0], bool), np.array([1, 1, 0, 1, 0, 0, 0], bool)
    expected = {
        "images": 7, "right": 3, "believed": 3, "believed_wrong": 1,
        "wrong_share": 1 / 3, "false_alarm_rate": 1 / 4, "found_share": 2 / 3,
    }  # fmt: skip
    assert updates.believed_rates(believed, right) == pytest.approx(expected)


def test_rates_of_nothing_are_no_numbers():
    none = updates.believed_rates(np.zeros(2, bool), np.zeros(2, bool))
    assert np.isnan([none["wrong_share"], none["found_share"]]).all()
    assert none["false_alarm_rate"] == 0


def test_the_threshold_lets_one_in_twenty_wrong_images_pass():
    agreement = np.array([*[0.6] * 18, 0.8, 0.9, 0.95])
    right = np.zeros(21, bool)
    assert study.choose(agreement, right) == 0.91
    right[-1] = True  # one of the twenty wrong images may pass
    assert study.choose(agreement, right) == 0.81
    assert study.choose(agreement, np.ones(21, bool)) == 0.5
    assert study.choose(np.ones(21), np.zeros(21, bool)) == 1


def test_even_seeds_choose_and_odd_seeds_judge():
    even = made([0.7, 0.8, 0.9], [0.5, 0.9, 0.9], seed=4)
    odd = made([0.75, 0.85, 0.6], [0.1, 0.95, 0.85], seed=1, matched=False)
    defended = made([0.99, 0.99], [0.2, 0.9], seed=2, defended=True)
    found = study.judge(joined(even, odd, defended))
    assert found["threshold"] == 0.71  # above the one wrong image of the even seeds
    assert found["chosen_on/agree/wrong_share"] == 0
    assert (found["judged_on/agree/believed"], found["judged_on/agree/believed_wrong"]) == (2, 1)
    assert found["judged_on/agree/false_alarm_rate"] == 1
    assert found["judged_on/both/believed"] == found["judged_on/matched/believed"] == 0
    assert (found["defended/agree/believed"], found["defended/agree/believed_wrong"]) == (2, 1)
    assert found["undefended/area_under_roc/as_shown"] == pytest.approx(6 / 8)


def test_the_rates_at_the_threshold_of_the_audit_are_of_all_seeds():
    even, odd = made([0.94, 0.95], [0.9, 0.5], seed=4), made([0.96, 0.5], [0.9, 0.1], seed=1)
    defended = made([0.99], [0.2], seed=2, defended=True)
    found = study.judge(joined(even, odd, defended))
    names = ("images", "right", "believed", "believed_wrong")
    assert [found[f"recommended/agree/{name}"] for name in names] == [4, 2, 2, 1]
    assert [found[f"recommended_defended/agree/{name}"] for name in names] == [1, 0, 1, 1]


def test_a_tint_is_taken_off_every_channel():
    wanted = np.random.default_rng(0).random((2, 6, 6, 3))
    tinted = wanted * np.array([0.5, 2.0, 1.0]) + np.array([0.1, 0.0, -0.3])
    np.testing.assert_allclose(metrics.tinted_like(wanted, tinted), wanted, atol=1e-9)
    flat = metrics.tinted_like(wanted, np.full_like(wanted, 0.3))
    np.testing.assert_allclose(flat, np.broadcast_to(wanted.mean(axis=(1, 2), keepdims=True), wanted.shape))


@pytest.fixture
def attacks_made(monkeypatch):
    """The seeds of all attacks; every attack is a stub that recovers the first of two images."""
    seeds, rng = [], np.random.default_rng(0)

    def attack(case, seed, **_):
        seeds.append(seed)
        truth = rng.random((2, 12, 12, 3)).astype(np.float32)
        answer = np.stack([truth[0], rng.random((12, 12, 3))])
        scores = {"psnr": 20.0, "score": 0.1, "cosine_distance": 0.02, "gradient_matched": 1.0}
        return Outcome(truth, answer, scores, np.zeros(0), Agreement(np.array([0.97, 0.2]), answer))

    monkeypatch.setattr(_inversions, "attack", attack)
    # The stubs need no data folder.
    monkeypatch.setattr(_inversions, "sources_of_update", lambda case, seed: {})
    monkeypatch.setattr(_inversions.Inversions, "require", lambda *_: None)
    monkeypatch.setattr(_inversions.Inversions, "cost", lambda *_: Cost(1.0))
    return seeds


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(attacks_made, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    args = {"only": ("mlp-b4-noise-1e-3",), "out": tmp_path}
    found = study.main(study.Args(seeds=(0, 1), **args))
    assert attacks_made == [0, 1]
    assert found["defended/agree/images"] == 4
    stored = json.loads((tmp_path / "results.json").read_text())
    assert [(cell["case"], cell["seed"]) for cell in stored["cells"]] == [(*args["only"], 0), (*args["only"], 1)]
    assert np.array(stored["cells"][1]["ssim"]) == pytest.approx([1, 0], abs=0.3)
    assert stored["cells"][1]["agreement"] == [0.97, 0.2]
    assert (tmp_path / "figures" / "agreement.png").exists()
    assert "0.97 to 0.97" in capsys.readouterr().out
    again = study.main(study.Args(seeds=(0, 1, 2), **args))
    assert attacks_made == [0, 1, 2]
    assert again["defended/agree/images"] == 6
    study.main(study.Args(seeds=(0,), fresh=True, **args))
    assert attacks_made == [0, 1, 2, 0]


def test_an_unknown_case_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="only must be parts of cases' names"):
        study.main(study.Args(only=("nosuch",), out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_slow_cases_run_fewer_seeds(attacks_made, tmp_path):
    study.main(study.Args(only=("vit",), out=tmp_path))
    assert attacks_made == [0, 1, 2, 3]


@pytest.mark.slow
def test_finished_runs_are_judged_without_starting_others(attacks_made, tmp_path):
    with pytest.raises(ValueError, match="no run of these cases is finished"):
        study.main(study.Args(only=("vit",), finished_only=True, out=tmp_path))
    study.main(study.Args(only=("vit",), seeds=(0, 1), out=tmp_path))
    found = study.main(study.Args(only=("vit",), finished_only=True, out=tmp_path))
    assert attacks_made == [0, 1]
    assert found["chosen_on/agree/images"] == found["judged_on/agree/images"] == 2


def test_every_case_has_two_starts():
    assert {case.restarts for case in study.CASES.values()} == {2}


#: Deep networks; tracing their programs takes longest.
LARGE = ("densenet121-b1", "mobilenet_v2-b1", "resnet34_16-b1", "resnet18_16-b1", "vit_tiny-b1")


@pytest.mark.parametrize("name", slow_among(study.SLOW | study.DEEP, LARGE))
def test_every_case_has_settings_that_its_attack_takes(name):
    case = study.CASES[name]
    updates.check(case)
    model = updates.build_model(case, (32, 32, 3), 10)
    if case.attack not in presets.GENERATIVE:  # generative attacks need public images
        updates.resolved(case).build(model, protocols.ClientShare(model))
