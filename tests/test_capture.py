"""Update files: each framework reads the files of others, and untrustworthy files are refused in one line."""

import dataclasses
import subprocess
import sys
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxleak import capture, models
from jaxleak._tree import named_leaves
from jaxleak.capture import _arrays
from jaxleak.capture._names import matching
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import read_weights

ARRAYS = {"conv": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}, "head": {"bias": np.ones(3, np.float32)}}


def _names(path):
    return {name: array.shape for name, array in capture.load(path).arrays.items()}


def test_a_pytorch_modules_gradients_are_read_with_their_names_and_facts(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"1\.weight has no gradient: call loss.backward\(\) before, and zero_grad"):
        capture.save(tmp_path / "u", net)
    net(torch.ones(2, 2, 2)).sum().backward()
    capture.save(tmp_path / "u", net, batch_size=2, reduction="sum")
    update = capture.load(tmp_path / "u")
    np.testing.assert_array_equal(update.arrays["1.weight"], net[1].weight.grad.numpy())
    assert (update.facts.framework, update.facts.batch_size, update.facts.reduction) == ("torch", 2, "sum")


def test_a_pytorch_modules_weights_are_its_state_dict_and_not_its_gradients(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    net[0].requires_grad_(False)
    net(torch.ones(2, 4)).sum().backward()
    facts = {"kind": "weights", "learning_rate": 0.1, "batch_size": 2}
    capture.save(tmp_path / "module", net, **facts)
    capture.save(tmp_path / "dict", net.state_dict(), **facts)
    module, plain = capture.load(tmp_path / "module"), capture.load(tmp_path / "dict")
    assert module.arrays.keys() == plain.arrays.keys() >= {"0.weight", "1.running_mean", "2.weight"}
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(module.arrays[name], array)
    assert (module.facts.frozen, module.facts.framework) == (("0.weight", "0.bias"), "torch")
    with pytest.raises(ValueError, match=r"got difference: .* a dictionary of names with the weights after minus"):
        capture.save(tmp_path / "u", net, kind="difference", learning_rate=0.1)
    with pytest.raises(ValueError, match="kind must be weights for a module after 8 local steps, got gradient"):
        capture.save(tmp_path / "u", net, local_steps=8, learning_rate=0.1)
    assert not (tmp_path / "u").exists()


def _with_gradients(*norms):
    """A PyTorch module of a convolution and these layers of normalisation, after a backward pass."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), *norms)
    net(torch.ones(2, 2, 4, 4)).sum().backward()
    return net


def test_the_mode_of_batch_normalisation_is_the_modules_and_no_other_may_be_stated(tmp_path):
    torch = pytest.importorskip("torch")
    net = _with_gradients(torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3))
    for mode, other in (("train", "eval"), ("eval", "train")):
        net.train(mode == "train")
        for stated in ({}, {"batch_norm": mode}, {"batch_norm": None}):
            capture.save(tmp_path / mode, net, batch_size=2, **stated)
            assert capture.load(tmp_path / mode).facts.batch_norm == mode
        with pytest.raises(ValueError, match=rf"must be {mode}, .* of 1 \(BatchNorm2d\), got {other}: .* net.{other}"):
            capture.save(tmp_path / "u", net, batch_size=2, batch_norm=other)
    assert capture.as_update(net, kind="weights").facts.batch_norm == "eval"
    assert capture.as_update(net.state_dict(), batch_norm="train").facts.batch_norm == "train"


def test_layers_in_evaluation_mode_beside_others_that_train_are_named(tmp_path):
    torch = pytest.importorskip("torch")
    net = _with_gradients(torch.nn.BatchNorm2d(3), torch.nn.Sequential(torch.nn.SyncBatchNorm(3)))
    net[1].eval()
    for facts in ({}, {"batch_norm": "train"}, {"kind": "weights", "learning_rate": 0.1}):
        capture.save(tmp_path / "u", net, batch_size=2, **facts)
        found = capture.load(tmp_path / "u").facts
        assert (found.batch_norm, found.eval_layers) == ("train", ("1",))
    assert capture.as_update(net, eval_layers=("0", "1")).facts.eval_layers == ("0", "1")
    with pytest.raises(ValueError, match=r"must be train, the mode of 2\.0 \(SyncBatchNorm\), got eval"):
        capture.save(tmp_path / "u", net, batch_size=2, batch_norm="eval")
    for mode in (True, False):
        assert capture.as_update(net.train(mode)).facts.eval_layers is None


def test_layers_without_running_statistics_have_no_mode():
    torch = pytest.importorskip("torch")
    by_batch = torch.nn.BatchNorm2d(3, track_running_stats=False)
    net = _with_gradients(by_batch, torch.nn.InstanceNorm2d(3, track_running_stats=True), torch.nn.Dropout(0.0))
    by_batch.eval()
    assert capture.as_update(net).facts.batch_norm is None
    assert capture.as_update(net, batch_norm="eval").facts.batch_norm == "eval"


def test_equinox_and_nnx_gradients_keep_the_names_of_their_attributes(tmp_path):
    mlp = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    capture.save(tmp_path / "e", eqx.filter_grad(lambda m: m(jnp.ones(2)).sum())(mlp))
    assert _names(tmp_path / "e")["layers.1.weight"] == (3, 4)
    linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    capture.save(tmp_path / "n", nnx.grad(lambda m: m(jnp.ones(2)).sum())(linear))
    assert _names(tmp_path / "n") == {"kernel": (2, 3), "bias": (3,)}


def test_state_dicts_of_pytorch_are_read_and_nothing_else_is_unpickled(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(4, 3).to(torch.bfloat16)
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, tmp_path / "w.pt")
    assert _names(tmp_path / "w.pt") == {"weight": (3, 4), "bias": (3,)}
    torch.save({"net": net.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="a state dict, names with tensors, it holds net, epoch"):
        capture.load(tmp_path / "checkpoint.pt")
    torch.save(net, tmp_path / "module.pt")
    with pytest.raises(ValueError, match="more than tensors") as refused:
        capture.load(tmp_path / "module.pt")
    assert "\n" not in str(refused.value)


def test_names_agree_across_separators_and_wrappers(tmp_path):
    np.savez(tmp_path / "u.npz", **{"conv/kernel": ARRAYS["conv"]["kernel"], "head/bias": ARRAYS["head"]["bias"]})
    tree = capture.fit(capture.load(tmp_path / "u.npz").arrays, ARRAYS, what="u")
    np.testing.assert_array_equal(tree["conv"]["kernel"], ARRAYS["conv"]["kernel"])
    wrapped = {"module.conv.kernel": ARRAYS["conv"]["kernel"], "module.head.bias": ARRAYS["head"]["bias"]}
    assert jax.tree.structure(capture.fit(wrapped, ARRAYS, what="u")) == jax.tree.structure(ARRAYS)


def test_a_list_takes_the_models_names_in_order(tmp_path):
    listed = [np.zeros(1, np.int64), ARRAYS["head"]["bias"], ARRAYS["conv"]["kernel"]]
    capture.save(tmp_path / "l", listed)
    names = ["norm.num_batches_tracked", "head.bias", "conv.kernel"]
    tree = capture.fit(capture.load(tmp_path / "l").arrays, ARRAYS, names=names, what="l")
    np.testing.assert_array_equal(tree["conv"]["kernel"], ARRAYS["conv"]["kernel"])
    with pytest.raises(ValueError, match="a list of 3 arrays, but the model has 2 names, 2 of parameters"):
        capture.fit(capture.load(tmp_path / "l").arrays, ARRAYS, names=names[1:], what="l")
    with pytest.raises(ValueError, match="a list of 3 arrays, whose order is not known"):
        capture.fit(capture.load(tmp_path / "l").arrays, ARRAYS, what="l")


@pytest.mark.parametrize("left_out", [(), ("norm.num_batches_tracked",), ("norm.mean", "norm.num_batches_tracked")])
def test_a_list_may_leave_out_counters_or_all_but_the_parameters(left_out):
    whole = {
        "norm.mean": np.zeros(3, np.float32),
        "norm.num_batches_tracked": np.zeros(1, np.int64),
        "second": np.ones((2, 2), np.float32),
        "first": np.full((2, 2), 2.0, np.float32),
    }
    sent = [array for name, array in whole.items() if name not in left_out]
    like = {"first": np.zeros((2, 2), np.float32), "second": np.zeros((2, 2), np.float32)}
    for prefix in ("", "arr_"):  # NumPy's savez names its arguments arr_0, arr_1, ...
        tree = capture.fit({f"{prefix}{i}": a for i, a in enumerate(sent)}, like, names=list(whole), what="l")
        np.testing.assert_array_equal(tree["first"], whole["first"])
        np.testing.assert_array_equal(tree["second"], whole["second"])


def test_names_that_differ_by_a_wrappers_prefix_belong_to_the_network_where_it_has_both():
    like = {"model.fc": np.zeros(2, np.float32), "fc": np.zeros(2, np.float32)}
    sent = {"model.fc": np.ones(2, np.float32), "fc": np.full(2, 2.0, np.float32)}
    for prefix in ("", "module.", "module._orig_mod."):
        tree = capture.fit({prefix + name: array for name, array in sent.items()}, like, what="u")
        np.testing.assert_array_equal(tree["model.fc"], 1)
        np.testing.assert_array_equal(tree["fc"], 2)
    with pytest.raises(ValueError, match="differ only by a prefix"):
        capture.fit(sent, {"module.fc": np.zeros(2, np.float32)}, what="u")


def test_what_a_module_does_not_train_is_named_in_the_header(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    net[1].requires_grad_(False)
    with pytest.raises(ValueError, match=r"2\.weight has no gradient: call loss.backward"):
        capture.save(tmp_path / "u", net)
    net(torch.ones(2, 2, 2)).sum().backward()
    capture.save(tmp_path / "u", net, batch_size=2)
    update = capture.load(tmp_path / "u")
    assert list(update.arrays) == ["2.bias", "2.weight"]
    assert update.facts.frozen == ("1.weight", "1.bias")
    with pytest.raises(ValueError, match="frozen must hold names"):
        capture.save(tmp_path / "u", net, frozen="fc")


def test_an_unknown_fact_is_named_with_those_that_there_are(tmp_path):
    with pytest.raises(TypeError, match=r"^batchsize is not a fact about a client; they are kind, .*batch_size"):
        capture.save(tmp_path / "u", ARRAYS, batchsize=1)
    with pytest.raises(
        TypeError, match=r'^weight_decay is not .*loss="other" \(another loss.*defense="other" \(an upd'
    ):
        capture.save(tmp_path / "u", ARRAYS, weight_decay=1e-4)


def test_a_loss_or_a_defense_that_no_audit_takes_is_refused_at_capture_and_may_be_corrected_in_a_file(tmp_path):
    for loss in ("cross_entropy", "binary_cross_entropy", "other"):
        assert capture.as_update(ARRAYS, loss=loss).facts.loss == loss
    with pytest.raises(
        ValueError, match=r"loss must be cross_entropy, binary_cross_entropy .*, or other .*; got 'BCEWithLogitsLoss'"
    ):
        capture.save(tmp_path / "u", ARRAYS, loss="BCEWithLogitsLoss")
    for defense in ("none", "other", *CLIENT_DEFENSES):
        assert capture.as_update(ARRAYS, defense=defense).facts.defense == defense
    for wrong in ("clip", "mine.txt:noise", "mine.py:", "mine.py:no name"):
        with pytest.raises(
            ValueError, match=rf"defense must be .*dp_update.*--defense FILE\.py:NAME.*, or other .*; got '{wrong}'"
        ):
            capture.save(tmp_path / "u", ARRAYS, defense=wrong, clip=1.0)
    assert not (tmp_path / "u").exists()
    # An older file is read, and the auditor's options can correct it.
    capture.save(tmp_path / "u", ARRAYS, loss="other")
    whole = (tmp_path / "u").read_bytes()
    (tmp_path / "u").write_bytes(whole.replace(b"other", b"focal"))
    assert capture.load(tmp_path / "u").facts.loss == "focal"


def test_a_client_of_pytorch_states_its_defense_without_importing_jax():
    program = (
        "import sys; from jaxleak.capture import Facts; Facts.of(defense='dp_update', clip=1.0); print(*sys.modules)"
    )
    folder = Path(capture.__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert not {"jax", "optax", "flax"} & set(ran.stdout.split())


@pytest.mark.parametrize(("kind", "sign"), [("difference", -1), ("weights", -1)])
def test_weights_become_a_gradient(kind, sign):
    before = {"w": np.full(2, 5.0, np.float32)}
    gradient, facts = np.array([1.0, -2.0], np.float32), capture.Facts(kind, learning_rate=0.1, local_steps=2)
    step = sign * 0.2 * gradient
    sent = {"w": step if kind == "difference" else before["w"] + step}
    found = capture.gradient_of(capture.Update(sent, facts), before)
    np.testing.assert_allclose(found["w"], gradient, rtol=1e-5)
    with pytest.raises(ValueError, match="learning_rate must be given"):
        capture.gradient_of(capture.Update(sent, capture.Facts(kind)), before)
    # A client that does not state its number of steps took one.
    once = capture.gradient_of(capture.Update(sent, capture.Facts(kind, learning_rate=0.1)), before)
    np.testing.assert_allclose(once["w"], 2 * gradient, rtol=1e-5)
    # The gradients of three steps have the weights 1 + 1/2 + 1/4, 1 + 1/2 and 1 with a momentum of one half.
    for several, weight in (({"local_epochs": 3}, 6.0), ({"local_steps": 3, "momentum": 0.5}, 4.25)):
        stated = dataclasses.replace(facts, **several)
        found = capture.gradient_of(capture.Update(sent, stated), before)
        np.testing.assert_allclose(found["w"], 2 * gradient / weight, rtol=1e-5)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"conv.kernel": np.ones((2, 3))}, r"head/bias is missing \(1 of 2 are\)"),
        ({"body.weight": np.ones((2, 3))}, "has no name of the model, so it is of another one: it holds body.weight"),
        (
            {"conv.kernel": np.ones((3, 2)), "head.bias": np.ones(3)},
            r"shape \(2, 3\), got \(3, 2\); the axes",
        ),
    ],
)
def test_another_models_arrays_are_named(arrays, message):
    with pytest.raises(ValueError, match=message):
        capture.fit(arrays, ARRAYS, what="u")


def test_a_header_of_any_length_is_read(tmp_path):
    """A safetensors file begins with the length of its header, and this can look like the start of a pickle."""
    for length in range(1, 300):
        capture.save(tmp_path / "u", {"n" * length: np.ones(2, np.float32)}, batch_size=3)
        if (tmp_path / "u").read_bytes()[:1] == b"\x80":
            break
    assert (tmp_path / "u").read_bytes()[:1] == b"\x80"
    assert capture.load(tmp_path / "u").facts.batch_size == 3


def test_damaged_and_hostile_files_get_one_line(tmp_path):
    capture.save(tmp_path / "whole", ARRAYS)
    whole = (tmp_path / "whole").read_bytes()
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**70,)})
    lies = whole.replace(b"gradient", b"gradcent")
    files = {"cut": whole[:-3], "header": whole[:40], "empty": b"", "text": b"hello" * 9, "lies": lies, "pk": b"PK" * 9}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    np.savez(tmp_path / "object.npz", a=np.array([{}], object))
    for name in (*files, "bomb.npz", "object.npz"):
        with pytest.raises(ValueError, match=name) as refused:
            capture.load(tmp_path / name)
        assert "\n" not in str(refused.value)
    with pytest.raises(FileNotFoundError):
        capture.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "facts", [{"kind": "nosuch"}, {"batch_size": 0}, {"reduction": "max"}, {"learning_rate": -1.0}]
)
def test_facts_out_of_range_are_named(tmp_path, facts):
    with pytest.raises(ValueError, match=next(iter(facts))):
        capture.save(tmp_path / "u", ARRAYS, **facts)


def _npz_of(path, content, version=(1, 0), **header):
    """Write an npz file with any claims in the header of its array."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("a.npy", "w") as file:
        write = {(1, 0): np.lib.format.write_array_header_1_0, (2, 0): np.lib.format.write_array_header_2_0}[version]
        write(file, {"descr": "<f4", "fortran_order": False, "shape": (2, 3), **header})
        file.write(content)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("fortran_order", [False, True])
def test_arrays_of_an_npz_file_are_those_that_numpy_reads(tmp_path, version, dtype, fortran_order):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    content = array.tobytes(order="F" if fortran_order else "C")
    path = _npz_of(tmp_path / "u.npz", content, version, descr=dtype, fortran_order=fortran_order)
    found = capture.load(path).arrays["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.float32
    with zipfile.ZipFile(path) as archive:
        np.testing.assert_array_equal(capture.read_npz_array(archive, "a", (2, 3)), array)
        with pytest.raises(ValueError, match=r"a must have shape \(3, 2\), got \(2, 3\)"):
            capture.read_npz_array(archive, "a", (3, 2))


@pytest.mark.parametrize(
    ("content", "header", "message"),
    [
        (bytes(23), {}, "a must have 24 bytes of content, got fewer"),
        (bytes(25), {}, "a must have 24 bytes of content, got more"),
        (bytes(24), {"descr": "<i4"}, "a must hold floats of at most 64 bits, got int32"),
        pytest.param(
            bytes(96),
            {"descr": "<f16"},
            "a must hold floats of at most 64 bits, got float128",
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize < 16, reason="NumPy has no such floats here"),
        ),
    ],
)
def test_an_npz_header_is_not_believed(tmp_path, content, header, message):
    with pytest.raises(ValueError, match=message):
        capture.load(_npz_of(tmp_path / "u.npz", content, **header))


def test_counters_of_batches_are_left_out_and_missing_statistics_are_named(tmp_path):
    model = models.resnet((8, 8, 1), 3, blocks=(1,), width=2)
    variables = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0)))
    state = named_leaves(variables["params"]) | named_leaves(variables["batch_stats"])
    np.savez(tmp_path / "w.npz", **state, **{"norm.num_batches_tracked": np.int64(3)})
    jax.tree.map(np.testing.assert_array_equal, read_weights(tmp_path / "w.npz", model), variables)
    np.savez(tmp_path / "w.npz", **named_leaves(variables["params"]))
    with pytest.raises(ValueError, match=r"w.npz holds the parameters, but not all running statistics \("):
        read_weights(tmp_path / "w.npz", model)


def test_an_npz_file_may_be_as_large_as_is_allowed_and_no_larger(tmp_path, monkeypatch):
    path = _npz_of(tmp_path / "u.npz", bytes(24))
    with zipfile.ZipFile(path) as archive:
        (whole,) = (entry.file_size for entry in archive.infolist())  # with its header
        monkeypatch.setattr(_arrays, "LARGEST", 24)
        assert capture.read_npz_array(archive, "a").shape == (2, 3)
        monkeypatch.setattr(_arrays, "LARGEST", 23)
        assert capture.read_npz_array(archive, "a", (2, 3)).shape == (2, 3)  # the caller asked for this size
        with pytest.raises(ValueError, match="a claims 24 bytes, more than 23"):
            capture.read_npz_array(archive, "a")
    monkeypatch.setattr(_arrays, "LARGEST", whole)
    assert list(capture.load(path).arrays) == ["a"]
    monkeypatch.setattr(_arrays, "LARGEST", whole - 1)
    with pytest.raises(ValueError, match="its arrays claim more than"):
        capture.load(path)


def test_sixteen_gigabytes_are_the_most_that_an_array_may_claim(tmp_path):
    for entries, message in ((2**32, "bytes of content, got fewer"), (2**32 + 1, f"more than {2**34}")):
        with pytest.raises(ValueError, match=message):
            capture.load(_npz_of(tmp_path / "u.npz", bytes(24), shape=(entries,)))


@pytest.mark.parametrize(("begin", "size", "expected"), [(b"{", 18, True), (b"{", 17, False), (b"[", 18, False)])
def test_a_file_that_can_hold_the_header_of_which_it_tells_the_length_is_safetensors(begin, size, expected):
    assert _arrays._is_safetensors((10).to_bytes(8, "little") + begin, size) == expected


def test_floats_become_single_precision_and_integers_stay(tmp_path):
    wide = {"a": np.full(2, 1e300), "b": jnp.ones(2, jnp.bfloat16), "c": np.ones((), np.float16), "n": np.arange(2)}
    capture.save(tmp_path / "u", wide)
    found = capture.load(tmp_path / "u").arrays
    assert {name: array.dtype.name for name, array in found.items()} == {
        **dict.fromkeys("abc", "float32"),
        "n": "int64",
    }
    assert np.isinf(found["a"]).all()  # and no warning
    assert found["c"].shape == ()


def test_what_an_audit_will_ask_for_is_said_at_capture(tmp_path, caplog):
    said = "strength of gaussian is not stated"
    for facts, warned in (
        ({"defense": "gaussian"}, True),
        ({"defense": "gaussian", "strength": 0.1}, False),
        ({"defense": "other"}, False),
        ({"defense": "dp_sgd", "noise_multiplier": 1.0}, False),
        ({"defense": "adam_step", "learning_rate": 0.1}, False),
        ({}, False),
    ):
        caplog.clear()
        capture.save(tmp_path / "u", {"a": np.ones(2, np.float32)}, **facts)
        assert (said in caplog.text) == warned
        assert warned or "not stated" not in caplog.text


def test_pytorchs_older_files_and_lists_of_tensors_are_read(tmp_path):
    torch = pytest.importorskip("torch")
    state = {"w": torch.ones(2, dtype=torch.float64), "steps": torch.tensor(3)}
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"model_state_dict": {"model": state}}, tmp_path / "nested.pt")
    for name in ("old.pt", "nested.pt"):
        found = capture.load(tmp_path / name).arrays
        assert (found["w"].dtype, found["steps"].dtype) == (np.float32, np.int64)
        assert found["steps"] == 3
    torch.save([torch.zeros(2), torch.ones(3)], tmp_path / "list.pt")
    assert _names(tmp_path / "list.pt") == {"0": (2,), "1": (3,)}
    torch.save({"w": torch.ones(2), "epoch": 3}, tmp_path / "mixed.pt")
    with pytest.raises(ValueError, match="a state dict, names with tensors, it holds w, epoch"):
        capture.load(tmp_path / "mixed.pt")


def test_the_framework_is_that_of_the_tensors_and_not_of_the_file_that_defines_the_network(tmp_path):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Linear):
        pass

    net = Net(2, 3)
    net(torch.ones(1, 2)).sum().backward()
    for update, framework in ((net, "torch"), ({"a": np.ones(2), "b": torch.ones(2)}, "torch"), (ARRAYS, "jax")):
        capture.save(tmp_path / "u", update)
        assert capture.load(tmp_path / "u").facts.framework == framework
    capture.save(tmp_path / "u", ARRAYS, framework="flower")
    assert capture.load(tmp_path / "u").facts.framework == "flower"


def test_up_to_four_prefixes_of_wrappers_are_taken_off():
    like = {"fc": np.zeros(2, np.float32)}
    for prefix in ("model.", "module.model.", "module._orig_mod.module.model."):
        assert capture.fit({f"{prefix}fc": np.ones(2)}, like, what="u")["fc"].tolist() == [1, 1]
        assert capture.fit({"fc": np.ones(2)}, {f"{prefix}fc": like["fc"]}, what="u")[f"{prefix}fc"].tolist() == [1, 1]
        assert matching([f"{prefix}fc"], ["fc/kernel", "fc/bias", "fcs"], what="u") == [
            "fc/kernel",
            "fc/bias",
        ]
    five = "params.module._orig_mod.module.model.fc"
    with pytest.raises(ValueError, match="has no name of the model"):
        capture.fit({five: np.ones(2)}, like, what="u")
    with pytest.raises(ValueError, match="the model has no layer"):
        matching([five], ["fc/kernel"], what="u")


def test_a_message_without_weights_is_not_recorded(tmp_path):
    class Empty(_Message):
        def has_content(self):
            return False

    weights, context = np.ones(2, np.float32), type("Context", (), {"node_id": 7})
    mod = capture.flower_mod(tmp_path / "recorded")
    for sent, reply in (
        (_Message("arrays", weights), Empty("arrays", weights)),
        (Empty("arrays", weights), _Message("arrays", weights)),
        (_Message("arrays", weights), _Message("metrics", weights)),
    ):
        assert mod(sent, context, lambda *_, answer=reply: answer) is reply
    assert not (tmp_path / "recorded").exists()


class _Array:
    def __init__(self, values):
        self.values = values

    def numpy(self):
        return self.values


class _Message:
    """A message of Flower, as far as the recorders read it."""

    def __init__(self, name, values, settings=None):
        records = {name: {"w": _Array(values)}}
        self.content = type("Content", (), {"array_records": records, "config_records": {"config": settings or {}}})
        self.metadata = type("Metadata", (), {"group_id": "3", "src_node_id": 7})

    def has_content(self):
        return True


@pytest.mark.parametrize(
    ("names", "settings", "number"),
    [(("arrays", "arrays"), {"server-round": 5}, 5), (("fitins.parameters", "fitres.parameters"), {}, 3)],
)
def test_flowers_clients_are_recorded_before_they_train_in_place(tmp_path, names, settings, number):
    weights = np.ones(2, np.float32)

    def train(message, context):
        message.content.array_records[names[0]]["w"].values -= 0.5
        return _Message(names[1], weights - 1)

    context = type("Context", (), {"node_id": 7})
    mod = capture.flower_mod(tmp_path / "all" / "recorded", learning_rate=0.1, batch_size=4)
    assert isinstance(mod(_Message(names[0], weights.copy(), settings), context, train), _Message)
    before = capture.load(tmp_path / "all" / "recorded" / f"{number}-7-received.safetensors")
    sent = capture.load(tmp_path / "all" / "recorded" / f"{number}-7-sent.safetensors")
    np.testing.assert_array_equal(before.arrays["w"], weights)
    assert (sent.facts.kind, sent.facts.batch_size) == ("weights", 4)
    np.testing.assert_allclose(capture.gradient_of(sent, before.arrays)["w"], 10.0)


def test_flowers_server_records_what_it_sends_and_every_reply(tmp_path):
    class Strategy:
        def configure_train(self, server_round, arrays, config, grid):
            return server_round, config, grid

        def aggregate_train(self, server_round, replies):
            return server_round, [reply.metadata.src_node_id for reply in replies]

    weights = np.ones(2, np.float32)
    strategy = Strategy()
    assert capture.flower_strategy(strategy, tmp_path, learning_rate=0.1, batch_size=4) is strategy
    assert strategy.configure_train(2, {"w": _Array(weights)}, "config", grid="grid") == (2, "config", "grid")
    assert strategy.aggregate_train(2, iter([_Message("arrays", weights - 1)])) == (2, [7])
    before, sent = (capture.load(tmp_path / f"2-{name}.safetensors") for name in ("received", "7-sent"))
    np.testing.assert_allclose(capture.gradient_of(sent, before.arrays)["w"], 10.0)
    with pytest.raises(TypeError, match=r"must be one of flwr.serverapp.strategy, got object"):
        capture.flower_strategy(object(), tmp_path)
    older = type("FedAvg", (), {"configure_fit": lambda *_: [], "aggregate_fit": lambda *_: None})
    with pytest.raises(TypeError, match=r"FedAvg is a strategy of the older flwr.server.strategy.*capture.flower_mod"):
        capture.flower_strategy(older(), tmp_path)


@pytest.mark.parametrize(
    "record", [capture.flower_mod, lambda folder, **facts: capture.flower_strategy(_Recorded(), folder, **facts)]
)
def test_a_fact_that_there_is_not_is_refused_before_the_federation_runs(record, tmp_path):
    with pytest.raises(TypeError, match=r"lerning_rate is not a fact about a client"):
        record(tmp_path, lerning_rate=0.1)
    with pytest.raises(ValueError, match=r"local_steps must be"):
        record(tmp_path, local_steps=0)


class _Recorded:
    def configure_train(self, server_round, arrays):
        raise NotImplementedError

    aggregate_train = configure_train


def test_the_keyword_arguments_of_facts_are_its_fields():
    fields = [field.name for field in dataclasses.fields(capture.Facts)]
    assert list(capture.FactOptions.__annotations__) == fields
    assert capture.FactOptions.__total__ is False
