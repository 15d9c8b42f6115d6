"""Run the benchmarks and write benchmarks/README.md from the stored JSON: `make bench`."""

import json
import subprocess
import sys
from pathlib import Path

import jax

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"


def main() -> None:
    """Run pytest-benchmark, then write the table."""
    command = [sys.executable, "-m", "pytest", str(FOLDER), "--benchmark-only", f"--benchmark-json={RESULTS}"]
    code = subprocess.run([*command, "-p", "no:cacheprovider", *sys.argv[1:]], check=False).returncode
    if code:
        sys.exit(code)
    RESULTS.write_text(json.dumps(_without_machine_details(json.loads(RESULTS.read_text())), indent=1) + "\n")
    (FOLDER / "README.md").write_text(table(json.loads(RESULTS.read_text())))


def table(results: dict) -> str:
    """Markdown with one table per group; ratios are to the group's slowest entry."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` from results.json. Medians; all entries of a table were measured in the same run,",
        "after checking that they compute the same thing. The first call includes compilation.",
        "",
        f"Device: {results['device']}. Measured {results['datetime'][:10]}.",
    ]
    groups: dict[str, list[dict]] = {}
    for entry in results["benchmarks"]:
        groups.setdefault(entry["group"], []).append(entry)
    for group, entries in groups.items():
        seconds = [e["stats"]["median"] / e["extra_info"]["rounds_per_call"] for e in entries]
        extra = sorted({k for e in entries for k in e["extra_info"]} - {"first_call_seconds", "rounds_per_call"})
        header = ["", "seconds", "times faster than the slowest", "first call, seconds", *extra]
        lines += ["", f"## {group}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for entry, value in zip(entries, seconds, strict=True):
            info = entry["extra_info"]
            cells = [
                entry["name"],
                f"{value:.3g}",
                f"{max(seconds) / value:.1f}",
                f"{info['first_call_seconds']:.1f}",
                *(f"{info[name]:.2g}" for name in extra),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _without_machine_details(results: dict) -> dict:
    device = jax.devices()[0]
    cpu = results["machine_info"]["cpu"].get("brand_raw", "unknown processor")
    keep = {"name", "group", "extra_info"}
    return {
        "device": f"{device.device_kind} ({cpu}, {results['machine_info']['cpu'].get('count')} cores)",
        "datetime": results["datetime"],
        "benchmarks": [
            {**{k: e[k] for k in keep}, "stats": {k: e["stats"][k] for k in ("median", "min", "max", "rounds")}}
            for e in results["benchmarks"]
        ],
    }


if __name__ == "__main__":
    main()
