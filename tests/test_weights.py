"""Weights in safetensors files and Orbax's folders: they are restored unchanged, and nothing else is read."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy

from jaxleak import models
from jaxleak.checkpoint import Checkpoints


def test_weights_survive_a_round_trip(tmp_path):
    model = models.resnet((16, 16, 1), 3, blocks=(1, 1), width=2, stem="large")
    shapes, rng = jax.eval_shape(model.init, jax.random.key(0)), np.random.default_rng(0)
    shapes["params"]["scale"] = jax.ShapeDtypeStruct((), np.float32)
    variables = jax.tree.map(lambda leaf: rng.normal(0.1, 0.5, leaf.shape).astype(leaf.dtype), shapes)
    file = tmp_path / "weights.safetensors"
    models.save_weights(file, variables)
    loaded = models.load_weights(file, shapes)
    assert jax.tree.structure(loaded) == jax.tree.structure(variables)
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    assert "params.stem.kernel" in safetensors.numpy.load_file(file)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_weights_that_do_not_fit_are_refused(tmp_path):
    file = tmp_path / "w"
    like = {"params": {"a": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.int32)}}
    wrong = {
        "params.b is missing": {"params.a": np.zeros((2, 3), np.float32)},
        "params.c is not expected": {**{f"params.{n}": v for n, v in like["params"].items()}, "params.c": np.zeros(1)},
        r"params.a must have shape \(2, 3\), got \(3, 2\)": {
            "params.a": np.zeros((3, 2), np.float32),
            "params.b": np.zeros(2, np.int32),
        },
        "params.a must have dtype F32, got F64": {"params.a": np.zeros((2, 3)), "params.b": np.zeros(2, np.int32)},
        "params.a holds values that are not finite": {
            "params.a": np.full((2, 3), np.nan, np.float32),
            "params.b": np.zeros(2, np.int32),
        },
    }
    for message, tensors in wrong.items():
        safetensors.numpy.save_file(tensors, file)
        with pytest.raises(ValueError, match=f"{file}: {message}"):
            models.load_weights(file, like)
    models.save_weights(file, like)
    whole = file.read_bytes()
    # Empty, cut off, a header longer than the file, and a pickle.
    for content in (b"", whole[:-3], (2**60).to_bytes(8, "little") + whole[8:], b"\x80\x04K\x01." * 5):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file}: not a safetensors file, or a damaged one"):
            models.load_weights(file, like)
    with pytest.raises(FileNotFoundError, match="no such file"):
        models.load_weights(tmp_path / "nothing", like)


def test_folders_of_orbax_are_read_and_compared_as_files_are(tmp_path):
    variables = {"params": {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.arange(2), jnp.ones(1))}, "batch_stats": {}}
    with ocp.StandardCheckpointer() as orbax:
        orbax.save(tmp_path / "standard", variables)
        orbax.save(tmp_path / "infinite", {"a": jnp.full(1, jnp.inf)})
    ours = Checkpoints(tmp_path / "ours", {})
    ours.save(9, jax.tree.map(jnp.zeros_like, variables))
    ours.save(10, variables)
    for folder in ("standard", "ours", "ours/steps/10"):
        loaded = models.load_weights(tmp_path / folder, jax.eval_shape(lambda: variables))
        assert jax.tree.structure(loaded) == jax.tree.structure(variables)
        jax.tree.map(np.testing.assert_array_equal, loaded, variables)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(loaded))
    other = jax.tree.map(np.asarray, variables)
    for params, message in (
        ({"a": other["params"]["a"]}, r"params\.b\.0 is not expected"),
        (other["params"] | {"c": np.zeros(1)}, r"params\.c is missing"),
        (other["params"] | {"a": np.zeros((3, 2), np.float32)}, r"params\.a must have shape \(3, 2\), got \(2, 3\)"),
        (other["params"] | {"a": np.zeros((2, 3))}, r"params\.a must have dtype F64, got F32"),
    ):
        with pytest.raises(ValueError, match=f"{tmp_path / 'standard'}: {message}"):
            models.load_weights(tmp_path / "standard", {"params": params})
    with pytest.raises(ValueError, match="a holds values that are not finite"):
        models.load_weights(tmp_path / "infinite", {"a": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match="a folder that holds no checkpoint of Orbax"):
        models.load_weights(tmp_path, other)
    for damaged in (tmp_path / "standard").rglob("*"):
        if damaged.is_file() and damaged.name not in ("_METADATA", "_CHECKPOINT_METADATA"):
            damaged.write_bytes(b"")
    with pytest.raises(ValueError, match="a damaged checkpoint of Orbax"):
        models.load_weights(tmp_path / "standard", other)


def test_weights_that_cannot_be_stored_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"two leaves have the same name 'a\.b'"):
        models.save_weights(tmp_path / "w", {"a": {"b": np.zeros(1)}, "a.b": np.zeros(1)})
    with pytest.raises(ValueError, match=r"a: dtype must be one of .*, got complex64"):
        models.save_weights(tmp_path / "w", {"a": np.zeros(1, np.complex64)})
