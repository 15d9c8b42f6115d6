"""What has to run for a cell of the CAFE tables.

Cells that come from the same run (one curve read at several iterations, say) share it.
"""

from collections.abc import Callable

from jaxleak.study.cells import Cell, Results, score_named
from jaxleak.study.rounds.runs import Setting

DATASETS = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "MNIST": "mnist",
    "Yale 32x32": "yale32",
    "Linnaeus 5": "linnaeus5",
}


def cell_of(
    identifier: str, paper: float | None, unit: str, setting: Setting, read: Callable[[Results], float], note: str = ""
) -> Cell:
    """A cell that runs one setting."""
    return Cell(identifier, paper, unit, (setting,), read, note)


def setting_of(cell: Cell) -> Setting:
    """What a cell of the CAFE tables runs, which is one setting."""
    setting: Setting = cell.jobs[0]
    return setting


#: The final mean PSNR.
psnr = score_named("psnr")
