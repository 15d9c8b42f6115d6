import ast
import contextlib
import math
import sys
import types
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from jaxleak import metrics


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    truth = rng.random((3, 12, 11, 3))
    return truth, np.clip(truth + 0.1 * rng.standard_normal(truth.shape), 0, 1)


def _slow_mse(a, b):
    errors = [(float(p) - float(q)) ** 2 for p, q in zip(np.ravel(a), np.ravel(b), strict=True)]
    return sum(errors) / len(errors)


def _slow_psnr(a, b, peak=1.0):
    return 20 * math.log10(peak) - 10 * math.log10(_slow_mse(a, b))


def test_mse_and_psnr_equal_slow_references(images):
    truth, estimate = images
    np.testing.assert_allclose(metrics.mse(truth, estimate), list(map(_slow_mse, truth, estimate)))
    np.testing.assert_allclose(metrics.psnr(truth, estimate), list(map(_slow_psnr, truth, estimate)))
    expected = [_slow_psnr(a, b, 255.0) for a, b in zip(truth, estimate, strict=True)]
    np.testing.assert_allclose(metrics.psnr(truth, estimate, peak=255), expected)


def test_psnr_of_a_known_error():
    np.testing.assert_allclose(metrics.psnr(np.zeros((1, 4)), np.full((1, 4), 0.1)), [20.0])


def test_float32_images_are_compared_in_float64():
    truth = np.ones((1, 4), np.float32)
    result = metrics.mse(truth, truth + np.float32(2**-20))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, 2.0**-40, rtol=1e-12)


def test_identical_images(images):
    truth, _ = images
    assert (metrics.mse(truth, truth) == 0).all()
    assert np.isposinf(metrics.psnr(truth, truth)).all()
    assert np.isposinf(metrics.psnr_channel_peak(truth, truth)).all()
    assert metrics.psnr_upstream(truth[:, None], truth[:, None]) == math.inf
    np.testing.assert_allclose(metrics.ssim(truth, truth), 1.0)


def test_channel_peak_uses_the_true_channel(images):
    truth, estimate = images
    truth = truth * [0.25, 0.5, 1.0]
    expected = [
        np.mean([_slow_psnr(a[..., c], b[..., c], a[..., c].max()) for c in range(3)])
        for a, b in zip(truth, estimate, strict=True)
    ]
    np.testing.assert_allclose(metrics.psnr_channel_peak(truth, estimate), expected)


def test_channel_peak_of_a_black_channel():
    truth, estimate = np.zeros((1, 2, 2, 1)), np.ones((1, 2, 2, 1))
    assert np.isneginf(metrics.psnr_channel_peak(truth, estimate)).all()
    both = np.concatenate([truth, truth], axis=-1), np.concatenate([truth, estimate], axis=-1)
    assert np.isnan(metrics.psnr_channel_peak(*both)).all()


def test_upstream_clips_and_averages_decibels_over_slices():
    rng = np.random.default_rng(1)
    truth = rng.random((2, 4, 3, 3, 1))
    estimate = truth + rng.standard_normal(truth.shape)
    assert estimate.max() > 1
    clipped = np.clip(estimate, 0, 1)
    by_party = [np.mean([_slow_psnr(truth[i, p], clipped[i, p]) for i in range(2)]) for p in range(4)]
    assert metrics.psnr_upstream(truth, estimate) == pytest.approx(np.mean(by_party))


def test_upstream_rates_no_lower_than_whole_images():
    truth = np.full((1, 2, 2, 2, 1), 0.5)
    estimate = truth + np.array([0.01, 0.4]).reshape(1, 2, 1, 1, 1)
    whole = metrics.psnr(truth, estimate)[0]
    assert metrics.psnr_upstream(truth, estimate) > whole + 5


def _slow_ssim_at(a, b, row, column, radius=5, sigma=1.5):
    """SSIM by Wang et al. 2004, eq. 13 with 14-16, at one pixel with its window inside the image."""
    total, pairs = 0.0, []
    for i in range(-radius, radius + 1):
        for j in range(-radius, radius + 1):
            weight = math.exp(-(i * i + j * j) / (2 * sigma**2))
            total += weight
            pairs.append((weight, a[row + i, column + j], b[row + i, column + j]))
    mean_a = sum(w * p for w, p, _ in pairs) / total
    mean_b = sum(w * q for w, _, q in pairs) / total
    var_a = sum(w * (p - mean_a) ** 2 for w, p, _ in pairs) / total
    var_b = sum(w * (q - mean_b) ** 2 for w, _, q in pairs) / total
    cov = sum(w * (p - mean_a) * (q - mean_b) for w, p, q in pairs) / total
    c1, c2 = 0.01**2, 0.03**2
    return (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))


def test_ssim_equals_a_slow_reference(images):
    truth, estimate = images
    expected = [
        np.mean([_slow_ssim_at(a[..., c], b[..., c], row, 5) for row in (5, 6) for c in range(3)])
        for a, b in zip(truth, estimate, strict=True)
    ]
    np.testing.assert_allclose(metrics.ssim(truth, estimate), expected, rtol=1e-9)


@pytest.mark.parametrize("side", [3, 4, 8, 10])
def test_ssim_of_small_images_uses_the_largest_window_that_fits(side):
    rng = np.random.default_rng(2)
    truth, estimate = rng.random((2, side, side, 1)), rng.random((2, side, side, 1))
    radius = ((side if side % 2 else side - 1) - 1) // 2
    inner = range(radius, side - radius)
    wide = [np.pad(z[..., 0], ((0, 0), (5, 5), (5, 5)), mode="symmetric") for z in (truth, estimate)]
    expected = [
        np.mean([_slow_ssim_at(a, b, r + 5, c + 5) for r in inner for c in inner]) for a, b in zip(*wide, strict=True)
    ]
    np.testing.assert_allclose(metrics.ssim(truth, estimate), expected, rtol=1e-9)
    np.testing.assert_allclose(metrics.ssim(truth, truth), 1.0)


def test_a_common_factor_is_found_before_pixels_are_clipped(images):
    truth, _ = images
    assert metrics.image_scores(truth, 3 * truth)[0]["psnr_up_to_scale"] == 200


def test_ssim_refuses_what_has_no_structure():
    with pytest.raises(ValueError, match="at least 3x3 pixels, got 2x9"):
        metrics.ssim(np.zeros((1, 2, 9, 1)), np.zeros((1, 2, 9, 1)))


def test_labels_are_lists_of_one_axis():
    with pytest.raises(ValueError, match=r"labels must have shape \(N,\)"):
        metrics.label_accuracy([[0, 1]], [[0, 1]])
    assert metrics.label_accuracy([3], [3]) == metrics.label_multiset_accuracy([3], [3]) == 1
    with pytest.raises(ValueError, match="labels must be integers, got dtype float64"):
        metrics.label_multiset_accuracy([0.0, 1.0], [0, 1])


def test_label_accuracy():
    assert metrics.label_accuracy([0, 1, 2, 2], [0, 2, 2, 1]) == 0.5


def test_balanced_label_accuracy_weighs_classes_alike():
    truth, estimate = [0, 0, 0, 0, 3, 3], [0, 0, 0, 1, 3, 0]
    assert metrics.balanced_label_accuracy(truth, estimate) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert metrics.balanced_label_accuracy(truth, [0] * 6) == 0.5  # the most frequent class alone
    assert metrics.balanced_label_accuracy([1], [1]) == 1.0
    with pytest.raises(ValueError, match="integers"):
        metrics.balanced_label_accuracy([0, 1], [0.0, 1.0])


@pytest.mark.parametrize("score", [metrics.label_accuracy, metrics.balanced_label_accuracy])
def test_a_sample_without_an_answer_is_no_wrong_answer(score):
    with pytest.raises(ValueError, match=r"^estimate must hold labels >= 0, got -1 among 2 negative ones of 4: "):
        score([0, 1, 0, 1], [0, -1, -1, 1])
    assert score([0, 1], [0, 1]) == 1.0


@pytest.mark.parametrize(
    ("truth", "estimate", "share"),
    [
        ([1, 1, 2, 3], [3, 1, 1, 2], 1.0),
        ([1, 1, 2, 3], [1, 1, 1, 1], 0.5),
        ([1, 2, 3, 4], [1, 1, 1, 1], 0.25),
        ([0, 0], [-1, 7], 0.0),
    ],
)
def test_label_multiset_accuracy_counts_repeats(truth, estimate, share):
    assert metrics.label_multiset_accuracy(truth, estimate) == share


def test_matching_undoes_a_shuffle():
    rng = np.random.default_rng(3)
    truth = rng.random((20, 4, 4, 1))
    shuffle = rng.permutation(20)
    noisy = truth[shuffle] + 0.01 * rng.standard_normal(truth.shape)
    found = metrics.match_one_to_one(truth, noisy)
    np.testing.assert_array_equal(shuffle[found], np.arange(20))


def test_matching_is_the_best_of_all_pairings():
    rng = np.random.default_rng(4)
    truth, estimate = rng.random((5, 2)), rng.random((5, 2))
    best = max(metrics.psnr(truth, estimate[list(p)]).mean() for p in permutations(range(5)))
    found = metrics.match_one_to_one(truth, estimate)
    assert metrics.psnr(truth, estimate[found]).mean() == pytest.approx(best)


def test_an_exact_image_is_matched_with_itself_whatever_the_others_are():
    truth = np.stack([np.full((8, 8, 1), 0.5), np.full((8, 8, 1), 0.7)])
    truth[:, ::2] += 0.1
    estimate = np.stack([truth[0], truth[0] - 0.4])  # least squares would match the first image with the second truth
    swapped = metrics.mse(truth, estimate[[1, 0]]).sum()
    assert swapped < metrics.mse(truth, estimate).sum()
    assert metrics.match_one_to_one(truth, estimate).tolist() == [0, 1]
    assert metrics.image_scores(truth, estimate)[0]["ssim_max"] == 1.0
    assert metrics.match_one_to_one(truth[::-1], estimate).tolist() == [1, 0]


def test_matching_refuses_non_finite_values():
    with pytest.raises(ValueError, match="estimate must be finite"):
        metrics.match_one_to_one(np.zeros((2, 3)), np.full((2, 3), np.nan))


def test_best_match_looks_at_every_pair_and_shares():
    rng = np.random.default_rng(4)
    truth, estimates = rng.random((5, 3, 2)), rng.random((4, 3, 2))
    slow = [max(_slow_psnr(t, e) for e in estimates) for t in truth]
    np.testing.assert_allclose(metrics.best_match_psnr(truth, estimates), slow)
    np.testing.assert_allclose(metrics.best_match_psnr(255 * truth, 255 * estimates, 255.0), slow)
    choice = metrics.match_best(truth, estimates)
    np.testing.assert_allclose([_slow_psnr(t, estimates[c]) for t, c in zip(truth, choice, strict=True)], slow)
    blur = np.concatenate([truth[:1], np.full((4, 3, 2), 9.0)])  # one output serves all five
    assert metrics.match_best(truth, blur).tolist() == [0] * 5
    one_to_one = metrics.psnr(truth[:4], estimates[metrics.match_one_to_one(truth[:4], estimates)])
    assert (metrics.best_match_psnr(truth[:4], estimates) >= one_to_one - 1e-9).all()


def test_scores_of_constant_images(images):
    truth, _ = images
    np.testing.assert_allclose(metrics.grey_psnr(truth), [_slow_psnr(t, np.full_like(t, 0.5)) for t in truth])
    np.testing.assert_allclose(metrics.grey_psnr(255 * truth, 255.0), metrics.grey_psnr(truth))
    own = []
    for t in truth:
        flat = np.empty_like(t)
        for c in range(3):
            flat[..., c] = sum(t[..., c].ravel()) / t[..., c].size
        own.append(_slow_psnr(t, flat))
    np.testing.assert_allclose(metrics.mean_color_psnr(truth), own)
    assert (metrics.mean_color_psnr(truth) >= metrics.grey_psnr(truth)).all()
    assert np.isposinf(metrics.mean_color_psnr(np.full((1, 2, 2, 3), 0.3))).all()


def test_a_score_up_to_scale_is_that_of_the_best_factor(images):
    truth, estimate = images
    dim = 0.3 * estimate
    best = max((_slow_psnr(truth[:1], factor * dim[:1]), factor) for factor in np.linspace(2, 5, 3001))
    np.testing.assert_allclose(metrics.psnr_up_to_scale(truth[:1], dim[:1]), best[0], atol=1e-4)
    whole = np.vdot(truth, dim) / np.vdot(dim, dim)
    for peak in (1.0, 2.0):
        expected = [_slow_psnr(t, whole * d, peak) for t, d in zip(truth, dim, strict=True)]
        np.testing.assert_allclose(metrics.psnr_up_to_scale(truth, dim, peak), expected)
    np.testing.assert_array_equal(metrics.psnr_up_to_scale(truth, dim), metrics.psnr_up_to_scale(truth, dim, 1.0))
    np.testing.assert_array_equal(metrics.psnr_up_to_scale(truth, 0 * dim), metrics.psnr(truth, 0 * dim))


def test_a_tint_is_the_line_of_least_squares_of_every_channel(images):
    wanted, found = images
    tinted = metrics.tinted_like(wanted, found)
    for image, channel in np.ndindex(3, 3):
        x, y = found[image, ..., channel], wanted[image, ..., channel]
        gain, offset = np.polyfit(x.ravel(), y.ravel(), 1)
        np.testing.assert_allclose(tinted[image, ..., channel], gain * x + offset, atol=1e-9)
    flat = metrics.tinted_like(wanted, np.zeros_like(wanted))
    np.testing.assert_allclose(flat, np.broadcast_to(wanted.mean(axis=(1, 2), keepdims=True), wanted.shape))
    with pytest.raises(ValueError, match="4 axes"):
        metrics.tinted_like(wanted[0], found[0])


@pytest.fixture
def network(tmp_path, monkeypatch):
    """A stub of LPIPS, PyTorch and torchvision that records its inputs and returns 2 (a - b)."""
    made = {}

    class Network:
        def __init__(self, **options):
            made["options"], self.net = options, self

        def state_dict(self):
            return {"slice1.0.weight": None, "slice2.3.bias": None}

        def load_state_dict(self, tensors):
            made["tensors"] = tensors

        def __call__(self, a, b, normalize):
            made["shapes"], made["normalize"] = (a.shape, b.shape), normalize
            return types.SimpleNamespace(numpy=lambda: 2 * (a - b)[:, -1:, 1:2, 2:3])

    def load(path, **options):
        made["path"], made["load"] = path, options
        return {"features.0.weight": "first", "features.3.bias": "second", "classifier.6.bias": "not read"}

    weights = types.SimpleNamespace(IMAGENET1K_V1=types.SimpleNamespace(url="https://host/folder/alexnet-1.pth"))
    fakes = {
        "lpips": {"LPIPS": Network},
        "torchvision": {"models": types.SimpleNamespace(AlexNet_Weights=weights)},
        "torch": {
            "hub": types.SimpleNamespace(get_dir=lambda: str(tmp_path)),
            "load": load,
            "no_grad": contextlib.nullcontext,
            "tensor": lambda x, dtype: x.astype(dtype),
            "float32": np.float32,
        },
    }
    for name, parts in fakes.items():
        module = types.ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "alexnet-1.pth").touch()
    return made


@pytest.mark.parametrize("channels", [1, 3])
def test_lpips_reads_colour_images_with_the_channels_first(network, tmp_path, channels):
    truth, estimate = np.random.default_rng(0).random((2, 2, 32, 33, channels))
    scores = metrics.lpips(truth, estimate)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, 2 * (truth - estimate)[:, 1, 2, -1], rtol=1e-6)
    assert network == {
        "options": {"net": "alex", "pnet_rand": True, "verbose": False},
        "tensors": {"slice1.0.weight": "first", "slice2.3.bias": "second"},
        "shapes": ((2, 3, 32, 33), (2, 3, 32, 33)),
        "normalize": True,
        "path": tmp_path / "checkpoints" / "alexnet-1.pth",
        "load": {"map_location": "cpu", "weights_only": True},
    }


def test_lpips_refuses_small_images_and_other_channels_and_downloads_nothing(network, tmp_path):
    for shape in ((1, 31, 32, 3), (1, 32, 31, 3), (1, 32, 32, 2), (1, 32, 32, 4)):
        with pytest.raises(ValueError, match="at least 32x32 pixels with 1 or 3 channels"):
            metrics.lpips(np.zeros(shape), np.zeros(shape))
    (tmp_path / "checkpoints" / "alexnet-1.pth").unlink()
    with pytest.raises(FileNotFoundError, match=r"put alexnet-1\.pth into .*checkpoints"):
        metrics.lpips(np.zeros((1, 32, 32, 3)), np.zeros((1, 32, 32, 3)))


def test_best_match_and_constant_images_refuse_bad_input():
    with pytest.raises(ValueError, match=r"samples of one shape, got \(2, 3\) and \(2, 4\)"):
        metrics.match_best(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="samples of one shape"):
        metrics.best_match_psnr(np.zeros((2, 3)), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="estimate must be finite"):
        metrics.best_match_psnr(np.zeros((2, 3)), np.full((1, 3), np.inf))
    with pytest.raises(ValueError, match="peak must be > 0"):
        metrics.grey_psnr(np.zeros((2, 3)), 0.0)
    with pytest.raises(ValueError, match="4 axes"):
        metrics.mean_color_psnr(np.zeros((2, 3)))


@pytest.mark.parametrize("name", sorted(set(metrics.__all__) - {"feature_variance", "grey_psnr", "mean_color_psnr"}))
def test_shape_mismatch_names_both_shapes(name):
    shapes = ((3,), (4,)) if "label" in name else ((2, 4, 4, 1), (2, 4, 4, 3))
    truth, estimate = (np.zeros(shape, np.int64) for shape in shapes)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - both shapes are looked for below
        getattr(metrics, name)(truth, estimate)
    assert str(shapes[0]) in str(caught.value)
    assert str(shapes[1]) in str(caught.value)


@pytest.mark.parametrize("name", ["psnr_channel_peak", "ssim", "psnr_upstream"])
def test_number_of_axes_is_checked(name):
    with pytest.raises(ValueError, match=r"must have [45] axes .* got \(2, 3\)"):
        getattr(metrics, name)(np.zeros((2, 3)), np.zeros((2, 3)))


def test_bad_labels_and_peaks():
    with pytest.raises(ValueError, match="labels must be integers, got dtype float64"):
        metrics.label_accuracy([0, 1], [0.0, 1.0])
    with pytest.raises(ValueError, match=r"labels must have shape \(N,\) with N > 0, got \(0,\)"):
        metrics.label_accuracy([], [])
    with pytest.raises(ValueError, match="no axis of length 0"):
        metrics.mse(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="peak must be > 0, got 0"):
        metrics.psnr(np.zeros((1, 3)), np.zeros((1, 3)), peak=0)


def test_attacks_do_not_import_metrics():
    attacks = Path(metrics.__file__).parents[1] / "attacks"
    for source in attacks.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                assert not any("metrics" in name for name in names), source


def test_a_mean_does_not_hide_the_image_that_is_read_in_full():
    truth = np.random.default_rng(0).random((4, 12, 12, 1))
    estimate = np.full_like(truth, 0.5)
    estimate[3] = truth[1] * 0.99
    scores, order = metrics.image_scores(truth, estimate)
    assert order[1] == 3
    assert scores["ssim"] < 0.5
    assert scores["recognised"] == 0.25
    assert scores["ssim_max"] > 0.99
    assert "label_accuracy" not in scores


def test_scores_of_a_batch_are_those_of_the_single_measures_after_clipping_and_matching(images):
    truth, near = images
    estimate = near[::-1] * 3 - 1
    clipped = np.clip(estimate, 0, 1)[::-1]
    scores, order = metrics.image_scores(truth, estimate, true_labels=[0, 1, 1], labels=[1, 0, 2])
    assert order.tolist() == [2, 1, 0]
    expected = {
        "psnr": metrics.psnr(truth, clipped).mean(),
        "psnr_best_match": metrics.best_match_psnr(truth, clipped).mean(),
        "psnr_up_to_scale": np.maximum(
            metrics.psnr_up_to_scale(truth, clipped), metrics.psnr_up_to_scale(truth, estimate[::-1])
        ).mean(),
        "ssim": metrics.ssim(truth, clipped).mean(),
        "ssim_max": metrics.ssim(truth, clipped).max(),
        "recognised": (metrics.ssim(truth, clipped) > 0.8).mean(),
        "psnr_grey": metrics.grey_psnr(truth).mean(),
        "label_accuracy": 2 / 3,
    }
    assert scores == pytest.approx(expected)
    exact, _ = metrics.image_scores(truth, np.concatenate([truth[:1], clipped[1:]]))
    assert exact["psnr"] == pytest.approx((200 + metrics.psnr(truth, clipped)[1:].sum()) / 3)
    table, _ = metrics.image_scores(truth[:, :1], truth[:, :1] / 2)
    assert set(table) == {"psnr", "psnr_best_match", "psnr_up_to_scale", "psnr_grey"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (x - 0.5) / 0.2, r"truth must hold pixels in \[0, 1\], got -2.5 to 2.5: undo the normalisation"),
        (lambda x: 255 * x, r"got 0.* to 25\d: .* or divide by 255"),
        (lambda x: np.uint8(255 * x), "or divide by 255"),
        (lambda x: x.transpose(0, 3, 1, 2)[..., :11, :], r"got \(3, 3, 11, 11\), whose channels seem to come first"),
        (lambda x: np.where(x > 0.5, np.nan, x), "truth must hold finite pixels"),
        (lambda x: np.where(x > 0.5, np.inf, x), "truth must hold finite pixels"),
        (lambda x: x[0], r"got \(12, 11, 3\): add the axis of images, x\[None\]"),
        (lambda x: x[:, None], r"got \(3, 1, 12, 11, 3\): take one party's part, x\[:, 0\]"),
    ],
)
def test_true_images_on_another_scale_or_in_another_order_are_refused(images, change, message):
    truth, estimate = map(change, images)
    with pytest.raises(ValueError, match=message):
        metrics.image_scores(truth, estimate)


@pytest.mark.parametrize("change", [lambda x: 255 * x, lambda x: (x - 0.5) / 0.25])
def test_an_estimate_of_another_unit_is_suspected(images, change, caplog):
    truth, estimate = images
    metrics.image_scores(truth, np.clip(estimate, 0, 1))
    assert not caplog.records
    metrics.image_scores(truth, change(np.clip(estimate, 0, 1)))
    assert "of the estimate's pixels lie outside [0, 1]" in caplog.text


def test_images_that_are_scored_as_they_are(images):
    truth, estimate = images
    with pytest.raises(ValueError, match="estimate must hold finite pixels"):
        metrics.image_scores(truth, np.where(estimate > 0.5, np.inf, estimate))
    rounded = metrics.image_scores(truth * (1 + 2e-6) - 1e-6, estimate)[0]
    assert rounded == pytest.approx(metrics.image_scores(truth, estimate)[0], rel=1e-3)
    # Tables (images of one row), images with two or five channels or with three rows, and signals of many leads.
    for shape in ((2, 1, 9, 1), (2, 1, 9, 2), (2, 8, 8, 2), (2, 8, 8, 5), (2, 3, 8, 3), (2, 1, 1, 30), (2, 4, 16, 12)):
        metrics.image_scores(np.full(shape, 0.25), np.full(shape, 0.5))


class TestFeatures:
    TRUTH = np.array([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0]])
    ESTIMATE = np.array([[1.0, 10.0], [2.0, 12.0], [4.0, 10.0]])

    def test_scores_by_hand(self):
        assert metrics.feature_mse(self.TRUTH, self.ESTIMATE) == pytest.approx(5 / 6)
        assert metrics.feature_r2(self.TRUTH, self.ESTIMATE) == pytest.approx(1 - 5 / 8)
        assert metrics.feature_r2(self.TRUTH, self.TRUTH) == 1
        assert metrics.feature_r2(self.TRUTH, np.broadcast_to(self.TRUTH.mean(axis=0), (3, 2))) == 0

    @pytest.mark.parametrize("samples", [[0, 2], np.array([True, False, True])])
    def test_only_samples_that_count_are_scored(self, samples):
        assert metrics.feature_mse(self.TRUTH, self.ESTIMATE, samples) == pytest.approx(1 / 4)
        assert metrics.feature_r2(self.TRUTH, self.ESTIMATE, samples) == pytest.approx(1 - 1 / 8)

    def test_entries_that_do_not_count_change_nothing(self):
        entries = np.array([[True, True], [True, False], [False, True]])
        for fill in (0.0, np.nan):  # placeholder for a missing value
            truth = np.where(entries, self.TRUTH, fill)
            assert metrics.feature_mse(truth, self.ESTIMATE, entries=entries) == pytest.approx(1 / 4)
            assert metrics.feature_r2(truth, self.ESTIMATE, entries=entries) == pytest.approx(1 - 1 / 2)
            assert metrics.feature_mse(truth, self.ESTIMATE, [1, 2], entries=entries) == 0
            assert metrics.feature_variance(truth, entries=entries) == pytest.approx(2 / 4)
            assert metrics.feature_variance(truth, [0, 1], entries=entries) == pytest.approx(2 / 3)

    def test_what_has_no_score_is_refused(self):
        for score in (metrics.feature_mse, metrics.feature_r2):
            with pytest.raises(ValueError, match=r"entries must be bool of shape \(3, 2\), got bool of shape \(3, 1\)"):
                score(self.TRUTH, self.ESTIMATE, entries=np.ones((3, 1), bool))
            with pytest.raises(ValueError, match=r"entries must be bool of shape \(3, 2\), got int64"):
                score(self.TRUTH, self.ESTIMATE, entries=np.ones((3, 2), int))
            with pytest.raises(ValueError, match="entries must leave at least one entry that counts"):
                score(self.TRUTH, self.ESTIMATE, [0], entries=np.array([[False] * 2, [True] * 2, [True] * 2]))
            with pytest.raises(ValueError, match=r"victims' columns alone, got padded samples of shape \(3, 1, 2\)"):
                score(self.TRUTH[:, None], self.ESTIMATE[:, None])
            with pytest.raises(ValueError, match="must have one shape"):
                score(self.TRUTH, self.ESTIMATE[:, :1])
            with pytest.raises(ValueError, match="leave at least one sample"):
                score(self.TRUTH, self.ESTIMATE, np.zeros(3, bool))
            with pytest.raises(ValueError, match=r"of each of 3 samples whether it counts, got \(2,\)"):
                score(self.TRUTH, self.ESTIMATE, np.ones(2, bool))
        with pytest.raises(ValueError, match="truth must vary"):
            metrics.feature_r2(self.TRUTH[:, 1:], self.ESTIMATE[:, 1:])
        with pytest.raises(ValueError, match="truth must vary"):  # the mean is not 0.1 in floating point
            metrics.feature_r2(np.full((7, 1), 0.1), np.full((7, 1), 0.2))

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_has_no_score_unless_its_sample_does_not_count(self, bad):
        spoilt = np.array(self.TRUTH)
        spoilt[1, 0] = bad
        for score in (metrics.feature_mse, metrics.feature_r2):
            with pytest.raises(ValueError, match=f"^truth must be finite where samples count, got {bad} in column 0"):
                score(spoilt, self.ESTIMATE)
            with pytest.raises(ValueError, match=f"^estimate must be finite where samples count, got {bad}"):
                score(self.TRUTH, spoilt, [0, 1])
            assert score(self.TRUTH, spoilt, [0, 2]) == score(self.TRUTH, self.TRUTH, [0, 2])


def test_no_scale_turns_an_image_into_its_negative():
    truth = np.random.default_rng(0).normal(size=(2, 4, 4, 1))
    assert np.isfinite(metrics.psnr_up_to_scale(truth, -truth)).all()
    np.testing.assert_allclose(metrics.psnr_up_to_scale(truth, -truth), metrics.psnr(truth, 0 * truth))
