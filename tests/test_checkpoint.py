import dataclasses
import errno
import functools
import json
import os
import shutil

import chex
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxleak import objectives
from jaxleak._configuration import described, fingerprint
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError

FLIPS = int(os.environ.get("JAXLEAK_FLIPS", "1"))
CONFIG = {"data": "digits", "num_samples": 24, "sizes": (8, 16)}


def _tree(value):
    return {"round": jnp.asarray(value, jnp.int32), "table": jnp.full((3, 2), float(value)), "none": None}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "deep" / "run", CONFIG)


def _files_of(checkpoints, step):
    return [path for path in (checkpoints.folder / "steps" / str(step)).rglob("*") if path.is_file()]


def test_the_newest_checkpoint_comes_back_and_two_are_kept(checkpoints):
    start = _tree(0)
    assert checkpoints.latest_step() is None
    assert checkpoints.restore_latest(start) is start
    for step in (5, 10, 15):
        checkpoints.save(step, _tree(step))
    assert checkpoints.latest_step() == 15
    assert not _files_of(checkpoints, 5)
    assert _files_of(checkpoints, 10)
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    restored = reopened.restore_latest(start)
    chex.assert_trees_all_equal(restored, _tree(15))
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, start)


def test_fresh_starts_over(checkpoints):
    checkpoints.save(5, _tree(5))
    other = {**CONFIG, "data": "mnist"}
    again = Checkpoints(checkpoints.folder, other, fresh=True)
    assert again.latest_step() is None
    start = _tree(0)
    assert again.restore_latest(start) is start
    # A run that fails before its first checkpoint loses nothing.
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, CONFIG).restore_latest(start), _tree(5))
    again.save(3, _tree(3))
    assert not _files_of(checkpoints, 5)
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, other).restore_latest(start), _tree(3))


def test_settings_of_an_attack_are_a_configuration(tmp_path):
    made_of = {"rate": np.float32(0.5), "count": jnp.int32(3), "kind": [jnp.tanh, functools.partial(jnp.clip, max=1)]}
    Checkpoints(tmp_path / "a", made_of).save(1, _tree(1))
    for name, other in (("rate", presets.fedleak(5)), ("terms", presets.fedleak(9)._replace(labels="joint"))):
        Checkpoints(tmp_path / name, {"settings": presets.fedleak(9)}).save(1, _tree(1))
        Checkpoints(tmp_path / name, {"settings": presets.fedleak(9)})
        with pytest.raises(ConfigMismatchError, match="settings"):
            Checkpoints(tmp_path / name, {"settings": other})
    slow, fast = (optax.adam(rate).update for rate in (1e-3, 1e-2))
    Checkpoints(tmp_path / "c", {"update": slow}).save(1, _tree(1))
    with pytest.raises(ConfigMismatchError, match="update"):
        Checkpoints(tmp_path / "c", {"update": fast})
    del made_of["kind"][0]
    with pytest.raises(ConfigMismatchError, match="kind"):
        Checkpoints(tmp_path / "a", made_of)
    with pytest.raises(ValueError, match=r"config must hold numbers, .* got object"):
        Checkpoints(tmp_path / "b", {"what": object()})


class _Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, observed, simulated):
        return self.factor * objectives.cosine(observed, simulated)


@dataclasses.dataclass(frozen=True, slots=True)
class _Slotted:
    factor: np.ndarray


def _made_of(value):
    return lambda tree: (tree, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_made_of(_Scaled(1.0)), _made_of(_Scaled(2.0))),
        (_made_of(_Slotted(np.zeros(2))), _made_of(_Slotted(np.ones(2)))),
        (objectives.weighted([(1.0, _Scaled(1.0))]), objectives.weighted([(1.0, _Scaled(2.0))])),
        (_Scaled(1.0).__call__, _Scaled(2.0).__call__),
        (lambda tree, factor=1: factor * tree, lambda tree, factor=2: factor * tree),
    ],
    ids=["object", "slots", "distance", "method", "default"],
)
def test_what_a_function_was_made_of_is_part_of_the_configuration(one, other):
    assert described({"f": one}) == described({"f": one})
    assert described({"f": one}) != described({"f": other})


def test_another_configuration_is_refused_by_naming_what_differs(checkpoints):
    checkpoints.save(5, _tree(5))
    Checkpoints(checkpoints.folder, {**CONFIG, "sizes": [8, 16]})  # JSON has no tuples
    other = {"data": "mnist", "num_samples": 24, "sizes": (8, 16), "seed": 3}
    with pytest.raises(ConfigMismatchError) as error:
        Checkpoints(checkpoints.folder, other)
    message = str(error.value)
    assert "data: 'digits' there, 'mnist' now" in message
    assert "seed: None there, 3 now" in message
    assert "num_samples" not in message
    assert "--fresh" in message
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, CONFIG).restore_latest(_tree(0)), _tree(5))


def test_settings_that_differ_are_told_by_field_and_value(tmp_path):
    """The message names the field and the values, not the functions inside the settings, which would fill pages."""

    def settings(weight):
        return presets.inverting_gradients(4).weighing(tv=weight)

    checkpoints = Checkpoints(tmp_path, {"settings": settings(0.1)})
    checkpoints.save(1, _tree(1))
    Checkpoints(tmp_path, {"settings": settings(0.1)})
    with pytest.raises(ConfigMismatchError, match=r"configuration \(settings\.priors: 0\.1 there, 0\.3 now\); choose"):
        Checkpoints(tmp_path, {"settings": settings(0.3)})
    with pytest.raises(ConfigMismatchError, match=r"\(settings\.optimizer: .* there, .* now") as error:
        Checkpoints(tmp_path, {"settings": settings(0.1)._replace(optimizer=optax.sgd(0.1))})
    assert len(str(error.value)) < 1000


def test_long_entries_are_quoted_where_they_differ(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"text": "a" * 500 + "b" + "c" * 500, "numbers": [float("nan"), 1]})
    checkpoints.save(1, _tree(1))
    with pytest.raises(
        ConfigMismatchError, match=r"numbers: 1 there, 2 now; text: '?\.\.\.a+bc+\.\.\. there, \.\.\.a+dc+"
    ):
        Checkpoints(tmp_path, {"text": "a" * 500 + "d" + "c" * 500, "numbers": [float("nan"), 2]})


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(checkpoints, damage, capsys):
    checkpoints.save(5, _tree(5))
    checkpoints.save(10, _tree(10))
    files = [path for path in _files_of(checkpoints, 10) if "default" in path.parts]
    assert files
    for path in files:
        if damage == "truncated":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        else:
            path.unlink()
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    chex.assert_trees_all_equal(reopened.restore_latest(_tree(0)), _tree(5))
    assert "checkpoint 10 in" in capsys.readouterr().out
    # The run continues from there and saves the damaged step again.
    reopened.save(10, _tree(11))
    np.testing.assert_array_equal(reopened.restore_latest(_tree(0))["round"], 11)


METADATA = "_CHECKPOINT_METADATA"


def _empty(steps):
    shutil.rmtree(steps / "10")
    (steps / "10").mkdir()


def _a_file(steps):
    shutil.rmtree(steps / "10")
    (steps / "10").write_text("in the way")


def _of_another_run(steps):
    other = Checkpoints(steps.parent.parent / "other", {**CONFIG, "seed": 3})
    other.save(10, _tree(7))
    shutil.rmtree(steps / "10")
    shutil.copytree(other.folder / "steps" / "10", steps / "10")


#: Damage by name: what happens to the checkpoints 5 and 10, the number of the damaged one, and the message.
WRECKS = {
    "without its arrays": (lambda steps: shutil.rmtree(steps / "10" / "default"), 10, "its arrays are missing"),
    "an empty folder": (_empty, 10, "its arrays are missing"),
    "a file": (_a_file, 10, "its arrays are missing"),
    "without metadata": (lambda steps: (steps / "10" / METADATA).unlink(), 10, f"{METADATA} is missing or damaged"),
    "metadata of others": (lambda steps: (steps / "10" / METADATA).write_text('{"a": 1}'), 10, METADATA),
    "metadata of another form": (lambda steps: (steps / "10" / METADATA).write_text("[1]"), 10, METADATA),
    "a stray folder": (lambda steps: (steps / "9999").mkdir(), 9999, "its arrays are missing"),
    "a stray copy": (lambda steps: shutil.copytree(steps / "10", steps / "9999"), 9999, "a copy of checkpoint 10"),
    "of another run": (_of_another_run, 10, "it belongs to another configuration"),
    "an older one": (lambda steps: (steps / "5" / METADATA).write_text("[1]"), 5, f"{METADATA} is missing or damaged"),
}


@pytest.mark.parametrize("wreck", WRECKS)
def test_a_wreck_among_the_checkpoints_leaves_the_valid_ones(checkpoints, wreck, capsys):
    damage, damaged, said = WRECKS[wreck]
    for step in (5, 10):
        checkpoints.save(step, _tree(step))
    damage(checkpoints.folder / "steps")
    newest = 5 if damaged == 10 else 10
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    chex.assert_trees_all_equal(reopened.restore_latest(_tree(0)), _tree(newest))
    assert [path.name for path in (checkpoints.folder / "damaged").iterdir()] == [str(damaged)]
    assert said in capsys.readouterr().out
    reopened.save(newest + 5, _tree(11))
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, CONFIG).restore_latest(_tree(0)), _tree(11))


def test_where_all_checkpoints_are_wrecks_the_run_begins_anew(checkpoints):
    for step in (5, 10):
        checkpoints.save(step, _tree(step))
        shutil.rmtree(checkpoints.folder / "steps" / str(step) / "default")
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    start = _tree(0)
    assert reopened.restore_latest(start) is start
    reopened.save(5, _tree(6))
    chex.assert_trees_all_equal(reopened.restore_latest(start), _tree(6))


def test_a_whole_checkpoint_of_other_arrays_is_refused_and_stays(checkpoints):
    checkpoints.save(5, _tree(5))
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    with pytest.raises(ConfigMismatchError, match=r"checkpoint 5 in .* holds other arrays .*--fresh"):
        reopened.restore_latest({**_tree(0), "table": jnp.zeros((4, 2))})
    chex.assert_trees_all_equal(reopened.restore_latest(_tree(0)), _tree(5))


def test_a_whole_checkpoint_of_another_precision_is_refused_and_stays(checkpoints):
    checkpoints.save(5, {"x": np.zeros(3)})
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    with pytest.raises(ConfigMismatchError, match="holds x as float64, and this run has float32"):
        reopened.restore_latest({"x": np.zeros(3, np.float32)})
    assert reopened.latest_step() == 5


def test_a_run_that_began_from_arrays_of_64_bits_goes_on(checkpoints):
    checkpoints.save(5, {"x": jnp.arange(3.0), "n": 2})
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    found = reopened.restore_latest({"x": np.zeros(3), "n": 0})
    np.testing.assert_array_equal(found["x"], np.arange(3.0))
    assert found["x"].dtype == np.float32


def test_a_history_comes_back_with_its_checkpoint(checkpoints):
    loss = np.arange(6, dtype=np.float32).reshape(3, 2)
    checkpoints.save(3, _tree(3), {"loss": loss, "frozen": loss > 4})
    checkpoints.save(2, _tree(2), {})
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    tree, history = reopened.restore_with_history(_tree(0))
    chex.assert_trees_all_equal(tree, _tree(3))
    chex.assert_trees_all_equal(history, {"loss": loss, "frozen": loss > 4})
    largest = max(_files_of(checkpoints, 3), key=lambda path: path.stat().st_size)
    largest.unlink()
    tree, history = reopened.restore_with_history(_tree(0))
    chex.assert_trees_all_equal(tree, _tree(2))
    assert history == {}


def test_a_fingerprint_is_that_of_names_shapes_types_and_values():
    x = np.arange(6, dtype=np.float32)
    others = ({"y": x}, {"x": x.reshape(2, 3)}, {"x": x.astype(np.int32)}, {"x": x + 1}, {"x": x[::-1]}, {"x": (x, x)})
    found = [fingerprint(tree) for tree in ({"x": x}, *others)]
    assert len(set(found)) == len(found)
    assert fingerprint({"x": jnp.asarray(x)}) == found[0]
    assert {len(name) for name in found} == {64}


def test_a_flipped_bit_is_noticed(tmp_path, capsys):
    """Orbax accepts damaged values, but the checksum does not. `JAXLEAK_FLIPS` evenly spread positions are tried."""
    trees = {step: {"x": np.random.default_rng(step).random((64, 64), np.float32)} for step in (5, 10)}
    unseen = 0
    for i in range(FLIPS):
        saved = Checkpoints(tmp_path / str(i), CONFIG)
        for step, tree in trees.items():
            saved.save(step, tree)
        largest = max(_files_of(saved, 10), key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) * (2 * i + 1) // (2 * FLIPS)] ^= 1
        largest.write_bytes(content)
        reopened = Checkpoints(saved.folder, CONFIG)
        chex.assert_trees_all_equal(reopened.restore_latest(trees[5]), trees[5])
        said = capsys.readouterr().out
        assert "it is now in damaged/10" in said
        unseen += "its checksum does not fit its values" in said
        assert reopened.latest_step() == 5
        assert (saved.folder / "damaged" / "10").is_dir()
    assert unseen > FLIPS / 2
    print(f"{FLIPS} flipped bits noticed, of which Orbax alone would have read {unseen}")


def test_checkpoints_without_a_readable_configuration_are_refused(checkpoints):
    checkpoints.save(5, _tree(5))
    (checkpoints.folder / "config.json").write_text('{"data": ')
    with pytest.raises(ConfigMismatchError, match=r"config.json is damaged, .*--fresh"):
        Checkpoints(checkpoints.folder, CONFIG)


def test_checkpoints_whose_configuration_is_missing_bind_to_their_own(checkpoints):
    checkpoints.save(5, _tree(5))
    (checkpoints.folder / "config.json").unlink()
    with pytest.raises(ConfigMismatchError, match=r"config.json is missing, .*another configuration.*--fresh"):
        Checkpoints(checkpoints.folder, {**CONFIG, "seed": 3})
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, CONFIG).restore_latest(_tree(0)), _tree(5))
    assert json.loads((checkpoints.folder / "config.json").read_text())["data"] == "digits"


def test_what_a_kill_left_of_a_save_and_of_a_deletion_is_no_checkpoint(checkpoints):
    for step in (5, 10, 15):
        checkpoints.save(step, _tree(step))
    steps = checkpoints.folder / "steps"
    shutil.copytree(steps / "15", steps / "20.orbax-checkpoint-tmp")
    shutil.rmtree(steps / "10" / "default")
    reopened = Checkpoints(checkpoints.folder, CONFIG)
    chex.assert_trees_all_equal(reopened.restore_latest(_tree(0)), _tree(15))
    assert not (steps / "20.orbax-checkpoint-tmp").exists()
    for step in (20, 25):
        reopened.save(step, _tree(step))
    assert sorted(path.name for path in steps.iterdir()) == ["20", "25"]


def test_a_failing_save_says_what_stays_valid(checkpoints, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    save = checkpoints._manager.save
    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(OSError, match=r"cannot write checkpoint 5 .*No space left.*no earlier checkpoint exists"):
        checkpoints.save(5, _tree(5))
    monkeypatch.setattr(checkpoints._manager, "save", save)
    checkpoints.save(5, _tree(5))
    monkeypatch.setattr(checkpoints._manager, "save", full)
    with pytest.raises(OSError, match=r"cannot write checkpoint 10 .*No space left.*checkpoint 5 stays valid"):
        checkpoints.save(10, _tree(10))
    chex.assert_trees_all_equal(Checkpoints(checkpoints.folder, CONFIG).restore_latest(_tree(0)), _tree(5))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(OSError, match=f"cannot write checkpoints to {folder}"):
            Checkpoints(folder, CONFIG)


def test_arrays_without_entries_come_back(checkpoints):
    """A generator's candidate has an empty array for its image shape, and Orbax does not store empty arrays."""
    checkpoints.save(5, {**_tree(5), "shape": jnp.zeros((0, 4))})
    restored = checkpoints.restore_latest({**_tree(0), "shape": jnp.zeros((0, 4))})
    chex.assert_trees_all_equal(restored, {**_tree(5), "shape": jnp.zeros((0, 4))})
