"""The data sets that a ledger was measured on, by their fingerprints: other samples of the same name are told apart."""

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

#: The file of the data sets, beside those of the ledgers.
DATA_FILE = "data.json"
#: The folder beside it with a list of the samples of every data set that `data.archive` can make.
SAMPLES = "samples"


class DataSet(NamedTuple):
    """All samples of a data set, in the order in which they are loaded."""

    sha256: str  # 64 hexadecimal digits, see `jaxleak._configuration.fingerprint`
    samples: int


class DataSets:
    """The data sets that the ledgers of a folder were measured on, by name, and those of today beside them."""

    def __init__(self, folder: Path):
        """Read `DATA_FILE` in the folder of the ledgers; without it no data set is known."""
        self.path = folder / DATA_FILE
        stored = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.known = {name: DataSet(**found) for name, found in stored.items()}

    def unknown(self, specs: Iterable[str]) -> list[str]:
        """Names of the data sets of which no fingerprint is stored."""
        return sorted({name for spec in specs if (name := _name(spec)) not in self.known})

    def require(self, specs: Iterable[str]) -> None:
        """Refuse data sets that hold other samples than those that the ledger was measured on.

        Args:
            specs: data specifications, see `jaxleak.data.load`. Those without a stored fingerprint may hold anything.

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
        """As `require`, for the data of measurements; data that cannot be loaded are left to the run to report.

        Returns:
            What `unknown` says of these data.
        """
        specs = sorted({spec for measurement in measurements for spec in measurement.data})
        for spec in specs:
            try:
                self.require([spec])
            except (OSError, ValueError):
                continue
        return self.unknown(specs)

    def compare(self, specs: Iterable[str]) -> dict[str, str]:
        """Why nobody knows a data set to be the one measured on, by its name; an empty text where it is that one."""
        said = {}
        for name in sorted({_name(spec) for spec in specs}):
            try:
                self.require([name])
                said[name] = "no fingerprint is stored" if self.unknown([name]) else ""
            except (ConfigMismatchError, OSError, ValueError) as error:
                said[name] = str(error)
        return said

    def add(self, specs: Iterable[str]) -> list[str]:
        """Store the data sets that are not known yet, and lists of samples that are not there; returns new names.

        A known one stays, since the ledger's numbers come from it.

        Raises:
            ConfigMismatchError: as `require`; nothing is written then.
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
    """Names of the data sets behind the measured entries of a ledger."""
    measured = {key for key, entry in ledger.entries.items() if entry.status in MEASURED}
    return sorted({_name(spec) for m in study.measurements() if m.key in measured for spec in m.data})


def sample_list(name: str) -> str:
    """The text that `data.archive` takes as `samples` to make this data set of its published files.

    Raises:
        KeyError, OSError: if JAXLEAK_DATA_DIR is not set, or has no such archive.
    """
    with np.load(Path(os.environ["JAXLEAK_DATA_DIR"]) / f"{name}.npz", allow_pickle=False) as members:
        digests = data.sample_digests(members)
    about = f"# The {len(digests)} samples of {name}.npz, in its order: BLAKE2b of 8 bytes. jaxleak archive reads it."
    return "\n".join([about, *digests, ""])


def found(name: str) -> DataSet:
    """What a data set holds today: images and labels as `data.load` gives them, tables before any scaling.

    Raises:
        OSError, ValueError: if it cannot be loaded.
    """
    return _found(name, os.environ.get("JAXLEAK_DATA_DIR"))


def _name(spec: str) -> str:
    """The name of a data set: a size in pixels behind it says what is made of the same samples."""
    return spec if spec.startswith("folder:") else spec.partition("?")[0]


@functools.cache  # by the folder too, since a name means another file there
def _found(name: str, folder: str | None) -> DataSet:
    if name in data.TABLES:
        table = data.load_table(name)
        columns = {"numeric": table.numeric, "categorical": table.categorical}
        return _data_set(columns, table.y, table.num_classes)
    dataset = data.load(name)
    return _data_set({"x": dataset.x}, dataset.y, len(dataset.classes))


def _data_set(x: dict[str, np.ndarray], y: np.ndarray, classes: int) -> DataSet:
    return DataSet(fingerprint({**x, "y": y, "classes": np.array(classes)}), len(y))
