import gzip
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxleak.data import load

real_data = pytest.mark.skipif(
    not os.environ.get("JAXLEAK_DATA_DIR"), reason="JAXLEAK_DATA_DIR, the folder of real data, is not set"
)


def _check(data, shape, classes):
    assert data.x.shape == shape
    assert data.x.dtype == np.float32
    assert data.x.min() >= 0
    assert data.x.max() <= 1
    assert data.y.shape == shape[:1]
    assert data.y.dtype == np.int32
    assert data.y.min() >= 0
    assert data.y.max() < len(data.classes) == classes
    assert all(isinstance(name, str) for name in data.classes)


@pytest.mark.parametrize(
    ("spec", "shape", "classes"),
    [
        ("lfw_faces", (200, 25, 25, 1), 2),
        ("digits", (1797, 8, 8, 1), 10),
        ("breast_cancer", (569, 30), 2),
        ("natural_patches", (1000, 32, 32, 3), 10),
    ],
)
def test_embedded_data_need_nothing_else(spec, shape, classes, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    data = load(spec)
    _check(data, shape, classes)
    assert data.name == spec
    assert len(np.unique(data.y)) == classes


def test_faces_are_labelled_as_faces():
    data = load("lfw_faces")
    assert data.classes == ("not a face", "face")
    assert (data.y == 1).sum() == 100
    # Seen on a contact sheet: many of the other crops reach over the edge of a photograph, which is black there.
    face, other = ((data.x[data.y == label] < 0.02).mean() for label in (1, 0))
    assert face < 0.05
    assert other > 0.15


def test_the_draw_is_seeded_without_replacement_and_a_prefix():
    every, ten, other = load("digits"), load("digits", n=10, seed=0), load("digits", n=10, seed=1)
    np.testing.assert_array_equal(ten.x, every.x[:10])
    np.testing.assert_array_equal(ten.y, every.y[:10])
    assert not np.array_equal(ten.x, other.x)
    faces = load("lfw_faces", n=200, seed=3)
    assert len(np.unique(faces.x.reshape(200, -1), axis=0)) == 200


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
    _check(data, (40, 8, 8, 3), 10)
    assert data.x.std(axis=(1, 2)).max(axis=1).min() >= 0.03 - 1e-6
    np.testing.assert_array_equal(data.x[:7], load("natural_patches:8", n=7, seed=2).x)
    assert not np.array_equal(data.x, load("natural_patches:8", n=40, seed=3).x)


@pytest.mark.parametrize("size", ["0", "7", "301", "x", "-8", ""])
def test_patch_size_is_checked(size):
    with pytest.raises(ValueError, match="SIZE must be a number from 8 to 300"):
        load(f"natural_patches:{size}")


@pytest.mark.parametrize("spec", ["mnits", "", "digits:3", "mnist:2", "npz:", "tfds:", "folder:", "idx:", "http:x"])
def test_unknown_specs_list_the_known_ones(spec):
    with pytest.raises(ValueError, match=r"a data specification must be one of adult, .*lfw_faces.*npz:FILE.*got '"):
        load(spec)


def test_sample_counts_and_seeds_are_checked():
    with pytest.raises(ValueError, match="lfw_faces has 200 samples, fewer than the 201 asked for"):
        load("lfw_faces", n=201)
    with pytest.raises(ValueError, match="n must be > 0, got 0"):
        load("lfw_faces", n=0)
    with pytest.raises(ValueError, match=r"n must be an integer or None, got 2\.5"):
        load("lfw_faces", n=2.5)
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        load("lfw_faces", seed=-1)


# npz files


def _npz(folder, **arrays):
    np.savez(folder / "some.npz", **arrays)
    return f"npz:{folder / 'some.npz'}"


def test_npz_of_bytes(tmp_path):
    x = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    data = load(_npz(tmp_path, x=x, y=np.array([0, 2])))
    _check(data, (2, 3, 4, 1), 3)
    order = [0, 1] if data.y[0] == 0 else [1, 0]
    np.testing.assert_allclose(data.x[..., 0], x[order] / 255, rtol=1e-6)
    assert data.classes == ("0", "1", "2")


def test_npz_of_floats_with_class_names(tmp_path):
    x = np.linspace(0, 1, 24).reshape(1, 2, 4, 3)
    data = load(_npz(tmp_path, x=x, y=np.array([1], np.uint8), class_names=np.array(["cat", "dog"])))
    _check(data, (1, 2, 4, 3), 2)
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
        ({"x": _X}, "has no array 'y'"),
        ({"y": _Y}, "has no array 'x'"),
        ({"x": _X + 1.5, "y": _Y}, r"float images must lie within \[0, 1\], got 1\.5 to 1\.5"),
        ({"x": _X * np.nan, "y": _Y}, "x holds non-finite values"),
        ({"x": np.full((2, 3), np.inf), "y": _Y}, "x holds non-finite values"),
        ({"x": _X.astype(np.int64), "y": _Y}, "x must be uint8 or float, got dtype int64"),
        ({"x": np.zeros(2), "y": _Y}, r"x must be \(N, H, W, C\).*got \(2,\)"),
        ({"x": np.zeros((0, 4, 4, 1)), "y": np.zeros(0, int)}, r"none of them 0, got \(0, 4, 4, 1\)"),
        ({"x": _X, "y": np.array([0, 1, 2])}, r"labels must have shape \(2,\), one per sample, got \(3,\)"),
        ({"x": _X, "y": np.array([0, -1])}, "labels must be >= 0, got -1"),
        ({"x": _X, "y": np.array([0.0, 1.0])}, "labels must be integers, got dtype float64"),
        ({"x": _X, "y": np.array([0, 2**40])}, "labels must be below the number of classes"),
        ({"x": _X, "y": _Y, "class_names": np.array(["one"])}, "below the number of classes, 1, got 1"),
        ({"x": _X, "y": _Y, "class_names": np.array([1, 2])}, "class_names must be a list of text"),
    ],
)
def test_npz_content_is_checked(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(_npz(tmp_path, **arrays))
    assert "some.npz" in str(caught.value)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("an npz member was unpickled",))


def test_npz_objects_are_never_unpickled(tmp_path):
    bomb = np.array([_Bomb(), _Bomb()], object)
    with pytest.raises(ValueError, match=r"some\.npz cannot be read.*allow_pickle=False"):
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
    _check(data, (3, 2, 4, 1), 4)
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
        ("sensorless", (48,), 11),
        ("adult", (14,), 2),
        ("credit_default", (23,), 2),
    ],
)
def test_real_data(spec, row, classes):
    if not (Path(os.environ["JAXLEAK_DATA_DIR"]) / f"{spec}.npz").is_file():
        pytest.skip(f"{spec}.npz is not in JAXLEAK_DATA_DIR")
    _check(load(spec, n=20), (20, *row), classes)


# folders of images


def _image(path, value=0, size=(6, 6), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16") else (value,) * len(mode)).save(path)


def _folder(root, **mode):
    for label, name in enumerate(("berry", "dog")):
        for i, suffix in enumerate(("png", "bmp")):
            _image(root / name / f"{i}.{suffix}", 100 * label + i, **mode)
    return f"folder:{root}"


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_subfolder_is_a_class(tmp_path, mode, channels):
    spec = _folder(tmp_path, mode=mode)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "dog" / "._0.png").write_text("no image either")
    data = load(spec)
    _check(data, (4, 6, 6, channels), 2)
    assert data.classes == ("berry", "dog")
    values = np.sort(np.rint(data.x[:, 0, 0, 0] * 255) - 100 * data.y)
    np.testing.assert_array_equal(values, [0, 0, 1, 1])


def test_one_colour_image_makes_all_rgb(tmp_path):
    spec = _folder(tmp_path, mode="L")
    _image(tmp_path / "dog" / "colour.jpg")
    assert load(spec).x.shape == (5, 6, 6, 3)


def test_train_is_taken_before_test(tmp_path):
    _folder(tmp_path / "train")
    _image(tmp_path / "test" / "berry" / "0.png")
    assert len(load(f"folder:{tmp_path}").y) == 4
    assert len(load(f"folder:{tmp_path}/test").y) == 1


def test_a_class_may_be_called_train(tmp_path):
    _image(tmp_path / "train" / "0.png")
    _image(tmp_path / "plane" / "0.png")
    assert load(f"folder:{tmp_path}").classes == ("plane", "train")


def test_grouped_classes_of_lc25000(tmp_path):
    for name in ("lung_image_sets/lung_n", "colon_image_sets/colon_n", "colon_image_sets/colon_aca"):
        _image(tmp_path / name / "0.jpg")
    classes = load(f"folder:{tmp_path}").classes
    assert classes == ("colon_image_sets/colon_aca", "colon_image_sets/colon_n", "lung_image_sets/lung_n")


def test_sizes_must_agree_unless_resized(tmp_path):
    spec = _folder(tmp_path)
    _image(tmp_path / "dog" / "wide.png", 7, size=(12, 6))
    with pytest.raises(ValueError, match=r"is (12x6|6x6), but .*is (6x6|12x6); pass folder:.*\?size=S") as caught:
        load(spec)
    assert "wide.png" in str(caught.value)
    assert load(f"{spec}?size=4").x.shape == (5, 4, 4, 3)


def test_resizing_is_lanczos_of_the_centre_square(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / "0.png")
    expected = Image.fromarray(pixels[:, 5:25]).resize((8, 8), Image.Resampling.LANCZOS)
    data = load(f"folder:{tmp_path}?size=8")
    np.testing.assert_allclose(data.x[0], np.asarray(expected) / 255, rtol=1e-6)


@pytest.mark.parametrize("query", ["size=0", "size=", "size=x", "width=3", "size=3&a=b"])
def test_folder_options_are_checked(tmp_path, query):
    with pytest.raises(ValueError, match=r"only size=S with S > 0 is understood"):
        load(f"folder:{tmp_path}?{query}")


def test_folder_layouts_are_checked(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist or is not a folder"):
        load(f"folder:{tmp_path}/nowhere")
    with pytest.raises(ValueError, match=r"holds no class folders and no HAM10000_metadata\.csv"):
        load(f"folder:{tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no jpg, png or bmp image"):
        load(f"folder:{tmp_path}")
    _image(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"stray\.png lies in no class folder"):
        load(f"folder:{tmp_path}")


def test_unreadable_images_are_named(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "only" / "bad.png"
    path.parent.mkdir()
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    for content in (whole[:1000], b"no image at all", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.png is no readable image"):
            load(f"folder:{tmp_path}")
    _image(path, 1000, mode="I;16")
    with pytest.raises(ValueError, match=r"bad\.png is no readable image.*pixel mode I;16 is not supported"):
        load(f"folder:{tmp_path}")


def _ham10000(root, table):
    _image(root / "ISIC_1.jpg", 10)
    _image(root / "HAM10000_images_part_2" / "ISIC_2.jpg", 200)
    (root / "HAM10000_metadata.csv").write_text(table)
    return f"folder:{root}"


def test_ham10000_layout(tmp_path):
    spec = _ham10000(tmp_path, "lesion_id,image_id,dx\nHAM_1,ISIC_1,nv\nHAM_2,ISIC_2,mel\n")
    data = load(spec)
    _check(data, (2, 6, 6, 3), 2)
    assert data.classes == ("mel", "nv")
    np.testing.assert_array_equal(data.x.mean(axis=(1, 2, 3)) > 0.5, data.y == 0)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("image_id,label\nISIC_1,nv\n", ValueError, r"HAM10000_metadata\.csv has no column 'dx'"),
        ("image_id,dx\n", ValueError, "lists no images"),
        ("image_id,dx\nISIC_1\n", ValueError, "gives no dx for image ISIC_1"),
        ("image_id,dx\nISIC_9,nv\n", FileNotFoundError, "lists image ISIC_9, but there is no such file"),
    ],
)
def test_ham10000_table_is_checked(tmp_path, table, error, message):
    with pytest.raises(error, match=message):
        load(_ham10000(tmp_path, table))


# tensorflow-datasets, prepared here as a user would, without TensorFlow


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    import tensorflow_datasets as tfds

    class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        keys, shape, supervised = ("image", "label"), (6, 5, 3), True

        def _info(self):
            image = tfds.features.Image(shape=self.shape, encoding_format="png")
            label = tfds.features.ClassLabel(names=["even", "odd"])
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(dict(zip(self.keys, (image, label), strict=True))),
                supervised_keys=self.keys if self.supervised else None,
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(5), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for i in range(count):
                height = (self.shape[0] or 4 + i, self.shape[1])
                pixels = np.full((*height, 3) if self.shape[2] == 3 else height, 40 * i, np.uint8)
                yield i, dict(zip(self.keys, (Image.fromarray(pixels), i % 2), strict=True))

    class JaxleakTiny(_Builder):
        pass

    # Without its code, tensorflow-datasets reads what it needs from the files.
    class JaxleakGray(_Builder, skip_registration=True):
        keys, shape = ("picture", "kind"), (4, 4, 1)

    class JaxleakRagged(_Builder):
        shape = (None, 5, 3)

    class JaxleakNameless(_Builder):
        keys, supervised = ("left", "right"), False

    folder = tmp_path_factory.mktemp("tfds")
    for builder in (JaxleakTiny, JaxleakGray, JaxleakRagged, JaxleakNameless):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_tfds_splits_and_keys(tfds_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
    data = load("tfds:jaxleak_tiny")
    _check(data, (5, 6, 5, 3), 2)
    assert data.classes == ("even", "odd")
    position = np.rint(data.x[:, 0, 0, 0] * 255 / 40).astype(int)
    np.testing.assert_array_equal(np.sort(position), np.arange(5))
    np.testing.assert_array_equal(position % 2, data.y)
    assert len(load("tfds:jaxleak_tiny/test").y) == 3
    assert len(load("tfds:jaxleak_tiny/train[:2]").y) == 2
    _check(load("tfds:jaxleak_gray", n=2), (2, 4, 4, 1), 2)


def test_tfds_looks_beside_the_other_data(tfds_dir, tmp_path, monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    (tmp_path / "tfds").symlink_to(tfds_dir)
    assert len(load("tfds:jaxleak_tiny/test").y) == 3


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("tfds:jaxleak_none", ValueError, r"knows no 'jaxleak_none'.*Dataset jaxleak_none not found\.$"),
        ("tfds:mnist", FileNotFoundError, r"tfds:mnist is not prepared in .*run .*download_and_prepare\(\)"),
        ("tfds:jaxleak_tiny/val", ValueError, "split must be one of train, test, got 'val'"),
        ("tfds:/train", ValueError, "must be tfds:NAME"),
        ("tfds:jaxleak_ragged", ValueError, r"image \d has shape \(\d, 5, 3\), image \d \(\d, 5, 3\)"),
        ("tfds:jaxleak_nameless", ValueError, "needs an image and a label, but its features are left, right"),
    ],
)
def test_tfds_errors(tfds_dir, monkeypatch, spec, error, message):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
    with pytest.raises(error, match=message):
        load(spec)
    with pytest.raises(ValueError, match="tfds:jaxleak_tiny has 5 samples"):
        load("tfds:jaxleak_tiny", n=6)


def test_tfds_damaged_files_are_reported(tfds_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    shutil.copytree(tfds_dir / "jaxleak_tiny", tmp_path / "jaxleak_tiny")
    (path,) = tmp_path.rglob("*train.array_record*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"jaxleak_tiny.*cannot be read, it may be corrupt"):
        load("tfds:jaxleak_tiny")
