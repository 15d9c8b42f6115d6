"""The study behind each paper, imported when it is asked for: the options name papers before JAX is imported."""

from pathlib import Path

from experiments._ledger.papers import PAPERS
from jaxleak import _validate
from jaxleak.study.ledger import Study


def study_of(paper: str, folder: Path) -> Study:
    """The study of a paper, which keeps its finished runs in `folder`."""
    _validate.one_of(PAPERS, paper=paper)
    folder.mkdir(parents=True, exist_ok=True)
    if paper == "fedleak":
        from experiments._ledger.fedleak import FedLeakStudy

        return FedLeakStudy(folder)
    if paper == "vflrecon":
        from experiments._ledger.vflrecon import VflReconStudy

        return VflReconStudy(folder)
    from experiments._ledger.cafe import CafeStudy

    return CafeStudy(paper, folder)
