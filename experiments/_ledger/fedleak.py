"""The runs behind the cells of the FedLeak paper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments import _paper
from experiments._fedleak.cells import cells, lacking, names
from experiments._fedleak.inversions import PRINTED_ITERATIONS, UNNAMED
from experiments._fedleak.jobs import DATASETS, REDUCED_ITERATIONS, Job, Sizes, at_reduced_rate
from experiments._fedleak.runs import UpdateJobs
from experiments._ledger import fedleak_defenses
from jaxleak.attacks import presets
from jaxleak.study import RunFolder
from jaxleak.study.cells import Cell, joined
from jaxleak.study.ledger import Measurement, Variant, printed_cells
from jaxleak.study.runner import ByType, runner_in
from jaxleak.study.sources import samples_in, unavailable
from jaxleak.study.updates import Case, Training, Utilities, Utility

#: Data in place of SVHN, since SVHN is not available, and the note on it.
SVHN = ("cifar10", "CIFAR-10 for SVHN")
#: The lung classes of Lung-Colon Cancer at the printed size and at that of the reduced problem, each with its note.
LUNG = ("lc25000_lung", "the three lung classes of Lung-Colon Cancer")
SMALL_LUNG = ("lc25000_lung32", "the three lung classes of Lung-Colon Cancer at 32 pixels")
#: Part of a cell's note if other weights replace those of ImageNet.
NO_WEIGHTS = "weights for pretrained"
OUR_ITERATIONS = 200
#: Tables that compare models. Their reduced problem keeps the models but makes them narrower.
_COMPARE_MODELS = ("table8", "text-capacity-gain")
_WIDTH = 16
#: Tables with a printed model that is already small.
_SMALL_MODELS, SMALL_MODEL_ITERATIONS = ("table11", "fig1"), 1000
#: Largest number of samples that the clients draw from.
_POOL = 512
#: A further reduction for tables that compare models, since a step of the deep models takes seconds.
_NARROW_WIDTH, _NARROW_ITERATIONS = 8, 25
#: Training that replaces pretrained weights where a table compares them with random ones.
WARM = Training(rounds=100, clients=20, clients_per_round=5)
#: Side in pixels of shrunk images of 224 pixels in the reduced problem, and the data that replace too small data sets.
SMALL_SIDE = 32
TOO_FEW = "cifar100"
_IMAGENET_CLASSES = 1000
#: Tables of clients with unlike data. The 498 images of three lung classes are too few, so four clients share 1,000
#: images of CIFAR-10 instead, and its other images may be public. Feature skew makes five groups of clients.
_UNLIKE_CLIENTS, UNLIKE_FEDERATION, UNLIKE_POOL = ("table5", "table6"), 4, 1000
_FEATURE_GROUPS = 5
UNLIKE_DATA = ("cifar10", "CIFAR-10 for Lung-Colon Cancer")


class FedLeakStudy:
    """The cells of the FedLeak paper."""

    def __init__(self, folder: Path):
        """Finished runs are kept in `folder`."""
        run = RunFolder(folder / "runs", "reproduce", {}, fresh=False)
        utilities = Utilities(fedleak_defenses.FEDERATION, folder / "utility")
        jobs = ByType({Job: UpdateJobs(run, fresh=False), Utility: utilities})
        self.runner = runner_in(run, jobs, fresh=False)
        self.printed = printed_cells(_paper.tables("fedleak"))

    def measurements(self) -> Iterator[Measurement]:
        """Every variant of every cell."""
        yield from self._all

    def impossible(self) -> Mapping[str, str]:
        """Cells that no run can give, each with the reason."""
        covered, reasons = {measurement.cell for measurement in self._all}, {}
        for table in names():
            for cell in cells(table, next(sizes for *_, sizes in _sizes(table))):
                if cell.paper is not None and cell.id not in covered:
                    reasons[cell.id] = cell.reason
        return reasons

    @cached_property
    def _all(self) -> list[Measurement]:
        found = list(fedleak_defenses.measurements())
        for table in names():
            for variant, name, sizes in _sizes(table):
                for cell in cells(table, sizes):
                    if cell.paper is not None and not cell.reason:
                        # A cell that is equal at all sizes is measured once, in its most faithful variant.
                        same = {(m.cell, m.jobs) for m in found}
                        found += [m for m in self._of_cell(variant, name, cell) if (m.cell, m.jobs) not in same]
        return found

    @cached_property
    def _lacking(self) -> dict[str, str]:
        return lacking()

    def _dataset(self, cell: str) -> str:
        table = _paper.tables("fedleak")[cell.partition("/")[0]]
        return str(self.printed[cell].get("dataset", "")) + str(table["setting"].get("dataset", ""))

    def _of_cell(self, variant: Variant, name: str, cell: Cell) -> Iterator[Measurement]:
        method = self.printed[cell.id].get("method", "")
        if variant == "ours" and not method.startswith("FedLeak"):
            return
        if variant != "printed" and self.printed[cell.id].get("strategy") == "cosine annealing":
            return  # this schedule restarts every 1,000 iterations, but reduced runs are not longer
        jobs = tuple(_with_enough_clients(_without_public_half(job)) for job in cell.jobs)
        printed = {job.case.data for job in jobs}
        jobs = tuple(_with_enough_images(job) if variant != "printed" or job.kind == "labels" else job for job in jobs)
        if variant == "reduced":
            jobs = tuple(_reduced(job) for job in jobs)
        notes = [cell.note] if cell.note else []
        if cell.id.startswith("table14-label") and printed == {job.case.data for job in jobs}:
            notes.append("61 images of 61 classes, so that no label repeats")
        if jobs and not printed & (now := {job.case.data for job in jobs}):
            notes.append(f"{', '.join(sorted(now))} for {', '.join(sorted(printed))}, which has too few images")
            notes.extend({f"labels drawn from {job.drawn_classes} classes" for job in jobs if job.drawn_classes})
        notes.extend(f"{spec.partition('?')[0]} at {SMALL_SIDE} pixels" for spec in sorted(printed) if "?size=" in spec)
        own = [job.case for job in jobs if job.case.attack == "fedleak_paper"]
        rates = {case.step_size for case in own if case.optimizer == "adam"}
        notes.extend(f"Adam from {rate:g} by a cosine for 1e-4" for rate in sorted(rates))
        notes.extend(sorted({f"{job.case.federation} clients for 100" for job in jobs if _few_clients(job)}))
        for spec, note in (SVHN, LUNG, SMALL_LUNG, UNLIKE_DATA):
            dataset = "SVHN" if note == SVHN[1] else "Lung-Colon Cancer"
            if any(job.case.data == spec for job in jobs) and dataset in self._dataset(cell.id):
                notes.append(note)
        if cell.id.startswith("table11-"):
            notes.append("one image for each seed; widths of the network not printed")
        differs = "; ".join(notes)
        stand_ins = (NO_WEIGHTS, SVHN[1], LUNG[1], UNLIKE_DATA[1], f"{TOO_FEW} for")
        if variant != "ours" and any(note in differs for note in stand_ins):
            name = joined("reduced" * (variant == "reduced"), name, by="-")
            variant = "stand-in"
        elif UNNAMED["gradinversion"] in differs:  # differs from the printed attack at every size
            variant, name = "reduced", name if variant == "printed" else joined(name, "shorter", by="-")
        yield Measurement(
            cell.id, variant, differs, jobs, cell.read, tuple(sorted({job.case.data for job in jobs})),
            name=name, reason=_too_large(jobs) or self._lacking.get(cell.id.partition("/")[0], ""),
        )  # fmt: skip


def _sizes(table: str) -> Iterator[tuple[Variant, str, Sizes]]:
    """Printed sizes, and reduced ones for the paper's algorithm and for ours, as (variant, measurement name, sizes)."""
    printed = Sizes(
        fedleak="fedleak_paper", labels="fedleak", public_data="held_out",
        specs={**DATASETS, "SVHN": SVHN[0], "Lung-Colon Cancer": LUNG[0]},
    )  # fmt: skip
    small = {**DATASETS, "SVHN": SVHN[0], "Lung-Colon Cancer": SMALL_LUNG[0]}
    small |= {name: f"{DATASETS[name]}?size={SMALL_SIDE}" for name in ("HAM10000", "ImageNet")}
    changed: dict[str, Any] = {"model": "convnet", "iterations": REDUCED_ITERATIONS, "idlg_optimizer": "adam"}
    if table in _COMPARE_MODELS:
        changed |= {"model": None, "width": _WIDTH}
    elif table == "fig9":
        changed["width"] = _WIDTH
    elif table == "table7":
        changed["warm"] = WARM
    elif table in _SMALL_MODELS:
        changed |= {"model": None, "iterations": SMALL_MODEL_ITERATIONS}
    if table in _UNLIKE_CLIENTS:
        small["Lung-Colon Cancer"] = UNLIKE_DATA[0]
        changed["federation"] = UNLIKE_FEDERATION
    reduced = replace(printed, specs=small, **changed)
    ours = replace(reduced, fedleak="fedleak", labels="calibrated", iterations=OUR_ITERATIONS)
    made: list[tuple[Variant, str, Sizes]] = [("printed", "", printed), ("reduced", "", reduced), ("ours", "", ours)]
    if table == "fig1":  # the printed optimiser on fewer images
        made = [("reduced", "", printed)]
    elif table in _COMPARE_MODELS:
        made.append(("reduced", "narrow", replace(reduced, width=_NARROW_WIDTH, iterations=_NARROW_ITERATIONS)))
    elif table == "table3":  # either the network or the number of iterations is reduced
        made.append(("reduced", "network", replace(printed, model="convnet")))
        made.append(("reduced", "iterations", replace(printed, iterations=SMALL_MODEL_ITERATIONS)))
    for variant, name, sizes in made:
        most = UNLIKE_POOL if sizes.federation == UNLIKE_FEDERATION else _POOL
        yield variant, name, replace(sizes, pools=_pools(sizes, most))  # type: ignore[misc]


def _pools(sizes: Sizes, most: int) -> dict[str, int]:
    """Sizes of the pools: clients draw from half of the data, so that the other half can be public."""
    found = {}
    for spec in sizes.specs.values():
        try:
            found[spec] = min(most, samples_in(spec) // 2)
        except (OSError, ValueError):
            continue
    return found


def _without_public_half(job: Job) -> Job:
    """The same job with a client that draws from all the data, unless the attack trains on the public half."""
    if unavailable(job.case.data):  # missing data are reported when the job is run, not before
        return job
    if job.kind != "invert" or job.case.attack in presets.GENERATIVE or _few_clients(job) or job.training is not None:
        return job
    return replace(job, case=replace(job.case, pool=min(_POOL, samples_in(job.case.data))))


def _with_enough_images(job: Job) -> Job:
    """The same job on the data `TOO_FEW` if its own data have too few images for the batch and the public half."""
    if job.kind not in ("invert", "labels") or unavailable(job.case.data):
        return job
    if job.case.images <= _there(job) or unavailable(TOO_FEW):
        return job
    # The number of repeated labels in a batch, which rules may miss, depends on the number of classes.
    drawn = _IMAGENET_CLASSES if job.kind == "labels" else None
    case = replace(job.case, data=TOO_FEW, pool=min(_POOL, samples_in(TOO_FEW) // 2))
    return replace(job, case=case, drawn_classes=drawn)


def _few_clients(job: Job) -> bool:
    return job.case.federation != Case.federation


def _with_enough_clients(job: Job) -> Job:
    """The same job with a client for every group of feature skew."""
    if not job.case.partition.startswith("feature_skew"):
        return job
    return replace(job, case=replace(job.case, federation=max(job.case.federation, _FEATURE_GROUPS)))


def _reduced(job: Job) -> Job:
    case = job.case
    if job.kind != "invert" or case.attack != "fedleak_paper" or case.iterations == PRINTED_ITERATIONS:
        return job
    return replace(job, case=at_reduced_rate(case))


def _too_large(jobs: Sequence[Job]) -> str:
    for job in jobs:
        if job.kind in ("invert", "labels") and not unavailable(job.case.data) and job.case.images > _there(job):
            return f"the client needs {job.case.images} images and draws from {_there(job)} of {job.case.data} here"
    return ""


def _there(job: Job) -> int:
    return samples_in(job.case.data) if job.kind == "labels" else job.case.pool
