"""One line of a ledger: a printed cell in one variant, with the result of its run or the reason for not running it."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from jaxleak import _validate

Variant = Literal["printed", "reduced", "stand-in", "ours"]
Status = Literal["met", "missed", "failed", "not run", "impossible"]

#: The variants, from the most faithful to the least; a run that deviates in several ways has the last that applies.
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
    """The record of one printed cell in one variant, measured or not.

    A cell may have several entries, which `variant` and `name` tell apart: for example, one for each reading of a
    defense that the paper's text allows.
    """

    cell: str  # id of the printed cell, TABLE/REST
    variant: Variant
    status: Status
    why: str  # how the verdict came about, the error, the estimated cost, or why nothing can be run
    paper: float
    unit: str
    name: str = ""
    differs: str = ""  # how the set-up differs from the paper's
    value: float | None = None  # mean over the seeds
    spread: float | None = None  # standard deviation over the seeds
    seeds: dict[int, float] = field(default_factory=dict)
    command: str = ""
    commit: str = ""
    versions: str = ""
    machine: str = ""
    seconds: float | None = None  # seconds of all seeds; if cells share a run, each has the run's full seconds
    date: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` if variant or status is unknown, or if a number is present without such a status."""
        _validate.one_of(VARIANTS, variant=self.variant)
        _validate.one_of(STATUSES, status=self.status)
        if (self.status in MEASURED) != (self.value is not None) or (self.value is not None) != bool(self.seeds):
            raise ValueError(
                f"{self.cell}: status {self.status} does not go with value {self.value}, seeds {self.seeds}"
            )

    def __str__(self) -> str:
        """Return one line: the status, the cell with its variant and name, and the reason for the status."""
        name = f"{self.cell} ({self.variant}{', ' + self.name if self.name else ''})"
        return f"{self.status:10} {name}: {self.why}"

    @property
    def key(self) -> tuple[str, Variant, str]:
        """The cell, variant and name, which identify the entry within its paper."""
        return self.cell, self.variant, self.name

    @property
    def table(self) -> str:
        """The table of the cell."""
        return self.cell.partition("/")[0]

    @property
    def faithfulness(self) -> tuple[bool, int, bool, int]:
        """The key by which the entries of a cell are sorted.

        Measured entries come first. Among them, a more faithful variant comes first, then an entry without a name, and
        then the entry that differs from the paper in fewer points.
        """
        points = len(self.differs.split("; "))
        return self.status not in MEASURED, list(VARIANTS).index(self.variant), bool(self.name), points


def as_record(entry: Entry) -> dict[str, Any]:
    """Convert an entry to a record for JSON; empty fields are left out."""
    return {name: value for name, value in asdict(entry).items() if value or value in (0, False)}


def from_record(record: dict[str, Any]) -> Entry:
    """Make an entry from the record of a line.

    Raises:
        ValueError: if fields are missing or unknown, or if values do not go together.
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
