"""The truth in an audit: how it is read and used for scores, and that no attack sees it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from small_updates import case_of

from jaxleak import Batch, Observation, audit, metrics, models, protocols
from jaxleak._command.audit import _scored
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._verdict.case import graded
from jaxleak.audit._verdict.judgement import _of_another_update, contradicted_by_truth, recognised_by_truth
from jaxleak.audit._verdict.truth import check_truth, scores
from jaxleak.audit._verdict.verdict import Answer


@pytest.mark.slow
def test_a_truth_without_labels_changes_nothing_but_scores(perceptron):
    model, variables, batch, gradient = perceptron
    plain = audit.update(model, variables, gradient, batch_size=1)
    wrong = audit.update(model, variables, gradient, batch_size=1, truth=(1 - batch.x[:, 0], None))
    np.testing.assert_array_equal(plain.best.x, wrong.best.x)
    assert plain.verdict == wrong.verdict
    assert "psnr" not in plain.metrics


def test_known_images_are_compared_before_any_attack_and_never_reach_it(perceptron):
    model, variables, batch, gradient = perceptron
    x = np.asarray(batch.x[:, 0])
    plain = audit.update(model, variables, gradient, batch_size=1)
    right = audit.update(model, variables, gradient, batch_size=1, truth=(x.transpose(0, 3, 1, 2), batch.y))
    assert right.findings[-1].name == "known images"
    assert right.findings[-1].status == "passed"
    np.testing.assert_array_equal(plain.best.x, right.best.x)
    later = jax.tree.map(lambda w, g: w - 0.02 * g, variables["params"], gradient)
    another_round = audit.update(model, {**variables, "params": later}, gradient, batch_size=1, truth=(x, batch.y))
    for wrong in (another_round, audit.update(model, variables, gradient, batch_size=1, truth=(1 - x, batch.y))):
        (finding,) = [finding for finding in wrong.findings if finding.name == "known images"]
        assert (wrong.verdict, finding.status) == ("inputs inconsistent", "failed")
        assert "another round" in finding.cause
        assert not wrong.answers


def test_a_score_is_said_beside_those_of_answers_without_a_gradient():
    truth = np.stack([np.zeros((4, 4, 1)), np.full((4, 4, 1), 0.8)])
    labels = np.array([0, 1])
    found, _ = scores((truth, labels), Answer("fedleak_400", np.full((2, 4, 4, 1), 0.5), np.array([0, 2]), 0.1, 0.1))
    assert found["psnr_mean_image"] == pytest.approx(-20 * np.log10(0.4))
    assert found["psnr_grey"] == pytest.approx(found["psnr"])
    grey, mean = f"{found['psnr_grey']:.1f} dB", f"{found['psnr_mean_image']:.1f} dB"
    said = _scored(found)
    assert said.startswith(f"PSNR {grey}, SSIM ")
    assert ", 50% of the labels. Without any gradient, " in said
    assert said.endswith(f"a grey image has {grey}, and the mean of the true images {mean}")
    single, _ = scores((truth[1:], None), Answer("fedleak_400", truth[1:], np.array([1]), 0.1, 0.1))
    assert "psnr_mean_image" not in single
    assert "labels" not in _scored(single)


def test_a_truth_is_read_in_either_order_and_refused_by_name():
    x = np.random.default_rng(0).random((2, 3, 4, 1))
    for given in (x, x.transpose(0, 3, 1, 2)):
        found, labels = check_truth((given, [0, 4]), 2, (3, 4, 1), 5)
        np.testing.assert_allclose(found, x, rtol=1e-6)
        assert labels.tolist() == [0, 4]
    assert check_truth((x, np.array([0.0, 4.0])), 2, (3, 4, 1), 5)[1].dtype == np.int64
    assert check_truth(None, 2, (3, 4, 1), 5) is None
    assert check_truth((np.stack([x[0], 0 * x[0] + 1]), None), 2, (3, 4, 1), 5)[1] is None  # 0 and 1 are valid pixels
    for truth, match in (
        ((x[:1], None), "truth must hold images of shape"),
        ((x + 1e-3 + (1 - x.max()), None), "truth must hold images in"),
        ((x - x.min() - 1e-3, None), "truth must hold images in"),
        ((x, [0]), "truth must hold 2 labels in"),
        ((x, [0, 5]), "truth must hold 2 labels in"),
        ((x, [-1, 0]), "truth must hold 2 labels in"),
        ((x, np.eye(5)[:2]), r"truth must hold 2 labels .* got shape \(2, 5\): one-hot rows .* by y.argmax"),
        ((x, [[0], [4]]), r"got shape \(2, 1\): labels of one column .* by y\[:, 0\]"),
        ((255 * x[:, :2].transpose(0, 3, 1, 2), None), r"channels come first.*, and images in.*divide by 255"),
        ((x, np.ones((2, 5))), "got shape .*: labels of several classes per image cannot be scored; give x alone"),
        ((x, np.zeros((2, 5))), "cannot be scored; give x alone"),  # without any finding
        ((x, np.full((2, 5), 0.2)), "cannot be scored; give x alone"),
        ((x, [0.5, 1.0]), "whole numbers"),
        ((x, [np.nan, 1.0]), "whole numbers"),
        ((x, ["0", "1"]), "whole numbers"),
    ):
        with pytest.raises(ValueError, match=match):
            check_truth(truth, 2, (3, 4, 1), 5)


def test_an_image_that_is_right_has_its_own_truth_beside_one_that_is_bad():
    rng = np.random.default_rng(0)
    a, b, c = (0.25 + 0.5 * rng.random((3, 8, 8, 1))).astype(np.float32)
    # The second image is nearly a. The first is so much further from b than from a that the least sum would swap them.
    bad = np.clip(2.5 * a - 1.5 * b, 0, 1)
    answer = Answer("fedleak_400", np.stack([bad, a + 0.01, c]), np.zeros(3, int), 0.0, 0.0, np.array([0.1, 1.0, 1.0]))
    truth = np.stack([a, b, c])
    found, ordered = scores((truth, None), answer)
    np.testing.assert_array_equal(ordered, np.stack([b, a, c]))
    assert found["psnr_each"][1] == pytest.approx(40, abs=0.1)
    for name in ("psnr", "ssim"):
        assert found[name] == pytest.approx(np.mean(np.minimum(found[f"{name}_each"], 200)))
    assert found["recognised"] == pytest.approx(2 / 3)
    assert found["ssim_max"] == max(found["ssim_each"])


def test_scores_are_those_of_the_metrics_and_the_truth_is_in_the_answers_order():
    x = 0.8 * np.random.default_rng(0).random((3, 8, 8, 1))
    shown = x[[2, 0, 1]]
    answer = Answer("fedleak_400", shown + 0.1, np.array([1, 1, 2]), 0.0, 0.0)
    found, ordered = scores((x, np.array([0, 1, 1])), answer)
    np.testing.assert_array_equal(ordered, shown)
    assert found["psnr"] == pytest.approx(20)
    assert found["label_accuracy"] == pytest.approx(2 / 3)
    singly = {name: found.pop(name) for name in ("psnr_each", "ssim_each", "psnr_mean_image")}
    assert found == metrics.image_scores(x, answer.x, true_labels=[0, 1, 1], labels=answer.y)[0]
    np.testing.assert_allclose(singly["psnr_each"], 20, rtol=1e-3)
    np.testing.assert_array_equal(singly["ssim_each"], metrics.ssim(shown, answer.x.clip(0, 1)))
    assert "label_accuracy" not in scores((x, None), answer)[0]
    assert "label_accuracy" not in scores((x, np.array([0, 1, 1])), answer._replace(y=np.array([1, -1, 2])))[0]
    assert _scored(found).startswith(f"PSNR 20.0 dB, SSIM {found['ssim']:.2f}, 67% of the labels. ")


def test_a_certificate_that_the_truth_contradicts_is_said_first_and_single_images_are_printed():
    x = 0.8 * np.random.default_rng(0).random((2, 8, 8, 1))
    wrong = np.stack([x[0], np.roll(x[1], 3, axis=0)])
    answer = Answer("fedleak_400", wrong, np.array([1, 2]), 0.0, 0.0, agreement=np.ones(2))
    numbers = scores((x, None), answer)[0]
    said = contradicted_by_truth(answer, numbers, x)
    assert said.startswith(
        "The truth contradicts a certificate. Images that are certified and are not the client's: 1 of 2"
    )
    assert f" (1.00, {numbers['ssim_each'][1]:.2f}). " in _scored(numbers)
    for fine in (
        answer._replace(agreement=np.array([1.0, 0.5])),  # the wrong one is not certified
        answer._replace(x=3 * wrong),  # pixels in another unit
    ):
        assert contradicted_by_truth(fine, numbers, x) == ""
    toned = answer._replace(toned=np.array([False, True]))
    for image, contradicts in (
        (0.2 * x[1] + 0.1, False),  # the tones are not certified
        (0.2 * x[0] + 0.1, False),  # a copy of the client's other image
        (0.8 - x[1], True),  # a negative has other shapes
        (wrong[1], True),
    ):
        assert bool(contradicted_by_truth(toned._replace(x=np.stack([x[0], image])), numbers, x)) == contradicts
    assert contradicted_by_truth(answer, scores((wrong, None), answer)[0], wrong) == ""
    assert contradicted_by_truth(None, {}, None) == ""
    unmatched = answer._replace(solved=True, cosine_distance=0.5)
    assert contradicted_by_truth(unmatched, numbers, x) == ""  # nothing is certified
    copy = answer._replace(x=x[[0, 0]])  # one of the client's images twice: `copied` warns of it
    assert contradicted_by_truth(copy, scores((x, None), copy)[0], x) == ""


@pytest.mark.parametrize(
    ("shape", "off", "said"),
    [
        ((8, 8, 1), 0.5, "images that the best attack found are the client's (an SSIM above 0.8)"),
        (
            (1, 9, 1), 0.05,
            "rows that the best attack found are the client's "
            "(a similarity (1 minus the largest difference) above 0.99)",
        ),
    ],
)  # fmt: skip
def test_images_without_a_certificate_that_the_truth_has_are_said_first(shape, off, said):
    x = 0.8 * np.random.default_rng(0).random((2, *shape))
    found = x.copy()
    found[1] += off * np.random.default_rng(1).choice([0, 1], shape)
    answer = Answer("fedleak_400", found, np.array([1, 2]), 0.0, 0.0, agreement=np.zeros(2))
    (first,) = recognised_by_truth(answer, scores((x, None), answer)[0])
    assert first.startswith(f"The truth says otherwise: 1 of the 2 {said}.")
    assert recognised_by_truth(answer, {}) == ()
    other = answer._replace(x=np.random.default_rng(2).random((2, *shape)))
    assert recognised_by_truth(other, scores((x, None), other)[0]) == ()


def test_another_image_than_an_exact_solution_is_told_however_alike_it_is():
    x = 0.8 * np.random.default_rng(0).random((1, 8, 8, 1))
    solved = Answer("dense_inputs", x, np.array([1]), 0.0, 0.0, solved=True)
    assert contradicted_by_truth(solved, scores((x, None), solved)[0], x) == ""
    other = x.copy()
    other[0, 0, 0] += 0.15
    assert metrics.ssim(x, other) > 0.9
    said = contradicted_by_truth(solved, scores((other, None), solved)[0], other)
    assert said.startswith("The truth is not the solution of the equations: 1 of 1 images")
    assert f"differ by up to 0.15 in a pixel (lowest SSIM {metrics.ssim(x, other)[0]:.2f})" in said


def test_images_without_labels_are_compared_with_the_update_by_the_labels_that_are_proven(perceptron):
    model, variables, batch, gradient = perceptron
    case = case_of(protocols.ClientShare(model), Observation(jnp.zeros((), jnp.int32), variables, gradient))
    answer = graded(case, "fedleak_400", np.asarray(batch.x[:, 0]), np.asarray(batch.y))
    proven = Labels.none(model.num_classes)._replace(proven=np.bincount(batch.y, minlength=model.num_classes))
    other = 1 - np.asarray(batch.x[:, 0])
    assert _of_another_update(case, answer, proven, np.asarray(batch.x[:, 0])) == ""
    assert "have an update that is" in _of_another_update(case, answer, proven, other)
    unproven = Labels.none(model.num_classes)
    for unknown in ((answer, unproven, other), (None, proven, other), (answer, proven, None)):
        assert _of_another_update(case, *unknown) == ""
    for cannot in (answer._replace(remainder=0.5, fitted_remainder=0.1), answer._replace(cosine_distance=0.5)):
        assert _of_another_update(case, cannot, proven, other) == ""
    assert _of_another_update(case._replace(defended=True), answer, proven, other) == ""


def test_images_without_labels_are_compared_in_every_order_of_the_labels(plain):
    seen = Observation(jnp.zeros((), jnp.int32), plain.variables, plain.gradient)
    case = case_of(plain.share, seen)._replace(samples=4)
    x, y = np.asarray(plain.batch.x[:, 0]), np.asarray(plain.batch.y)
    assert len(set(y.tolist())) > 1
    answer = graded(case, "fedleak_400", x, y)
    proven = Labels.none(plain.model.num_classes)._replace(proven=np.bincount(y, minlength=plain.model.num_classes))
    assert _of_another_update(case, answer, proven, x[::-1]) == ""
    assert "is hardly that of this update" in _of_another_update(case, answer, proven, 1 - x)


@pytest.mark.parametrize("shape", [(1, 12, 1), (4, 2, 3)])
def test_images_too_small_for_ssim_are_scored_without(shape):
    x = 0.8 * np.random.default_rng(0).random((1, *shape))
    found, _ = scores((x, None), Answer("fedleak_400", x + 0.1, np.array([1]), 0.0, 0.0))
    assert "ssim" not in found
    assert _scored(found) == f"PSNR 20.0 dB. Without any gradient, a grey image has {found['psnr_grey']:.1f} dB"


@pytest.mark.slow
def test_an_image_that_was_normalised_before_the_network_is_read_in_its_own_unit():
    model = models.mlp((4, 4, 1), 3, widths=(24,))
    variables = reference.drawn(model)
    x = 2 * reference.normal(1, 1, 4, 4, 1, seed=1)
    gradient = protocols.ClientShare(model)(variables, Batch(x, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
    verdict = audit.update(model, variables, gradient, batch_size=1, minutes=0.5)
    np.testing.assert_allclose(verdict.best.x, x[:, 0], atol=1e-3)
    assert verdict.headline == "leaks images and labels"
    assert any("input range: suspicious" in reason for reason in verdict.reasons)


def test_a_row_of_a_table_contradicts_its_certificate_by_the_largest_difference():
    rows = np.random.default_rng(0).random((2, 1, 1, 6))
    wrong = rows.copy()
    wrong[1, 0, 0, 2] = 1 - np.round(wrong[1, 0, 0, 2])
    answer = Answer("fedleak_400", wrong, np.array([1, 2]), 0.0, 0.0, agreement=np.ones(2))
    numbers = scores((rows, None), answer)[0]
    assert "ssim_each" not in numbers
    said = contradicted_by_truth(answer, numbers, rows)
    assert "1 of 2. The lowest similarity (1 minus the largest difference)" in said
    near = answer._replace(x=rows + 0.01)
    assert contradicted_by_truth(near, scores((rows, None), near)[0], rows) == ""
