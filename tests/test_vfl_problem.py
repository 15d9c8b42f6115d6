"""The vertical study's set-up: what is refused before any training, and that shadow and victim share no row."""

import builtins

import jax
import numpy as np
import pytest

from experiments import vflrecon
from experiments._vfl import study
from experiments._vfl.case import Case
from experiments._vfl.defenses import DEFAULT_STRENGTH, build_defense
from experiments._vfl.options import Args
from experiments._vfl.problem import _parts, rounds_of, shadow_rounds, train, vertical_problem
from jaxleak.data import TableEncoding
from jaxleak.defenses import SPLIT_PLACES


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
        (Case("breast_cancer", defense="dp_sgd", strength=-1.0), "strength must be >= 0, got -1.0"),
        (Case("breast_cancer", defense="vfl_defender", strength=-0.1), "strength must be >= 0, got -0.1"),
        (Case("breast_cancer", defense="hope"), "defense must be one of none, noise"),
        (Case("breast_cancer", cipher="rot13"), "cipher must be one of none, plain, ckks"),
        (Case("breast_cancer", cipher="plain", defense="dp_sgd"), "cannot be combined with an interactive layer"),
    ):
        with pytest.raises(ValueError, match=message):
            vertical_problem(case, seed=0)


def test_labels_with_a_gap_are_refused(tmp_path):
    path = tmp_path / "gap.npz"
    np.savez(path, x=np.random.default_rng(0).random((90, 4)), y=np.arange(90) % 3 * 2)
    with pytest.raises(ValueError, match=r"labels must be 0 \.\.\. C-1"):
        vertical_problem(Case(f"npz:{path}"), seed=0)


@pytest.mark.parametrize(
    ("case", "module", "extra"),
    [
        (Case("breast_cancer", cipher="ckks"), "tenseal", "encryption"),
        (Case("breast_cancer", defense="dp_sgd", strength=7.0), "dp_accounting", "dp-accounting"),
        (Case("breast_cancer", defense="label_dp", strength=7.0), "dp_accounting", "dp-accounting"),
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
        vertical_problem(case, seed=0)


def test_options_are_refused_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "run_case", lambda *_: pytest.fail("trained"))
    for options, message in (
        ({"fields": ("weights",)}, "fields must be some of"),
        ({"fields": ()}, "fields must be some of"),
        ({"shadow_init": ()}, "shadow_init must name at least one"),
        ({"seeds": 0}, "seeds must be > 0"),
        ({"budget": 0.0}, "budget must be > 0"),
        ({"strength": -1.0}, "strength must be >= 0"),
        ({"data": ("breast_cancer",), "shadow_records": 8}, "shadow_records must be at least"),
        ({"data": ("digits", "breast_cancer"), "parties": 40}, "number of features, 30, got 40"),
    ):
        with pytest.raises(ValueError, match=message):
            vflrecon.main(Args(out=tmp_path, **options))


def test_default_strengths_are_those_of_the_paper_where_it_has_one():
    """Table V's middle noise, and Table VI's smaller epsilon."""
    noises = {name: strength for name, strength in DEFAULT_STRENGTH.items() if name.startswith("noise")}
    assert set(noises.values()) == {0.01}
    assert DEFAULT_STRENGTH["dp_sgd"] == DEFAULT_STRENGTH["label_dp"] == 10.0


def test_every_defense_is_built_at_its_place_and_epsilon_moves_its_noise():
    sizes = {"num_classes": 3, "batch_size": 16, "num_samples": 800, "epochs": 5}
    places = {name: build_defense(name, 0.0, **sizes)[0].place for name in DEFAULT_STRENGTH}
    assert set(places.values()) == set(SPLIT_PLACES)
    assert places["noise_cut"] == places["marvell"] == "cut_gradient"
    assert build_defense("none", 0.0, **sizes) == ()

    def deviation(name, strength, payload):
        (defense,) = build_defense(name, strength, **sizes)
        out = jax.tree.map(lambda leaf: leaf.mean(axis=0), defense.apply(jax.random.key(0), payload))
        return float(np.std(jax.tree.leaves(out)[0]))

    zeros = np.zeros((16, 2000), np.float32)
    assert deviation("dp_sgd", 1.0, (zeros,)) > 1.5 * deviation("dp_sgd", 100.0, (zeros,)) > 0
    assert deviation("label_dp", 1.0, zeros) > 5 * deviation("label_dp", 100.0, zeros) > 0
    assert deviation("noise_gradient", 0.04, zeros) == pytest.approx(0.2 / 4, rel=0.1)


def test_only_the_adaptive_shadow_has_the_defense_and_seeds_share_what_is_compiled():
    case = Case("breast_cancer", shadow_records=48, victim_records=48, defense="noise_cut", strength=1.0)
    problem, again = vertical_problem(case, seed=0), vertical_problem(case, seed=1)
    assert problem.model is again.model
    assert problem.victim_protocol is again.victim_protocol
    assert problem.shadow_protocol is vertical_problem(case.undefended(), seed=0).shadow_protocol
    key = jax.random.key(0)
    sizes = []
    for protocol in (problem.shadow_protocol, problem.adaptive_protocol, problem.victim_protocol):
        _, transcript = jax.jit(protocol.round)(key, protocol.init(key), problem.shadow)
        sizes.append(float(np.abs(transcript.parties[0].output_gradient).mean()))
    assert sizes[0] < 0.1 < 0.7 < min(sizes[1:])


def test_the_shadow_runs_as_long_as_the_victim_and_training_learns():
    case = Case("breast_cancer", shadow_records=48, victim_records=200)
    problem = vertical_problem(case, seed=0)
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
            vertical_problem(Case("breast_cancer", partition="blocks", share=0.2), seed=0),
            vertical_problem(Case("breast_cancer", partition="blocks", share=0.2), seed=1),
            vertical_problem(Case("breast_cancer", share=0.2), seed=0),
        )
    )
    assert blocks.shape == other_seed.shape == random.shape
    # The same features whatever the seed, so the same correlations; a random deal has others.
    correlation = [np.corrcoef(own.T) for own in (blocks, other_seed, random)]
    np.testing.assert_allclose(correlation[0], correlation[1], atol=0.2)
    assert np.abs(correlation[0] - correlation[2]).max() > 0.3

    columns = tuple(np.arange(1024)[:, None])
    encoding = TableEncoding(tuple(range(1024)), (), (), (), 2, columns)
    left, right = _parts(Case("cifar10"), encoding, np.zeros((2, 1024)), seed=0)
    assert set(left % 32) == set(range(16))
    assert set(right % 32) == set(range(16, 32))


def test_summaries_hold_means_and_spreads():
    runs = {"a": [{"m": 1.0}, {"m": 3.0}], "b": [{"m": 6.0, "only": 1.0}]}
    assert study.summarise(runs) == {
        "m": 4.0, "m_a": 2.0, "m_a_std": 1.0, "m_b": 6.0, "m_b_std": 0.0, "only": 1.0, "only_b": 1.0, "only_b_std": 0.0
    }  # fmt: skip


def test_options_become_a_case():
    case = Args(share=0.25, parties=4, optimizer="sgd").case("digits")
    assert (case.data, case.share, case.parties, case.optimizer) == ("digits", 0.25, 4, "sgd")
