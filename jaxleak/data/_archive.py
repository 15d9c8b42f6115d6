"""Archives made from published files: all samples, or only the samples in a list of digests, in the list's order."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxleak import _validate
from jaxleak.data._files import existing_file
from jaxleak.data._published import PUBLISHED, Members

#: Members of an archive with one row per sample, in the order in which a digest hashes them.
_OF_SAMPLES = ("x", "x_num", "x_cat", "y")


def archive(name: str, files: Sequence[str | Path], out: str | Path, samples: str | Path | None = None) -> Path:
    """Write the archive NAME.npz, which `load` or `load_table` reads, from the files in which a data set is published.

    | name | files |
    |---|---|
    | `mnist` | `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` |
    | `cifar10` | any of the binary version's `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin` |
    | `cifar100` | any of the binary version's `train.bin`, `test.bin` |
    | `yale32` | Deng Cai's `Yale_32x32.mat` |
    | `sensorless` | UCI's `Sensorless_drive_diagnosis.txt` |
    | `criteo` | `train.txt` of the Display Advertising Challenge |
    | `avazu` | `train.csv` of the Click-Through Rate Prediction challenge |

    Args:
        name: name of the data set, from the table above.
        files: the published files, in the order of the table above.
        out: folder for the archive, which is made if it does not exist.
        samples: a file of digests (`sample_digests`), one per line; lines that begin with # are comments. The archive
            then has exactly these samples in this order. None takes all samples in the order of the files; they must
            fit into memory together.

    Returns:
        The path of the archive.

    Raises:
        FileNotFoundError: if a file is missing.
        FileExistsError: if the archive exists already.
        ValueError: if the name is not in the table, a file does not have the stated form, the list is empty or holds
            something other than digests, or one of its samples is not in the files.
    """
    _validate.one_of(PUBLISHED, name=name)
    paths = [existing_file(file) for file in files]
    wanted = None if samples is None else read_digests(existing_file(samples))
    path = Path(out).expanduser() / f"{name}.npz"
    if path.exists():
        raise FileExistsError(f"{path} exists already; move it away, or name another folder")
    pieces = PUBLISHED[name](paths)
    members = _joined(pieces) if wanted is None else _selected(pieces, wanted, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{name}.{os.getpid()}.npz")
    np.savez_compressed(unfinished, **members)  # type: ignore[arg-type]
    unfinished.replace(path)
    return path


def sample_digests(members: Members) -> list[str]:
    """Compute the digest of every sample: BLAKE2b of 8 bytes, as 16 hexadecimal digits.

    Args:
        members: arrays of an archive, with one row per sample. Each row of those of `x`, `x_num`, `x_cat` and `y` that
            are present is hashed in this order, byte by byte as it lies in memory.
    """
    arrays = [np.ascontiguousarray(array) for array in _of_samples(members).values()]
    return [
        hashlib.blake2b(b"".join(array[row].tobytes() for array in arrays), digest_size=8).hexdigest()
        for row in range(len(members["y"]))
    ]


def read_digests(path: Path) -> list[str]:
    """Read a list of digests from a file.

    Raises:
        ValueError: if the file has no digest, or if a line is neither a comment nor a digest; names the line.
    """
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        if line.startswith("#") or not line.strip():
            continue
        if not re.fullmatch("[0-9a-f]{16}", line.strip()):
            raise ValueError(f"{path}, line {number}: a digest has 16 hexadecimal digits, got {line[:40]!r}")
        found.append(line.strip())
    if not found:
        raise ValueError(f"{path} names no sample")
    return found


def _joined(pieces: Iterable[Members]) -> Members:
    found = list(pieces)
    if not found:
        raise ValueError("files hold no sample")
    whole = {key: np.concatenate([piece[key] for piece in found]) for key in _of_samples(found[0])}
    return whole | _names(found[0])


def _selected(pieces: Iterator[Members], wanted: list[str], name: str) -> Members:
    """Select the wanted samples, in the order of `wanted`; reading stops when all of them are found."""
    missing, found, names = set(wanted), dict[str, Members](), Members()
    for piece in pieces:
        names, arrays = names or _names(piece), _of_samples(piece)
        for row, digest in enumerate(sample_digests(piece)):
            if digest in missing:
                missing.remove(digest)
                # A copy, since a view would keep the whole piece in memory.
                found[digest] = {key: array[row].copy() for key, array in arrays.items()}
        if not missing:
            break
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(set(wanted))} samples of {name} are not in these files: give all files of the "
            "data set, as its authors publish them"
        )
    return {key: np.stack([found[digest][key] for digest in wanted]) for key in arrays} | names


def _of_samples(members: Members) -> Members:
    return {key: members[key] for key in _OF_SAMPLES if key in members}


def _names(piece: Members) -> Members:
    return {"class_names": piece["class_names"]} if "class_names" in piece else {}
