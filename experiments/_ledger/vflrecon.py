"""The runs behind the cells of the VFLRecon paper."""

import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from experiments import _paper
from experiments._vfl.cells import BATCH_SIZES, TABLES
from experiments._vfl.cells_tables import FEATURE, LABEL, Scored, dataset_case
from experiments._vfl.study import plan
from jaxleak.attacks import party_records
from jaxleak.defenses import SPLIT_DEFENSES
from jaxleak.study.cells import Results, joined
from jaxleak.study.files import write_json
from jaxleak.study.ledger import Measurement, Variant, printed_cells
from jaxleak.study.parties import PLAIN_RATES, Runs, SplitCase, SplitJob, SplitJobs
from jaxleak.study.runner import Runner
from jaxleak.study.sources import Sources

Combine = Callable[[Sequence[float]], float]

#: Tables and figures with runs of their own. Cells of the paper's text read the same runs.
_TABLES = ("table3", "table4", "table5", "table6", "fu", "fig3", "fig5", "fig6")

#: Available data sets among the six over which the paper averages.
AVERAGED = ("sensorless", "criteo", "avazu", "cifar10")
FEWER = (
    "other numbers of records than printed (at most 2000 attacked ones, so that the attacked run has fewer steps than "
    "the paper's; at most 1000 shadow records, a third of small data sets)"
)
#: Differences from the paper in some of its tables and figures.
FIGURE3 = "Figure 3 of the paper has 100 shadow records"
TABLE3 = "the features are halved, where the paper tailors its attack to the parties of Li et al."
BALANCED = "as many samples of both classes, and scaling by quantiles, which the paper does not print for Criteo"
#: Starts of the shadow run. The attacker of the paper knows its own bottom model, and trains "from scratch".
STARTS: dict[party_records.ShadowInit, tuple[str, str]] = {
    "own_bottom": ("", "the shadow run starts at the attacker's own initial weights, and others elsewhere"),
    "shared": (
        "shared-start",
        "more than the paper grants: the attacker knows the initial weights of all parties; the shadow run starts "
        "where the attacked one did",
    ),
}
THREE_ITEMS = (
    "a record without the parameters of the bottom model before and after the step, which the paper's six items hold; "
    "a scale for each entry of a record"
)
#: Case that most cells vary. Records that differ from the paper's have a scale for every entry, as first recorded.
BASE = SplitCase("sensorless", scales="entry", missing="zero")
#: How the six items are standardised: the end of a measurement's name, and what differs.
SCALES: dict[Literal["item", "entry"], tuple[str, str]] = {
    "item": ("", "one scale for each item of a record, which the paper does not print"),
    "entry": ("entry-scales", "a scale for each entry of a record, which the paper does not print"),
}
ALGEBRA = "the algebra of the encrypted protocol, without ciphertexts"
#: What the paper leaves open, or prints in two ways, and every cell with a shadow run takes in one.
OPEN = (
    "features are scaled to [0, 1], and answers kept there; a record's step is one of Adam, where Algorithm 1 has a "
    "plain one; shadow runs: {}, of at least one and a half times as many steps as are attacked; epochs of R: {}"
)


@dataclass(frozen=True)
class _Draft:
    """A measurement before the runs of its cases are known, since other measurements need scores of the same cases."""

    cell: str
    variant: Variant
    differs: str
    metrics: tuple[Scored, ...]
    combine: Combine
    name: str = ""
    start: party_records.ShadowInit = "shared"


class VflReconStudy:
    """The cells of the VFLRecon paper."""

    def __init__(self, folder: Path):
        """Finished runs are kept below `folder`."""
        sources = Sources(folder, fresh=False, write=write_json)
        self.runner = Runner(SplitJobs(), folder / "cells", sources, fresh=False)
        self.printed = printed_cells(_paper.tables("vflrecon"))

    def measurements(self) -> Iterator[Measurement]:
        """Every variant of every cell."""
        for draft in self._drafts:
            jobs = tuple(SplitJob(case, self._runs[draft.start][case]) for case, _ in draft.metrics)
            factor = 100.0 if self.printed[draft.cell]["unit"] == "%" else 1.0
            yield Measurement(
                draft.cell, draft.variant, _told(draft), jobs, _reader(draft, factor),
                tuple(sorted({case.data for case, _ in draft.metrics})), draft.name,
            )  # fmt: skip

    def impossible(self) -> Mapping[str, str]:
        """Cells that no run can give, each with the reason."""
        covered = {draft.cell for draft in self._drafts}
        return {name: _why_not(cell) for name, cell in self.printed.items() if name not in covered}

    @cached_property
    def _drafts(self) -> list[_Draft]:
        return [*_of_tables(), *_of_text()]

    @cached_property
    def _runs(self) -> dict[party_records.ShadowInit, dict[SplitCase, Runs]]:
        return {
            start: plan((scored for d in self._drafts if d.start == start for scored in d.metrics), (start,))
            for start in STARTS
        }


def _told(draft: _Draft) -> str:
    """All differences from the printed settings: those of the draft, of its table and of its cases."""
    cases = [case for case, _ in draft.metrics]
    others = {case.optimizer for case in cases} - {"adam"}
    read = " ".join(score for _, score in draft.metrics)
    defended = [case for case in cases if case.defense != "none"]
    with_r = any(of in read for of in (*STARTS, "_reconstructed"))
    notes = [
        draft.differs,
        *dict.fromkeys(f"`{c.defense}` of {c.strength:g} ({SPLIT_DEFENSES[c.defense].unit})" for c in defended),
        OPEN.format(cases[0].shadow_runs, cases[0].network_epochs) * with_r,
        "errors are means over features, where equation 6 divides by the records" * ("feature_mse" in read),
        "the attacker knows the defense" * ("_adaptive" in read),
        *dict.fromkeys(f"the top model's output is {c.top_output}, which the paper does not say" for c in defended),
        "the paper names the partition alone" * any(case.partition in ("gaussian", "gibbs") for case in cases),
        f"the accuracy after {cases[0].task_epochs} epochs, on the attacker's records" * ("task_" in read),
        FIGURE3 * draft.cell.startswith("text-fig3/"),
        TABLE3 * draft.cell.startswith("table3/vflrecon"),
        BALANCED * any(case.data == "criteo" for case in cases),
        *(f"{name} at a rate of {PLAIN_RATES[name]:g}, where 0.001 is printed" for name in sorted(others)),
    ]
    return joined(*notes)


def _reader(draft: _Draft, factor: float) -> Callable[[Results], float]:
    def read(results: Results) -> float:
        return factor * draft.combine([r.scores[m] for r, (_, m) in zip(results, draft.metrics, strict=True)])

    return read


_first = operator.itemgetter(0)


def _of_tables() -> Iterator[_Draft]:
    for table in _TABLES:
        for cell in TABLES[table](BASE):
            if cell.reason or cell.paper is None:
                continue
            plain, _, name = cell.id.partition("#")
            ((case, metric),) = cell.jobs
            yield from _variants(plain, case, metric, name, cell.note)


def _variants(cell: str, case: SplitCase, metric: str, name: str = "", note: str = "") -> Iterator[_Draft]:
    """Variants of a cell: the paper's record, ours, and no shadow run; on ciphertexts if the paper encrypts."""
    ours = "adaptive" in name or name in ("tuned", "validated")
    notes = [FEWER, *filter(None, [note])]
    if not metric.startswith((f"{LABEL}_shared", f"{FEATURE}_shared", "correlation_reconstructed")):
        yield _Draft(cell, "ours" if ours else "reduced", "; ".join(notes), (Scored(case, metric),), _first, name)
        return
    if case.cipher == "none":
        yield from _records(cell, case, metric, name, "; ".join(notes), ours=ours)
    else:
        yield from _records(cell, replace(case, cipher="ckks"), metric, name, "; ".join(notes), ours=ours)
        said = "; ".join([*notes, ALGEBRA])
        yield from _records(
            cell, replace(case, cipher="plain"), metric, joined(name, "algebra", by="-"), said, ours=ours
        )
    if metric == f"{LABEL}_shared":
        clear = case if case.cipher == "none" else replace(case, cipher="plain")
        free = "; ".join([FEWER, "no shadow run: the directions of the cut gradients are clustered"])
        yield _Draft(
            cell, "ours", free, (Scored(clear, f"{LABEL}_free"),), _first, joined(name, "initialisation-free", by="-")
        )


def _records(cell: str, case: SplitCase, metric: str, name: str, notes: str, *, ours: bool) -> Iterator[_Draft]:
    # If validation chooses the fields of a record, there is no variant with the paper's six items.
    if case.select == "fixed":
        named = joined(name, "six-items" if ours else "", by="-")
        yield from _six_items(cell, "ours" if ours else "reduced", (case,), metric, _first, notes, named)
        notes = f"{notes}; {THREE_ITEMS}"
    yield _Draft(cell, "ours", f"{notes}; {STARTS['shared'][1]}", (Scored(case, metric),), _first, name)


def _six_items(
    cell: str, variant: Variant, cases: Sequence[SplitCase], metric: str, combine: Combine, notes: str, name: str = ""
) -> Iterator[_Draft]:
    """A number with the paper's record, for each start of the shadow run and each scaling that the cell allows."""
    for start, (known, what) in STARTS.items():
        for scales, (suffix, how) in SCALES.items():
            granted = start == "shared"
            if not granted and (variant == "ours" or scales == "entry" or cases[0].cipher == "ckks"):
                continue
            read = metric.replace("_shared", f"_{start}")
            printed = (replace(case, fields=party_records.PAPER_FIELDS, scales=scales) for case in cases)
            named = joined(name, known if variant != "ours" else "", suffix, by="-")
            scored = tuple(Scored(case, read) for case in printed)
            kind: Variant = "ours" if granted else variant
            yield _Draft(cell, kind, f"{notes}; {how}; {what}", scored, combine, named, start)


def _of_text() -> Iterator[_Draft]:
    """Numbers that the paper states in its text, from the runs of its tables."""
    sensorless, criteo = (dataset_case(BASE, name) for name in ("sensorless", "criteo"))
    label, feature = f"{LABEL}_shared", f"{FEATURE}_shared"
    yield from _variants("text-abstract-label/vflrecon", criteo, label)
    yield from _variants("text-abstract-label/baseline", criteo, f"{LABEL}_baseline_network")
    defended = replace(sensorless, defense="vfl_defender_paper", strength=1.0)
    yield from _variants("text-defender-intro-label/before", sensorless, label)
    yield from _variants("text-defender-intro-label/after", defended, label)
    yield from _variants("text-defender-intro-feature/before", sensorless, feature)
    yield from _variants("text-defender-intro-feature/after", defended, feature)
    yield from _both("text-defender-gain/label", (sensorless, defended), label, lambda v: v[0] - v[1])
    lost = lambda v: -v[0]  # noqa: E731
    for variance in (0.001, 0.01, 0.1):  # one training gives the printed change for both tasks
        noise = replace(sensorless, defense="noise", strength=variance)
        cell = f"table5-utility/feature/noise{variance:g}"
        yield _Draft(cell, "reduced", FEWER, (Scored(noise, "task_accuracy_change"),), _first)
    for cell, case in (
        ("text-defence-utility/vfldefender", defended),
        ("text-defence-utility/dp-eps10", replace(sensorless, defense="dp_sgd", strength=10.0)),
    ):
        yield _Draft(cell, "reduced", f"{FEWER}; Sensorless alone", (Scored(case, "task_accuracy_change"),), lost)
    yield from _variants("text-fig7-label/75", replace(sensorless, share=0.75, cipher="plain"), label)
    yield from _variants("text-fig7-label/25", replace(sensorless, share=0.25), label)
    yield from _variants("text-fig7-feature/25", replace(sensorless, share=0.25), feature)
    shares = tuple(replace(sensorless, share=share) for share in (0.25, 0.15))
    yield from _both("text-fig7-drop/25-to-15", shares, label, lambda v: v[0] - v[1])
    sizes = tuple(replace(sensorless, batch_size=size) for size in BATCH_SIZES)
    yield from _both("text-fig8/most", sizes, feature, statistics.median, "; the median over the batch sizes")
    yield from _variants("text-fig8/b128", replace(sensorless, batch_size=128, cipher="plain"), feature)
    optimizers = tuple(replace(sensorless, optimizer=name) for name in ("adam", "sgd", "adadelta"))  # type: ignore[arg-type]
    yield from _both("text-optimizer/all", optimizers, label, statistics.fmean)
    known = tuple(dataset_case(BASE, name) for name in AVERAGED)
    some = f"; the mean over {', '.join(AVERAGED)}, the ones at hand of six"
    for encryption in ("enc", "plain"):
        cipher = "plain" if encryption == "enc" else "none"
        cases = tuple(replace(case, cipher=cipher) for case in known)  # type: ignore[arg-type]
        note = some + (f"; {ALGEBRA}" if encryption == "enc" else "")
        yield from _both(f"text-fig3/average/{encryption}", cases, label, statistics.fmean, note, stand_in=True)
        yield from _both(f"text-fig5/average/{encryption}", cases, feature, statistics.fmean, note, stand_in=True)
    least = f"; the least of {', '.join(AVERAGED)}, the ones at hand of six"
    yield from _both("text-fig3/all-six", known, label, min, least, stand_in=True)
    two = known[1:3]
    both = "; the mean over criteo and avazu, the ones at hand of three"
    yield from _both("table3/vflrecon/average", two, label, statistics.fmean, both, stand_in=True)
    li = tuple(Scored(case, f"{LABEL}_li_norm") for case in two)
    yield _Draft("table3/li/average", "stand-in", FEWER + both, li, statistics.fmean)


def _both(
    cell: str, cases: tuple[SplitCase, ...], metric: str, combine: Combine, note: str = "", *, stand_in: bool = False
) -> Iterator[_Draft]:
    """A number that combines several cases, with the paper's record and with ours."""
    notes = f"{FEWER}{note}"
    yield from _six_items(cell, "stand-in" if stand_in else "reduced", cases, metric, combine, notes)
    said = f"{notes}; {THREE_ITEMS}; {STARTS['shared'][1]}"
    yield _Draft(cell, "ours", said, tuple(Scored(case, metric) for case in cases), combine)


def _why_not(cell: Mapping[str, Any]) -> str:
    if cell["id"] == "text-shadow-share/criteo":
        return "the share of 500,000 records that 1,000 are, which is no measurement"
    return f"the data set could not be had: {cell['dataset']}"
