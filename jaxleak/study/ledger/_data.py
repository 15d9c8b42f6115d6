"""Fingerprints of the data sets on which a ledger was measured, so that other samples of the same name are noticed."""

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxleak import data
from jaxleak._configuration import fingerprint
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study.files import write_json, write_text
from jaxleak.study.ledger._entry import MEASURED
from jaxleak.study.ledger._measurement import Measurement, Study
from jaxleak.study.ledger._store import Ledger

#: The file of the fingerprints, beside the files of the ledgers.
DATA_FILE = "data.json"
#: The folder beside that file, with a list of the samples of every data set that `data.archive` can make.
SAMPLES = "samples"


class DataSet(NamedTuple):
    """Fingerprint and number of all samples of a data set, in the order in which they are loaded."""

    sha256: str  # 64 hexadecimal digits, see `jaxleak._configuration.fingerprint`
    samples: int


class DataSets:
    """The data sets on which the ledgers of a folder were measured, to be compared with the data sets of today."""

    def __init__(self, folder: Path):
        """Read `DATA_FILE` in the folder of the ledgers; without this file, no data set is known."""
        self.path = folder / DATA_FILE
        stored = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.known = {name: DataSet(**found) for name, found in stored.items()}

    def unknown(self, specs: Iterable[str]) -> list[str]:
        """Return the names of the data sets without a stored fingerprint."""
        return sorted({name for spec in specs if (name := _name(spec)) not in self.known})

    def require(self, specs: Iterable[str]) -> None:
        """Refuse data sets that hold other samples than those on which the ledger was measured.

        Args:
            specs: data specifications, see `jaxleak.data.load`. A data set without a stored fingerprint is accepted.

        Raises:
            ConfigMismatchError: naming the data sets, and what was expected and found.
            OSError, ValueError: if a data set cannot be loaded.
        """
        named = sorted({_name(spec) for spec in specs} & set(self.known))
        different = [(name, self.known[name], now) for name in named if (now := found(name)) != self.known[name]]
        if different:
            said = [
                f"{name} (the ledger was measured on {then.samples} samples with the SHA-256 {then.sha256[:12]}, "
                f"and here are {now.samples} with {now.sha256[:12]})"
                for name, then, now in different
            ]
            raise ConfigMismatchError(f"other samples in {'; '.join(said)}; docs/data.md says what the data sets hold")

    def require_for(self, measurements: Iterable[Measurement]) -> list[str]:
        """Refuse other data than `require` accepts, for measurements; data that cannot be loaded fail in the run.

        Returns:
            Names of the measurements' data sets without a stored fingerprint, as `unknown` gives them.
        """
        specs = sorted({spec for measurement in measurements for spec in measurement.data})
        for spec in specs:
            try:
                self.require([spec])
            except (OSError, ValueError):
                continue
        return self.unknown(specs)

    def compare(self, specs: Iterable[str]) -> dict[str, str]:
        """Say by name why a data set is not known to be the measured one; the text is empty if it is the same."""
        said = {}
        for name in sorted({_name(spec) for spec in specs}):
            try:
                self.require([name])
                said[name] = "no fingerprint is stored" if self.unknown([name]) else ""
            except (ConfigMismatchError, OSError, ValueError) as error:
                said[name] = str(error)
        return said

    def add(self, specs: Iterable[str]) -> list[str]:
        """Store the data sets that are not known yet, and the missing lists of samples; returns the new names.

        A known data set keeps its fingerprint, since the ledger's numbers come from it.

        Raises:
            ConfigMismatchError: as in `require`; nothing is written then.
            OSError, ValueError: if a data set cannot be loaded.
        """
        self.require(specs := list(specs))
        new = self.unknown(specs)
        self.known |= {name: found(name) for name in new}
        if new:
            write_json(self.path, {name: self.known[name]._asdict() for name in sorted(self.known)})
        for name in sorted({_name(spec) for spec in specs} & set(data.PUBLISHED)):
            path = self.path.parent / SAMPLES / f"{name}.txt"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                write_text(path, sample_list(name))
        return new


def data_of(study: Study, ledger: Ledger) -> list[str]:
    """Return the names of the data sets behind the measured entries of a ledger."""
    measured = {key for key, entry in ledger.entries.items() if entry.status in MEASURED}
    return sorted({_name(spec) for m in study.measurements() if m.key in measured for spec in m.data})


def sample_list(name: str) -> str:
    """Make the list from which `data.archive`, as its `samples`, makes this data set out of the published files.

    Raises:
        KeyError: if JAXLEAK_DATA_DIR is not set.
        OSError: if that folder has no such archive.
    """
    with np.load(Path(os.environ["JAXLEAK_DATA_DIR"]) / f"{name}.npz", allow_pickle=False) as members:
        digests = data.sample_digests(members)
    about = f"# The {len(digests)} samples of {name}.npz, in its order: BLAKE2b of 8 bytes. jaxleak archive reads it."
    return "\n".join([about, *digests, ""])


def found(name: str) -> DataSet:
    """Fingerprint a data set as it is today: images and labels from `data.load`, tables before any scaling.

    Raises:
        OSError, ValueError: if the data set cannot be loaded.
    """
    return _found(name, os.environ.get("JAXLEAK_DATA_DIR"))


def _name(spec: str) -> str:
    """Return the name of a data set without an ending `?size=S`, which only says how the same samples are resized."""
    return spec if spec.startswith("folder:") else spec.partition("?")[0]


@functools.cache  # the folder is a part of the key, since a name means another file in another folder
def _found(name: str, folder: str | None) -> DataSet:
    if name in data.TABLES:
        table = data.load_table(name)
        columns = {"numeric": table.numeric, "categorical": table.categorical}
        return _data_set(columns, table.y, table.num_classes)
    dataset = data.load(name)
    return _data_set({"x": dataset.x}, dataset.y, len(dataset.classes))


def _data_set(x: dict[str, np.ndarray], y: np.ndarray, classes: int) -> DataSet:
    return DataSet(fingerprint({**x, "y": y, "classes": np.array(classes)}), len(y))
