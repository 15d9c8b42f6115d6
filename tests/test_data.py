import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from dataset_checks import check_dataset

from jaxleak.data import _embedded, load

real_data = pytest.mark.skipif(
    not os.environ.get("JAXLEAK_DATA_DIR"), reason="JAXLEAK_DATA_DIR, the folder of real data, is not set"
)


@pytest.mark.parametrize(
    ("spec", "shape", "classes"),
    [
        ("lfw_faces", (100, 25, 25, 1), 2),
        ("digits", (1797, 8, 8, 1), 10),
        ("breast_cancer", (569, 30), 2),
        ("natural_patches", (1000, 32, 32, 3), 10),
        ("photographs", (200, 32, 32, 3), 10),
    ],
)
def test_embedded_data_need_nothing_else(spec, shape, classes, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    data = load(spec)
    check_dataset(data, shape, classes)
    assert data.name == spec
    assert len(np.unique(data.y)) == (1 if spec == "lfw_faces" else classes)


def test_faces_are_faces_and_nothing_else():
    data = load("lfw_faces")
    assert data.classes == ("not a face", "face")
    assert (data.y == 1).all()
    # As a contact sheet shows, many other crops of the file cross the edge of a photograph, where pixels are black.
    assert (data.x < 0.02).mean() < 0.05


def test_the_draw_is_seeded_without_replacement_and_a_prefix():
    every, ten, other = load("digits"), load("digits", n=10, seed=0), load("digits", n=10, seed=1)
    np.testing.assert_array_equal(ten.x, every.x[:10])
    np.testing.assert_array_equal(ten.y, every.y[:10])
    assert not np.array_equal(ten.x, other.x)
    faces = load("lfw_faces", n=100, seed=3)
    assert len(np.unique(faces.x.reshape(100, -1), axis=0)) == 100


def test_images_and_labels_stay_together():
    from sklearn.datasets import load_digits

    data, whole = load("digits", n=50, seed=5), load_digits()
    for x, y in zip(data.x, data.y, strict=True):
        matches = np.all(whole.images == x[..., 0] * 16, axis=(1, 2))
        assert y in whole.target[matches]


def test_a_table_is_scaled_over_all_rows_not_over_the_drawn():
    whole = load("breast_cancer")
    np.testing.assert_array_equal(whole.x.min(axis=0), 0)
    np.testing.assert_array_equal(whole.x.max(axis=0), 1)
    np.testing.assert_array_equal(load("breast_cancer", n=5).x, whole.x[:5])


def test_patches_have_the_asked_size_detail_and_seed():
    data = load("natural_patches:8", n=40, seed=2)
    check_dataset(data, (40, 8, 8, 3), 10)
    assert data.x.std(axis=(1, 2)).max(axis=1).min() >= 0.03 - 1e-6
    np.testing.assert_array_equal(data.x[:7], load("natural_patches:8", n=7, seed=2).x)
    assert not np.array_equal(data.x, load("natural_patches:8", n=40, seed=3).x)


def test_views_show_most_of_a_photograph():
    data = load("photographs:16", n=12, seed=2)
    check_dataset(data, (12, 16, 16, 3), 10)
    np.testing.assert_array_equal(data.x[:5], load("photographs:16", n=5, seed=2).x)
    # The mean colour of a large view is close to that of its photograph; a small crop's need not be.
    means = {y: data.x[data.y == y].mean(axis=(1, 2)) for y in np.unique(data.y)}
    assert max(np.ptp(colours, axis=0).max() for colours in means.values()) < 0.25
    assert not np.array_equal(data.x, load("photographs:16", n=12, seed=3).x)


def test_patches_may_be_as_large_as_the_smallest_photograph():
    data = load("natural_patches:300", n=40)
    check_dataset(data, (40, 300, 300, 3), 10)
    assert data.classes.index("chelsea") in data.y


@pytest.mark.parametrize("kind", ["natural_patches", "photographs"])
def test_memory_for_views_is_asked_for(kind, monkeypatch):
    asked = []
    monkeypatch.setattr(_embedded, "require_host_bytes", lambda need, what: asked.append(need))
    load(f"{kind}:8", n=3)
    assert asked == [3 * 8 * 8 * 3 * (1 + 4)]  # three channels of a byte and of a 32-bit float


@pytest.mark.parametrize("kind", ["natural_patches", "photographs"])
@pytest.mark.parametrize("size", ["0", "7", "301", "x", "-8", ""])
def test_patch_size_is_checked(kind, size):
    with pytest.raises(ValueError, match="SIZE must be a number from 8 to 300"):
        load(f"{kind}:{size}")


@pytest.mark.parametrize("spec", ["mnits", "", "digits:3", "mnist:2", "npz:", "tfds:", "folder:", "idx:", "http:x"])
def test_unknown_specs_list_the_known_ones(spec):
    with pytest.raises(ValueError, match=r"a data specification must be one of adult, .*lfw_faces.*npz:FILE.*got '"):
        load(spec)


def test_a_path_without_its_kind_is_told_what_it_would_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.npz").touch()
    Path("a.csv").touch()
    Path("faces").mkdir()
    meant = {"a.npz": "this file is npz:a.npz", "a.csv": "is csv:a.csv", "faces": "images is folder:faces"}
    for path, said in meant.items():
        with pytest.raises(ValueError, match=f"got '{path}'; .*{said}"):
            load(path)
    for spec in ("", "x" * 5000):
        with pytest.raises(ValueError, match=f"got '{spec}'$"):
            load(spec)
    with pytest.raises(ValueError, match=r"got 'b\.npz'$"):
        load("b.npz")


def test_sample_counts_and_seeds_are_checked():
    with pytest.raises(ValueError, match="lfw_faces has 100 samples, fewer than the 101 asked for"):
        load("lfw_faces", n=101)
    with pytest.raises(ValueError, match="n must be > 0, got 0"):
        load("lfw_faces", n=0)
    with pytest.raises(ValueError, match=r"n must be an integer or None, got 2\.5"):
        load("lfw_faces", n=2.5)
    with pytest.raises(ValueError, match=r"seed must be whole numbers in \[0, 2\^32\), got -1"):
        load("lfw_faces", seed=-1)


# npz files


def _npz(folder, **arrays):
    np.savez(folder / "some.npz", **arrays)
    return f"npz:{folder / 'some.npz'}"


def test_npz_of_bytes(tmp_path):
    x = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    data = load(_npz(tmp_path, x=x, y=np.array([0, 2])))
    check_dataset(data, (2, 3, 4, 1), 3)
    order = [0, 1] if data.y[0] == 0 else [1, 0]
    np.testing.assert_allclose(data.x[..., 0], x[order] / 255, rtol=1e-6)
    assert data.classes == ("0", "1", "2")


def test_npz_of_floats_with_class_names(tmp_path):
    x = np.linspace(0, 1, 24).reshape(1, 2, 4, 3)
    data = load(_npz(tmp_path, x=x, y=np.array([1], np.uint8), class_names=np.array(["cat", "dog"])))
    check_dataset(data, (1, 2, 4, 3), 2)
    np.testing.assert_allclose(data.x, x, rtol=1e-6)
    assert data.classes == ("cat", "dog")


def test_npz_of_a_table(tmp_path):
    x = np.array([[-5.0, 7.0], [0.0, 7.0], [15.0, 7.0]])
    data = load(_npz(tmp_path, x=x, y=np.array([0, 1, 2])))
    np.testing.assert_allclose(data.x[np.argsort(data.y)], [[0, 0], [0.25, 0], [1, 0]])


_X, _Y = np.zeros((2, 4, 4, 1)), np.array([0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": _X}, "has no array 'y'; it has x"),
        ({"y": _Y}, "has no array 'x'"),
        ({"x": _X + 1.5, "y": _Y}, r"float images must lie within \[0, 1\], got 1\.5 to 1\.5"),
        ({"x": _X * np.nan, "y": _Y}, "x holds non-finite values"),
        ({"x": np.full((2, 3), np.inf), "y": _Y}, "x holds non-finite values"),
        ({"x": _X.astype(np.int64), "y": _Y}, "x must be uint8 or float, got dtype int64"),
        ({"x": _X - 0.5, "y": _Y}, r"float images must lie within \[0, 1\], got -0\.5 to -0\.5"),
        ({"x": np.zeros((2, 4, 4, 1, 1)), "y": _Y}, r"x must be \(N, H, W, C\).*got \(2, 4, 4, 1, 1\)"),
        ({"x": _X, "y": np.array([0, 2**16])}, "labels must be below the number of classes, 65536, got 65536"),
        ({"x": _X, "y": _Y, "class_names": np.array([["one", "two"]])}, "class_names must be a list of text"),
        ({"x": np.zeros(2), "y": _Y}, r"x must be \(N, H, W, C\).*got \(2,\)"),
        ({"x": np.zeros((0, 4, 4, 1)), "y": np.zeros(0, int)}, r"none of them 0, got \(0, 4, 4, 1\)"),
        ({"x": _X, "y": np.array([0, 1, 2])}, r"labels must have shape \(2,\), one per sample, got \(3,\)"),
        ({"x": _X, "y": np.array([0, -1])}, "labels must be >= 0, got -1"),
        ({"x": _X, "y": np.array([0.0, 1.0])}, "labels must be integers, got dtype float64"),
        ({"x": _X, "y": np.array([0, 2**40])}, "labels must be below the number of classes"),
        ({"x": _X, "y": _Y, "class_names": np.array(["one"])}, "below the number of classes, 1, got 1"),
        (
            {"x": np.zeros((2, 3, 4, 5)), "y": _Y},
            r"channels last.*got \(2, 3, 4, 5\): transpose x by x.transpose\(0, 2,",
        ),
        ({"x": np.zeros((2, 1, 8, 8), np.uint8), "y": _Y}, "transpose x"),
        (
            {"x": np.eye(8, dtype=np.uint8)[None].repeat(2, 0), "y": _Y},
            r"the largest value here is 1, nearly black: multiply x by 255, or give floats in \[0, 1\]",
        ),
        ({"x": np.zeros((3, 4, 4, 1)), "y": np.array([3, 1, 2])}, "labels must be counted from 0, got 1 to 3"),
        ({"x": _X, "y": _Y, "class_names": np.array([1, 2])}, "class_names must be a list of text"),
        ({"images": _X, "labels": _Y}, r"has no array 'x'; it has images, labels\. Needed are x.* and y"),
        ({"x": _X, "y": np.eye(3)[:2]}, r"got \(2, 3\): one-hot rows .* by y\.argmax\(axis=1\)"),
        ({"x": _X, "y": _Y[:, None]}, r"got \(2, 1\): labels of one column .* by y\[:, 0\]"),
        ({"x": np.full((2, 3, 8, 8), 255.0), "y": _Y}, r"transpose x.*; and float images .*: divide x by 255"),
    ],
)
def test_npz_content_is_checked(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(_npz(tmp_path, **arrays))
    assert "some.npz" in str(caught.value)


def test_what_only_resembles_channels_first_or_a_count_from_one_is_taken(tmp_path):
    """Accepted are images of three rows, a class 0 with a name but no sample, and labels with gaps."""
    assert load(_npz(tmp_path, x=np.zeros((2, 3, 5, 3)), y=_Y)).x.shape == (2, 3, 5, 3)
    named = load(_npz(tmp_path, x=_X, y=np.array([1, 2]), class_names=np.array(["a", "b", "c"])))
    assert len(named.classes) == 3
    assert len(load(_npz(tmp_path, x=_X, y=np.array([1, 3]))).classes) == 4
    assert len(load(_npz(tmp_path, x=_X, y=np.array([1, 1]))).classes) == 2


def test_labels_may_be_as_large_as_their_bound(tmp_path):
    assert len(load(_npz(tmp_path, x=_X, y=np.array([0, 2**16 - 1]))).classes) == 2**16


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("an npz member was unpickled",))


def test_npz_objects_are_never_unpickled(tmp_path):
    bomb = np.array([_Bomb(), _Bomb()], object)
    with pytest.raises(ValueError, match=r"some\.npz: x has dtype object, which is never unpickled"):
        load(_npz(tmp_path, x=bomb, y=_Y))
    assert load(_npz(tmp_path, x=_X, y=_Y, extra=bomb)).y.shape == (2,)
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(ValueError, match=r"pickle\.npz is no npz file"):
        load(f"npz:{tmp_path / 'pickle.npz'}")


def test_damaged_npz_files_are_named(tmp_path):
    path = tmp_path / "some.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((4, 8, 8, 1)), y=np.arange(4))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"some\.npz is no npz file, or is truncated"):
        load(f"npz:{path}")
    path.write_bytes(whole[:200] + bytes(400) + whole[600:])
    with pytest.raises(ValueError, match=r"some\.npz cannot be read, it may be corrupt"):
        load(f"npz:{path}")
    with pytest.raises(FileNotFoundError, match=r"none\.npz does not exist"):
        load(f"npz:{tmp_path / 'none.npz'}")


# idx files

_IDX_X = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4)
_IDX_Y = np.array([1, 0, 3], np.uint8)


def _idx_bytes(array, magic=None):
    magic = 0x0800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def _idx(folder, images=None, labels=None):
    (folder / "images").write_bytes(_idx_bytes(_IDX_X) if images is None else images)
    (folder / "labels").write_bytes(_idx_bytes(_IDX_Y) if labels is None else labels)
    return f"idx:{folder / 'images'},{folder / 'labels'}"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_raw_and_gzip(tmp_path, pack):
    data = load(_idx(tmp_path, pack(_idx_bytes(_IDX_X)), pack(_idx_bytes(_IDX_Y))))
    check_dataset(data, (3, 2, 4, 1), 4)
    np.testing.assert_array_equal(np.sort(data.y), [0, 1, 3])
    by_label = dict(zip(data.y.tolist(), data.x[..., 0], strict=True))
    np.testing.assert_allclose(by_label[3], _IDX_X[2] / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (_idx_bytes(_IDX_X, 2049), None, "images is no idx file of 3 dimensions.*magic number must be 2051, got 2049"),
        (None, _idx_bytes(_IDX_Y, 7), "labels is no idx file of 1 dim.*magic number must be 2049, got 7"),
        (_idx_bytes(_IDX_X)[:-1], None, "images states 3x2x4 = 24 bytes of content, but has only 23"),
        (_idx_bytes(_IDX_X) + b"x", None, "images states 3x2x4 = 24 bytes of content, but has more"),
        (b"\0\0", None, "images is no idx file"),
        (gzip.compress(_idx_bytes(_IDX_X), mtime=0)[:-12], None, "images is no idx file.*corrupt"),
        (None, _idx_bytes(_IDX_Y[:2]), "images has 3 images, but .*labels has 2 labels"),
        (_idx_bytes(_IDX_X[:0]), _idx_bytes(_IDX_Y[:0]), "none of them 0"),
    ],
)
def test_idx_files_are_checked(tmp_path, images, labels, message):
    with pytest.raises(ValueError, match=message):
        load(_idx(tmp_path, images, labels))


def test_idx_paths_are_checked(tmp_path):
    with pytest.raises(ValueError, match="must be idx:IMAGES,LABELS"):
        load("idx:one")
    with pytest.raises(ValueError, match="two paths with one comma between"):
        load("idx:one,two,three")
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load(_idx(tmp_path).replace("labels", "nowhere"))


# short names


def test_short_names_need_the_variable_and_the_file(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match=r"cifar10 needs .* JAXLEAK_DATA_DIR.*not set \(docs/data\.md"):
        load("cifar10")
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"cifar10 needs .*cifar10\.npz, which does not .*; docs/data\.md"):
        load("cifar10")
    np.savez(tmp_path / "cifar10.npz", x=_X, y=_Y)
    assert load("cifar10", n=1).name == "cifar10"


def test_mnist_turns_to_the_raw_files_when_asked_for_more(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    np.savez(tmp_path / "mnist.npz", x=_IDX_X[:2], y=_IDX_Y[:2])
    with pytest.raises(ValueError, match="mnist has 2 samples, fewer than the 3 asked for"):
        load("mnist", n=3)
    raw = tmp_path / "raw" / "mnist"
    raw.mkdir(parents=True)
    for name, array in (("images-idx3", _IDX_X), ("labels-idx1", _IDX_Y)):
        (raw / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(_idx_bytes(array)))
    assert len(load("mnist").y) == 2
    for seed in range(6):
        np.testing.assert_array_equal(np.sort(load("mnist", n=2, seed=seed).y), [0, 1])
    np.testing.assert_array_equal(np.sort(load("mnist", n=3).y), [0, 1, 3])
    with pytest.raises(ValueError, match="has 3 samples"):
        load("mnist", n=4)


@real_data
@pytest.mark.parametrize(
    ("spec", "row", "classes"),
    [
        ("mnist", (28, 28, 1), 10),
        ("cifar10", (32, 32, 3), 10),
        ("cifar100", (32, 32, 3), 100),
        ("yale32", (32, 32, 1), 15),
        ("ham10000", (224, 224, 3), 7),
        ("imagenet_sample", (224, 224, 3), 1000),
        ("lc25000_lung", (224, 224, 3), 3),
        ("lc25000_lung32", (32, 32, 3), 3),
        ("sensorless", (48,), 11),
        ("adult", (14,), 2),
        ("credit_default", (23,), 2),
    ],
)
def test_real_data(spec, row, classes):
    if not (Path(os.environ["JAXLEAK_DATA_DIR"]) / f"{spec}.npz").is_file():
        pytest.skip(f"{spec}.npz is not in JAXLEAK_DATA_DIR")
    check_dataset(load(spec, n=20), (20, *row), classes)
