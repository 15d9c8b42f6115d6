"""CAFE, its baselines and informed attackers give bitwise equal answers when their studies hold no genuine data.

Only the rounds use the genuine data. All other data of a study are poisoned from the start: images are NaN, every
label is wrong, and loading the data again is an error. What the threat grants is copied from the rounds.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from poisoning import same, tell
from slowness import slow_but

from jaxleak import audit, data, models, protocols
from jaxleak._base import Batch
from jaxleak.audit import _rounds
from jaxleak.study.rounds import Problem, forward_features, vertical_problem
from jaxleak.study.rounds import runs as cafe_runs
from jaxleak.study.rounds.runs import Setting

N, K = 6, 2
TINY = {"num_samples": N, "batch_size": K, "parties": 4, "iterations": 4}
DESCENTS = {
    # Step III after Steps I and II in nested loops, as in the paper.
    "nested": Setting("descent", **TINY),
    # Only Step III.
    **{name: Setting("descent", method=name, **TINY) for name in ("dlg", "idlg", "cosine", "sapag", "bn", "gc")},
    # The single loop, optionally with thresholds between the steps or with a training model.
    "single": Setting("single", **TINY),
    "single_switch": Setting("single", switch=True, **TINY),
    "single_training": Setting("single", model_learning_rate=0.1, **TINY),
    # On whole images of two workers.
    "iclr": Setting("single", method="cafe-iclr", **{**TINY, "parties": 1, "workers": 2}),
    "iclr_cosine": Setting("single", method="cafe-cosine", **TINY),
    "iclr_dlg": Setting("descent", method="dlg", data_optimizer="normalized", **TINY),
}
FIRST = ("single",)


@functools.cache
def digits(parties):
    """A problem of six digits; the extractor is one dense layer that compiles quickly and records statistics."""
    found = data.load("digits", N, 0)
    dataset = found._replace(y=found.y % 2)
    x, layout = data.image_tiles(dataset.x, parties)
    model = models.split_model(
        reference.DenseExtractor(),
        reference.Sum(),
        parties=parties,
        slice_shape=x.shape[2:],
        num_classes=2,
        width=5,
    )
    params = jax.jit(model.init)(audit.init_key(jax.random.key(0)))
    private = Batch(jnp.asarray(x), jnp.asarray(dataset.y), jnp.arange(N))
    return Problem(dataset, layout, model, params, private, jax.tree.map(lambda leaf: leaf[:0], private))


def poisoned(problem):
    """The problem with NaN in place of every image, and with the next class in place of every label."""
    x, y = np.full_like(problem.dataset.x, np.nan), (problem.dataset.y + 1) % problem.model.num_classes
    private = problem.private._replace(x=jnp.full_like(problem.private.x, jnp.nan), y=jnp.asarray(y))
    return problem._replace(dataset=problem.dataset._replace(x=x, y=y), private=private)


def play_genuine_rounds(patch, problem):
    """Make every protocol use the genuine images (or their features) in its rounds, whatever it is given."""
    kept = problem.private._replace(x=forward_features(problem))

    def genuine(build):
        def build_and_keep(model, **options):
            protocol = build(model, **options)

            def one_round(key, state, private):
                held = kept if private.x.shape == kept.x.shape else problem.private
                assert private.x.shape == held.x.shape
                return protocol.round(key, state, held)

            return protocol._replace(round=one_round)

        return build_and_keep

    for name in ("vertical", "horizontal"):
        patch.setattr(protocols, name, genuine(getattr(protocols, name)))
    patch.setattr(_rounds, "check_private", lambda *_: None)  # it would refuse the poison, though no round reads it
    patch.setattr(data, "load", lambda *_: pytest.fail("the study loaded the data again"))


def descent_answer(monkeypatch, setting, *, poison):
    """V and H from Steps I and II, if they run, and the unscored answer."""
    problem = digits(setting.parties)
    kept = []
    with monkeypatch.context() as patch:
        play_genuine_rounds(patch, problem)
        patch.setattr(cafe_runs, "cap", lambda dataset: 3)
        patch.setattr(cafe_runs, "_psnr", lambda problem, found: kept.append(found) or {})
        held = poisoned(problem) if poison else problem
        if setting.kind == "single":
            cafe_runs.single(setting, held)
        else:
            tables = cafe_runs.nested_tables(setting, held) if setting.method.startswith("cafe") else None
            kept.append(tables and tables.values)
            cafe_runs.descent(setting, held, tables)
    *values, found = kept
    # A sample that no batch contained has an infinite score.
    found = found._replace(score=np.nan_to_num(found.score, posinf=-1.0))
    return [np.asarray(leaf) for leaf in jax.tree.leaves((values, found))]


@pytest.mark.parametrize("name", slow_but(DESCENTS, FIRST))
def test_a_descent_answers_the_same_when_the_truth_is_poisoned(name, monkeypatch):
    genuine = descent_answer(monkeypatch, DESCENTS[name], poison=False)
    same(genuine, descent_answer(monkeypatch, DESCENTS[name], poison=True))


def exact_answer(monkeypatch, defense, *, poison):
    """V, H, labels and slices of the exact engine, taken where the study would score them."""
    problem = vertical_problem("breast_cancer", num_samples=12, parties=2, seed=0, key=jax.random.key(0))
    setting = Setting(
        "exact", num_samples=12, batch_size=3, parties=2, images=4, defense=defense, adaptive=defense != "none"
    )
    found, solve = [], cafe_runs.observe_and_recover

    def recover_and_keep(*args, **options):
        found.append(solve(*args, **options))
        return found[-1]

    def keep_slices(problem, slices, index):
        found.append((slices, index))
        return np.zeros(len(index))

    with monkeypatch.context() as patch:
        play_genuine_rounds(patch, problem)
        patch.setattr(cafe_runs, "observe_and_recover", recover_and_keep)
        patch.setattr(cafe_runs, "image_psnr", keep_slices)
        cafe_runs.exact(setting, poisoned(problem) if poison else problem)
    assert len(found) == 2
    return [np.nan_to_num(np.asarray(leaf)) for leaf in jax.tree.leaves(found)]


@pytest.mark.parametrize("defense", slow_but(("none", "fake-repaired", "fake-capped", "fake-paired"), ("none",)))
def test_the_exact_engine_answers_the_same_when_the_truth_is_poisoned(defense, monkeypatch):
    genuine = exact_answer(monkeypatch, defense, poison=False)
    same(genuine, exact_answer(monkeypatch, defense, poison=True))


@pytest.mark.slow
def test_features_in_the_tables_of_a_descent_are_noticed(monkeypatch):
    def change(tables, problem, features, *_):
        return tables._replace(H=features)

    tell(monkeypatch, cafe_runs, "steps_one_and_two", change)
    with pytest.raises(AssertionError, match="not equal"):
        same(*(descent_answer(monkeypatch, DESCENTS["nested"], poison=poison) for poison in (False, True)))


@pytest.mark.slow
def test_labels_of_the_exact_engines_data_set_are_noticed(monkeypatch):
    def change(found, problem, *_):
        return found._replace(labels=problem.dataset.y[: len(found.labels)].copy())

    tell(monkeypatch, cafe_runs, "observe_and_recover", change)
    with pytest.raises(AssertionError, match="not equal"):
        same(*(exact_answer(monkeypatch, "none", poison=poison) for poison in (False, True)))
