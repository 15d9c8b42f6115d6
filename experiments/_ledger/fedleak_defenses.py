"""Measurements for the cells of FedLeak's Figure 4: a defense's cost in accuracy, and the leak that remains."""

from collections.abc import Iterator
from dataclasses import replace

from experiments._fedleak.jobs import REDUCED_ITERATIONS, Job, at_reduced_rate
from jaxleak.study.cells import score_named
from jaxleak.study.ledger import Measurement, Variant
from jaxleak.study.updates import Case, Federation, utility_of

DATA = "lc25000_lung32"
#: Federation of all cells.
FEDERATION = Federation(clients=8, samples=240, test_samples=100, learning_rate=0.05, rounds=1000)
_SETTING = (
    f"{DATA}, the three lung classes of Lung-Colon Cancer at 32 pixels; convnet for resnet10; B 4 for B 16; "
    f"{FEDERATION.clients} clients with {FEDERATION.samples} samples for 100 clients, {FEDERATION.rounds} rounds of "
    f"SGD at {FEDERATION.learning_rate:g}, of four tried pairs of rate and rounds the one that fits the training images"
)


def measurements() -> Iterator[Measurement]:
    """Accuracy and PSNR, without a defense and with one bit per entry."""
    base = Case(
        data=DATA, pool=FEDERATION.samples, model="convnet", batch_size=FEDERATION.batch_size,
        learning_rate=FEDERATION.learning_rate, iterations=300,
    )  # fmt: skip
    cases = {
        "none/steps1": base,
        "none/steps12": replace(base, local_steps=12),
        "quantization/steps1": replace(base, defense="quantization", strength=1.0),
    }
    for name, case in cases.items():
        note = "; unrolled" if case.local_steps > 1 else "; 1 bit, unprinted" if case.defense else ""
        yield Measurement(
            f"text-fig4-accuracy/{name}", "stand-in", _SETTING + note, (utility_of(case),),
            score_named("test_accuracy", 100), (DATA,),
        )  # fmt: skip
        yield _psnr(name, "ours", case, f"{case.iterations} iterations of our preset on the first round{note}")
        printed = replace(case, attack="fedleak_paper", labels="fedleak", iterations=REDUCED_ITERATIONS)
        theirs = at_reduced_rate(printed)
        what = f"{theirs.iterations} iterations of the printed preset, by Adam from {theirs.step_size:g} by a cosine"
        yield _psnr(name, "stand-in", theirs, f"{what}, on the first round{note}")


def _psnr(name: str, variant: Variant, case: Case, what: str) -> Measurement:
    read = score_named("psnr_best_match")
    return Measurement(f"text-fig4-psnr/{name}", variant, f"{_SETTING}; {what}", (Job(case),), read, (DATA,))
