"""Hostile payloads and weights: always a clear error or valid arrays, and nothing is ever unpickled."""

import io
import json
import struct
import tempfile
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from fuzzing import MODEL, NAMES, VARIABLES, clear, fuzz, little_memory, nothing_is_unpickled, report  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from jaxleak import attacks, models
from jaxleak._command.invert import captured
from jaxleak._tree import named_leaves


class Bait:
    """An object that creates a file if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


ARRAYS = st.sampled_from(
    [
        np.zeros((16, 5), np.float32),
        np.zeros((16, 5), np.float64),
        np.full((16, 5), 1e300),
        np.full((16, 5), np.nan, np.float32),
        np.zeros((16, 5), np.int32),
        np.zeros((16, 5), np.complex64),
        np.zeros((16, 5), "U3"),
        np.zeros((16, 5), np.longdouble),
        np.zeros((16, 5), [("a", "f4")]),
        np.zeros((5, 16), np.float32),
        np.zeros((), np.float32),
        np.zeros((0, 5), np.float32),
        np.array(["2020-01-01"], "M8[D]"),
    ]
)
#: Placeholder of a file name, later overwritten with null bytes: `zipfile` reads an empty name but cannot write one.
NAMELESS = "nameless"
DAMAGE = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)


def _damaged(content, damage, cut):
    content = bytearray(content)
    for position, value in damage:
        content[position % len(content)] = value
    return bytes(content[: max(0, len(content) - cut)])


def _huge_member(shape):
    """An npy file with a header that claims more data than any memory holds."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.fixture(scope="module")
def names():
    return list(named_leaves(VARIABLES["params"]))


@fuzz(80, 1200)
@given(
    replaced=st.dictionaries(st.integers(0, 4), ARRAYS | st.sampled_from(["bait", "huge", "raw", None]), max_size=2),
    extra=st.none() | st.sampled_from(["more", "../../etc/passwd", NAMELESS]),
    damage=DAMAGE,
    cut=st.sampled_from([0, 0, 0, 1, 30, 500]),
)
def test_payload_files(names, replaced, extra, damage, cut):
    arrays = dict(zip(names, map(np.asarray, jax.tree.leaves(VARIABLES["params"])), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path, bait = Path(folder) / "payload.npz", Path(folder) / "unpickled"
        with zipfile.ZipFile(path, "w") as archive:
            for i, (name, array) in enumerate(arrays.items()):
                content, new = io.BytesIO(), replaced.get(i, array)
                if isinstance(new, np.ndarray):
                    np.save(content, new, allow_pickle=False)
                elif new == "bait":
                    np.save(content, np.array([Bait(str(bait))], object), allow_pickle=True)
                elif new == "huge":
                    content.write(_huge_member((10**9, 10**6)))
                elif new == "raw":
                    content.write(b"no array")
                if new is not None:
                    archive.writestr(name + ".npy", content.getvalue())
            if extra is not None:
                archive.writestr(extra + ".npy", b"")
        content = path.read_bytes().replace(NAMELESS.encode(), bytes(len(NAMELESS)))
        path.write_bytes(_damaged(content, damage, cut))

        def attempt():
            payload = captured.load_payload(path, VARIABLES["params"])
            attacks.check_payload(payload, VARIABLES)
            return payload

        payload = clear("payloads", attempt)
        assert not bait.exists()
    if payload is not None:
        for leaf, weight in zip(jax.tree.leaves(payload), jax.tree.leaves(VARIABLES["params"]), strict=True):
            assert leaf.shape == weight.shape
            assert np.isfinite(leaf).all()


LEAVES = ARRAYS | st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.just(object())


@fuzz(60, 1200)
@given(tree=st.recursive(LEAVES, lambda t: st.lists(t, max_size=3) | st.dictionaries(NAMES, t, max_size=3)))
def test_payload_trees(tree):
    clear("trees", lambda: attacks.check_payload(tree, VARIABLES))
    first = next(iter(VARIABLES["params"]))
    clear("trees", lambda: attacks.check_payload({**VARIABLES["params"], first: tree}, VARIABLES))


@fuzz(80, 1000)
@given(
    header=st.none() | st.binary(max_size=40) | st.dictionaries(NAMES, st.integers() | st.text(max_size=4), max_size=3),
    replaced=st.dictionaries(st.integers(0, 4), ARRAYS.filter(lambda a: a.dtype.kind in "fi" and a.itemsize < 16)),
    damage=DAMAGE,
    cut=st.sampled_from([0, 0, 0, 1, 30, 500]),
)
def test_weight_files(header, replaced, damage, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        models.save_weights(path, VARIABLES)
        if replaced:
            stored = safetensors.numpy.load_file(path)
            stored.update({name: replaced[i] for i, name in enumerate(stored) if i in replaced})
            safetensors.numpy.save_file(stored, path)
        if header is not None:
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + path.read_bytes())
        path.write_bytes(_damaged(path.read_bytes(), damage, cut))
        like = jax.eval_shape(MODEL.init, jax.random.key(0))
        loaded = clear("weights", lambda: models.load_weights(path, like), mentions=(str(path),))
    if loaded is not None:
        assert jax.tree.map(lambda leaf: leaf.shape, loaded) == jax.tree.map(lambda leaf: leaf.shape, like)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded))
