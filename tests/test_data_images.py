"""Images from folders, and from tensorflow-datasets in the form in which users prepare them."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from dataset_checks import check_dataset
from PIL import Image

from jaxleak.data import _folder as _folder_of_images
from jaxleak.data import _tfds, load

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
    check_dataset(data, (4, 6, 6, channels), 2)
    assert data.classes == ("berry", "dog")
    values = np.sort(np.rint(data.x[:, 0, 0, 0] * 255) - 100 * data.y)
    np.testing.assert_array_equal(values, [0, 0, 1, 1])


def test_one_colour_image_makes_all_rgb(tmp_path):
    spec = _folder(tmp_path, mode="L")
    _image(tmp_path / "dog" / "colour.jpg")
    assert load(spec).x.shape == (5, 6, 6, 3)


def test_it_does_so_whichever_files_are_drawn(tmp_path):
    spec = _folder(tmp_path, mode="L")
    _image(tmp_path / "dog" / "colour.jpg")
    assert {load(spec, 1, seed).x.shape for seed in range(9)} == {(1, 6, 6, 3)}


def test_a_file_that_is_not_drawn_may_be_unreadable(tmp_path):
    spec = _folder(tmp_path, mode="L")
    (tmp_path / "dog" / "damaged.png").write_text("no image")
    readable = next(seed for seed in range(9) if np.random.default_rng(seed).permutation(5)[0] < 4)
    assert load(spec, 1, readable).x.shape == (1, 6, 6, 1)


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


def test_hidden_folders_are_no_classes_and_a_split_has_no_images_of_its_own(tmp_path):
    spec = _folder(tmp_path)
    for name in ("__MACOSX", ".cache"):
        _image(tmp_path / name / "0.png")
    assert load(spec).classes == ("berry", "dog")
    _folder(tmp_path / "both" / "train")
    _image(tmp_path / "both" / "train" / "0.png")
    _image(tmp_path / "both" / "plane" / "0.png")
    assert load(f"folder:{tmp_path / 'both'}").classes == ("plane", "train")


def test_sizes_must_agree_unless_resized(tmp_path):
    spec = _folder(tmp_path)
    _image(tmp_path / "dog" / "wide.png", 7, size=(12, 6))
    with pytest.raises(ValueError, match=r"is (12x6|6x6), but .*is (6x6|12x6); pass folder:.*\?size=S") as caught:
        load(spec)
    assert "wide.png" in str(caught.value)
    assert load(f"{spec}?size=4").x.shape == (5, 4, 4, 3)


def test_memory_for_resized_images_is_asked_for_before_they_are_read(tmp_path, monkeypatch):
    spec, asked = _folder(tmp_path), []
    monkeypatch.setattr(_folder_of_images, "require_host_bytes", lambda need, what: asked.append((need, what)))
    images = load(f"{spec}?size=8").x
    # Three channels of a byte and of a 32-bit float.
    assert [need for need, _ in asked] == [len(images) * 8 * 8 * 3 * (1 + 4)]
    assert "take a smaller size" in asked[0][1]


@pytest.mark.parametrize(
    ("shape", "square"), [((20, 31), np.s_[:, 5:25]), ((33, 20), np.s_[6:26, :]), ((20, 20), np.s_[:, :])]
)
def test_resizing_is_lanczos_of_the_centre_square(tmp_path, shape, square):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    (tmp_path / "only").mkdir()
    Image.fromarray(pixels).save(tmp_path / "only" / "0.png")
    expected = Image.fromarray(pixels[square]).resize((8, 8), Image.Resampling.LANCZOS)
    data = load(f"folder:{tmp_path}?size=8")
    np.testing.assert_allclose(data.x[0], np.asarray(expected) / 255, rtol=1e-6)


@pytest.mark.parametrize("shape", [(20, 31), (33, 20)])
def test_images_of_a_file_are_resized_as_those_of_a_folder(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 256, (2, *shape, 3), dtype=np.uint8)
    (tmp_path / "only").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "only" / f"{number}.png")
    np.savez(tmp_path / "d.npz", x=pixels, y=np.zeros(2, int))
    of_file, of_folder = (load(f"{spec}?size=8", 2, 3) for spec in (f"npz:{tmp_path}/d.npz", f"folder:{tmp_path}"))
    assert of_file.name == f"npz:{tmp_path}/d.npz?size=8"
    assert (of_file.x.dtype, of_file.x.min() >= 0, of_file.x.max() <= 1) == (np.float32, True, True)
    np.testing.assert_allclose(of_file.x, of_folder.x, atol=3 / 255)  # a folder rounds to bytes twice


def test_only_images_have_a_size():
    with pytest.raises(ValueError, match=r"breast_cancer\?size=8: only images have a size .* table of 30 columns"):
        load("breast_cancer?size=8")
    with pytest.raises(ValueError, match="only size=S with S > 0 is understood"):
        load("lfw_faces?side=8")


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
    check_dataset(data, (2, 6, 6, 3), 2)
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
    check_dataset(data, (5, 6, 5, 3), 2)
    assert data.classes == ("even", "odd")
    position = np.rint(data.x[:, 0, 0, 0] * 255 / 40).astype(int)
    np.testing.assert_array_equal(np.sort(position), np.arange(5))
    np.testing.assert_array_equal(position % 2, data.y)
    assert len(load("tfds:jaxleak_tiny/test").y) == 3
    assert len(load("tfds:jaxleak_tiny/train[:2]").y) == 2
    check_dataset(load("tfds:jaxleak_gray", n=2), (2, 4, 4, 1), 2)


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
        ("tfds:jaxleak_tiny/", ValueError, "must be tfds:NAME"),
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


@pytest.mark.parametrize(("kind", "options"), [("Image", {"shape": (4, 4, 1), "dtype": np.uint16}), ("Text", {})])
def test_tfds_reads_images_of_eight_bits_and_classes_only(kind, options):
    from tensorflow_datasets.core import features

    label, other = features.ClassLabel(num_classes=2), getattr(features, kind)(**options)
    info = SimpleNamespace(supervised_keys=("image", "label"), features={"image": other, "label": label})
    with pytest.raises(ValueError, match=r"tfds:x: feature 'image' must be a uint8 image, got"):
        _tfds._features("tfds:x", info)
    info.features = {"image": features.Image(shape=(4, 4, 1)), "label": other}
    with pytest.raises(ValueError, match=r"tfds:x: feature 'label' must be a class label, got"):
        _tfds._features("tfds:x", info)
