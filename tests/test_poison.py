"""After a round was observed, no private value may change an answer: the truth is poisoned, and bits are compared.

Each study makes its round with the genuine data. Then the images become NaN or are deleted, labels are redrawn at
random, and loading the data again gives noise for the clients' samples. What the threat grants was copied before.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from poisoning import same, tell
from slowness import slow_but

from jaxleak import attacks, data
from jaxleak.attacks import party_records, presets
from jaxleak.attacks._vertical import baselines
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study.parties import ADVERSARY, SplitCase, _comparisons, _own_features, split_problem
from jaxleak.study.parties import _runs as parties_runs
from jaxleak.study.parties._truth import Truth
from jaxleak.study.updates import ATTACKS, Case
from jaxleak.study.updates import _problem as inversion
from jaxleak.study.updates import _public_data as public_data

TINY = Case(model="mlp", data="digits", pool=6, batch_size=2, iterations=3)
GENERATIVE = {"labels": "bias_rule", "public_samples": 16, "latent_size": 2, "generator_epochs": 1}
#: Further options that each attack needs.
ATTACKED = {
    "dlg": {},
    "idlg": {"batch_size": 1},
    "inverting_gradients": {"restarts": 2},
    "sapag": {},
    "gradinversion": {"model": "resnet10", "width": 2, "granted_statistics": True},
    "bayes": {},
    "fedleak": {"local_steps": 2, "batch_size": 1},
    "any_loss": {"loss": "focal_loss"},
    "row_space": {"model": "convnet"},
    "fedleak_paper": {},
    "fedleak_upstream": {},
    "ggl": GENERATIVE,
    "rog": GENERATIVE,
    "patch_embedding": {"model": "vit_tiny", "batch_size": 1},
    "spear": {},
}
#: Attacks that run by default. Others need a generator, a network with normalisation or a transformer, and much
#: compilation, or run the same code of the study (idlg and inverting_gradients).
FIRST = ("fedleak",)
#: An informed attacker that simulates clients; one that averages draws of the defense runs with -m slow.
FIRST_ADAPTIVE = ("guardian",)


def answer(monkeypatch, case, *, poisoned):
    """All arrays of the result of `attack` for seed 0, with the unscored answer in place of the scores."""
    public_data._trained.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(inversion, "judged", lambda case, observation, answer, share, truth: answer)
        if poisoned:
            patch.setattr(inversion, "observe", functools.partial(_observe_and_poison, patch, inversion.observe))
        found = inversion.attack(case, 0)
    return [np.asarray(leaf) for leaf in jax.tree.leaves((found.found, found.curve, found.second))]


def _observe_and_poison(patch, observe, case, seed, side):
    observation, truth = observe(case, seed, side)
    for leaf in jax.tree.leaves(side.private):
        leaf.delete()  # from now on, reading it is an error
    patch.setattr(data, "load", functools.partial(_load_noise, data.load, case, np.random.default_rng(7)))
    return observation, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), truth)


def _load_noise(load, case, rng, spec, count=None, seed=0):
    """Load data with noise for the private samples, new at every call so that comparing calls reveals nothing."""
    found = load(spec, count, seed)
    private = len(found.y[: case.taken]) if spec == case.data else 0
    x, y = found.x.copy(), found.y.copy()
    x[:private] = rng.random(x[:private].shape)
    y[:private] = rng.integers(len(found.classes), size=private)
    return found._replace(x=x, y=y)


def test_every_attack_is_in_the_table():
    assert set(ATTACKED) == set(ATTACKS)


@pytest.mark.parametrize("name", slow_but(ATTACKED, FIRST))
def test_an_inversion_answers_the_same_when_the_truth_is_gone(name, monkeypatch):
    if name == "row_space":  # its shifts take thousands of iterations
        quick = presets.row_space(TINY.iterations)._replace(shifts=())
        monkeypatch.setitem(presets.PRESETS, name, lambda **_: quick)
    case = replace(TINY, attack=name, **ATTACKED[name])
    same(answer(monkeypatch, case, poisoned=False), answer(monkeypatch, case, poisoned=True))


@pytest.mark.parametrize("name", slow_but(CLIENT_DEFENSES, FIRST_ADAPTIVE))
def test_who_knows_the_defense_answers_the_same_when_the_truth_is_gone(name, monkeypatch):
    strength = CLIENT_DEFENSES[name].strengths[0]
    case = replace(TINY, attack="fedleak", defense=name, strength=strength, adaptive=True)
    same(answer(monkeypatch, case, poisoned=False), answer(monkeypatch, case, poisoned=True))


@pytest.mark.slow
def test_who_copies_the_images_for_every_epoch_answers_the_same_when_the_truth_is_gone(monkeypatch):
    case = replace(TINY, batch_size=1, local_steps=2, local_epochs=2, reshuffle=True, epoch_copies=0.3)
    same(answer(monkeypatch, case, poisoned=False), answer(monkeypatch, case, poisoned=True))


VERTICAL = SplitCase("breast_cancer", shadow_records=32, victim_records=32, network_epochs=1, task_epochs=2)


def vfl_answers(monkeypatch, attack, *, poisoned):
    """Everything that `attack`, a part of a case's run, passes to scoring."""
    found, drawn = [], set()
    _own_features._fitted.cache_clear()

    class Kept(Truth):
        def __init__(self, problem, index):
            super().__init__(_poisoned_victims(problem) if poisoned else problem, index)
            if poisoned:
                for leaf in jax.tree.leaves(problem.victim):
                    leaf.delete()

        def label_scores(self, attack, labels):
            found.append(np.asarray(labels))
            return {}

        def feature_mse_of(self, estimate):
            found.append(np.asarray(estimate))
            return 0.0

    def draw(where, case, seed):
        """Give genuine records only once, to watch the run; later draws, and parts without a run, get poisoned ones."""
        problem, first = split_problem(case, seed), (where, case) not in drawn and where is not _own_features
        drawn.add((where, case))
        return problem if first or not poisoned else _poisoned_victims(problem)

    with monkeypatch.context() as patch:
        for module in (parties_runs, _comparisons, _own_features):
            patch.setattr(module, "split_problem", functools.partial(draw, module))
        for module in (parties_runs, _comparisons):
            patch.setattr(module, "Truth", Kept)
        patch.setattr(baselines, "_TREES", 10)
        patch.setattr(attacks, "train_vflrecon", functools.partial(attacks.train_vflrecon, hidden=(8,)))
        attack()
    return found


def all_of(runs):
    """A function that runs a case with these attacks."""
    return lambda: parties_runs.run_case(VERTICAL, 0, runs)


def fu_et_al():
    """Run the two attacks of Fu et al., which watch runs of their own."""
    _comparisons.fu_free_top(VERTICAL, 0)
    _comparisons.fu_completion(VERTICAL, 0)


def _poisoned_victims(problem):
    """The problem with NaN for the victims' features and with redrawn labels, but with the attacker's own features."""
    x = jnp.full_like(problem.victim.x, jnp.nan).at[:, ADVERSARY].set(problem.victim.x[:, ADVERSARY])
    y = jax.random.randint(jax.random.key(7), problem.victim.y.shape, 0, problem.model.num_classes)
    return problem._replace(victim=problem.victim._replace(x=x, y=y))


@pytest.mark.parametrize(
    ("attack", "least"),
    [
        (all_of(parties_runs.Runs(("own_bottom",), features=False)), 4),
        pytest.param(fu_et_al, 2, marks=pytest.mark.slow),
        pytest.param(
            all_of(parties_runs.Runs(party_records.SHADOW_INITS, regressions=True, comparisons=True)),
            15,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["labels", "fu", "all"],
)
def test_a_party_answers_the_same_when_the_truth_is_gone(attack, least, monkeypatch):
    genuine = vfl_answers(monkeypatch, attack, poisoned=False)
    assert len(genuine) >= least
    same(genuine, vfl_answers(monkeypatch, attack, poisoned=True))


@pytest.mark.slow
def test_labels_that_are_loaded_again_are_noticed(monkeypatch):
    case = replace(TINY, attack="fedleak", **ATTACKED["fedleak"])

    def change(answer, case, seed, *_):
        return answer._replace(found=answer.found._replace(y=data.load(case.data, case.taken, seed).y[:1]))

    tell(monkeypatch, inversion, "answer_to", change)
    with pytest.raises(AssertionError, match="not equal"):
        same(*(answer(monkeypatch, case, poisoned=poisoned) for poisoned in (False, True)))


@pytest.mark.slow
def test_labels_of_a_partys_victims_are_noticed(monkeypatch):
    def change(found, case, *_):
        answer, fields = found
        return answer._replace(y=parties_runs.split_problem(case, 0).victim.y), fields

    tell(monkeypatch, parties_runs, "_vflrecon", change)
    attack = all_of(parties_runs.Runs(("own_bottom",), features=False))
    with pytest.raises(AssertionError, match="not equal"):
        same(*(vfl_answers(monkeypatch, attack, poisoned=poisoned) for poisoned in (False, True)))


@pytest.mark.slow
def test_labels_that_the_attacks_of_fu_et_al_draw_again_are_noticed(monkeypatch):
    def change(labels, *_):
        case = replace(VERTICAL, free_top=True)
        return np.asarray(_comparisons.split_problem(case, 0).victim.y[: len(labels)])

    tell(monkeypatch, _comparisons, "_by_sample", change)
    with pytest.raises(AssertionError, match="not equal"):
        same(*(vfl_answers(monkeypatch, fu_et_al, poisoned=poisoned) for poisoned in (False, True)))
