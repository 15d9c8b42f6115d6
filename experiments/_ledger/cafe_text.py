"""Numbers that the CAFE papers state in their text, from the runs of their tables."""

from collections.abc import Sequence
from dataclasses import replace

from experiments._cafe.tables import SAMPLES_AT_MOST, psnr
from jaxleak.study.cells import iterations_to, score_named
from jaxleak.study.ledger import Measurement, claims
from jaxleak.study.rounds.runs import Setting


def neurips(tables: Sequence[Measurement]) -> list[Measurement]:
    """Measurements for the NeurIPS paper's claims about Tables 2, 3 and 8, faces, and the largest problem."""
    found = []
    at_hand = ("cifar10", "mnist")
    found += claims(tables, "text-claims/cafe-always", [f"table2/cafe/{name}" for name in at_hand], min)
    others = [f"table2/{method}/{name}" for method in ("dlg", "cosine", "sapag", "bn", "gc") for name in at_hand]
    found += claims(tables, "text-claims/others-below", others, max)
    for name in (*at_hand, "linnaeus5"):
        sizes = [f"table3/cafe/k{size}/{name}" for size in (10, 20, 40, 80, 100)]
        found += claims(tables, f"text-claims/batch-size/{name}", sizes, min)
    found += claims(tables, "text-claims/training/mnist", ["table8-psnr/iter20000"], min)
    images = 8
    engine = f"exact engine; {images} images inverted"
    faces = Setting("exact", dataset="yale32", num_samples=SAMPLES_AT_MOST["yale32"], images=images)
    cell, few = "text-yale/cafe/yale32", "N 160 of 165"
    descending = replace(faces, kind="descent", iterations=8000, images=32)
    found.append(Measurement(cell, "ours", f"{engine}; {few}", (faces,), psnr, ("yale32",)))
    found.append(Measurement(cell, "printed", f"{few}; iterations not printed: 8000", (descending,), psnr, ("yale32",)))
    for what, size in (("images", 40), ("batch", 100)):
        setting = Setting("exact", dataset="cifar10", batch_size=size, images=images)
        total = setting.num_samples if what == "images" else size
        found.append(_recovered(f"text-scale/{what}", setting, total))
    return found


def iclr(tables: Sequence[Measurement]) -> list[Measurement]:
    """Measurements for the ICLR submission's claims on Tables 1 to 4, the largest problem, and the epoch of 35 dB."""
    found = []
    known = ("cifar10", "cifar100")
    found += claims(tables, "text-claims/hfl-final", [f"table1b/cafe/{name}" for name in known], min)
    found += claims(tables, "text-claims/cosine", [f"table2a/cafe-cosine/{name}" for name in known], min)
    for name in known:
        found += claims(tables, f"text-claims/vfl-{name}", [f"table2b/cafe/{name}"], min)
    sizes = [f"table3a/cafe/b{size}/cifar10" for size in (10, 20, 30, 40)]
    sizes += [f"table3b/cafe/b{size}/cifar10" for size in (8, 160)]
    found += claims(tables, "text-claims/batch-size", sizes, min)
    setting = Setting("exact", dataset="cifar10", num_samples=2000, batch_size=200, workers=4, images=8)
    found.append(_recovered("text-scale/images", setting, setting.num_samples))
    for measurement in tables:
        named = measurement.name not in ("", "reduced")
        if measurement.cell == "table1b/cafe/linnaeus5" and measurement.variant == "stand-in" and not named:
            epoch = lambda r: iterations_to(35.0)(r) / 10  # noqa: E731  # an epoch has ten batches
            found.append(replace(measurement, cell="text-epoch-35db/cafe/linnaeus5", read=epoch))
    return found


def _recovered(cell: str, setting: Setting, total: int) -> Measurement:
    found = "samples whose inputs of the first dense layer are found, within 1 % of the truth, are counted"
    note = f"exact engine; data not printed: CIFAR-10; {found}"
    return Measurement(cell, "ours", note, (setting,), score_named("recovered", total), ("cifar10",))
