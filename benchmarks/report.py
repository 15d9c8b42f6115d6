"""Run the benchmarks and write benchmarks/README.md and summary.json from the stored JSON: `make bench`.

Arguments go to pytest. `python -m benchmarks.report -m ""` adds the sweeps over batch, image size, model and private
set and the longest compilations; a file or `-k restarts` runs a part, and its tables replace those that are stored for
the same device. `-m gpu` runs the benchmarks for accelerators only.
"""

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"

#: File with the steps of the summary tables; pages show its numbers.
SUMMARY = FOLDER / "summary.json"

#: Number of rounds that must have been timed on a quiet machine, or else an entry counts as loaded.
QUIET_ROUNDS = 2

#: Exit status of pytest when options leave no test of a file.
NOTHING_SELECTED = 5

#: Column with the seconds spent on compiling in a step that had run before, which explains a slow row.
COMPILING = "seconds of it compiling"

#: Entries that `benchmarks._quiet.measure` and `benchmarks._limits` store and that are not columns themselves.
KNOWN = {
    "base",
    "copy_rate",
    "first_call_seconds",
    "limit_seconds",
    "loaded",
    "matrix_rate",
    "rounds_per_call",
    "spoiled",
}

#: Names of entries that run JAX's operations one by one.
EAGER = ("jax.disable_jit", "op by op")

HEADER = """\
# Benchmarks

Written by `make bench` from results.json. Medians, and the distance of the quartiles in percent of them; all entries of
a table were measured in the same run, after checking that they compute the same thing. The first call includes
compilation. A round is timed once other processes are quiet, after calls that wake the threads, and counts if the
others stayed quiet. Both sides have the same allocator, which keeps freed memory (see the Makefile). Rows of Inverting
Gradients take turns, since a machine's speed may change by the minute.

The fraction of the machine's rate is the time that the arithmetic and the transfers of plain sums of products (counted
by hand in benchmarks/_limits.py) would take at the rates that are written above the table, over the time measured;
Winograd's and Fourier's convolutions need less arithmetic than that. XLA counts what every fused operation reads and
writes, whether or not the caches hold it.
"""

ANEW = """\
Even op by op a `lax.while_loop` or `lax.scan` is one compiled program, and one whose body closes over the arrays of its
step is compiled anew in every step, as columns of some tables say. `jax.disable_jit` runs such loops in Python."""


def main() -> None:
    """Run pytest-benchmark file by file, and write the table after each, so that a stopped run leaves what it has.

    Every file has its own process, so that it does not inherit memory and compiled programs from the file before. This
    process does not start JAX, which would hold memory of an accelerator that the benchmarks need.
    """
    files = [Path(a) for a in sys.argv[1:] if a.endswith(".py")] or sorted(FOLDER.glob("test_*.py"))
    options = [a for a in sys.argv[1:] if not a.endswith(".py")]
    results: dict = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": [], "benchmarks": []}
    everything, failed = not sys.argv[1:], []
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / "benchmarks.json"
            command = [sys.executable, "-m", "pytest", str(file), "--benchmark-only", f"--benchmark-json={stored}"]
            code = subprocess.run([*command, "-p", "no:cacheprovider", *options], check=False).returncode
            if code not in (0, NOTHING_SELECTED):
                failed.append(file.name)
            if not stored.exists() or not stored.stat().st_size:
                continue
            run, entries = _part(json.loads(stored.read_text()))
        if everything:  # with the first file that was measured, all stored results of this device are out of date
            results, everything = _without(results, run["device"], None), False
        results = merged(results, run, entries)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        (FOLDER / "README.md").write_text(table(results))
        SUMMARY.write_text(json.dumps(summary(results), indent=1) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the table holds the others")


def merged(results: dict, run: dict, entries: list[dict]) -> dict:
    """Stored results with those of a new run, which replace the same groups of the same device."""
    kept = _without(results, run["device"], {entry["group"] for entry in entries})
    number = next((i for i, r in enumerate(kept["runs"]) if r == run), len(kept["runs"]))
    runs = kept["runs"] if number < len(kept["runs"]) else [*kept["runs"], run]
    return {"runs": runs, "benchmarks": [*kept["benchmarks"], *({**entry, "run": number} for entry in entries)]}


def _without(results: dict, device: str, groups: set[str] | None) -> dict:
    """Results without these groups of a device (all if None), and without runs that have no entries left."""
    runs = results["runs"]
    kept = [
        e
        for e in results["benchmarks"]
        if runs[e["run"]]["device"] != device or (groups is not None and e["group"] not in groups)
    ]
    used = sorted({e["run"] for e in kept})
    return {
        "runs": [runs[i] for i in used],
        "benchmarks": [{**e, "run": used.index(e["run"])} for e in kept],
    }


def table(results: dict) -> str:
    """Markdown with one section per device, and in each section one table per group."""
    runs, entries = results["runs"], results["benchmarks"]
    lines = [HEADER]
    for device, groups in _groups(results).items():
        mine = [e for e in entries if runs[e["run"]]["device"] == device]
        own = list(dict.fromkeys(_environment(run) for run in runs if run["device"] == device))
        lines += [f"## {device}", "", *[line for text in own if text for line in (text, "")]]
        loaded = sum(bool(e["extra_info"].get("loaded")) for e in mine)
        if loaded:
            lines += [f"**{loaded} of {len(mine)} entries were timed under load; ratios with them mean nothing.**", ""]
        if any(COMPILING in e["extra_info"] for e in mine):
            lines += [ANEW, ""]
        lines += [*_summary(groups), ""]
        for group, members in groups.items():
            # All entries of a group are from one run, since a part that is measured again replaces the whole group.
            run = runs[members[0]["run"]]
            origin = _origin(run, members) + (f" {_environment(run)}" if len(own) > 1 else "")
            lines += [f"### {group}", "", origin, "", *_rows(members), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _groups(results: dict) -> dict[str, dict[str, list[dict]]]:
    """The entries of every group of every device."""
    runs = results["runs"]
    groups: dict[str, dict[str, list[dict]]] = {run["device"]: {} for run in runs}
    for entry in results["benchmarks"]:
        groups[runs[entry["run"]]["device"]].setdefault(entry["group"], []).append(entry)
    return groups


def summary(results: dict) -> dict[str, Any]:
    """The steps of the summary tables as numbers.

    A cell has the seconds of the forms that were timed, and how many seconds of op by op went into compiling loops
    anew. It also has the ratios of op by op and of PyTorch's best to the fastest compiled form. `least` and `most` are
    over all cells that were not timed under load. The id of a cell is its group in lower case with hyphens, followed by
    the device if several devices have the group.
    """
    devices = _groups(results)
    times = Counter(group for groups in devices.values() for group in groups)
    cells: list[dict[str, Any]] = []
    for device, groups in devices.items():
        for group, forms in _compared(groups).items():
            timed = {name: entry for name, entry in forms.items() if entry is not None}
            eager, best, peer = forms["op_by_op"], forms["compiled"], forms["pytorch_best"]
            ratios = {"over_op_by_op": eager, "over_pytorch": peer}
            anew = eager["extra_info"].get(COMPILING) if eager else None
            cells.append(
                {
                    "id": _identity(group if times[group] == 1 else f"{group} {device}"),
                    "group": group,
                    "device": device,
                    **{name: seconds_of(entry) for name, entry in timed.items()},
                    **({"op_by_op_compiling": anew} if anew else {}),
                    **{name: seconds_of(slow) / seconds_of(best) for name, slow in ratios.items() if slow and best},
                    "which": {name: entry["name"] for name, entry in timed.items()},
                    "loaded": any(entry["extra_info"].get("loaded", False) for entry in timed.values()),
                }
            )
    quiet = [cell for cell in cells if not cell["loaded"]]
    found = {name: [cell[name] for cell in quiet if name in cell] for name in ("over_op_by_op", "over_pytorch")}
    least = {name: min(values) for name, values in found.items() if values}
    most = {name: max(values) for name, values in found.items() if values}
    return {"least": least, "most": most, "cells": cells}


def _identity(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _compared(groups: Mapping[str, list[dict]]) -> dict[str, dict[str, Any]]:
    """For each group that compares with op by op or PyTorch: the fastest compiled form, and the others."""
    compared = {}
    for group, members in groups.items():
        eager, peer = _eager(members), _peer(members)
        ours = [e for e in members if not e["name"].startswith("PyTorch") and e["name"] not in EAGER]
        if not ours or (eager is None and peer is None):
            continue
        compared[group] = {
            "op_by_op": eager,
            "compiled": min(ours, key=seconds_of),
            "pytorch_eager": next((e for e in members if e["name"] == "PyTorch eager"), None),
            "pytorch_best": peer,
        }
    return compared


def _summary(groups: Mapping[str, list[dict]]) -> list[str]:
    """One row for each group that compares with op by op or with PyTorch: the fastest compiled form beside both."""
    rows = []
    for group, forms in _compared(groups).items():
        eager, best, peer = forms["op_by_op"], forms["compiled"], forms["pytorch_best"]
        times = [f"{seconds_of(e):.3g}" if e else "" for e in (eager, best, peer)]
        rows.append([group, *times, best["name"], _ratio(eager, best), _ratio(peer, best)])
    if not rows:
        return []
    times = ["op by op, seconds", "fastest compiled", "PyTorch's best"]
    return _markdown(["step", *times, "which", "over op by op", "over PyTorch"], rows)


def _markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]


def _eager(entries: list[dict]) -> dict | None:
    return next((e for e in entries if e["name"] == "op by op"), None)


def _peer(entries: list[dict]) -> dict | None:
    return min((e for e in entries if e["name"].startswith("PyTorch")), key=seconds_of, default=None)


def _environment(run: dict) -> str:
    """Versions and numbers of threads of a run, as a sentence."""
    parts = [f"{name} {version}" for name, version in run["versions"].items()]
    parts += [f"{name}: {count}" for name, count in run["threads"].items()]
    return ", ".join(parts) + "." if parts else ""


def _origin(run: dict, entries: list[dict]) -> str:
    """When the entries of a group were measured, and how fast the machine was."""
    text = f"Measured {run['date']}{', commit ' + run['commit'] if run['commit'] else ''}."
    rates = next((e["extra_info"] for e in entries if "matrix_rate" in e["extra_info"]), None)
    if rates is not None:
        text += f" Matrix product {rates['matrix_rate'] / 1e9:.0f} GFLOP/s"
        text += f", copy {rates['copy_rate'] / 1e9:.1f} GB/s read and written." if "copy_rate" in rates else "."
    return text


def _rows(entries: list[dict]) -> list[str]:
    """Header and rows of one group; a column that no entry has a value for is left out."""
    slowest = max(entries, key=seconds_of)
    peer, eager = _peer(entries), _eager(entries)
    base = next((e for e in entries if e["extra_info"].get("base")), None)
    extra = sorted({k for e in entries for k in e["extra_info"]} - KNOWN)
    columns: dict[str, list[str]] = {}
    for entry in entries:
        info, limit = entry["extra_info"], entry["extra_info"].get("limit_seconds")
        cells = {
            "": entry["name"],
            "seconds": f"{seconds_of(entry):.3g}",
            "quartiles, %": _spread(entry),
            "times faster than the slowest": _ratio(slowest, entry),
            "times faster than op by op": _ratio(eager, entry),
            "times faster than PyTorch's best": _ratio(peer, entry),
            "times the first row": _ratio(entry, base),
            "first call, seconds": f"{info['first_call_seconds']:.1f}",
            "fraction of the machine's rate": f"{limit / seconds_of(entry):.2f}" if limit else "",
            **{name: f"{info[name]:.3g}" if name in info else "" for name in extra},
            "loaded": "loaded" if info.get("loaded") else "",
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return _markdown(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def seconds_of(entry: dict) -> float:
    """Median seconds per iteration of an entry."""
    return entry["stats"]["median"] / entry["extra_info"]["rounds_per_call"]


def _ratio(a: dict | None, b: dict | None) -> str:
    """The ratio of the times of two entries, marked if one of them was timed under load."""
    if a is None or b is None:
        return ""
    loaded = a["extra_info"].get("loaded") or b["extra_info"].get("loaded")
    ratio = seconds_of(a) / seconds_of(b)
    return f"{ratio:.{0 if ratio >= 100 else 2}f}{' (loaded)' if loaded else ''}"


def _spread(entry: dict) -> str:
    """Distance of the quartiles of the rounds, in percent of the median."""
    stats = entry["stats"]
    return f"{100 * (stats['upper'] - stats['lower']) / stats['median']:.1f}" if "lower" in stats else ""


def _part(results: dict) -> tuple[dict, list[dict]]:
    """Read pytest-benchmark's JSON: the facts of `benchmarks.conftest` about the machine, and the entries."""
    info, cpu = dict(results["machine_info"]["jaxleak"]), results["machine_info"]["cpu"]
    info["device"] += f" ({cpu.get('brand_raw', 'unknown processor')}, {cpu.get('count')} cores)"
    info["date"] = results["datetime"][:10]
    return info, [_entry(e) for e in results["benchmarks"]]


def _entry(entry: dict) -> dict:
    """An entry without its spoiled rounds, unless too few are left."""
    info = dict(entry["extra_info"])
    seconds = [s for s, spoiled in zip(entry["stats"]["data"], info.pop("spoiled"), strict=True) if not spoiled]
    if len(seconds) < QUIET_ROUNDS:
        info["loaded"], seconds = True, entry["stats"]["data"]
    lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else 3 * seconds
    stats = {
        "median": statistics.median(seconds),
        "lower": lower,
        "upper": upper,
        "min": min(seconds),
        "max": max(seconds),
        "rounds": len(seconds),
    }
    return {"name": entry["name"], "group": entry["group"], "extra_info": info, "stats": stats}


if __name__ == "__main__":
    main()
