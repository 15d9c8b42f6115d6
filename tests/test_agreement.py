"""The agreement of two starts: the compared starts, the score, and the reports of studies."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import invert
from jaxleak import audit, metrics
from jaxleak._base import Reconstruction
from jaxleak._command.invert import run
from jaxleak.audit._similarity import similarity
from jaxleak.study.updates import Case, Outcome, _problem, attack, captions, compared, settings_as_run

CASE = Case(data="digits", model="mlp", pool=8, batch_size=4, iterations=3, restarts=2)
IMAGES = np.random.default_rng(0).random((4, 12, 12, 3)).astype(np.float32)
NOISE = np.random.default_rng(1).random((4, 12, 12, 3)).astype(np.float32)
LAST = np.arange(4) == 3


def starts(*images, scores):
    """A reconstruction with these images stacked as starts, and one score per start."""
    x = jnp.stack([jnp.asarray(each)[:, None] for each in images])
    score = jnp.broadcast_to(jnp.asarray(scores, jnp.float32)[:, None], x.shape[:2])
    return Reconstruction(x, jnp.zeros(x.shape[:2], jnp.int32), score, jnp.ones(x.shape[:2], bool))


def test_the_two_best_starts_are_compared_in_the_answers_order():
    both = starts(NOISE, IMAGES[::-1] * 0.9, IMAGES, scores=(3.0, 2.0, 1.0))
    found = audit.agreement(both)
    np.testing.assert_array_equal(audit.best_restart(both).x[:, 0], IMAGES)
    np.testing.assert_allclose(found.other, IMAGES * 0.9, rtol=1e-6)
    np.testing.assert_allclose(found.value, metrics.ssim(IMAGES, IMAGES * np.float32(0.9)), rtol=1e-6)
    assert found.value.shape == (4,)
    assert found.value.min() > 0.9


def test_starts_in_an_order_that_is_not_its_own_inverse_are_compared_in_the_answers():
    both = starts(np.roll(IMAGES, 1, axis=0), IMAGES, scores=(2.0, 1.0))
    found = audit.agreement(both)
    np.testing.assert_array_equal(found.other, IMAGES)
    np.testing.assert_allclose(found.value, 1)


def test_starts_that_found_different_images_do_not_agree():
    assert audit.agreement(starts(IMAGES, NOISE, scores=(1.0, 2.0))).value.max() < 0.5


def test_one_image_may_agree_while_the_others_do_not():
    mixed = np.concatenate([NOISE[:2], IMAGES[2:3], NOISE[3:]])
    np.testing.assert_array_equal(audit.agreement(starts(IMAGES, mixed, scores=(1.0, 2.0))).value > 0.8, [0, 0, 1, 0])


def test_pixels_are_compared_as_they_would_be_shown():
    bright = np.where(IMAGES > 0.5, 1.0, IMAGES)
    found = audit.agreement(starts(bright, np.where(IMAGES > 0.5, 7.0, IMAGES), scores=(1.0, 2.0)))
    np.testing.assert_allclose(found.value, 1)
    assert found.other.max() == 1


def test_a_start_without_a_score_comes_last():
    found = audit.agreement(starts(NOISE, IMAGES, IMAGES, scores=(np.nan, 2.0, 1.0)))
    np.testing.assert_allclose(found.value, 1)


def test_what_is_not_finite_agrees_with_nothing():
    broken = IMAGES.copy()
    broken[1, 3, 3] = np.nan
    assert np.isnan(audit.agreement(starts(IMAGES, broken, scores=(1.0, 2.0))).value[1])


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 2, 1)])
def test_images_that_are_too_small_for_ssim_are_compared_by_their_largest_difference(shape):
    first = np.array([[0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6]]).reshape(2, *shape)
    second = (first + np.array([[0, 0.04, 0, -0.01], [0, 0, 0.3, 0]]).reshape(first.shape))[::-1]
    found = audit.agreement(starts(first, second, scores=(1.0, 2.0)))
    np.testing.assert_allclose(found.value, [0.96, 0.7], atol=1e-6)
    np.testing.assert_allclose(found.other, second[::-1], atol=1e-6)
    second[0] = np.nan
    assert np.isnan(audit.agreement(starts(first, second, scores=(1.0, 2.0))).value).any()
    with pytest.raises(ValueError, match=r"must be \(N, H, W, C\) of equal shapes"):
        similarity(first, first[:1])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (IMAGES[None, :, None], r"agreement needs two starts or more \(restarts >= 2\), got 1"),
        (np.zeros((2, 4, 2, 6, 6, 3)), r"x must have shape \(R, N, 1, H, W, C\), got \(2, 4, 2, 6, 6, 3\)"),
        (np.zeros((2, 4, 1, 7)), r"x must have shape"),
    ],
)
def test_what_cannot_be_compared_is_refused(x, message):
    shape = x.shape[:2]
    stacked = Reconstruction(jnp.asarray(x), jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.ones(shape, bool))
    with pytest.raises(ValueError, match=message):
        audit.agreement(stacked)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """Run folder, outcomes by seed, and metrics of a command that attacks four digits with two seeds and two starts."""
    folder, outcomes = tmp_path_factory.mktemp("invert"), []

    def remembered(*args, **options):
        outcomes.append(attack(*args, **options))
        return outcomes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "attack", remembered)
        found = invert.main(invert.Args(case=CASE, seeds=(0, 1), out=folder))
    return folder, outcomes, found


@pytest.mark.slow
def test_a_command_with_two_starts_reports_their_agreement(attacked):
    folder, outcomes, found = attacked
    stored = json.loads((folder / "results.json").read_text())
    each = np.array([cell["agreement_of_each"] for cell in stored["cells"]])
    assert each.shape == (2, 4)
    assert [cell["seed"] for cell in stored["cells"]] == [0, 1]
    assert found["agreement"] == pytest.approx(each.mean())
    np.testing.assert_allclose(each, [o.second.value for o in outcomes])


def test_agreement_belongs_to_the_image_that_it_stands_beside(attacked):
    for outcome in attacked[1]:
        expected = metrics.ssim(outcome.estimate, outcome.second.other)
        np.testing.assert_allclose(outcome.second.value, expected, atol=1e-6)


def test_arrays_of_a_run_are_those_that_were_scored(attacked):
    folder = attacked[0]
    stored = json.loads((folder / "results.json").read_text())
    for seed in (0, 1):
        found = np.load(folder / "reconstructions" / f"seed_{seed}.npz", allow_pickle=False)
        assert found.keys() >= {"truth", "estimate", "curve", "labels", "labels_found", "answered", "other"}
        assert found["truth"].shape == found["estimate"].shape == (4, 8, 8, 1)
        own = stored["cells"][seed]
        assert own["psnr"] == pytest.approx(found["psnr_each"].mean())
        assert own["ssim"] == pytest.approx(found["ssim_each"].mean())
        agree = metrics.label_multiset_accuracy(found["labels"], found["labels_found"])
        assert own["label_accuracy"] == pytest.approx(agree)
        assert found["answered"].all()
    assert stored["settings"] == json.loads(json.dumps(settings_as_run(CASE, (8, 8, 1), 10)))
    assert "| total variation | tv (anisotropic), weight " in (folder / "report.md").read_text()


def test_the_contact_sheet_says_what_the_attacker_knows(attacked):
    texts = captions(attacked[1])
    assert len(texts) == 8
    assert texts[5] == f"gradient not matched\nagreement {attacked[1][1].second.value[1]:.2f}"


def test_what_is_undetermined_stands_beside_its_agreement():
    second = audit.Agreement(np.array([0.99, 0.5]), IMAGES[:2], np.array([True, False]))
    own = {"gradient_matched": 1.0, "answered": 1.0}
    texts = captions([Outcome(IMAGES[:2], IMAGES[:2], own, np.zeros(1), second)])
    assert texts == ["gradient matched\nagreement 0.99, undetermined", "gradient matched\nagreement 0.50"]
    assert {name: values.tolist() for name, values in compared(second).items()} == {
        "agreement": [0.99, 0.5], "undetermined": [True, False],
    }  # fmt: skip
    assert list(compared(second._replace(undetermined=None))) == ["agreement"]


def test_an_image_is_undetermined_where_a_rival_or_an_image_of_its_class_explains_the_update(monkeypatch):
    monkeypatch.setattr(_problem, "_explaining", lambda *_: ("share", "seen"))
    monkeypatch.setattr(_problem, "known_defense", lambda case: None)
    rival = SimpleNamespace(undetermined=np.arange(4) == 0, answer_misfit=0.2)
    monkeypatch.setattr(audit, "rival", lambda *_, **__: rival)
    monkeypatch.setattr(audit, "indistinct", lambda share, seen, x, y, misfit, **_: np.full(4, misfit == 0.2) & LAST)
    both = starts(IMAGES, IMAGES, scores=(1.0, 2.0))
    found = audit.best_restart(both)._replace(gradient_matched=np.ones(4, bool))
    asked = _problem.asked_for_rivals(CASE, audit.agreement(both), None, None, found, 0)
    assert asked.undetermined.tolist() == [True, False, False, True]
    unmatched = found._replace(gradient_matched=~LAST)
    assert _problem.asked_for_rivals(CASE, audit.agreement(both), None, None, unmatched, 0).undetermined is None


@pytest.mark.slow
def test_rivals_are_asked_for_where_a_gradient_is_matched():
    """A short search matches the gradient of one image in an MLP, and this update determines the image."""
    case = Case(data="digits", model="mlp", pool=8, batch_size=1, iterations=150, restarts=2, labels="given")
    outcome = attack(case, 0)
    assert outcome.scores["cosine_distance"] < outcome.scores["cosine_distance_random"] < 2  # random images
    assert outcome.scores["gradient_matched"] == 1
    assert outcome.second.undetermined.shape == (1,)
    assert outcome.scores["undetermined"] == outcome.second.undetermined.mean()
