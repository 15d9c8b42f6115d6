"""Conclusions of a paper about its defenses, and whether the rows of a study support them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from experiments import _paper

#: PSNR in dB below which a reconstruction shows nothing meaningful, by FedLeak's risk scale (section 6).
PROTECTED = 10.0
#: Largest difference in dB between leaks that count as comparable, and smallest loss in dB that counts as degraded.
COMPARABLE, DEGRADED = 3.0, 1.0
#: Largest difference between an accuracy and one that the paper shows only in a figure.
ABOUT = 0.1

#: Key in a row for the best attacker's PSNR by FedLeak's scoring.
_LEAK = "leak_best_match"

#: Tasks of a VFL attack, named between the table and the row in a cell's id.
TASKS = ("label", "feature")


class Verdict(NamedTuple):
    """One conclusion of the paper beside ours; `holds` is None if the rows that it needs did not run."""

    where: str
    paper: str
    ours: str
    holds: bool | None


def verdicts(study: str, rows: list[dict[str, Any]]) -> list[Verdict]:
    """FedLeak's conclusions from the figure of a study, each compared with the rows of the study.

    A leak is the better attacker's PSNR by FedLeak's scoring, which takes every image's best match.

    Args:
        study: name of the study; a study without printed conclusions has no verdicts.
        rows: rows of the study's points, with and without results.
    """
    ran = [row for row in rows if "accuracy" in row]
    judge = {"fedleak-fig4": _fig4, "fedleak-fig5": _fig5, "fedleak-fig7": _fig7, "fedleak-fig8": _fig8}.get(study)
    return list(judge(ran)) if judge else []


def _fig4(rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    tables = _paper.tables("fedleak")
    where = tables["text-fig4-psnr"]["where"]
    few = [row for row in rows if row["local_steps"] == 1]
    many = [row for row in rows if row["local_steps"] > 1]
    defended = [row for row in few if row["defense"]]
    protecting = sorted({row["defense"] for row in defended if row[_LEAK] < PROTECTED})
    yield Verdict(
        where,
        "with one local step only quantization protects",
        f"below {PROTECTED:g} dB at some strength: {', '.join(protecting) or 'none'}",
        protecting == ["quantization"] if defended else None,
    )
    printed = {cell["id"]: cell["value"] / 100 for cell in tables["text-fig4-accuracy"]["cell"]}
    full = printed["text-fig4-accuracy/full-privacy/steps12"]
    enough = [row["accuracy"] for row in many if row["defense"] and row[_LEAK] < PROTECTED]
    best = max((value for value in enough if np.isfinite(value)), default=None)
    yield Verdict(
        where,
        f"with twelve steps {PROTECTED:g} dB cost the best defense accuracy, down to about {full:g}",
        "none reaches it" if best is None else f"accuracy {best:.3f}",
        best is not None and best <= full + ABOUT if any(row["defense"] for row in many) else None,
    )
    one, twelve = (next((row for row in part if row["defense"] is None), None) for part in (few, many))
    yield Verdict(
        where,
        "without defense twelve steps leak less than one, and train worse",
        "" if not (one and twelve) else _both("one step", one, "twelve", twelve),
        None if not (one and twelve) else one[_LEAK] > twelve[_LEAK] and one["accuracy"] > twelve["accuracy"],
    )


def _fig5(rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    table = _paper.tables("fedleak")["text-combined-defence"]
    at = {cell["id"].rsplit("/", 1)[-1]: cell["value"] for cell in table["cell"]}
    leak = {(row["defense"], row["strength"]): row[_LEAK] for row in rows}
    combined = {epsilon: value for (name, epsilon), value in leak.items() if name == "dp_soteria"}
    left = [value for epsilon, value in combined.items() if epsilon >= at["semantic-left"]]
    none = [value for epsilon, value in combined.items() if epsilon <= at["protected"]]
    yield Verdict(
        table["where"],
        f"DP with Soteria leaks from epsilon {at['semantic-left']:g} on",
        _listed(left),
        min(left) >= PROTECTED if left else None,
    )
    yield Verdict(
        table["where"],
        f"DP with Soteria leaks nothing up to epsilon {at['protected']:g}",
        _listed(none),
        max(none) < PROTECTED if none else None,
    )
    pairs = [
        (leak["adaptive_dp_soteria", e], value) for e, value in combined.items() if ("adaptive_dp_soteria", e) in leak
    ]
    means = [float(np.mean(of)) for of in zip(*pairs, strict=True)]
    yield Verdict(
        table["where"],
        "adaptive DP protects less than DP-SGD",
        f"mean leaks {means[0]:.1f} and {means[1]:.1f} dB" if pairs else "",
        means[0] > means[1] if pairs else None,
    )


def _fig7(rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    table = _paper.tables("fedleak")["text-secure-aggregation-clients"]
    at = {cell["id"].rsplit("/", 1)[-1]: int(cell["value"]) for cell in table["cell"]}
    leak = {row["clients"]: row[_LEAK] for row in rows}
    one, some, many = (leak.get(clients) for clients in (1, at["degraded"], at["ineffective"]))
    yield Verdict(
        table["where"],
        f"{at['degraded']} clients degrade the attack",
        "" if one is None or some is None else f"{one:.1f} dB becomes {some:.1f}",
        None if one is None or some is None else some < one - DEGRADED,
    )
    yield _protected(table["where"], f"{at['ineffective']} clients stop it", many)


def _fig8(rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    where = _paper.tables("fedleak")["text-encrypt-top"]["where"]
    leak = {(row["defense"], row["strength"]): row[_LEAK] for row in rows}
    every, top, bottom = leak.get((None, 0.0)), leak.get(("encrypt_bottom", 80.0)), leak.get(("encrypt_top", 80.0))
    yield _protected(where, "the bottom 20 % of the entries leak next to nothing", bottom)
    yield Verdict(
        where,
        "the top 20 % leak about as much as all",
        "" if top is None or every is None else f"{top:.1f} dB against {every:.1f}",
        None if top is None or every is None else abs(top - every) <= COMPARABLE,
    )


def _protected(where: str, paper: str, leak: float | None) -> Verdict:
    """A conclusion that a leak shows nothing; None if it was not measured."""
    return Verdict(where, paper, "" if leak is None else f"{leak:.1f} dB", None if leak is None else leak < PROTECTED)


def _both(name: str, row: dict[str, Any], other: str, second: dict[str, Any]) -> str:
    pair = ((name, row), (other, second))
    return ", ".join(f"{n} {r[_LEAK]:.1f} dB at accuracy {r['accuracy']:.3f}" for n, r in pair)


def _listed(leaks: list[float]) -> str:
    return ", ".join(f"{value:.1f} dB" for value in leaks)


def orders(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The cells of each printed table from the smallest value to the largest: (what, the paper's order, ours).

    Each data set of a table has its own order. Each reading of a defense and attacker (the text after "#" in a cell's
    id) also has its own order, completed by the cells without a reading.

    Args:
        rows: rows with `id` ("table/cell/dataset#reading"), `paper` and `ours`; rows without a number are left out.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, tuple[float, float]]]] = {}
    for row in rows:
        if not all(isinstance(row.get(name), int | float) for name in ("paper", "ours")):
            continue
        plain, _, reading = row["id"].partition("#")
        table, cell, *rest = [part for part in plain.split("/") if part not in TASKS]
        of_table = groups.setdefault((table, "/".join(rest)), {})
        of_table.setdefault(reading, {})[cell] = (row["paper"], row["ours"])
    found = []
    for (name, data), of_table in groups.items():
        for reading, own in of_table.items():
            cells = of_table.get("", {}) | own
            if len({paper for paper, _ in cells.values()}) < 2:
                continue
            what = " ".join(filter(None, (name, data, reading and f"({reading})")))
            # Cells with equal numbers in the paper are in the order of ours.
            reversed_ = {cell: (mine, printed) for cell, (printed, mine) in cells.items()}
            found.append((what, _ascending(cells), _ascending(reversed_)))
    return found


def _ascending(values: dict[str, tuple[float, float]]) -> str:
    return " < ".join(sorted(values, key=values.__getitem__))
