"""Sizes and settings that the papers print, repeated here, since a slip in one of them would change the results.

Sources: CAFE (NeurIPS 2021), Tables 2, 5 and 9 and section 5; images of CIFAR-10 size for a captured update.
"""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import defenses, models
from jaxleak._command.cafe_scale.options import PRESETS
from jaxleak._command.invert.options import Args as InvertArgs
from jaxleak.attacks import presets
from jaxleak.study.rounds import runs

#: Sizes of each preset: private samples N, samples per round K, and images that Step III inverts.
SIZES = {
    "demo": (100, 20, 100),
    "mnist": (800, 40, 128),
    "cifar10": (800, 40, 64),
    "paper": (800, 40, 800),
    "scale": (10_000, 100, 16),
}
#: Reading of the algorithm for fake gradients, and the unit of their scale.
FAKE = {
    "fake-capped": ("clamped", "gradient"),
    "fake-printed": ("printed", "absolute"),
    "fake-relative": ("clamped", "tensor"),
    "fake-repaired": ("clamped", "absolute"),
    "fake-paired-tensor": ("paired", "tensor"),
    "fake-paired": ("paired", "gradient"),
}
#: Default iterations of the presets: the papers', and ours for GGL, ROG, Bayes and our own presets.
ITERATIONS = {
    **{"dlg": 300, "idlg": 300, "inverting_gradients": 4800, "sapag": 4000, "gradinversion": 20_000},
    **{"fedleak_paper": 10_000, "fedleak_upstream": 10_000, "fedleak": 1000, "bayes": 1000, "ggl": 500, "rog": 1000},
    "row_space": 4250,
    "any_loss": 1000,
}
KEY, PAYLOAD = jax.random.key(3), {"a": jnp.linspace(-1.0, 2.0, 40), "b": jnp.linspace(0.1, 0.5, 12).reshape(3, 4)}


def test_presets_of_cafe_have_the_papers_sizes():
    found = {name: (row["num_samples"], row["batch_size"], row["images"]) for name, row in PRESETS.items()}
    assert found == SIZES


def test_settings_of_cafe_begin_where_table_2_does():
    setting = runs.Setting("descent")
    assert (setting.num_samples, setting.batch_size, setting.parties, setting.workers) == (800, 40, 4, 0)
    assert (runs.cap("mnist"), runs.cap("linnaeus5")) == (8_000, 20_000)
    assert runs.optimizer_of(setting) is None


@pytest.mark.parametrize("name", FAKE)
def test_fake_gradients_by_name(name):
    assert runs.FAKE.keys() == FAKE.keys()
    reading, scale = FAKE[name]
    expected = defenses.fake_gradients(pool_size=1, reading=reading, scale=scale).apply(KEY, PAYLOAD)
    chex.assert_trees_all_equal(runs.defense_named(name, batch_size=4).apply(KEY, PAYLOAD), expected)


def test_differential_privacy_by_name_has_the_papers_clip_and_delta_and_noise_for_the_sum():
    expected = defenses.clipped_gaussian(3.0, defenses.classical_noise_multiplier(2.0, 1e-5) / 40).apply(KEY, PAYLOAD)
    chex.assert_trees_all_close(runs.defense_named("dp-2", batch_size=40).apply(KEY, PAYLOAD), expected)
    assert runs.defense_named("none", batch_size=40) is None


def test_a_captured_update_is_of_cifar_10_unless_said_otherwise():
    args = InvertArgs()
    assert (args.image_shape, args.num_classes, args.seeds) == ((32, 32, 3), 10, (0,))


def test_presets_of_inversions_have_the_papers_iterations():
    makers = {name: getattr(presets, name) for name in ITERATIONS}
    assert {
        name: inspect.signature(make).parameters["iterations"].default for name, make in makers.items()
    } == ITERATIONS


def test_private_split_training_clips_at_one():
    payload = ({"w": jnp.full((2, 9), 4.0)},)
    run = defenses.SplitRun(num_classes=3, batch_size=2, num_samples=8, epochs=1)
    found = defenses.split_defense("dp_sgd", 1e6, run).apply(KEY, payload)[0]["w"].mean(axis=0)
    assert float(jnp.linalg.norm(found)) == pytest.approx(1.0, abs=0.02)


def test_a_party_may_hold_one_feature():
    model = models.bottom_top((1, 2), 2, bottom=(2,), top=(2,))
    assert model.apply(model.init(KEY), np.zeros((3, 2, 2), np.float32)).shape == (3, 2)
