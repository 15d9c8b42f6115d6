"""The papers with ledgers in this repository: their files, which direction of a number is better, and commands."""

from collections.abc import Sequence
from pathlib import Path

from experiments import _paper
from jaxleak.study import ledger
from jaxleak.study.ledger import Directions, Entry, Ledger, Measurement

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "experiments" / "ledger"
FIGURES = ROOT / "docs" / "figures" / "reproduction"

#: Papers that `--paper` accepts, each with the name of its file of printed numbers.
PAPERS = {"cafe": "cafe_neurips", "cafe-iclr": "cafe_iclr", "fedleak": "fedleak", "vflrecon": "vflrecon"}

TITLES = {
    "cafe": "CAFE, NeurIPS 2021",
    "cafe-iclr": "CAFE, the submission to ICLR 2021",
    "fedleak": "FedLeak, 2025",
    "vflrecon": "VFLRecon and VFLDefender",
}

#: Direction in which numbers are better, by names of tables and cells. The names here differ between papers.
DIRECTIONS = Directions(
    lower=(
        "text-claims/others-below", "table10-lpips", "table4-participants-feature", "table4-partition-feature",
        "table4-optimizer-feature", "text-abstract-feature", "text-fig5", "text-fig7-feature", "text-fig8",
        "table5-feature", "table6-feature", "text-defender-intro-feature",
    ),
    lower_units=("iterations", "iterations/image", "epoch"),
    # Neither direction is better for losses, the task's accuracy, correlations, and attacks that fail.
    equal=(
        "table11-gd", "table11-psnr", "text-fig1-distance", "text-fig1-element", "table8-loss", "table8-accuracy",
        "table11", "text-pearson", "text-overdetermination", "text-fig4-accuracy", "text-combined-defence", "text-fig6",
        "text-fig7-drop", "table5-utility", "table6-utility", "text-defender-gain", "text-defence-utility",
        "text-shadow-share", "text-capacity-gain", "text-fig1-psnr",
    ),
    # Neither direction is better in cells with a defense, cells of other attacks for comparison, and cells of the
    # paper's attack without an essential part or before its first step.
    equal_parts=(
        "/fake/", "/noise0.", "/dp-", "/marvell", "/vfldefender", "/quantization", "/full-privacy", "/after",
        "/baseline", "/dlg/", "/idlg/", "/cosine/", "/sapag/", "/bn/", "/gc/", "/ig/", "/gi/", "/bayes/", "/ggl/",
        "/rogs/", "/li/", "/fu/", "/geiping/", "/alpha0/", "/beta0/", "/gamma0/", "/xi0/",
        "/without-", "-without/", "/iter0/",
    ),
)  # fmt: skip


def ledger_of(paper: str, folder: Path = FOLDER) -> Ledger:
    """The ledger of one of `PAPERS`."""
    return Ledger(paper, folder, ledger.printed_cells(_paper.tables(PAPERS[paper])), DIRECTIONS)


def command(paper: str, measurement: Measurement, seeds: Sequence[int]) -> str:
    """The command that repeats the measurement behind an entry."""
    words = f"python -m experiments.reproduce --paper {paper} --cell {measurement.cell} --variant {measurement.variant}"
    return f"{words} --seeds {' '.join(map(str, seeds))} --record"


def commit() -> str:
    """The commit of the running code; written tables of the ledger or of benchmarks do not count as changes."""
    written = ("experiments/ledger", "docs/reproduction", "benchmarks/*.json", "benchmarks/README.md")
    return ledger.commit_of(ROOT, but_for=written)


def where(paper: str, table: str) -> str:
    """Short place of a table in its paper, as `Table 14` for `Table 14 (Appendix F)`."""
    return str(_paper.tables(PAPERS[paper])[table]["where"]).partition(" (")[0]


def sheet_title(paper: str, table: str) -> str:
    """The title of a table's contact sheet: the paper, where the table is, and what it is about."""
    return f"{TITLES[paper]}, {where(paper, table)}: {_paper.tables(PAPERS[paper])[table]['title']}"


def in_sheets(entry: Entry) -> bool:
    """Whether a sheet shows an entry's images.

    A second reading of PSNR would show the same images again, and a gain compares two runs.
    """
    return not entry.name.endswith("channel-peak") and "-gain" not in entry.table
