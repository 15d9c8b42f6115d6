"""Run the benchmarks and write benchmarks/README.md from the stored JSON: `make bench`.

Arguments go to pytest. `python -m benchmarks.report -m ""` adds the sweeps over batch, image size, model and private
set and the longest compilations; a file or `-k restarts` runs a part, whose tables take the place of the stored ones.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"

#: Rounds that must have been timed on a quiet machine for an entry to count as such.
QUIET_ROUNDS = 2

#: Exit status of pytest when options leave no test of a file.
NOTHING_SELECTED = 5

#: What `benchmarks._quiet.measure` and `benchmarks._limits` store that is not a column by itself.
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


def main() -> None:
    """Run pytest-benchmark file by file, and write the table after each, so that a stopped run leaves what it has.

    A process per file: no file inherits the memory and the compiled programs of the one before it.
    """
    files = [Path(a) for a in sys.argv[1:] if a.endswith(".py")] or sorted(FOLDER.glob("test_*.py"))
    options = [a for a in sys.argv[1:] if not a.endswith(".py")]
    results: dict = json.loads(RESULTS.read_text()) if sys.argv[1:] and RESULTS.exists() else {}
    failed = []
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            stored = Path(folder) / "benchmarks.json"
            command = [sys.executable, "-m", "pytest", str(file), "--benchmark-only", f"--benchmark-json={stored}"]
            code = subprocess.run([*command, "-p", "no:cacheprovider", *options], check=False).returncode
            if code not in (0, NOTHING_SELECTED):
                failed.append(file.name)
            if not stored.exists() or not stored.stat().st_size:
                continue
            part = _without_machine_details(json.loads(stored.read_text()))
        measured = {entry["group"] for entry in part["benchmarks"]}
        same_device = results.get("device") == part["device"]
        kept = [e for e in results.get("benchmarks", []) if same_device and e["group"] not in measured]
        results = {**part, "benchmarks": [*kept, *part["benchmarks"]]}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        (FOLDER / "README.md").write_text(table(results))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the table holds the others")


def table(results: dict) -> str:
    """Markdown with one table per group."""
    entries = results["benchmarks"]
    loaded = sum(bool(e["extra_info"].get("loaded")) for e in entries)
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` from results.json. Medians; all entries of a table were measured in the same run,",
        "after checking that they compute the same thing. The first call includes compilation. A round is timed once",
        "other processes are quiet, and counts if they stayed quiet. Both sides have large pages (see the Makefile).",
        "",
        f"Device: {results['device']}. Measured {results['datetime'][:10]}.",
    ]
    rates = next((e["extra_info"] for e in entries if "matrix_rate" in e["extra_info"]), None)
    if rates is not None:
        lines += [
            f"Its float32 matrix product reached {rates['matrix_rate'] / 1e9:.0f} GFLOP/s, its memory "
            f"{rates['copy_rate'] / 1e9:.1f} GB/s read and written.",
            "The fraction of the machine's rate is the time that the arithmetic and the transfers of plain sums of",
            "products (counted by hand in benchmarks/_limits.py) would take at these rates, over the time measured;",
            "Winograd's and Fourier's convolutions need less arithmetic than that.",
        ]
    if loaded:
        lines += ["", f"**{loaded} of {len(entries)} entries were timed under load; ratios with them mean nothing.**"]
    groups: dict[str, list[dict]] = {}
    for entry in entries:
        groups.setdefault(entry["group"], []).append(entry)
    for group, members in groups.items():
        lines += ["", f"## {group}", "", *_rows(members)]
    return "\n".join(lines) + "\n"


def _rows(entries: list[dict]) -> list[str]:
    """Header and rows of one group; a column that no entry has a value for is left out."""
    slowest = max(entries, key=_seconds)
    peer = min((e for e in entries if e["name"].startswith("PyTorch")), key=_seconds, default=None)
    eager = next((e for e in entries if e["name"] == "op by op"), None)
    base = next((e for e in entries if e["extra_info"].get("base")), None)
    extra = sorted({k for e in entries for k in e["extra_info"]} - KNOWN)
    columns: dict[str, list[str]] = {}
    for entry in entries:
        info, limit = entry["extra_info"], entry["extra_info"].get("limit_seconds")
        cells = {
            "": entry["name"],
            "seconds": f"{_seconds(entry):.3g}",
            "times faster than the slowest": _ratio(slowest, entry),
            "times faster than op by op": _ratio(eager, entry),
            "times faster than PyTorch's best": _ratio(peer, entry),
            "times the first row": _ratio(entry, base),
            "first call, seconds": f"{info['first_call_seconds']:.1f}",
            "fraction of the machine's rate": f"{limit / _seconds(entry):.2f}" if limit else "",
            **{name: f"{info[name]:.3g}" if name in info else "" for name in extra},
            "loaded": "loaded" if info.get("loaded") else "",
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    rows = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _seconds(entry: dict) -> float:
    """Per iteration."""
    return entry["stats"]["median"] / entry["extra_info"]["rounds_per_call"]


def _ratio(a: dict | None, b: dict | None) -> str:
    """Of the times of two entries; says so when one of them is not to be trusted."""
    if a is None or b is None:
        return ""
    loaded = a["extra_info"].get("loaded") or b["extra_info"].get("loaded")
    return f"{_seconds(a) / _seconds(b):.2f}{' (loaded)' if loaded else ''}"


def _without_machine_details(results: dict) -> dict:
    device = jax.devices()[0]
    cpu = results["machine_info"]["cpu"].get("brand_raw", "unknown processor")
    return {
        "device": f"{device.device_kind} ({cpu}, {results['machine_info']['cpu'].get('count')} cores)",
        "datetime": results["datetime"],
        "benchmarks": [_entry(e) for e in results["benchmarks"]],
    }


def _entry(entry: dict) -> dict:
    """Without the spoiled rounds, unless too few are left."""
    info = dict(entry["extra_info"])
    seconds = [s for s, spoiled in zip(entry["stats"]["data"], info.pop("spoiled"), strict=True) if not spoiled]
    if len(seconds) < QUIET_ROUNDS:
        info["loaded"], seconds = True, entry["stats"]["data"]
    stats = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds), "rounds": len(seconds)}
    return {"name": entry["name"], "group": entry["group"], "extra_info": info, "stats": stats}


if __name__ == "__main__":
    main()
