"""`experiments.invert`: what it refuses, in the words of its options, and when it says what the attacker is granted."""

from dataclasses import replace

import pytest

from experiments import invert
from experiments._defense_registry import REGISTRY
from experiments._inversion_case import Case
from jaxleak import models
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": "guess"}, "attack must be one of dlg, .*patch_embedding, got 'guess'"),
        ({"model": "alexnet"}, "model must be one of lenet"),
        ({"data": "imagenet"}, "a data specification must be one of adult"),
        ({"data": "digits", "pool": 5000}, "digits has 1797 samples, fewer than the 5000 asked for"),
        ({"pool": 0}, "pool must be > 0"),
        ({"local_steps": 0}, "local_steps must be > 0"),
        ({"matched_percent": 200.0}, r"matched_percent must be in \[0, 100\]"),
        ({"homotopy": (0.0, 5.0)}, "homotopy must be > 0"),
        ({"homotopy": (5.0, 1.0)}, "homotopy must not fall, got 5.0 to 1.0"),
        ({"activation_penalty": -1.0}, "activation_penalty must be >= 0"),
        ({"tv": -1.0}, "tv must be >= 0"),
        ({"attack": "rog", "data": "digits", "pool": 1797}, "digits leaves 0 public images"),
    ],
)
def test_refusals_name_the_option_and_come_before_the_grant(tmp_path, capsys, options, message):
    with pytest.raises(ValueError, match=message):
        invert.main(invert.Args(Case(**options), out=tmp_path))
    assert "granted" not in capsys.readouterr().out


def test_a_folder_of_another_configuration_is_refused_before_the_first_seed_runs(tmp_path, capsys):
    there = Checkpoints(tmp_path / "checkpoints" / "1", {"iterations": 7})
    there.save(1, {"anything": 0.0})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigMismatchError, match="iterations: 7 there, 400 now"):
        invert.main(invert.Args(seeds=(0, 1), out=tmp_path))
    assert (tmp_path / "config.json").read_text() == "{}"
    assert "granted" not in capsys.readouterr().out


def test_seeds_are_needed(tmp_path):
    with pytest.raises(ValueError, match="seeds must be > 0"):
        invert.main(invert.Args(seeds=(), out=tmp_path))


def test_help_lists_every_name():
    for name in (*presets.PRESETS, "patch_embedding", *models.CLASSIFIERS, *REGISTRY):
        assert f" {name}" in invert.HELP


def test_devices_share_the_images(tmp_path):
    args = invert.Args(Case(data="digits", model="mlp", batch_size=2, iterations=3), devices=2, out=tmp_path)
    assert invert.main(args)["seeds"] == 1  # tests/test_inversion.py compares with one device
    with pytest.raises(ValueError, match="multiple, got 3"):
        invert.main(invert.Args(replace(args.case, batch_size=3), devices=2, out=tmp_path / "three"))
