"""One line of a ledger: a printed cell in one variant, with the run that was made of it or the reason for none."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from jaxleak import _validate

Variant = Literal["printed", "reduced", "stand-in", "ours"]
Status = Literal["met", "missed", "failed", "not run", "impossible"]

#: From the most faithful to the least. A run that deviates in several ways has the last name that applies.
VARIANTS: dict[Variant, str] = {
    "printed": "the paper's algorithm, model, data, batch and iterations",
    "reduced": "the paper's algorithm on a smaller problem",
    "stand-in": "the paper's algorithm with other data or weights in place of those that could not be had",
    "ours": "our attack, or the paper's with a change that helps it, on the paper's problem or what stands in for it",
}
STATUSES: dict[Status, str] = {
    "met": "ours is at least the paper's by the rule of the verdicts",
    "missed": "ours falls short of the paper's by that rule",
    "failed": "the run ended with an error",
    "not run": "the run has an estimated cost, lacks something, such as data, or refutes no statement so far",
    "impossible": "nothing can be run, for the reason given",
}
#: Statuses of a run that gave a number.
MEASURED: tuple[Status, ...] = ("met", "missed")


@dataclass(frozen=True)
class Entry:
    """A printed cell, measured or not.

    Several entries of a cell are told apart by `variant` and `name`, for example the readings of a defense that the
    paper's text allows.
    """

    cell: str  # as it is printed, TABLE/REST
    variant: Variant
    status: Status
    why: str  # how the verdict came about, the error, the estimated cost, or why nothing can be run
    paper: float
    unit: str
    name: str = ""
    differs: str = ""  # what is not as printed
    value: float | None = None  # the mean over the seeds
    spread: float | None = None  # their standard deviation
    seeds: dict[int, float] = field(default_factory=dict)
    command: str = ""
    commit: str = ""
    versions: str = ""
    machine: str = ""
    seconds: float | None = None  # seconds of all seeds; cells that share a run all carry its seconds
    date: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` on an unknown variant or status, or a number where the status says that there is none."""
        _validate.one_of(VARIANTS, variant=self.variant)
        _validate.one_of(STATUSES, status=self.status)
        if (self.status in MEASURED) != (self.value is not None) or (self.value is not None) != bool(self.seeds):
            raise ValueError(
                f"{self.cell}: status {self.status} does not go with value {self.value}, seeds {self.seeds}"
            )

    def __str__(self) -> str:
        """One line: the status, the cell with its variant and name, and how the status came about."""
        name = f"{self.cell} ({self.variant}{', ' + self.name if self.name else ''})"
        return f"{self.status:10} {name}: {self.why}"

    @property
    def key(self) -> tuple[str, Variant, str]:
        """Identifies the entry within its paper."""
        return self.cell, self.variant, self.name

    @property
    def table(self) -> str:
        """The table of the cell."""
        return self.cell.partition("/")[0]

    @property
    def faithfulness(self) -> tuple[bool, int, bool, int]:
        """Sorts the entries of a cell.

        Measured ones come first, then the more faithful variant, then the plain entry before readings, and among
        readings the one that differs from the print in fewer points.
        """
        points = len(self.differs.split("; "))
        return self.status not in MEASURED, list(VARIANTS).index(self.variant), bool(self.name), points


def as_record(entry: Entry) -> dict[str, Any]:
    """The entry for JSON: fields that hold nothing are left out."""
    return {name: value for name, value in asdict(entry).items() if value or value in (0, False)}


def from_record(record: dict[str, Any]) -> Entry:
    """The entry of a line.

    Raises:
        ValueError: on missing or unknown fields, or values that do not go together.
    """
    known = {f.name for f in fields(Entry)}
    unknown = set(record) - known
    missing = {"cell", "variant", "status", "why", "paper", "unit"} - set(record)
    if unknown or missing:
        raise ValueError(f"an entry of the ledger has unknown fields {sorted(unknown)}, lacks {sorted(missing)}")
    numbers: dict[str, float] = {
        name: float(record[name]) for name in ("paper", "value", "spread", "seconds") if name in record
    }
    seeds = {int(seed): float(value) for seed, value in record.get("seeds", {}).items()}
    values: dict[str, Any] = dict(record)
    values.update(numbers, seeds=seeds)
    return Entry(**values)
