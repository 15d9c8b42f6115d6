"""The runs behind the cells of both CAFE papers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from experiments import _paper
from experiments._cafe.tables import DP, ICLR, NEURIPS, STEP_LENGTH, Options, cells, psnr, setting_of
from experiments._ledger import cafe_text
from experiments._ledger.papers import PAPERS
from jaxleak.study.cells import Cell, joined, score_named
from jaxleak.study.files import write_json
from jaxleak.study.ledger import Measurement, Variant, printed_cells
from jaxleak.study.rounds.jobs import CafeJobs
from jaxleak.study.rounds.runs import CAP, FAKE_SAID, STEPS, Setting
from jaxleak.study.runner import Runner
from jaxleak.study.sources import Sources, samples_in

#: Data specification of each printed data set. CIFAR-10 stands for Linnaeus 5, which is not available.
SPECS = {"cifar10": "cifar10", "cifar100": "cifar100", "mnist": "mnist", "yale32": "yale32", "linnaeus5": "cifar10"}
LINNAEUS = "CIFAR-10 (10 classes) for Linnaeus 5 (5 classes)"
POOL = "a pool of one gradient for 1,000"
GRANTED = "the server is granted the statistics of every batch"

PRINTED = Options(solver="paper", iterations=8000)
#: Settings that the paper does not print and that every descent takes from elsewhere; the optimisers are ours.
UNPRINTED = "not printed: optimisers (ours), starts and widths (the authors' code)"
UNPRINTED_TRAINING = "not printed: starts and widths (the authors' code)"
OUTPUTS = "no activation behind a party's outputs (not printed; the authors' code has a ReLU)"
RELU = "a ReLU behind a party's outputs (not printed; the authors' code has it)"
#: Not printed in the ICLR submission, which prints its optimizer, a horizontal model's widths, and mostly 800 epochs.
UNPRINTED_ICLR = f"not printed: step length ({STEP_LENGTH:g}), weights of the loss, starts, a vertical model's widths"
FROZEN = "the weights stay as they are, which Algorithm 1 trains meanwhile"
ITERATIONS_OPEN = "iterations not printed: as in Table 4 at a batch ratio of 0.1"
OPEN = ("iclr-table2b", "iclr-table3b")
ALL_STEPS = "every iteration makes all three steps"
#: Table 11's printed first loss, 2.77 = ln 16, is the loss of a uniform prediction over 16 classes.
TABLE11 = "data not printed: CIFAR-10, whose 10 classes give a first loss near 2.30, where 2.77 is printed"
#: Difference of the descent that gives a whole row of Table 10 in one run.
WHOLE_STEPS = "Steps I and II of full length at every T, which the paper cuts at T as well"
#: The reduced problem: a tenth of the private samples, in batches of a tenth of the size but at least one sample.
SHARE, ROUNDS, RATE = 10, 200, 0.05
#: Factor by which the submission's reduced problem makes fewer but longer updates. A normalised step has a fixed
#: length, so fewer steps of the printed length could not reach the data from any start.
FEWER = 16
#: Tables of iteration counts, or of curves over thousands of iterations. Their reduced problem runs all iterations.
WHOLE_RUNS = ("table5", "table8-psnr", "table10")
#: Tables with a reduced problem of ten minutes or more. They get a further variant with a quarter of the channels.
NARROW = ("table4", "table5", "table10", "iclr-table1a")
OURS = Options(solver="exact", images=8)
CHANNEL_PEAK = "PSNR by the formula of the ICLR submission, with every channel's own peak"
PEAK_ONE = "PSNR with a peak of 1"
#: Options for fake gradients. An attacker who knows of them solves one system per feature: 21 GB for 800 samples.
FAKE = Options(solver="exact", images=4, num_samples=200)

_SURVEY = "a survey of the cited papers, whose numbers are not measured in this one"


class CafeStudy:
    """The cells of the NeurIPS paper or of the ICLR submission."""

    def __init__(self, paper: str, folder: Path):
        """Finished runs are kept below `folder`."""
        self.paper, self.printed = paper, printed_cells(_paper.tables(PAPERS[paper]))
        sources = Sources(folder, fresh=False, write=write_json)
        self.runner = Runner(CafeJobs(SPECS), folder / "cells", sources, fresh=False)

    def measurements(self) -> Iterator[Measurement]:
        """Every variant of every cell."""
        yield from self._all

    def impossible(self) -> Mapping[str, str]:
        """Cells that no run can give, each with the reason."""
        covered = {measurement.cell for measurement in self.measurements()}
        return {name: _SURVEY for name in self.printed if name not in covered}

    @cached_property
    def _all(self) -> list[Measurement]:
        found = [m for table in (ICLR if self.paper == "cafe-iclr" else NEURIPS) for m in _of_table(table)]
        found += cafe_text.iclr(found) if self.paper == "cafe-iclr" else cafe_text.neurips(found)
        return [replace(m, reason=_too_large(m)) for m in found]


def _of_table(table: str) -> Iterator[Measurement]:
    """Every variant of the cells of a table, with PSNR by both formulas where the run gives both."""
    ours = FAKE if table == "fake-gradients" else OURS
    measured = []
    for cell in cells((table,), PRINTED):
        smaller = [m for m in (_reduced(cell), _narrow(cell)) if m]
        found = [_as_printed(cell), *_readings(cell), *smaller, *(_whole_steps(cell, m) for m in smaller)]
        measured += [(cell, m) for m in found if m]
    for cell in cells((table,), ours):
        if setting_of(cell).kind == "exact":
            unanswered = "those without an answer are left out of the mean" if ours is OURS else f"N {ours.num_samples}"
            notes = joined(f"exact engine; {ours.images} images inverted", unanswered)
            measured.append((cell, _measurement(cell, "ours", notes)))
    for cell, measurement in measured:
        yield from _by_both_formulas(measurement, table) if cell.read is psnr else (measurement,)


def _by_both_formulas(measurement: Measurement, table: str) -> Iterator[Measurement]:
    """A measurement of PSNR by the paper's formula (a peak of 1 if it prints none), and one by the other formula."""
    by_channel = replace(measurement, read=score_named("psnr_channel_peak"))
    plain, other, reading, note = measurement, by_channel, "channel-peak", CHANNEL_PEAK
    if table.startswith("iclr-"):
        plain, other, reading, note = by_channel, measurement, "peak-one", PEAK_ONE
    yield plain
    yield replace(other, name=joined(other.name, reading, by="-"), differs=joined(other.differs, note))


def _measurement(cell: Cell, variant: Variant, differs: str, setting: Setting | None = None) -> Measurement:
    identifier, _, name = cell.id.removeprefix("iclr-").partition("#")
    setting = setting or setting_of(cell)
    faked = setting.defense.startswith("fake-")
    unprinted = (
        DP * setting.defense.startswith("dp-"),
        LINNAEUS * (setting.dataset == "linnaeus5"),
        joined(FAKE_SAID.get(setting.defense, ""), POOL * faked),
        "the model is trained by SGD (not printed)" * cell.id.startswith("table7/"),
        "one image for the mean of 50" * cell.id.startswith("iclr-table1a/dlg/"),
    )
    if faked and variant == "printed":  # all sizes except the pool are as printed
        variant, name = "reduced", f"{name}-{setting.num_samples}"
    table11 = cell.id.startswith("table11/")
    differs = joined(differs, _open(cell, setting), *unprinted, TABLE11 * table11, GRANTED * (setting.method == "bn"))
    if table11 or setting.dataset == "linnaeus5":
        name = joined(name, "stand-in" if variant == "ours" else "reduced" * (variant == "reduced"), by="-")
        if variant != "ours":
            variant = "stand-in"
    if setting.dataset == "linnaeus5" and setting.kind == "exact":
        setting = replace(setting, dataset="cifar10")  # no hyper-parameter depends on the data set: one run for both
    return Measurement(identifier, variant, differs, (setting,), cell.read, (SPECS[setting.dataset],), name)


def _as_printed(cell: Cell) -> Measurement:
    setting, note = setting_of(cell), ""
    if setting.kind == "training" and setting.network == "cafe-small":
        setting, note = replace(setting, network="cafe"), "the paper does not say which data: CIFAR-10"
    return _measurement(cell, "printed", note, setting)


def _open(cell: Cell, setting: Setting) -> str:
    """What every run of the paper's algorithm takes from elsewhere or does otherwise, at any size; nothing for ours."""
    if setting.kind == "exact":
        return ""
    if cell.id.startswith("iclr-"):
        return joined(UNPRINTED_ICLR, FROZEN, ITERATIONS_OPEN * cell.id.startswith(OPEN))
    given = setting.kind == "training" or setting.steps == "authors"
    all_steps = cell.id.startswith(("table7/", "table8-psnr/"))
    outputs = RELU if setting.network == "cafe-relu" else OUTPUTS
    return joined(UNPRINTED_TRAINING if given else UNPRINTED, outputs, ALL_STEPS * all_steps)


def _readings(cell: Cell) -> Iterator[Measurement]:
    """Table 2's CAFE with optimisers and network of the authors' code, and with the best H that Step II reached."""
    setting = setting_of(cell)
    if cell.id in ("table2/cafe/mnist", "table2/cafe/cifar10"):
        unprinted = f"not printed: {STEPS['authors']}"
        for name, reading in (
            ("authors-adam", replace(setting, steps="authors")),
            ("authors-relu", replace(setting, network="cafe-relu")),
            ("authors-code", replace(setting, network="cafe-relu", steps="authors")),
        ):
            authors = _measurement(cell, "printed", unprinted * (reading.steps == "authors"), reading)
            yield replace(authors, name=name)
        stopped = _measurement(cell, "ours", STEPS["stopped"], replace(setting, steps="stopped"))
        yield replace(stopped, name="descent-stopped")


def _reduced(cell: Cell) -> Measurement | None:
    """The same cell on the reduced problem, or None if the full run of that problem takes half an hour or more."""
    setting, table = setting_of(cell), cell.id.partition("/")[0]
    if table == "iclr-table1a":
        return None
    small, sizes = _smaller(setting)
    if table.startswith("iclr-"):
        return _fewer_updates(cell, small, sizes)
    if table in WHOLE_RUNS:  # Table 10 counts epochs, with as many rounds here as printed
        return _measurement(cell, "reduced", sizes, small)
    if setting.kind == "training":
        small = replace(small, network="cafe-small")
        return _measurement(cell, "reduced", f"{sizes}; a quarter of the channels", small)
    small = replace(small, iterations=ROUNDS, overrides=(*small.overrides, ("data_learning_rate", RATE)))
    which = "all three steps, Step III" if setting.kind == "single" else "Step III"
    steps = f"{ROUNDS} iterations of {which} at rate {RATE:g} for {setting.iterations}"
    updates = f"{small.updates:g} updates of every sample for {setting.updates:g}"
    return _measurement(cell, "reduced", f"{sizes}; {steps}: {updates}", small)


def _fewer_updates(cell: Cell, small: Setting, sizes: str) -> Measurement:
    """The submission's descent in fewer and longer steps. CIFAR-10 stands for Linnaeus 5, and one run serves both."""
    setting, length = setting_of(cell), FEWER * STEP_LENGTH
    updates = setting.updates / FEWER
    rounds = round(updates * small.num_samples / small.batch_size)
    small = replace(small, iterations=rounds, overrides=(("data_learning_rate", length),))
    steps = f"{updates:g} updates of every sample for {setting.updates:g}, each {FEWER} times as long ({length:g})"
    return _on_cifar10(_measurement(cell, "reduced", f"{sizes}; {steps}", small), small)


def _on_cifar10(measurement: Measurement, setting: Setting) -> Measurement:
    return replace(measurement, jobs=(replace(setting, dataset=SPECS[setting.dataset]),))


def _smaller(setting: Setting) -> tuple[Setting, str]:
    """A tenth of the samples in batches of a tenth of the size, a multiple of the workers, and a note on both."""
    workers, samples = max(1, setting.workers), setting.num_samples // SHARE
    batch = workers * max(1, setting.batch_size // SHARE // workers)
    samples = max(samples, batch)
    small = replace(setting, num_samples=samples, batch_size=batch)
    return small, f"N {samples} for {setting.num_samples}, K {batch} for {setting.batch_size}"


def _whole_steps(cell: Cell, small: Measurement) -> Measurement | None:
    """A reduced problem of Table 10, with one descent that gives a row's numbers for all numbers of epochs."""
    if not setting_of(cell).steps_at:
        return None
    (setting,) = small.jobs
    whole = replace(setting, iterations=350 * setting.num_samples // setting.batch_size, steps_at=0)
    name = joined("whole-steps", small.name, by="-")
    return replace(small, variant="ours", name=name, differs=joined(small.differs, WHOLE_STEPS), jobs=(whole,))


def _narrow(cell: Cell) -> Measurement | None:
    """The reduced problem with a quarter of the channels and at most `CAP` iterations of Step III.

    CIFAR-10 replaces Linnaeus 5 and keeps its own caps, so one run serves both.
    """
    setting, table = setting_of(cell), cell.id.partition("/")[0]
    if table not in NARROW:
        return None
    small, sizes = _smaller(setting)
    small = replace(small, network="cafe-small")
    if table not in (*WHOLE_RUNS, "iclr-table1a"):
        small = replace(small, iterations=ROUNDS, overrides=(*small.overrides, ("data_learning_rate", RATE)))
    elif table != "table10":
        small = replace(small, iterations=min(small.iterations, CAP))
    notes = [sizes, "a quarter of the channels"]
    if small.iterations != setting.iterations:
        notes.append(f"{small.iterations} iterations of Step III for {setting.iterations}")
    if ("data_learning_rate", RATE) in small.overrides:
        notes[-1] += f" at rate {RATE:g}"
    measurement = _measurement(cell, "reduced", "; ".join(notes), small)
    return replace(_on_cifar10(measurement, small), name=joined(measurement.name, "narrow", by="-"))


def _too_large(measurement: Measurement) -> str:
    for setting in measurement.jobs:
        spec, extra = SPECS[setting.dataset], 100 if setting.kind == "training" else 0
        try:
            there = samples_in(spec)
        except (OSError, ValueError):
            return ""  # missing data are reported when the run asks for them
        if setting.num_samples + extra > there:
            return f"the cell asks for {setting.num_samples + extra} images, and {spec} has {there} here"
    return ""
