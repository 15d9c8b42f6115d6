"""The points of each FedLeak study of defenses, and the printed numbers to compare them with."""

from dataclasses import replace
from typing import Any

from experiments import _paper
from jaxleak import _validate
from jaxleak._own_files import is_own
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study.updates import Case, TradeOffPoint, kind_of_defense, swept_points

#: Local steps of the two halves of Figure 4. Figure 7 has `MANY`.
FEW, MANY = 1, 12


def _printed(what: str) -> tuple[tuple[str, str, str, float], ...]:
    """Printed accuracy and PSNR of Figure 4 for the cell named `what`."""
    tables = _paper.tables("fedleak")
    found = []
    for table, metric, factor in (("text-fig4-accuracy", "test_accuracy", 0.01), ("text-fig4-psnr", "psnr", 1.0)):
        for cell in tables[table]["cell"]:
            if cell["id"] == f"{table}/{what}":
                found.append((cell["id"], metric, cell.get("relation", ""), factor * cell["value"]))
    return tuple(found)


def fig4(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Soteria, OUTPOST, quantization, Guardian and DP, for 1 and 12 local steps.

    An upload of 12 steps contains no gradients of single examples, so DP clips the whole update and adds noise to it.
    """
    points = []
    for steps in (FEW, MANY):
        own = replace(base, local_steps=steps)
        points.append(TradeOffPoint(own, f"none, {steps} steps", 0.0, _printed(f"none/steps{steps}")))
        private = "dp_sgd" if steps == 1 else "dp_update"
        # Figure 4 names Gaussian DP without its strengths, so we take those of Figure 5.
        chosen = {private: CLIENT_DEFENSES["dp_sgd"].strengths[:4]} | strengths
        for point in swept_points(own, ("soteria", "outpost", "quantization", "guardian", private), chosen):
            # The paper says "quantization protects, at 10 % accuracy" and does not say with how many bits.
            strongest = (point.case.defense, point.case.strength) == ("quantization", 1)
            paper = _printed(f"quantization/steps{steps}") if strongest else ()
            points.append(replace(point, curve=f"{point.curve}, {steps} steps", paper=paper))
    return points


def fig5(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """DP-SGD and adaptive DP together with Soteria at 0.5, and each DP alone."""
    short = dict.fromkeys(("dp_sgd", "adaptive_dp"), CLIENT_DEFENSES["dp_sgd"].strengths[:4])
    names = ("dp_soteria", "adaptive_dp_soteria", "dp_sgd", "adaptive_dp")
    return [TradeOffPoint(base, "none", 0.0), *swept_points(base, names, short | strengths)]


def fig7(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Secure aggregation over 1, 2 and 3 clients of 12 local steps: the server sees the mean of their updates."""
    chosen = strengths.get("secure_aggregation", (1.0, 2.0, 3.0))
    for clients in chosen:
        if clients != int(clients) or clients < 1:
            raise ValueError(f"secure_aggregation takes whole numbers of clients >= 1, got {clients:g}")
    own = replace(base, local_steps=MANY)
    return [TradeOffPoint(replace(own, clients=int(n)), "secure_aggregation", n) for n in chosen]


def fig8(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Defenses that show the server only the smaller or only the larger entries, and noise in proportion to entries."""
    return [
        TradeOffPoint(base, "none", 0.0),
        *swept_points(base, ("encrypt_top", "encrypt_bottom", "withhold_top", "magnitude_noise"), strengths),
    ]


def further(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """Every registered defense that no figure has, such as sparsification, noise, stochastic rounding and dropout."""
    shown = {point.case.defense for study in (fig4, fig5, fig8) for point in study(base, {})}
    names = tuple(kind for kind in CLIENT_DEFENSES if kind not in shown)
    return [TradeOffPoint(base, "none", 0.0), *swept_points(base, names, strengths)]


#: Defenses of the demonstration, each with its strengths.
DEMO: dict[str, tuple[float, ...]] = {
    "soteria": (0.5,),
    "quantization": (4.0, 1.0),
    "sparsification": (10.0,),
    "dp_sgd": (1e3, 1e2),
}


def demo(base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """No defense, and the defenses in `strengths`, by default `DEMO`."""
    return [TradeOffPoint(base, "none", 0.0), *swept_points(base, tuple(strengths or DEMO), strengths or DEMO)]


def of_demo(only: tuple[str, ...]) -> dict[str, tuple[float, ...]]:
    """Strengths of the defenses in `only`, which may name defenses that the demonstration does not have by default."""
    known = (name for name in only if name in CLIENT_DEFENSES or is_own(name))
    return {name: DEMO.get(name) or kind_of_defense(name).strengths for name in known}


#: Studies that this package runs itself, by name.
STUDIES = {
    "demo": demo,
    "fedleak-fig4": fig4,
    "fedleak-fig5": fig5,
    "fedleak-fig7": fig7,
    "fedleak-fig8": fig8,
    "further": further,
}

#: Tables by study of the paper's statements that have no number to compare with ours.
OUTCOMES: dict[str, tuple[str, ...]] = {
    "fedleak-fig5": ("text-combined-defence",),
    "fedleak-fig7": ("text-secure-aggregation-clients",),
    "fedleak-fig8": ("text-encrypt-top",),
}


def outcomes(study: str) -> list[dict[str, Any]]:
    """Printed statements of a study, each with id, value, unit, relation, outcome and note."""
    tables = _paper.tables("fedleak")
    return [
        {"id": cell["id"], "paper": cell["value"], "unit": cell["unit"], "relation": cell.get("relation", "")}
        | {"outcome": cell.get("outcome", cell["id"].rsplit("/", 1)[-1]), "note": tables[table].get("note", "")}
        for table in OUTCOMES.get(study, ())
        for cell in tables[table]["cell"]
    ]


def points_of(study: str, base: Case, strengths: dict[str, tuple[float, ...]]) -> list[TradeOffPoint]:
    """The points of a study.

    Raises:
        ValueError: on an unknown study, or strengths for a defense that it does not have.
    """
    _validate.one_of(tuple(STUDIES), study=study)
    points = STUDIES[study](base, strengths)
    known = {point.case.defense for point in points} | {point.curve for point in points}
    for name in strengths:
        _validate.one_of(sorted(str(name) for name in known if name), strengths=name)
    return points
