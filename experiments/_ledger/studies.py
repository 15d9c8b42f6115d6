"""The study behind each paper, imported when it is asked for: the options name papers before JAX is imported."""

import importlib
from pathlib import Path

from experiments._ledger.papers import PAPERS
from jaxleak import _validate
from jaxleak.study.ledger import Study


def study_of(paper: str, folder: Path) -> Study:
    """Make the study of a paper; the study keeps its finished runs in `folder`."""
    _validate.one_of(PAPERS, paper=paper)
    folder.mkdir(parents=True, exist_ok=True)
    if paper == "fedleak":
        return importlib.import_module("experiments._ledger.fedleak").FedLeakStudy(folder)
    if paper == "vflrecon":
        return importlib.import_module("experiments._ledger.vflrecon").VflReconStudy(folder)
    return importlib.import_module("experiments._ledger.cafe").CafeStudy(paper, folder)
