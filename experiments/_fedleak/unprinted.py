"""Cells that the paper does not print: figures without numbers, and label rules on more data."""

from collections.abc import Iterator
from dataclasses import replace

from experiments import _paper
from experiments._fedleak.inversions import data_of, inversion
from experiments._fedleak.jobs import Job, Sizes
from jaxleak.study.cells import Cell, joined, score_named
from jaxleak.study.updates import Case
from jaxleak.study.updates.diagnostics import settled_after


def paths(sizes: Sizes) -> Iterator[Cell]:
    """Cells of Fig. 1c and d, without printed numbers: 2mu/L on the paths of old attacks and FedLeak's ingredients."""
    common = Case(
        attack="fedleak", exact_kinks=True, model=sizes.model or "mlp", iterations=sizes.iterations or 1000,
        data=sizes.specs["CIFAR-10"], pool=100, labels=sizes.labels,
    )  # fmt: skip
    cases = {
        "idlg": replace(common, attack="idlg", optimizer="adam"),
        "ig": replace(common, attack="inverting_gradients"),
        "fedleak": common,
        "fedleak-r50": replace(common, matched_percent=50.0),
        "fedleak-r50-blend": replace(common, matched_percent=50.0, blend=0.7),
        "fedleak-r50-blend-descent": replace(common, matched_percent=50.0, blend=0.7, probe="descent"),
    }
    for name, case in cases.items():
        note = f"median along the path; {case.model}; B 1; {case.iterations} iterations; random weights"
        yield Cell(f"fig1-path/{name}", None, "2mu/L", (Job(case, kind="path"),), score_named("median"), note)


def convergence(sizes: Sizes) -> Iterator[Cell]:
    """The cell of Fig. 6, without printed numbers: the iterations after which the drawn curve has nearly settled."""
    setting = _paper.tables("fedleak")["text-convergence"]["setting"]
    base = Cell("fig6/fedleak", None, "iterations")
    spec, note = data_of(setting["dataset"], setting["dataset"], sizes)
    if spec is None:
        yield replace(base, reason=note)
        return
    job, how = inversion(setting, {"id": base.id, "method": "FedLeak"}, spec, sizes)
    read = lambda results: settled_after(results[0].arrays["curve"])  # noqa: E731
    note = joined(note, how, "until the attacker's distance is within 5 % of its fall above its last value")
    yield replace(base, jobs=(job,), read=read, note=note)


def parabolas(_: Sizes) -> Iterator[Cell]:
    """Cells of Fig. 10: |x| after 20 steps on x^2 from x = 0.5, without the regularization and with both readings."""
    plain = Case(iterations=20)
    variants = {
        "plain": plain,
        "toward-the-next-point": replace(plain, blend=0.3, probe="step"),  # the paper's example, the code
        "along-the-gradient": replace(plain, blend=0.3, probe="ascent"),  # the paper's Equation 13
    }
    for rate in (1.0, 0.9):
        for name, case in variants.items():
            jobs, note = (Job(replace(case, step_size=rate), kind="fig10"),), "|x| after 20 steps from 0.5"
            yield Cell(f"fig10/step{rate:g}/{name}", None, "1", jobs, score_named("left"), note)


def label_rules(sizes: Sizes) -> Iterator[Cell]:
    """Cells of label inference on data with more samples than the ImageNet sample; the report shows all rules."""
    model = sizes.model or "resnet10"
    # No available data set has 1,000 classes and batches with repeated labels, so the labels are drawn.
    for name, drawn in (("CIFAR-10", None), ("CIFAR-100", None), ("CIFAR-100", 1000)):
        if name not in sizes.specs:
            continue
        for batch in (4, 16, 32, 64, 128):
            width = sizes.width if model.startswith("resnet") else None
            spec = sizes.specs[name]
            case = Case(model=model, width=width, activation=sizes.activation, data=spec, batch_size=batch)
            jobs = (Job(case, kind="labels", drawn_classes=drawn),)
            note = "FedLeak's rule; all rules below; random weights"
            classes = f"-{drawn}-classes" if drawn else ""
            yield Cell(f"labels/{case.data}{classes}/b{batch}", None, "%", jobs, score_named("fedleak", 100), note)
