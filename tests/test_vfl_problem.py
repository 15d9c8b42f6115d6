"""The vertical study's set-up: inputs refused before any training, and no shared rows of shadow and victim."""

import builtins
import json
from dataclasses import replace
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from experiments import vflrecon
from experiments._vfl import study
from experiments._vfl.options import Args
from jaxleak import Batch
from jaxleak.attacks import party_records
from jaxleak.data import TableEncoding
from jaxleak.defenses import SPLIT_DEFENSES, SPLIT_PLACES, SplitRun, marvell, noise_multiplier_of, split_defense
from jaxleak.study.parties import Runs, SplitCase, SplitSetup, _problem, records_of, seconds_of, split_problem
from jaxleak.study.parties import _jobs as parties_jobs
from jaxleak.study.parties import _truth as parties_truth
from jaxleak.study.parties._jobs import runs_for
from jaxleak.study.parties._problem import _parts, rounds_of, shadow_rounds, train
from jaxleak.study.parties._truth import Truth


def test_shadow_and_victim_are_disjoint_and_dealt_alike():
    problem = split_problem(SplitCase("breast_cancer", share=0.2, parties=3), seed=1)
    assert problem.model.widths == (6, 12, 12)
    assert problem.shadow.x.shape == (189, 3, 12)
    rows = np.concatenate([np.asarray(batch.x).reshape(-1, 36) for batch in (problem.shadow, problem.victim)])
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert np.asarray(problem.shadow.x).min() == 0
    assert np.asarray(problem.shadow.x).max() == 1
    np.testing.assert_array_equal(problem.own(problem.victim), np.asarray(problem.victim.x)[:, 0, :6])


def test_refused_before_training():
    for case, message in (
        (SplitCase("breast_cancer", shadow_records=10), "shadow_records must be at least batch_size=16, got 10"),
        (SplitCase("breast_cancer", batch_size=64, victim_records=40), "victim_records must be at least"),
        (SplitCase("breast_cancer", parties=31), "number of features, 30, got 31"),
        (SplitCase("breast_cancer", share=1.5), "share must be in"),
        (SplitCase("breast_cancer", defense="dp_sgd", strength=-1.0), "strength must be >= 0, got -1.0"),
        (SplitCase("breast_cancer", defense="vfl_defender", strength=-0.1), "strength must be >= 0, got -0.1"),
        (SplitCase("breast_cancer", strength=5.0), "defense names none: strength must be 0, got 5.0"),
        (SplitCase("breast_cancer", defense="hope"), "defense must be FILE.py:NAME of your own or one of none, noise"),
        (SplitCase("breast_cancer", cipher="rot13"), "cipher must be one of none, plain, ckks"),
        (SplitCase("breast_cancer", cipher="plain", defense="dp_sgd"), "which an interactive layer .* does not give"),
    ):
        with pytest.raises(ValueError, match=message):
            split_problem(case, seed=0)


def test_numbers_that_the_data_do_not_have_are_refused_and_others_are_what_is_used():
    """The data are breast_cancer: 569 records, of which 212 are malignant."""
    for options, message in (
        ({"shadow_records": 190}, "shadow_records must be at most 189, a third of the 569 records of breast_cancer"),
        ({"victim_records": 381}, "victim_records must be at most 380, what the shadow run leaves, got 381"),
        ({"shadow_records": 142, "balanced": True}, "must be at most 141, a third of the 424 balanced records"),
    ):
        with pytest.raises(ValueError, match=message):
            split_problem(SplitCase("breast_cancer", **options), seed=0)
    for options, used in (
        ({}, (189, 380)),
        ({"balanced": True}, (141, 283)),
        ({"shadow_records": 189}, (189, 380)),
        ({"shadow_records": 20, "victim_records": 549}, (20, 549)),
    ):
        case = SplitCase("breast_cancer", **options)
        problem = split_problem(case, seed=0)
        assert records_of(case) == used == (len(problem.shadow.y), len(problem.victim.y))


def test_a_run_says_and_stores_how_many_records_it_uses(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(parties_jobs, "run_case", lambda *_: ({"label_accuracy_shared": 0.5}, {}))
    vflrecon.main(Args(data=("breast_cancer",), out=tmp_path))
    said = (
        "breast_cancer: 189 shadow records, and 380 in the real run. The data have 569 rows; columns: 30 numeric; "
        "2 classes: 212 of '0', 357 of '1'."
    )
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "report.md").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert [results["metrics"][f"{run}_records_breast_cancer"] for run in ("shadow", "victim")] == [189, 380]
    assert results["config"]["shadow_records"] is None


def test_labels_with_a_gap_are_refused(tmp_path):
    path = tmp_path / "gap.npz"
    np.savez(path, x=np.random.default_rng(0).random((90, 4)), y=np.arange(90) % 3 * 2)
    with pytest.raises(ValueError, match=r"labels must be 0 \.\.\. C-1"):
        split_problem(SplitCase(f"npz:{path}"), seed=0)


@pytest.mark.parametrize(
    ("case", "module", "extra"),
    [
        (SplitCase("breast_cancer", cipher="ckks"), "tenseal", "pip install tenseal"),
        (SplitCase("breast_cancer", defense="dp_sgd", strength=7.0), "dp_accounting", "dp-accounting"),
        (SplitCase("breast_cancer", defense="label_dp", strength=7.0), "dp_accounting", "dp-accounting"),
    ],
)
def test_a_missing_library_is_named_before_any_training(monkeypatch, case, module, extra):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == module:
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=extra):
        split_problem(case, seed=0)


def test_options_are_refused_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setattr(parties_jobs, "run_case", lambda *_: pytest.fail("trained"))
    for options, message in (
        ({"setup": SplitSetup(fields=("weights",))}, "fields must be some of"),
        ({"setup": SplitSetup(fields=())}, "fields must be some of"),
        ({"shadow_init": ()}, "shadow_init must name at least one"),
        ({"data": ("digits", "digits")}, "data must not hold a name twice, got digits 2 times"),
        ({"seeds": (-1,)}, "seeds must be"),
        ({"budget": 0.0}, "budget must be > 0"),
        ({"setup": SplitSetup(strength=-1.0)}, "strength must be >= 0"),
        ({"setup": SplitSetup(strength=5.0), "table": ("table3",)}, "strength is of a defense, and defense names none"),
        ({"setup": SplitSetup(shadow_records=0)}, "shadow_records must be > 0"),
        ({"data": ("breast_cancer",), "setup": SplitSetup(shadow_records=8)}, "shadow_records must be at least"),
        ({"data": ("digits",), "setup": SplitSetup(shadow_records=10**8)}, "shadow_records must be at most 599"),
        ({"data": ("digits",), "setup": SplitSetup(victim_records=1199)}, "victim_records must be at most 1198"),
        ({"data": ("digits", "breast_cancer"), "setup": SplitSetup(parties=40)}, "number of features, 30, got 40"),
    ):
        with pytest.raises(ValueError, match=message):
            vflrecon.main(Args(out=tmp_path, **options))


def test_default_strengths_are_those_of_the_paper_where_it_has_one():
    """The defaults are Table V's middle noise and Table VI's smaller epsilon."""
    default = {name: defense.default for name, defense in SPLIT_DEFENSES.items()}
    assert {strength for name, strength in default.items() if name.startswith("noise")} == {0.01}
    assert default["dp_sgd"] == default["label_dp"] == 10.0
    defender = {name: strength for name, strength in default.items() if name.startswith("vfl_defender")}
    assert defender == {"vfl_defender": 1.0, "vfl_defender_paper": 1.0, "vfl_defender_batch": 4.0}
    assert default["marvell"] == 1.0


def test_the_top_may_put_out_probabilities_in_both_runs():
    case = SplitCase("breast_cancer", top_output="probabilities")
    problem = split_problem(case, seed=0)
    assert problem.model.probabilities
    params = problem.model.init(jax.random.key(0))
    first, tenth = (Batch(*(leaf[:count] for leaf in problem.victim)) for count in (1, 10))
    np.testing.assert_allclose(problem.model.apply(params, tenth.x).sum(axis=1), 1, rtol=1e-5)
    plain = split_problem(replace(case, top_output="logits"), seed=0)
    for of in ("shadow_protocol", "adaptive_protocol", "victim_protocol"):
        sent, wanted = (getattr(p, of).share(params, first) for p in (problem, plain))
        chex.assert_trees_all_close(sent, wanted, atol=1e-6)  # without a defense, both are one network and one loss
    with pytest.raises(ValueError, match="top_output must be one of logits, probabilities, got 'odds'"):
        split_problem(replace(case, top_output="odds"), seed=0)


def test_a_defense_is_calibrated_to_the_real_run(monkeypatch):
    """Noise calibrated to the fewer records of a shadow run would have another epsilon in the real run."""
    asked = []
    monkeypatch.setattr(_problem, "defense_of", lambda name, strength, run: asked.append(run) or marvell(num_classes=2))
    sizes = {"shadow_records": 20, "victim_records": 48, "batch_size": 8, "task_epochs": 7}
    split_problem(SplitCase("breast_cancer", defense="marvell", strength=1.25, **sizes), seed=0)
    assert asked == [SplitRun(num_classes=2, batch_size=8, num_samples=48, epochs=7)]


@pytest.mark.parametrize("name", ["noise", "noise_gradient", "noise_cut", "noise_embedding"])
def test_the_strength_of_noise_is_a_variance(name):
    defense = split_defense(name, 0.04, SplitRun(num_classes=2, batch_size=4, num_samples=8, epochs=1))
    drawn = defense.apply(jax.random.key(0), np.zeros(20_000, np.float32))
    assert np.var(drawn) == pytest.approx(0.04, rel=0.05)


@pytest.mark.slow
def test_every_defense_is_built_at_its_place_and_epsilon_moves_its_noise():
    run = SplitRun(num_classes=3, batch_size=16, num_samples=800, epochs=5)
    places = {name: split_defense(name, 0.0, run).place for name in SPLIT_DEFENSES}
    assert set(places.values()) == set(SPLIT_PLACES)
    assert places["noise_cut"] == places["marvell"] == "cut_gradient"
    with pytest.raises(ValueError, match="defense must be one of noise"):
        split_defense("none", 0.0, run)

    def deviation(name, strength, payload):
        defense = split_defense(name, strength, run)
        out = jax.tree.map(lambda leaf: leaf.mean(axis=0), defense.apply(jax.random.key(0), payload))
        return float(np.std(jax.tree.leaves(out)[0]))

    zeros = np.zeros((16, 2000), np.float32)
    assert deviation("dp_sgd", 1.0, (zeros,)) > 1.5 * deviation("dp_sgd", 100.0, (zeros,)) > 0
    assert deviation("label_dp", 1.0, zeros) > 5 * deviation("label_dp", 100.0, zeros) > 0
    assert deviation("noise_gradient", 0.04, zeros) == pytest.approx(0.2 / 4, rel=0.1)
    # A step uses 16 of 800 samples, and 5 epochs have 250 steps. An owner's 2,000 entries are means of 16 rows.
    plan = {"sampling_rate": 16 / 800, "steps": 250, "delta": 1e-5}
    sigma = noise_multiplier_of(epsilon=3.0, **plan)
    assert deviation("dp_sgd", 3.0, (zeros,)) == pytest.approx(sigma / 16, rel=0.1)
    # Sizes are uniform up to the threshold in units of 1 / B.
    ones = np.tile(np.float32([1, -1]), (2000, 1))
    for name, strength in (("vfl_defender", 3.0), ("vfl_defender_paper", 3.0)):
        found = np.abs(split_defense(name, strength, run).apply(jax.random.key(0), ones))
        largest = found.max() if name.endswith("paper") else np.linalg.norm(found, axis=1).max()
        assert largest == pytest.approx(3.0 / 16, rel=0.01)


@pytest.mark.slow
def test_only_the_adaptive_shadow_has_the_defense_and_seeds_share_what_is_compiled():
    case = SplitCase("breast_cancer", shadow_records=48, victim_records=48, defense="noise_cut", strength=1.0)
    problem, again = split_problem(case, seed=0), split_problem(case, seed=1)
    assert problem.model is again.model
    assert problem.victim_protocol is again.victim_protocol
    assert problem.shadow_protocol is split_problem(case.undefended(), seed=0).shadow_protocol
    key = jax.random.key(0)
    sizes = []
    for protocol in (problem.shadow_protocol, problem.adaptive_protocol, problem.victim_protocol):
        _, transcript = jax.jit(protocol.round)(key, protocol.init(key), problem.shadow)
        sizes.append(float(np.abs(transcript.parties[0].output_gradient).mean()))
    assert sizes[0] < 0.1 < 0.7 < min(sizes[1:])


@pytest.mark.slow
def test_the_shadow_runs_as_long_as_the_victim_and_training_learns():
    case = SplitCase("breast_cancer", shadow_records=48, victim_records=200)
    problem = split_problem(case, seed=0)
    assert rounds_of(problem.victim, 16, 1) == 12
    assert shadow_rounds(case, problem) == 18
    params = train(problem.victim_protocol, problem.victim, jax.random.key(0), 60)
    after = _accuracy(problem, params)
    assert after > 0.85
    assert after > _accuracy(problem, problem.victim_protocol.init(jax.random.key(0)).params)


def _accuracy(problem, params):
    return float(np.mean(np.argmax(problem.model.apply(params, problem.shadow.x), axis=1) == problem.shadow.y))


def test_blocks_are_neighbours_and_an_images_halves():
    blocks, other_seed, random = (
        np.asarray(problem.own(problem.victim))
        for problem in (
            split_problem(SplitCase("breast_cancer", partition="blocks", share=0.2), seed=0),
            split_problem(SplitCase("breast_cancer", partition="blocks", share=0.2), seed=1),
            split_problem(SplitCase("breast_cancer", share=0.2), seed=0),
        )
    )
    assert blocks.shape == other_seed.shape == random.shape
    # Every seed has the same features and so the same correlations; a random partition has others.
    correlation = [np.corrcoef(own.T) for own in (blocks, other_seed, random)]
    np.testing.assert_allclose(correlation[0], correlation[1], atol=0.2)
    assert np.abs(correlation[0] - correlation[2]).max() > 0.3

    columns = tuple(np.arange(1024)[:, None])
    encoding = TableEncoding(tuple(range(1024)), (), (), (), 2, columns)
    left, right = _parts(SplitCase("cifar10"), encoding, np.zeros((2, 1024)), seed=0)
    assert set(left % 32) == set(range(16))
    assert set(right % 32) == set(range(16, 32))


def test_summaries_hold_means_and_spreads():
    runs = {"a": [{"m": 1.0}, {"m": 3.0}], "b": [{"m": 6.0, "only": 1.0}]}
    assert study.summarise(runs) == {
        "m": 4.0, "m_a": 2.0, "m_a_std": 1.0, "m_b": 6.0, "m_b_std": 0.0, "only_b": 1.0, "only_b_std": 0.0
    }  # fmt: skip


def test_options_become_a_case():
    case = Args(setup=SplitSetup(share=0.25, parties=4, optimizer="sgd")).case("digits")
    assert (case.data, case.share, case.parties, case.optimizer) == ("digits", 0.25, 4, "sgd")


def test_scores_are_those_of_the_samples_that_took_part():
    x = np.arange(24.0).reshape(4, 2, 3)
    model = SimpleNamespace(parties=2, slices=lambda x: [x[:, 0], x[:, 1]])
    victim = SimpleNamespace(x=x, y=np.array([0, 1, 1, 0]))
    truth = Truth(
        SimpleNamespace(model=model, victim=victim, missing=np.zeros(x.shape, bool)), np.array([[0, 2], [2, 3]])
    )
    np.testing.assert_array_equal(truth.took_part, [0, 2, 3])
    answer = np.array([0, 1, 0, 0])  # sample 1 is right but did not take part
    scores = truth.label_scores("some", answer)
    assert scores == pytest.approx({"label_accuracy_some": 2 / 3, "label_balanced_some": 0.5})
    assert truth.feature_variance == pytest.approx(np.var([3.0, 15.0, 21.0]))
    np.testing.assert_array_equal(truth.right(answer), [[True, False], [False, True]])
    estimate = x[:, 1].copy()
    estimate[1] += 100
    estimate[2] += 2
    assert truth.feature_mse_of(estimate) == pytest.approx(4 / 3)
    moved = x.copy()
    moved[:, 1] = estimate
    assert truth.feature_mse(moved) == pytest.approx(4 / 3)
    assert truth.gain(1.0, 3.0) == pytest.approx(2 / truth.feature_variance)


def test_a_regression_is_scored_beside_own_features(monkeypatch):
    shadow, victim = (SimpleNamespace(x=x[:, None]) for x in (np.arange(6.0), np.array([1.0, 3.0])))
    problem = SimpleNamespace(shadow=shadow, victim=victim, own=lambda batch: "own")
    truth = SimpleNamespace(victims=lambda x: x, feature_mse_of=lambda estimate: estimate)
    truth.gain = lambda error, without: (without - error) / 2
    truth.by_column = lambda estimate: [estimate]
    asked = []

    def fit(*given, seed):
        asked.append((*given, seed))
        return SimpleNamespace(predict=lambda seen, own: 0.5 if (seen, own) == ("real", "own") else None)

    monkeypatch.setattr(parties_truth.party_records, "fit_gradient_regression", fit)
    known = SimpleNamespace(predict=lambda own: 1.5 if own == "own" else None)
    found = parties_truth.regression_scores(problem, known, "shadow", "real", truth, 3)
    assert found == ({"feature_mse_regression_shared": 0.5, "feature_gain_regression_shared": 0.5}, [0.5])
    ((seen, features, own, seed),) = asked
    assert (seen, own, seed) == ("shadow", known, 3)
    np.testing.assert_array_equal(features, shadow.x)


@pytest.mark.parametrize(
    ("change", "runs", "seconds"),
    [
        ({}, {}, 0.0),
        ({}, {"task": True}, 6.0),
        ({}, {"starts": 1}, 10 + 8),
        ({}, {"starts": 1, "features": True}, 10 + 8 * 2),
        ({"victim_records": 500}, {"starts": 1, "task": True}, 0.5 * 6 + 10 + 0.5 * 8),
        ({"victim_records": 4000}, {"starts": 1}, 10 + 2 * 8),  # more records do not cost more
        ({"victim_records": None}, {"task": True}, 2 * 6),  # 2,000 are the default
        ({"defense": "noise"}, {"starts": 2}, 10 + 4 * 8),
        ({"fields": ("gradient", "parameters")}, {"starts": 1}, 10 + 4 * 8),
        ({"select": "validation"}, {"starts": 1}, 10 + 8 * (1 + len(party_records.FIELD_CANDIDATES))),
        ({"shadow_runs": 2, "network_epochs": 20}, {"starts": 1}, 10 + 8 * 4),
        ({"network_epochs": 5}, {"starts": 1}, 10 + 8),
        ({"data": "cifar10"}, {"starts": 1}, 4 * 18),
        ({"cipher": "ckks", "parties": 3}, {"starts": 1}, 18 + 1.5 * 2 * 1000 / 50),
        ({"cipher": "ckks", "parties": 3}, {"starts": 1, "label_holder": True}, 18 + 5 + 2 * 1.5 * 2 * 1000 / 50),
        ({"defense": "noise"}, {"label_holder": True}, 2 * 5),
    ],
)
def test_seconds_by_hand(change, runs, seconds):
    sizes = {"data": "sensorless", "victim_records": 1000, "network_epochs": 10, "batch_size": 50}
    parts = {"features": False, "task": False} | runs
    starts = party_records.SHADOW_INITS[: parts.pop("starts", 0)]
    assert seconds_of(SplitCase(**sizes | change), Runs(starts, **parts)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("scores", "runs"),
    [
        (["task_accuracy"], Runs((), False, True)),
        (["label_accuracy_free"], Runs(("shared",), False, False)),
        (["feature_mse_shared", "task_accuracy_change"], Runs(("shared",), True, True)),
        (["correlation_error"], Runs(("shared",), True, False)),
        (["label_accuracy_li_norm"], Runs(("shared",), False, False, comparisons=True)),
        (["label_accuracy_fu_completion"], Runs(("shared",), False, False, comparisons=True)),
        (["seconds_per_step"], Runs(("shared",), False, False, timed=True)),
        (["feature_mse_label_holder"], Runs(("shared",), False, False, label_holder=True)),
        ([], Runs((), False, False)),
    ],
)
def test_what_runs_follows_from_the_scores(scores, runs):
    assert runs_for(scores, ("shared",)) == runs
