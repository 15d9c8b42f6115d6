"""Which case and which score stand behind every printed number of the VFLRecon paper, and rows beyond them."""

from collections.abc import Callable, Iterator

from experiments._vfl import cells_figures as figures
from experiments._vfl import cells_further as further
from experiments._vfl import cells_tables as tables
from experiments._vfl.case import Case
from experiments._vfl.cell import Reading

TABLES: dict[str, Callable[[Case], Iterator[Reading]]] = {
    "table3": tables.table3,
    "table4": tables.table4,
    "table5": tables.table5,
    "table6": tables.table6,
    "fig3": figures.fig3,
    "fig4": figures.fig4,
    "fig5": figures.fig5,
    "fig6": figures.fig6,
    "fig7": figures.fig7,
    "fig8": figures.fig8,
    "fig9": figures.fig9,
    "fu": tables.fu,
    "ablation": further.ablation,
    "encryption": further.encryption,
    "defender": further.defender,
}


def readings(table: str, base: Case) -> list[Reading]:
    """The readings of `table`, one of `TABLES`.

    Args:
        table: which.
        base: sizes of the runs and the cipher that stands in the rows with encryption ("none" there means "ckks").
    """
    return list(TABLES[table](base))
