"""Archives of published files: all formats, the order of listed samples, and refused files."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from jaxleak import data
from jaxleak.__main__ import main
from jaxleak.data import archive, sample_digests
from jaxleak.study.ledger import DataSets

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "experiments" / "ledger" / "samples"
RANDOM = np.random.default_rng(0)
REAL = os.environ.get("JAXLEAK_DATA_DIR")
needs_data = pytest.mark.skipif(REAL is None, reason="JAXLEAK_DATA_DIR is not set")


def _members(path):
    with np.load(path) as found:
        return dict(found)


def _mnist(folder, x, y):
    images, labels = folder / "images", folder / "labels"
    images.write_bytes(struct.pack(">4I", 2051, *x.shape[:3]) + x.tobytes())
    labels.write_bytes(struct.pack(">2I", 2049, len(y)) + y.astype(np.uint8).tobytes())
    return [images, labels]


def _cifar(folder, x, y, coarse=False):
    rows = [
        bytes([9] * coarse + [label]) + image.transpose(2, 0, 1).tobytes() for image, label in zip(x, y, strict=True)
    ]
    half = len(rows) // 2
    files = [folder / "data_batch_1.bin", folder / "data_batch_2.bin"]
    files[0].write_bytes(b"".join(rows[:half]))
    files[1].write_bytes(b"".join(rows[half:]))
    return files


def _yale(folder, x, y):
    rows = np.array([image[..., 0].ravel(order="F") for image in x], np.float64)
    scipy.io.savemat(folder / "Yale_32x32.mat", {"fea": rows, "gnd": y[:, None] + 1.0})
    return [folder / "Yale_32x32.mat"]


def _images(name, shape):
    x = RANDOM.integers(0, 256, (12, *shape), np.uint8)
    return x, np.arange(12) % 4, {"mnist": _mnist, "yale32": _yale}.get(name, _cifar)


IMAGES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3), "yale32": (32, 32, 1)}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_those_of_the_published_files(name, tmp_path, monkeypatch):
    x, y, write = _images(name, IMAGES[name])
    files = write(tmp_path, x, y, *([True] if name == "cifar100" else []))
    members = _members(archive(name, files, tmp_path / "out"))
    np.testing.assert_array_equal(members["x"], x)
    np.testing.assert_array_equal(members["y"], y)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path / "out"))
    assert data.load(name, n=5).x.shape == (5, *IMAGES[name])


def test_names_of_classes_are_read_where_they_lie_beside(tmp_path):
    x, y, write = _images("cifar10", IMAGES["cifar10"])
    (tmp_path / "batches.meta.txt").write_text("plane\ncar\nbird\ncat\n\n")
    members = _members(archive("cifar10", write(tmp_path, x, y), tmp_path / "out"))
    assert members["class_names"].tolist() == ["plane", "car", "bird", "cat"]


def test_sensorless_has_classes_from_zero_and_its_numbers_as_float32(tmp_path, monkeypatch):
    table = RANDOM.normal(size=(22, 48)) * 1e-4
    lines = [" ".join([*(repr(float(v)) for v in row), str(i % 11 + 1)]) for i, row in enumerate(table)]
    (tmp_path / "s.txt").write_text("\n".join(lines) + "\n")
    members = _members(archive("sensorless", [tmp_path / "s.txt"], tmp_path))
    np.testing.assert_array_equal(members["x"], table.astype(np.float32))
    np.testing.assert_array_equal(members["y"], np.arange(22) % 11)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    assert data.load_table("sensorless").num_classes == 11


def test_criteo_has_missing_counts_and_hashed_codes(tmp_path):
    lines = ["\t".join(["0", "", *["5"] * 12, "68fd1e64", *[""] * 25]), "\t".join(["1"] * 40)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    members = _members(archive("criteo", [tmp_path / "train.txt"], tmp_path))
    assert np.isnan(members["x_num"][0]).tolist() == [True] + [False] * 12
    assert members["x_num"].dtype == np.float32
    assert members["x_cat"][0, :2].tolist() == [_crc32(b"C1=68fd1e64") % 2**20, _crc32(b"C2=") % 2**20]
    np.testing.assert_array_equal(members["y"], [0, 1])


def _crc32(text):
    """The CRC-32 checksum, computed bit by bit: slow and obvious."""
    crc = 0xFFFFFFFF
    for byte in text:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_avazu_drops_the_id_and_keeps_the_hour_of_the_day(tmp_path):
    header = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    header += "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
    rows = ["1,0,14102123," + ",".join("a" * 21), "2,1,14102105," + ",".join("b" * 21)]
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    members = _members(archive("avazu", [tmp_path / "train.csv"], tmp_path))
    np.testing.assert_array_equal(members["x_num"], [[23], [5]])
    assert members["x_cat"].shape == (2, 22)
    assert members["x_cat"][1, [0, 21]].tolist() == [_crc32(b"hour=14102105") % 2**20, _crc32(b"C21=b") % 2**20]
    np.testing.assert_array_equal(members["y"], [0, 1])


def test_large_tables_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxleak.data._published._LINES", 2)
    (tmp_path / "train.txt").write_text("\n".join("\t".join([str(i % 2)] + [str(i)] * 39) for i in range(5)))
    whole = _members(archive("criteo", [tmp_path / "train.txt"], tmp_path / "whole"))
    np.testing.assert_array_equal(whole["x_num"][:, 0], range(5))
    (tmp_path / "list").write_text("\n".join(sample_digests(whole)[1::3]))
    some = _members(archive("criteo", [tmp_path / "train.txt"], tmp_path / "some", tmp_path / "list"))
    np.testing.assert_array_equal(some["x_num"][:, 0], [1, 4])


def test_a_list_gives_its_samples_in_its_order_with_repetitions(tmp_path, capsys):
    x, y, write = _images("cifar10", IMAGES["cifar10"])
    files = write(tmp_path, x, y)
    chosen = [7, 2, 2, 11]
    digests = sample_digests({"x": x[chosen], "y": y[chosen]})
    (tmp_path / "list").write_text("# mine\n\n" + "\n".join(digests) + "\n")
    words = ["archive", "cifar10", *map(str, files), "--out", f"{tmp_path}/out", "--samples", f"{tmp_path}/list"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / 'out' / 'cifar10.npz'}\n"
    members = _members(tmp_path / "out" / "cifar10.npz")
    np.testing.assert_array_equal(members["x"], x[chosen])
    np.testing.assert_array_equal(members["y"], y[chosen])
    assert sample_digests(members) == digests
    assert main(words) == 1
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cifar10.npz"]


def test_a_digest_takes_pixels_and_label():
    x = np.zeros((3, 2, 2, 1), np.uint8)
    x[1, 0, 0] = 1
    assert len(set(sample_digests({"x": x, "y": np.array([0, 0, 1])}))) == 3
    assert sample_digests({"y": np.array([5])}) != sample_digests({"y": np.array([6])})


def test_samples_that_are_not_in_the_files_are_counted(tmp_path):
    x, y, write = _images("cifar10", IMAGES["cifar10"])
    (tmp_path / "list").write_text("\n".join([*sample_digests({"x": x, "y": y}), "0" * 16]))
    with pytest.raises(ValueError, match="7 of the 13 samples of cifar10 are not in these files"):
        archive("cifar10", write(tmp_path, x, y)[:1], tmp_path / "out", tmp_path / "list")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "files", "samples", "message"),
    [
        ("imagenet", {"a": b""}, None, "name must be one of"),
        ("mnist", {"a": b""}, None, r"files must be 2 \(images, labels\), got 1"),
        ("cifar10", {"a": b"x" * 3074}, None, "3074 bytes, which is no multiple of 3073"),
        ("cifar100", {"a": b""}, None, "0 bytes"),
        ("yale32", {"a": b"no"}, None, "is no file of Yale faces"),
        ("sensorless", {"a": b"1 2 3\n"}, None, "line 1: lines must have 49 numbers, got 3"),
        ("sensorless", {"a": b"1 2 x\n"}, None, "in the 1 lines from line 1: could not convert"),
        ("sensorless", {"a": b""}, None, "files hold no sample"),
        ("criteo", {"a": b"\t".join([b"1"] * 39)}, None, "a line has 25 categories, and not 26"),
        ("avazu", {"a": b"\xff\xfe\x00"}, None, "is no text file"),
        ("cifar10", {"a": b"x" * 3073}, b"abc", "line 1: a digest has 16 hexadecimal digits, got 'abc'"),
        ("cifar10", {"a": b"x" * 3073}, b"# none\n", "names no sample"),
    ],
)
def test_bad_input_is_refused_by_name(name, files, samples, message, tmp_path):
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    if samples is not None:
        (tmp_path / "list").write_bytes(samples)
    with pytest.raises(ValueError, match=message):
        archive(name, [tmp_path / file for file in files], tmp_path / "out", samples and tmp_path / "list")


def test_every_data_set_of_the_ledger_has_a_list_of_its_samples():
    known = DataSets(LISTS.parent).known
    assert {path.stem for path in LISTS.iterdir()} == set(known)
    for name, data_set in known.items():
        lines = (LISTS / f"{name}.txt").read_text().splitlines()
        assert len([line for line in lines if not line.startswith("#")]) == data_set.samples


@needs_data
@pytest.mark.parametrize("name", data.PUBLISHED)
def test_the_lists_are_of_the_data_that_were_measured_on(name):
    lines = (LISTS / f"{name}.txt").read_text().splitlines()
    assert sample_digests(_members(Path(REAL) / f"{name}.npz")) == lines[1:]


@needs_data
def test_mnist_of_its_published_files_is_what_was_measured_on(tmp_path, monkeypatch):
    raw = Path(REAL) / "raw" / "mnist"
    files = [raw / "train-images-idx3-ubyte.gz", raw / "train-labels-idx1-ubyte.gz"]
    archive("mnist", files, tmp_path, LISTS / "mnist.txt")
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    assert DataSets(LISTS.parent).compare(["mnist"]) == {"mnist": ""}
