"""`experiments.invert`: inputs that it refuses by the names of its options, and its statements of what is granted."""

import inspect
from dataclasses import asdict, replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import invert
from jaxleak import models
from jaxleak._command.invert import report
from jaxleak._command.invert import run as command
from jaxleak._tree import named_leaves
from jaxleak.attacks import client_updates, presets
from jaxleak.audit import Agreement
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import RunFolder
from jaxleak.study.updates import (
    Case,
    Outcome,
    build_model,
    check,
    check_effect,
    observe,
    resolved,
    settings_as_run,
    victim,
    where_seen,
)


def test_whoever_asks_for_nothing_gets_the_first_images_and_no_switch():
    case = Case()
    assert (case.skip, case.taken, case.batch_size, case.local_steps, case.clients) == (0, case.pool, 1, 1, 1)
    switches = {name: value for name, value in asdict(case).items() if isinstance(value, bool)}
    assert switches == dict.fromkeys(switches, False)


_SMALL = {"model": "mlp", "data": "digits", "pool": 8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attack": "guess"},
            "attack must be FILE.py:NAME of your own or one of dlg, .*patch_embedding, spear, got 'guess'",
        ),
        ({"model": "alexnet"}, "model must be FILE.py:NAME of your own or one of lenet"),
        ({"data": "imagenet"}, "a data specification must be one of adult"),
        (
            {"data": "digits", "pool": 5000},
            "digits has 1797 samples, fewer than the 5000 asked for: choose a smaller --pool",
        ),
        ({"pool": 0}, "pool must be > 0"),
        ({"local_steps": 0}, "local_steps must be > 0"),
        ({"matched_percent": 200.0}, r"matched_percent must be in \[0, 100\]"),
        ({"homotopy": (0.0, 5.0)}, "homotopy must be > 0"),
        ({"homotopy": (5.0, 1.0)}, "homotopy must not fall, got 5.0 to 1.0"),
        ({"activation_penalty": -1.0}, "activation_penalty must be >= 0"),
        ({"tv": -1.0}, "tv must be >= 0"),
        ({"probe": "descent"}, "probe changes blend, so blend must be given too"),
        ({"probe_length": 0.1}, "probe_length changes blend, so blend must be given too"),
        ({"blend": 0.5, "probe_length": 0.0}, "length must be > 0"),
        ({"blend": 0.5, "probe": "step", "probe_length": 0.1}, "probe_length would not be read"),
        ({"exact_curvature": True}, "exact_curvature changes blend, so blend must be given too"),
        ({"reselect": True}, "reselect changes blend, so blend must be given too"),
        ({"blend": 0.5, "probe": "step", "exact_curvature": True}, "exact needs a probe along the gradient"),
        ({"per_tensor": True}, "per_tensor changes matched_percent, so matched_percent must be given too"),
        ({"tv_kind": "bent"}, "tv_kind must be one of anisotropic, isotropic"),
        ({"mean": (0.5,)}, "mean changes std, so std must be given too"),
        ({"mean": (0.5,), "std": (0.5,)}, "one entry for each of 3 channels"),
        ({"finish": 0.2}, "finish changes homotopy, so homotopy must be given too"),
        ({"progress_below": 0.2}, "progress_below changes homotopy, so homotopy must be given too"),
        ({"homotopy": (1.0, 5.0), "progress_below": 0.0}, "progress_below must be > 0"),
        ({"homotopy": (1.0, 5.0), "exact_kinks": True}, "exact_kinks attacks without smoothing"),
        ({"granted_statistics": True}, "granted_statistics is read by gradinversion only, got attack fedleak"),
        ({"attack": "gradinversion", "granted_statistics": True, "model": "mlp", "data": "digits"}, "keeps none"),
        ({"epoch_copies": 1.0, "local_epochs": 2}, "local_epochs > 1 and local_steps > 1, got 2 and 1"),
        ({"epoch_copies": 1.0, "local_steps": 2}, "local_epochs > 1 and local_steps > 1, got 1 and 2"),
        ({"epoch_copies": 1.0, "local_epochs": 2, "local_steps": 2, "estimate": True}, "estimate and adaptive replace"),
        ({"epoch_copies": -1.0, "local_epochs": 2, "local_steps": 2}, "epoch_copies must be >= 0"),
        ({"far": True}, "far is read by row_space only, got attack fedleak"),
        ({"attack": "row_space", "model": "resnet10", "iterations": 4000, "far": True}, "iterations must be > 4470"),
        ({"step_size": 0.01}, "step_size changes optimizer, so optimizer must be given too"),
        ({"optimizer": "adam", "step_size": 0.0}, "step_size must be > 0"),
        ({"noise_scale": 0.1}, "noise_scale is read by bayes only, got attack fedleak"),
        ({"attack": "bayes", "noise_scale": 0.0}, "noise_scale must be > 0"),
        ({"attack": "bayes", "noise": "pink"}, "noise must be one of gaussian, laplace"),
        (
            {"attack": "bayes", "noise": "laplace", "terms": ("cosine",)},
            "terms replace the likelihood of noise, so noise would not be read; give one or the other",
        ),
        ({"attack": "bayes", "noise_scale": 0.1, "terms": ("l1",)}, "so noise_scale would not be read"),
        ({"attack": "dlg", "tv_kind": "isotropic"}, "variation that dlg weighs with 0 here; give tv > 0 as well"),
        ({"attack": "sapag", "tv_kind": "sum"}, "variation that sapag weighs with 0 here"),
        ({"tv": 0.0, "tv_kind": "relative"}, "variation that fedleak weighs with 0 here"),
        ({"momentum": 0.9}, "momentum changes nothing where one client uploads the gradient of one step"),
        ({"estimate": True}, "estimate changes nothing where one client uploads the gradient of one step"),
        ({"loss": "other"}, "loss must be known to this attack, got 'other'; jaxleak audit --loss other works without"),
        ({"federation": 7}, "federation divides the pool of a skewed partition, and iid is none"),
        ({"attack": "dlg", "exact_kinks": True}, "exact_kinks changes nothing, since dlg smooths no kinks"),
        (_SMALL | {"batch_norm": "eval"}, "batch_norm changes nothing, since mlp has no batch normalisation"),
        (_SMALL | {"white_point": 0.9}, "white_point changes nothing, since mlp has no batch normalisation"),
        (
            _SMALL | {"homotopy": (1.0, 30.0), "activation": "sigmoid"},
            "homotopy .* since mlp with sigmoid has no kinks",
        ),
        (_SMALL | {"exact_kinks": True, "activation": "sigmoid"}, "exact_kinks .* since mlp with sigmoid has no kinks"),
        ({"public_data": "synthetic"}, "public_data is read by ggl and rog only, got attack fedleak"),
        ({"attack": "ggl", "generator": True}, "in place of the trained generator of ggl"),
        ({"attack": "patch_embedding", "tv": 0.1}, "patch_embedding has a closed form and does not read tv"),
        ({"attack": "rog", "data": "digits", "pool": 1797}, "digits leaves 0 public images"),
    ],
)
def test_refusals_name_the_option_and_come_before_the_grant(tmp_path, capsys, options, message):
    with pytest.raises(ValueError, match=message):
        invert.main(invert.Args(Case(**options), out=tmp_path))
    assert "granted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 2, "learning_rate": 0.5, "momentum": 0.9, "estimate": True},
        {"learning_rate": 0.5},  # accepted, since a stored run of one step has this option
        {"clients": 2, "estimate": True},  # the estimate normalises all images together
        {"partition": "label_skew:2", "federation": 7},
        {"model": "convnet_ig", "batch_norm": "eval", "white_point": 0.9, "exact_kinks": True},
        {"attack": "dlg", "tv": 0.1, "tv_kind": "isotropic", "homotopy": (1.0, 30.0)},
        {"attack": "bayes", "terms": ("cosine",)},
    ],
)
def test_options_with_an_effect_are_not_refused(options):
    case = Case(**options)
    check(case)
    check_effect(case, build_model(case, (32, 32, 3), 3))


def test_another_round_attacks_other_images_as_the_help_says():
    case = Case(**_SMALL, batch_size=2)
    side = victim(case, 0)
    first, again, later = (observe(replace(case, attacked_round=t), 0, side)[1].index.tolist() for t in (0, 0, 3))
    assert first == again != later
    assert "Another round draws other images of the client's" in inspect.getsource(Case)


def test_options_of_single_attacks_reach_their_settings():
    granted = Case(attack="gradinversion", granted_statistics=True)
    statistics = presets.gradinversion(granted_statistics=True).weight("batch_norm")
    assert resolved(granted).settings.weight("batch_norm") == statistics > 0
    assert resolved(granted).threat.statistics
    assert not resolved(replace(granted, granted_statistics=False)).threat.statistics
    a, b = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.5, 0.0])}
    noisy = Case(attack="bayes", noise_scale=0.5)
    assert resolved(noisy).settings.gradients.distance(a, b) == pytest.approx((0.5**2 + 2**2) / (2 * 0.5**2))
    assert resolved(replace(noisy, noise="laplace")).settings.gradients.distance(a, b) == pytest.approx((0.5 + 2) / 0.5)
    waiting = Case(homotopy=(1.0, 5.0), finish=0.1, progress_below=0.3)
    assert resolved(waiting).settings.smoothing == client_updates.smoothing(1.0, 5.0, finish=0.1, progress_below=0.3)


def test_options_of_every_attack_reach_its_settings():
    plain = resolved(Case()).settings
    assert resolved(Case(tv=0.25)).settings.weight("tv") == 0.25 != plain.weight("tv")
    assert resolved(Case(activation_penalty=0.5)).settings.weight("activation") == 0.5 != plain.weight("activation")
    kinds = {prior.name: prior.kind for _, prior in resolved(Case(tv_kind="isotropic")).settings.priors}
    assert kinds["tv"] == "isotropic" != {prior.name: prior.kind for _, prior in plain.priors}["tv"]
    assert resolved(Case(white_point=0.75)).settings.white_point == 0.75
    assert resolved(Case(exact_kinks=True)).settings.smoothing is None
    assert resolved(Case(labels="joint")).settings.labels == "joint"
    a, b = {"w": jnp.array([1.0, -2.0, 0.0])}, {"w": jnp.array([0.5, 0.0, 4.0])}
    assert resolved(Case(terms=("squared_l2",))).settings.gradients.distance(a, b) == pytest.approx(0.25 + 4 + 16)
    assert resolved(Case(terms=("l1", "squared_l2"))).settings.gradients.distance(a, b) == pytest.approx(6.5 + 20.25)
    chosen = resolved(Case(matched_percent=34.0)).settings.gradients.selection(a, b)
    assert sum(int(leaf.sum()) for leaf in jax.tree.leaves(chosen)) == 2
    assert resolved(Case(blend=0.5)).settings.regularization.blend == 0.5 != plain.regularization.blend


def test_an_attack_of_a_closed_form_has_no_settings_and_one_iteration():
    closed = resolved(Case(attack="patch_embedding"))
    assert (closed.iterations, closed.leaves(None)) == (1, None)
    with pytest.raises(ValueError, match="patch_embedding has a closed form and no settings"):
        _ = closed.settings
    assert resolved(Case(iterations=7)).iterations == 7


def test_sizes_of_a_case():
    assert Case(batch_size=2, local_steps=3, clients=5).images == 30
    assert Case(skip=5, pool=7).taken == 12


def test_what_is_just_allowed_is_checked_and_taken():
    for allowed in (
        {"homotopy": (2.0, 2.0)},
        {"matched_percent": 100.0},
        {"activation_penalty": 0.0},
        {"tv": 0.0},
        {"width": 1, "model": "resnet10"},
        {"microbatch": 1},
        {"defense": "error_feedback", "strength": 10.0},
        {"defense": "gaussian", "strength": 0.1, "attacked_round": 3},
        {"attack": "patch_embedding"},
    ):
        check(Case(**allowed))
    for refused, message in (
        ({"matched_percent": 0.0}, "matched_percent must be > 0"),
        ({"width": 0}, "width must be > 0"),
        ({"microbatch": 0}, "microbatch must be > 0"),
        ({"skip": -1}, "skip must be >= 0"),
        ({"attack": "patch_embedding", "batch_size": 2}, "one image behind one gradient, got 2 images"),
        ({"attack": "patch_embedding", "local_epochs": 3}, "one gradient, got 3 steps"),
        ({"attack": "patch_embedding", "adaptive": True}, "adaptive must be False, got True"),
        ({"defense": "error_feedback", "strength": 10.0, "attacked_round": 3}, "attacked_round must be 0, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            check(Case(**refused))


def test_a_step_that_begins_anew_falls_over_a_thousand_iterations():
    annealed = resolved(Case(optimizer="annealed", step_size=0.2)).settings.optimizer
    slopes = jnp.ones(1)

    def after(count):
        state = jax.tree.map(
            lambda leaf: jnp.asarray(count, leaf.dtype) if leaf.ndim == 0 else leaf, annealed.init(slopes)
        )
        # Adam's averages equal the slope here, so the correction of averages that start at zero is divided out.
        state = jax.tree.map(lambda leaf: jnp.ones_like(leaf) if leaf.ndim else leaf, state)
        return float(jnp.abs(annealed.update(slopes, state)[0][0])) / np.sqrt(1 - 0.999 ** (count + 1))

    assert after(500) == pytest.approx(0.1, rel=1e-3)
    assert after(999) < 1e-5
    assert after(1000) == pytest.approx(0.2, rel=1e-3)
    assert after(2500) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "annealed"])
def test_the_step_size_is_how_far_a_pixel_moves_first(optimizer):
    for case, expected in (
        (Case(optimizer=optimizer), 0.05),
        (Case(optimizer=optimizer, step_size=0.2), 0.2),
    ):
        adam, gradient = resolved(case).settings.optimizer, jnp.array([3.0, -0.1])
        updates, _ = adam.update(gradient, adam.init(gradient))
        assert updates == pytest.approx([-expected, expected], rel=1e-4)


def test_plain_descent_multiplies_the_gradient_by_the_step_size():
    descent, gradient = resolved(Case(optimizer="descent", step_size=2.0)).settings.optimizer, jnp.array([3.0, -0.1])
    updates, _ = descent.update(gradient, descent.init(gradient))
    assert updates == pytest.approx([-6.0, 0.2])


def test_a_folder_of_another_configuration_is_refused_before_the_first_seed_runs(tmp_path, capsys):
    there = Checkpoints(tmp_path / "checkpoints" / "1", {"iterations": 7})
    there.save(1, {"anything": 0.0})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigMismatchError, match="iterations: 7 there, 400 now"):
        invert.main(invert.Args(seeds=(0, 1), out=tmp_path))
    assert (tmp_path / "config.json").read_text() == "{}"
    assert "granted" not in capsys.readouterr().out


def test_seeds_are_needed(tmp_path):
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        invert.main(invert.Args(seeds=(), out=tmp_path))


def test_help_lists_every_name():
    for name in (*presets.PRESETS, "patch_embedding", *models.CLASSIFIERS, *CLIENT_DEFENSES):
        assert f" {name}" in invert.HELP


@pytest.mark.slow
def test_devices_share_the_images(tmp_path):
    args = invert.Args(Case(data="digits", model="mlp", batch_size=2, iterations=3), devices=2, out=tmp_path)
    assert invert.main(args)["seeds"] == 1  # tests/test_inversion.py compares with one device
    with pytest.raises(ValueError, match="multiple, got 3"):
        invert.main(invert.Args(replace(args.case, batch_size=3), devices=2, out=tmp_path / "three"))


@pytest.mark.slow
def test_no_more_of_the_update_is_granted_than_the_attack_reads():
    case = Case(attack="row_space", model="convnet", data="digits", pool=8, iterations=2300, labels="none")
    side = victim(case, 0)
    observation, _ = observe(case, 0, side)
    read = resolved(case).leaves(side.model)
    assert tuple(named_leaves(observation.payload)) == read
    assert f"{', '.join(read)} of one update" in resolved(case).granted(side.model)
    simulated = where_seen(observation.payload, side.share(observation.params, side.private))
    assert tuple(named_leaves(simulated)) == read
    whole, _ = observe(replace(case, attack="fedleak", labels=None), 0, side)
    assert named_leaves(whole.payload).keys() == named_leaves(whole.params["params"]).keys()


def _outcome(seed, psnr, second=None, curve=2):
    scores = {"psnr": psnr, "psnr_grey": 10.0, "ssim": 0.5, "recognised": 0.5, "gradient_matched": 1.0, "answered": 1.0}
    images = np.full((2, 8, 8, 1), 0.25 * seed)
    return Outcome(images, images + 0.1, scores, np.arange(curve, 0.0, -1), second)


def test_a_summary_has_the_mean_of_every_score_and_the_spread_of_the_psnr():
    found = command.summary([_outcome(0, 20.0), _outcome(1, 30.0)])
    assert (found["psnr"], found["psnr_spread"], found["seeds"], found["ssim"]) == (25.0, 5.0, 2, 0.5)


@pytest.mark.parametrize("agree", [None, 0.875])
def test_pictures_and_curves_of_several_seeds(monkeypatch, tmp_path, agree):
    drawn, lines = {}, {}
    monkeypatch.setattr(
        command.sheets, "contact_sheet", lambda path, *images, **words: drawn.update(words, images=images)
    )
    monkeypatch.setattr(report.plots, "curves", lambda path, series, **_: lines.update(series))
    second = None if agree is None else Agreement(np.array([agree, 0.5]), np.zeros((2, 8, 8, 1)))
    folder = SimpleNamespace(figure=lambda name: tmp_path / name)
    outcomes = [_outcome(0, 20.0, second), _outcome(1, 20.0, second, curve=0)]
    command.draw(folder, Case(model="mlp"), (3, 5), outcomes)
    truth, estimate = drawn["images"]
    np.testing.assert_array_equal(truth[:, 0, 0, 0], [0, 0, 0.25, 0.25])
    np.testing.assert_allclose(estimate - truth, 0.1)
    assert drawn["zoom"] == 96 // 8
    assert list(lines) == ["seed 3"]
    np.testing.assert_array_equal(lines["seed 3"], [[0, 1], [2, 1]])
    said = "gradient matched"
    if agree is None:  # stated once for all images
        assert drawn["captions"] == ["20.0 dB"] * 4
        assert drawn["title"].endswith(f"seeds 3, 5: PSNR of each image. The attack says of all: {said}")
        assert drawn["second"] is None
    else:
        own = [f"20.0 dB\n{said}\nagreement {value:.2f}" for value in (agree, 0.5)]
        assert drawn["captions"] == own * 2
        assert drawn["second"].shape == (4, 8, 8, 1)
    command.draw(folder, Case(model="mlp"), (3,), [_outcome(0, 20.0, second)])
    assert ", seed 3: PSNR" in drawn["title"]
    wide = _outcome(0, 20.0)._replace(truth=np.zeros((1, 32, 32, 1)), estimate=np.zeros((1, 32, 32, 1)))
    command.draw(folder, Case(model="mlp"), (3,), [wide])
    assert drawn["zoom"] == 4
    assert "The attack says of all" not in drawn["title"]


def test_a_report_counts_images_and_says_who_knew_what(monkeypatch):
    written = []
    monkeypatch.setattr(report, "write_markdown", lambda folder, title, **parts: written.append(parts))
    args = invert.Args(Case(batch_size=2, model="mlp", defense="gaussian", strength=0.1), seeds=(0, 1))
    settings = settings_as_run(args.case, (8, 8, 1), 10)
    report.write(None, args, "the model", [_outcome(0, 20.0), _outcome(1, 30.0)], settings)
    assert written[0]["answer"].startswith("The attack recovered 2 of 4 images")
    assert "mean PSNR is 25.0 dB, where grey images have 10.0 dB" in written[0]["answer"]
    method, _, table = written[0]["method"]
    assert "| iterations | 400 iterations; the preset's own number is 1,000, so that this search is shorter |" in table
    assert "of mlp from 2 images and defended it with gaussian of strength 0.1, which the attacker does not" in method
    assert method.endswith("from one start.")
    known = replace(args.case, adaptive=True, restarts=3, batch_size=1)
    for matched, count, verb in ((1.0, "1 image whose", "matches"), (0.0, "1 image whose", "does not match")):
        metrics = {"gradient_matched": matched, "answered": 1.0, "score": 0.5, "agreement": 0.25}
        report.write_captured(None, replace(args, case=known), "the model", metrics, settings)
        assert f"found {count} gradient {verb} the update" in written[-1]["answer"]
        assert "from 1 image and defended" in written[-1]["method"][0]
        assert "which the attacker knows" in written[-1]["method"][0]
        known_noise = "searched from 3 independent starts. Knowing the noise of gaussian, the attacker compares by"
        assert known_noise in written[-1]["method"][0]
        assert any("Agreement" in text for text in written[-1]["sections"][0].text)


def test_arrays_of_every_seed_are_kept_and_those_of_other_seeds_are_not(tmp_path):
    folder = RunFolder(tmp_path, "invert", {}, fresh=False)
    second = Agreement(np.array([0.5, 0.25]), np.zeros((2, 8, 8, 1)))
    done = _outcome(1, 20.0, second)._replace(labels=np.array([3, 4]), labels_found=np.array([3, 5]))
    for seed in (2, 10, 7):
        command.keep_arrays(folder, seed, done)
    command.forget_arrays(folder, (10, 2))
    kept = folder.path / "reconstructions"
    assert f"the images as arrays are in {kept}: seed_2.npz, seed_10.npz" in folder.contents()
    found = np.load(kept / "seed_10.npz", allow_pickle=False)
    np.testing.assert_array_equal(found["truth"], done.truth)
    np.testing.assert_array_equal(found["estimate"], done.estimate)
    np.testing.assert_allclose(found["psnr_each"], 20.0)
    assert found["ssim_each"].shape == (2,)
    assert (found["labels"].tolist(), found["labels_found"].tolist()) == ([3, 4], [3, 5])
    assert found["agreement"].tolist() == [0.5, 0.25]
    thin = done._replace(truth=done.truth[:, :1], estimate=done.estimate[:, :1])
    assert "ssim_each" not in thin.arrays()  # tables have no SSIM


@pytest.mark.parametrize("option", ["save_payload", "save_weights"])
def test_a_folder_is_no_file_to_write(tmp_path, option):
    paths = {"save_payload": tmp_path / "u.npz", "save_weights": tmp_path / "w.safetensors", option: tmp_path}
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')} must name a file"):
        invert.main(invert.Args(**paths, out=tmp_path / "run"))
