"""What the pages say of met numbers that show little, and of numbers that several cells share."""

from collections.abc import Iterable, Sequence

from jaxleak.study.cells import joined
from jaxleak.study.ledger import MEASURED, Entry, Ledger, cell_status

#: Parts of ids by description, for cells whose number, even if met, is no better than that of an answer that ignores
#: the update. The scores of answers of this kind are in docs/results/null_scores.json and vflrecon_data.json.
_NO_BETTER_THAN_NOTHING = {
    "GradInversion, whose answer is close to the mean of its random starts "
    "([FedLeak's baselines](../inversion/baselines.md))": ("/gi/",),
    "other baselines of CAFE's Table 2": ("table2/dlg/", "table2/cosine/", "table2/sapag/", "table2/bn/"),
    "CAFE after 100 epochs in batches of one image, in place of ten": ("table10/cafe/epoch100/k10",),
    "Inverting Gradients on 64 digits": ("table3/ig/b64/mnist",),
    "CAFE without the distance of its features, on MNIST": ("table4/gamma0/mnist",),
    "images after twelve local steps, or behind quantization, in FedLeak's Figure 4": (
        "text-fig4-psnr/none/steps12", "text-fig4-psnr/quantization/",
    ),
    "features by VFLRecon, which the mean of every column predicts as well or better": (
        "table6-feature/marvell/criteo", "text-fig7-feature/25", "text-fig8/most",
    ),
}  # fmt: skip

#: Parts of the ids of all of these cells.
_NOTHING = tuple(part for parts in _NO_BETTER_THAN_NOTHING.values() for part in parts)

#: Parts of ids of numbers that no attack gives: ratios of parameter counts, and numbers before the first step.
_OF_NO_ATTACK = ("text-overdetermination/", "/iter0")


def _deciding(ledgers: Sequence[Ledger]) -> list[tuple[Ledger, Entry]]:
    """The entries that decide the status of the measured numbers, each with its ledger."""
    shown = [(ledger, cell_status(ledger, cell)[1]) for ledger in ledgers for cell in ledger.printed]
    return [(ledger, entry) for ledger, entry in shown if entry is not None and entry.status in MEASURED]


def _met(ledgers: Sequence[Ledger]) -> list[tuple[Ledger, Entry]]:
    return [(ledger, entry) for ledger, entry in _deciding(ledgers) if entry.status == "met"]


def _is_of(cell: str, parts: Iterable[str]) -> bool:
    return any(part in cell for part in parts)


def met_by_nothing(ledgers: Sequence[Ledger]) -> dict[str, int]:
    """The count of met numbers that are no better than those of an answer that knows nothing, by description."""
    met = _met(ledgers)
    counts = {of: sum(_is_of(e.cell, parts) for _, e in met) for of, parts in _NO_BETTER_THAN_NOTHING.items()}
    return {of: number for of, number in counts.items() if number}


def without_attack(ledgers: Sequence[Ledger]) -> str:
    """In brackets, how many of the met numbers that were measured as printed are no result of an attack."""
    number = sum(entry.variant == "printed" and _is_of(entry.cell, _OF_NO_ATTACK) for _, entry in _met(ledgers))
    said = f"{number} of them are of no attack, but ratios of parameter counts or numbers before the first step"
    return f" ({said})" * bool(number)


def showing_little(ledger: Ledger, cells: Sequence[str]) -> str:
    """A sentence that names a table's met numbers that are no better than those of an answer without the update."""
    met = [cell for cell in cells if cell_status(ledger, cell)[0] == "met"]
    found = [cell.partition("/")[2] for cell in met if _is_of(cell, _NOTHING)]
    if not found:
        return ""
    numbers = "This met number is" if len(found) == 1 else "These met numbers are"
    return f" {numbers} no better than what an answer gives that knows nothing of what was sent: {', '.join(found)}."


def distinct(ledgers: Sequence[Ledger]) -> int:
    """How many of the measured numbers differ from each other in a seed or its value; a NaN equals a NaN."""
    return len({(ledger.paper, str(sorted(entry.seeds.items()))) for ledger, entry in _deciding(ledgers)})


def by_formula(ledgers: Sequence[Ledger]) -> int:
    """How many deciding measurements have another status by the other formula of PSNR, where it was recorded."""
    changed = 0
    for ledger, entry in _deciding(ledgers):
        for formula in ("channel-peak", "peak-one"):
            other = ledger.entries.get((entry.cell, entry.variant, joined(entry.name, formula, by="-")))
            changed += other is not None and other.status in MEASURED and other.status != entry.status
    return changed


def beyond_and_nothing(ledgers: Sequence[Ledger]) -> int:
    """The count of numbers beyond the printed one that are no better than those of an answer that knows nothing."""
    return sum(ledger.beyond(entry) and _is_of(entry.cell, _NOTHING) for ledger, entry in _met(ledgers))


def decided_by_one_seed(ledgers: Sequence[Ledger]) -> tuple[int, int]:
    """The count of measured numbers that a single seed decides, and the count of met ones among them."""
    single = [entry for _, entry in _deciding(ledgers) if len(entry.seeds) == 1]
    return len(single), sum(entry.status == "met" for entry in single)


def met_by_fedleak(ledgers: Sequence[Ledger]) -> int:
    """The count of FedLeak's PSNRs that the paper's own algorithm meets."""
    return sum("/fedleak" in e.cell and e.unit == "dB" and e.variant != "ours" for _, e in _met(ledgers))
