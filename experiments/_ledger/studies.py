"""The study behind each paper."""

from collections.abc import Callable
from pathlib import Path

from experiments._ledger.cafe import CafeStudy
from experiments._ledger.fedleak import FedLeakStudy
from experiments._ledger.papers import PAPERS
from experiments._ledger.vflrecon import VflReconStudy
from jaxleak import _validate
from jaxleak.study.ledger import Study

_STUDIES: dict[str, Callable[[Path], Study]] = {
    "cafe": lambda folder: CafeStudy("cafe", folder),
    "cafe-iclr": lambda folder: CafeStudy("cafe-iclr", folder),
    "fedleak": FedLeakStudy,
    "vflrecon": VflReconStudy,
}


def study_of(paper: str, folder: Path) -> Study:
    """The study of a paper, which keeps its finished runs in `folder`."""
    _validate.one_of(PAPERS, paper=paper)
    folder.mkdir(parents=True, exist_ok=True)
    return _STUDIES[paper](folder)
