"""Which figure is drawn from which stored results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docs._figures import audits, cafe, defended, fedleak, networks, reliability
from experiments._ledger.papers import ledger_of

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = Path(__file__).parents[1] / "figures"

#: What draws a figure, by its name, and the names of the stored results.
DRAWN: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "adam": (fedleak.adam, tuple(fedleak.ADAM)),
    "against_breaching": (audits.against_breaching, ("against_breaching",)),
    "agreement": (audits.agreement, ("agreement",)),
    "any_loss": (fedleak.any_loss, tuple(fedleak.ANY_LOSS)),
    "audited": (audits.audited, ("audited",)),
    "baselines": (fedleak.baselines, ("baselines",)),
    "basin": (networks.basin, ("basin", "basin_resnet10", "basin_resnet18", "basin_resnet34", "basin_mobilenet_v2")),
    "batch_size": (fedleak.batch_size, tuple(f"batch_{size}" for size in fedleak.BATCHES)),
    "brightness": (networks.brightness, ("resnet34", "trained_0", "trained_1", "trained_2")),
    "clients": (fedleak.clients, ("clients",)),
    "cafe_descent": (cafe.cafe_descent, ("cafe",)),
    "cafe_printed": (
        cafe.cafe_printed,
        ("cafe_printed_mnist", "cafe_printed_cifar10", "cafe_authors_mnist", "cafe_stopped_mnist"),
    ),
    "deep": (networks.deep, ("resnet34",)),
    "defenses": (defended.defenses, ("defenses",)),
    "epochs": (fedleak.epochs, tuple(fedleak.EPOCHS)),
    "fake_gradients": (cafe.fake_gradients, ("fake_true", "fake_capped")),
    "labels": (networks.labels, ("labels",)),
    "local_steps": (fedleak.local_steps, ("local_exact", "local_smooth")),
    "mistakes": (audits.mistakes, ("mistakes",)),
    "mutants": (reliability.mutants, ("mutants", "mutants_later", "mutants_unseen")),
    "priors": (
        fedleak.priors,
        tuple(f"prior_{attack}_{noise}" for attack in fedleak.PRIORS for noise in fedleak.NOISE),
    ),
    "repeated": (reliability.repeated, ("../../experiments/ledger/checked", "check_two_cores", "check_one_core")),
    "rounds": (defended.rounds, tuple(f"round_{number}" for number in (0, 5, 20, 50, 100, 200))),
    "smooth": (
        fedleak.smooth,
        ("smooth_dlg_300", "smooth_dlg_1200", "smooth_fedleak", "smooth_inverting_gradients", "smooth_idlg"),
    ),
    "terms": (fedleak.terms, ("terms",)),
    "variation": (fedleak.variation, tuple(f"variation_four_{weight}" for weight in ("0.2", "0.6", "2"))),
    "vit": (networks.vit, ("vit_tiny", *(f"vit_tiny_noise_1e-{digits}" for digits in (6, 5, 4)))),
}


def read(name: str) -> Any:
    """What docs/results has by this name or path, or else the entries of a paper's ledger."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else ledger_of(name).entries


def main(names: list[str]) -> None:
    """Draw the figures of these names, or all of them."""
    for name, (draw, results) in DRAWN.items():
        if not names or name in names:
            draw(*map(read, results), path=FIGURES / f"{name}.png")
