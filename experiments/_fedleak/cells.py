"""For each printed cell of FedLeak's tables, the jobs that give its number, or the reason why none can.

Cells with equal jobs share one run.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from experiments import _paper
from experiments._fedleak import unprinted
from experiments._fedleak.inversions import GENERATIVE, MODELS, data_of, inversion
from experiments._fedleak.jobs import Job, Sizes
from jaxleak import _validate, metrics
from jaxleak.study.cells import Cell, Results, joined, score_named
from jaxleak.study.ledger import LACKING
from jaxleak.study.updates import Case

#: Names on the command line that stand for several printed tables or none; every other name stands for one table.
GROUPS = {
    "table10": ("table10-ssim", "table10-lpips", "table10-asr"),
    "table11": ("table11-gd", "table11-psnr"),
    "table14": ("table14-label-accuracy", "table14-psnr-with", "table14-psnr-without"),
    "fig1": ("text-fig1-distance", "text-fig1-element", "text-fig1-psnr"),
    "fig6": ("text-convergence",),
    "fig9": ("text-pearson",),
    "fig10": (),
}

#: Tables whose results no run of this module can give, each with the reason.
NOT_MEASURED = {
    "table10-asr": "attack success is the verdict of three human judges; see the contact sheets",
    **dict.fromkeys(
        ("text-fig4-accuracy", "text-fig4-psnr"), f"{LACKING} the name of the defense, which is not printed"
    ),
    "text-combined-defence": f"{LACKING} a run of DP-SGD and Soteria on lung images, judged by eye in the paper",
    "text-attack-cost": "minutes on one printed GPU do not compare with another device; seconds stand beside every run",
    "text-convergence": "read by eye off a figure; our curves are stored beside the figures",
    "text-secure-aggregation-cost": "cost of a cryptographic protocol, not of the attack",
    "text-secure-aggregation-clients": "read by eye off a figure without numbers",
    "text-encrypt-top": "a projection, not a measurement",
}

_NO_PUBLIC_DATA = "needs a generator trained on public data, which the table does not describe: --public-data"
_NO_WEIGHTS = "compares random with pretrained weights: --weights warm or a safetensors file"
#: Tables that compare models; `--model` would make their models equal.
_OF_MODELS = {
    "text-capacity-gain": "compares two models; --model would make them one",
    "table8": "compares models; --model would make them one",
}
#: Functions that give further cells of a table or group, which the paper does not print.
_UNPRINTED = {
    "fig1": unprinted.paths, "table14": unprinted.label_rules, "fig6": unprinted.convergence,
    "fig10": unprinted.parabolas,
}  # fmt: skip


class _Printed(NamedTuple):
    """A cell as the paper prints it, and the replacements of its settings."""

    table: str
    setting: dict[str, Any]
    cell: dict[str, Any]
    sizes: Sizes
    spec: str = ""  # data specification
    data_note: str = ""

    def becomes(self, *jobs: Job, note: str = "", **given: Any) -> Cell:
        """The cell with the jobs that it needs, or with a `reason` why it cannot run."""
        cell, note = self.cell, joined(self.data_note, note)
        return Cell(cell["id"], float(cell["value"]), cell["unit"], jobs, note=note, **given)


def names() -> tuple[str, ...]:
    """Names that `--table` accepts: the printed tables in the paper's order, then the other groups."""
    printed = list(_paper.tables("fedleak"))
    grouped = {member: group for group, members in GROUPS.items() for member in members}
    return tuple(dict.fromkeys([*(grouped.get(name, name) for name in printed), *GROUPS]))


def lacking() -> dict[str, str]:
    """Tables whose score cannot be computed on this machine, each with the reason; checked before any attack runs."""
    black = np.zeros((1, 32, 32, 3))
    try:
        metrics.lpips(black, black)
    except (ImportError, FileNotFoundError) as error:
        return {"table10-lpips": f"{LACKING} what it is computed by: {error}"}
    return {}


def cells(table: str, sizes: Sizes) -> Iterator[Cell]:
    """The cells of one table (or group of tables), in print order.

    Raises:
        ValueError: on an unknown table.
    """
    _validate.one_of(names(), table=table)
    printed = _paper.tables("fedleak")
    for name in GROUPS.get(table, (table,)):
        for cell in printed[name]["cell"]:
            yield _cell(_Printed(name, printed[name]["setting"], cell, sizes))
    if table in _UNPRINTED:
        yield from _UNPRINTED[table](sizes)


def _cell(p: _Printed) -> Cell:
    if why := NOT_MEASURED.get(p.table) or p.sizes.lacking.get(p.table):
        return p.becomes(reason=why)
    if p.table in _WITHOUT_DATA:
        return _WITHOUT_DATA[p.table](p)
    if p.cell["method"] in GENERATIVE and p.sizes.public_data is None:
        return p.becomes(reason=_NO_PUBLIC_DATA)
    spec, note = data_of(p.setting.get("dataset", p.cell["dataset"]), p.cell["dataset"], p.sizes)
    if spec is None:
        return p.becomes(reason=note)
    if p.table in _OF_MODELS and p.sizes.model is not None:
        return p.becomes(reason=_OF_MODELS[p.table])
    return _WITH_DATA.get(p.table, _scored)(p._replace(spec=spec, data_note=note))


def _parameters(p: _Printed) -> Cell:
    job = Job(Case(model="resnet10", data="mnist"), kind="parameters")
    return p.becomes(job, read=score_named("parameters", 1 / float(p.cell["input_dimension"])))


def _fig1(p: _Printed) -> Cell:
    sizes, name = p.sizes, p.cell["id"]
    count = sizes.iterations or 1000
    network = MODELS[p.setting["model"]]
    case = Case(attack="idlg", model=network, iterations=count, pool=100, optimizer=sizes.idlg_optimizer)
    cases = [replace(case, data=sizes.specs[name]) for name in ("MNIST", "CIFAR-10") if name in sizes.specs]
    what = {"text-fig1-element": "element", "text-fig1-psnr": "psnr"}.get(p.table, "distance")
    if name.endswith("noise16"):
        what = "noise16"
    end = np.max if name.endswith("high") else np.min if name.endswith("low") else np.mean  # NaN if any is NaN
    return p.becomes(
        *(Job(case, kind="fig1") for case in cases),
        read=lambda results: float(end([result.scores[what] for result in results])),
        note=f"{count} iterations; random weights, widths not printed; MNIST, CIFAR-10; 3 images, 4 draws for 100",
    )


def _pearson(p: _Printed) -> Cell:
    width = p.sizes.width
    job = Job(Case(model="resnet10", width=width, data=p.spec, pool=p.setting["samples"]), kind="fig9")
    note = joined("" if width is None else f"width {width} for 64", "random weights for pretrained")
    return p._replace(data_note="").becomes(job, read=score_named("pearson"), note=note)


def _gain_of_capacity(p: _Printed) -> Cell:
    ends = [inversion(p.setting, {**p.cell, "model": end}, p.spec, p.sizes) for end in p.cell["change"].split(" to ")]
    return p.becomes(*(job for job, _ in ends), read=_gain, note=ends[0][1])


def _pretrained(p: _Printed) -> Cell:
    if p.cell["weights"] == "pretrained" and p.sizes.warm is None and p.sizes.pretrained is None:
        return p._replace(data_note="").becomes(reason=_NO_WEIGHTS)
    return _scored(p)


def _labels(p: _Printed) -> Cell:
    """A cell of label inference: always random weights, and a case without the attack's settings."""
    sizes = replace(p.sizes, attack_round=None, warm=None, pretrained=None)
    job, note = inversion(p.setting, p.cell, p.spec, sizes)
    c = job.case
    case = Case(model=c.model, width=c.width, activation=c.activation, data=c.data, batch_size=c.batch_size)
    return p.becomes(Job(case, kind="labels"), read=score_named("fedleak", 100), note=note)


def _scored(p: _Printed) -> Cell:
    """A cell that reads the PSNR of an inversion, or another score if its table prints that."""
    job, note = inversion(p.setting, p.cell, p.spec, p.sizes)
    distance = "cosine_distance" if p.cell["method"] == "IG" else "l2_distance"
    reads = {"table10-ssim": score_named("ssim"), "table10-lpips": _lpips, "table11-gd": score_named(distance)}
    return p.becomes(job, note=note, **({"read": reads[p.table]} if p.table in reads else {}))


_WITHOUT_DATA: dict[str, Callable[[_Printed], Cell]] = {
    "text-overdetermination": _parameters,
    **dict.fromkeys(GROUPS["fig1"], _fig1),
}
_WITH_DATA: dict[str, Callable[[_Printed], Cell]] = {
    "text-pearson": _pearson,
    "text-capacity-gain": _gain_of_capacity,
    "table7": _pretrained,
    "table14-label-accuracy": _labels,
}


def _lpips(results: Results) -> float:
    return float(np.mean(metrics.lpips(results[0].arrays["truth"], results[0].arrays["estimate"])))


def _gain(results: Results) -> float:
    first, second = (result.scores["psnr_best_match"] for result in results)
    return second - first
