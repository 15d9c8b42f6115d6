"""The running statistics and the counters that a client sends show its mode of normalisation and its steps."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxleak import audit, capture, models, protocols
from jaxleak.__main__ import main
from jaxleak._tree import named_leaves
from jaxleak.audit._checks.statistics import check_statistics
from jaxleak.study import read_weights_and_counters

LAYERS = ("a", "b")
WITHOUT = "--update without num_batches_tracked (more batches than steps)"


@functools.cache
def network(*momenta):
    """Two normalised images' sums in front of a dense layer; a layer's running statistics move by its momentum."""
    params = {"w": jnp.sqrt(jnp.arange(8.0)).reshape(2, 4)}  # in 16 bits, an audit would refuse them
    stats = {layer: {"mean": jnp.zeros(1), "var": jnp.ones(1)} for layer in LAYERS}

    def computed(variables, x, train):
        features, new = [], {}
        for layer, momentum, power in zip(LAYERS, momenta, (1, 2), strict=True):
            old, pixel = variables["batch_stats"][layer], x[:, power, 0] ** power
            batch = {"mean": pixel.mean(axis=0), "var": pixel.var(axis=0)}
            used = batch if train else old
            new[layer] = {name: old[name] + momentum * (batch[name] - old[name]) for name in old}
            features.append((pixel - used["mean"]) / jnp.sqrt(used["var"] + 1e-5))
        return jnp.concatenate(features, axis=1) @ variables["params"]["w"], new

    return models.from_function(
        lambda variables, x: computed(variables, x, False)[0],
        {"params": params, "batch_stats": stats},
        train_apply=lambda variables, x: computed(variables, x, True),
        image_shape=(4, 1, 1),
        num_classes=4,
    )


def after(variables, changed=LAYERS, counters=None):
    """The named arrays of a client after training, with the layers whose statistics changed, and counters."""
    stats = {
        f"{layer}.{name}": np.asarray(leaf) + np.float32(layer in changed) / 8
        for layer in LAYERS
        for name, leaf in variables["batch_stats"][layer].items()
    }
    return {"w": np.asarray(variables["params"]["w"]) * 0.9, **stats, **counts(counters or {})}


def counts(counters):
    return {f"{layer}.num_batches_tracked": np.array(count) for layer, count in counters.items()}


def findings(arrays, momenta=(0.1, 0.1), counters=None, names=(), kind="weights", **stated):
    model, variables = network(*momenta)
    sent = capture.as_update(arrays, kind=kind, batch_size=2)
    began = counts({} if counters is None else counters)
    return check_statistics(sent, protocols.ClientShare(model, **stated), variables, names, began)


def found(changed=LAYERS, grown=None, momenta=(0.1, 0.1), **stated):
    """The only finding on a client whose layers changed, and whose counters grew from 7."""
    counters = None if grown is None else {layer: 7 + count for layer, count in grown.items()}
    began = None if grown is None else dict.fromkeys(grown, 7)
    (only,) = findings(after(network(*momenta)[1], changed, counters), momenta, began, **stated)
    return only


@pytest.mark.parametrize(
    ("changed", "grown", "stated"),
    [
        (LAYERS, None, {}),
        (LAYERS, {"a": 6, "b": 6}, {"local_steps": 3, "local_epochs": 2}),
        (LAYERS, {"a": 2, "b": 4}, {"local_steps": 2}),  # the layer b runs twice in a pass
        (LAYERS, {"a": 0, "b": 0}, {"local_steps": 2}),  # a server may keep counters back
        ((), None, {"batch_norm": "eval"}),
        ((), {"a": 0, "b": 0}, {"batch_norm": "eval", "local_steps": 2}),
    ],
)
def test_a_right_statement_passes(changed, grown, stated):
    assert found(changed, grown, **stated).status == "passed"


@pytest.mark.parametrize(
    ("changed", "grown", "stated", "options"),
    [
        (LAYERS, None, "eval", ("--batch-norm train", "--weights")),
        ((), None, "train", ("--batch-norm eval", "--weights")),
        ((), {"a": 0, "b": 0}, "train", ("--batch-norm eval", "--weights")),
        ((), {"a": 1, "b": 1}, "eval", ("--batch-norm train", "--weights")),
    ],
)
def test_the_mode_that_fits_is_named(changed, grown, stated, options):
    mistake = found(changed, grown, batch_norm=stated)
    assert (mistake.name, mistake.status, mistake.options) == ("running statistics", "failed", options)


def test_layers_in_different_modes_are_named():
    half = found(("b",))
    assert (half.status, half.options[0].split(",")[0]) == ("failed", "eval_layers")
    assert half.evidence == "Those of a are those of --weights, and those of other layers changed."
    _, second, third = found(("b",), batch_norm="eval").options
    assert (second, third) == (half.options[0], "--weights")
    kept = found(LAYERS, momenta=(0.1, 0.0))
    assert kept.status == "failed"
    assert kept.evidence == "Those of b changed, and the training mode of the model does not change them."
    assert found(("a",), momenta=(0.1, 0.0)).status == "passed"


def test_a_momentum_of_zero_changes_nothing_but_the_counters():
    assert found((), momenta=(0.0, 0.0)).status == "not applicable"
    assert found((), {"a": 2, "b": 2}, momenta=(0.0, 0.0)).options == ("--local-steps 2", "--local-epochs 2", WITHOUT)
    assert found((), {"a": 1, "b": 1}, momenta=(0.0, 0.0), batch_norm="eval").options[0] == "--batch-norm train"
    for changed in ((), ("a",)):  # the client's own momentum may be another than the model's
        right = found(changed, {"a": 1, "b": 1})
        assert right.status == "passed"
        assert right.evidence.startswith(f"Those of {len(changed)} layer{'s' * (len(changed) != 1)} changed, and num_")


@pytest.mark.parametrize(
    ("grown", "stated", "options"),
    [
        (4, {"local_steps": 2}, ("--local-steps 4", "--local-epochs 2")),
        (4, {"local_steps": 4, "local_epochs": 2}, ("--local-steps 2", "--local-epochs 1")),
        (3, {"local_epochs": 2}, ("--local-epochs 3",)),
        (3, {"local_steps": 2, "local_epochs": 2}, ("--local-steps and --local-epochs, whose product is 3",)),
    ],
)
def test_the_number_of_steps_that_fits_is_named(grown, stated, options):
    mistake = found(LAYERS, {"a": 0, "b": grown}, **stated)
    assert (mistake.name, mistake.status, mistake.options) == ("number of batches", "failed", (*options, WITHOUT))
    # The mode is surer: batches that ran in training mode need not have been steps.
    assert found(LAYERS, {"a": 0, "b": grown}, batch_norm="eval", **stated).options[0] == "--batch-norm train"


def test_counters_that_went_back_are_those_of_a_later_round():
    for mode in ("train", "eval"):
        mistake = found(LAYERS, {"a": 1, "b": -3}, batch_norm=mode)
        assert (mistake.status, mistake.options) == ("failed", ("--weights", "--update"))
        assert mistake.evidence == "b.num_batches_tracked is lower by 3 than in --weights."


def test_nothing_is_said_without_running_statistics_of_weights():
    arrays = after(network(0.1, 0.1)[1])
    assert findings(arrays, kind="difference") == findings(arrays, kind="gradient") == []
    assert findings({"w": arrays["w"]}) == []
    assert findings({name: leaf if name == "w" else leaf[:0] for name, leaf in arrays.items()}) == []
    mean = arrays.pop("a.mean")
    assert findings(arrays | {"params.a.mean": mean, "module.a.mean": mean}) == []  # two names for one array


def test_layers_that_the_file_leaves_out_are_not_compared():
    arrays = after(network(0.1, 0.1)[1])
    (only,) = findings({name: leaf for name, leaf in arrays.items() if not name.startswith("b.")})
    assert (only.status, only.evidence) == ("passed", "Those of 1 layer changed, as in training mode.")
    still = after(network(0.0, 0.1)[1], ())
    (none,) = findings({name: leaf for name, leaf in still.items() if not name.startswith("b.")}, (0.0, 0.1))
    assert none.status == "not applicable"


def test_a_tree_of_variables_holds_the_statistics_of_flax_and_equinox():
    _, variables = network(0.1, 0.1)
    assert findings(variables, batch_norm="eval")[0].status == "passed"
    assert findings(variables)[0].options[0] == "--batch-norm eval"


def test_a_list_holds_all_arrays_or_the_parameters_alone():
    arrays = after(network(0.1, 0.1)[1], counters={"a": 1, "b": 1})
    assert findings(list(arrays.values()), names=list(arrays), batch_norm="eval")[0].status == "failed"
    counted = findings(list(arrays.values()), names=list(arrays), counters={"a": 0, "b": 0}, local_steps=2)
    assert counted[0].options[0] == "--local-steps 1"
    for others in ([arrays["w"]], 4 * [arrays["w"][0, :1]]):  # no list of statistics alone, though there are four
        assert findings(others, names=list(arrays), batch_norm="eval") == []


@pytest.mark.parametrize("count", [np.nan, np.zeros(2)])
def test_counters_that_are_no_numbers_are_not_read(count):
    arrays = after(network(0.1, 0.1)[1], counters={"a": 5})
    sent, names = capture.as_update(arrays, kind="weights"), ()
    model, variables = network(0.1, 0.1)
    (only,) = check_statistics(sent, protocols.ClientShare(model), variables, names, {"a.num_batches_tracked": count})
    assert only.status == "passed"


def test_an_audit_refuses_the_wrong_mode_before_any_other_check_unless_a_defense_may_have_changed_the_file():
    model, variables = network(0.1, 0.1)
    facts = {"kind": "weights", "learning_rate": 0.1, "batch_size": 2, "minutes": 1e-4}
    verdict = audit.update(model, variables, after(variables), batch_norm="eval", **facts)
    assert verdict.verdict == "inputs inconsistent"
    assert [finding.name for finding in verdict.findings] == ["running statistics"]
    right = audit.update(model, variables, after(variables), **facts)
    assert [f.status for f in right.findings if f.name == "running statistics"] == ["passed"]
    other = audit.update(model, variables, after(variables), batch_norm="eval", defense="other", **facts)
    assert all(finding.name != "running statistics" for finding in other.findings)


def test_the_command_compares_the_counters_of_both_files(tmp_path, capsys, monkeypatch):
    model, variables = network(0.1, 0.1)
    before = {"w": np.asarray(variables["params"]["w"]), **named_leaves(variables["batch_stats"])}
    weights = {name.replace("/", "."): np.asarray(leaf) for name, leaf in before.items()} | counts({"a": 2, "b": 2})
    safetensors.numpy.save_file(weights, tmp_path / "w")
    assert read_weights_and_counters(tmp_path / "w", model)[1] == counts({"a": 2, "b": 2})
    sent = after(variables, counters={"a": 5, "b": 5})
    capture.save(tmp_path / "u", sent, kind="weights", learning_rate=0.1, batch_size=2)
    (tmp_path / "net.py").write_text("from test_running_statistics import network\nnet = network(0.1, 0.1)\n")
    options = ["--image", "4", "1", "1", "--classes", "4", "--out", str(tmp_path / "out"), "--minutes", "0.001"]
    files = ["--weights", str(tmp_path / "w"), "--update", str(tmp_path / "u")]
    read, read_arrays = [], capture.read_arrays
    monkeypatch.setattr(capture, "read_arrays", lambda path: read.append(path.name) or read_arrays(path))
    assert main(["audit", "--model", f"{tmp_path / 'net.py'}:net", *options, *files]) == 3
    assert f"Option: --local-steps 3, --local-epochs 3, or {WITHOUT}." in capsys.readouterr().out
    assert read.count("w") == 1
