"""Copy a run that the pages cite into docs/results.

    python -m docs._storing --run runs/homotopy/trained
    python -m docs._storing --run runs/reproduce/ledger/cafe --cell table2/cafe/mnist@printed --name cafe_printed_mnist

The first command copies the `results.json` of a finished run. The second writes the scores and the curves of one seed
of a ledger's cell, with the command that made it, from the folder that `python -m experiments.reproduce` kept its runs
in.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments._ledger.papers import PAPERS, ledger_of
from experiments._ledger.studies import study_of
from jaxleak import _validate
from jaxleak.study import run_command
from jaxleak.study.files import jsonable, read_json, write_text
from jaxleak.study.ledger import MEASURED, Entry

RESULTS = Path(__file__).parent / "results"

#: Arrays that a run stores over its iterations: PSNR, and rounds with the losses F1 and F2 of CAFE's first two steps.
CURVES = ("curve", "f_history")


@dataclass(frozen=True)
class Args:
    """Which run to copy."""

    run: Path
    """Folder of a finished run, or of a paper's runs if a cell is named."""
    cell: str = ""
    """Cell of the paper's ledger (CELL@VARIANT, or CELL@VARIANT@NAME); by default the whole run is copied."""
    seed: int = 0
    """Seed of the cell."""
    name: str = ""
    """Name of the file, without .json; by default that of the folder."""


def main(args: Args) -> Path:
    """Copy the run or the cell that the options name; returns the written file."""
    name = args.name or args.run.resolve().name
    path = store_cell(args.run, args.cell, seed=args.seed, name=name) if args.cell else store_run(args.run, name)
    print(f"wrote {path}")
    return path


def store_run(folder: Path, name: str, results: Path = RESULTS) -> Path:
    """Copy a finished run's `results.json`, without the path of its run folder.

    Args:
        folder: the run folder.
        name: name of the copy, without its ending.
        results: folder for the copy.

    Returns:
        The file that was written.

    Raises:
        FileNotFoundError: if the folder has no `results.json`.
        ValueError: if the run was not finished, or its code was not committed.
    """
    content = read_json(folder / "results.json", dict)
    if content.get("status") != "complete":
        raise ValueError(f"{folder}: the run is {content.get('status', 'unknown')}; run its command to the end")
    commit = content["provenance"]["commit"]
    if commit.endswith("-dirty"):
        raise ValueError(f"{folder}: the run is of {commit}, which nobody else has; commit the code and run it again")
    # Folders exist only on this machine, so an option that is an absolute path keeps only its last part.
    config = {name: Path(value).name if _is_absolute(value) else value for name, value in content["config"].items()}
    content["config"] = {**config, "out": None}
    return _write(results / f"{name}.json", json.dumps(content, indent=2))


def _is_absolute(option: Any) -> bool:
    return isinstance(option, str) and Path(option).is_absolute()


def store_cell(runs: Path, cell: str, *, seed: int, name: str, results: Path = RESULTS) -> Path:
    """Write one seed's scores and curves for a cell of a ledger, with the entry's command and origin.

    Args:
        runs: subfolder PAPER of the folder that `python -m experiments.reproduce` had as `--out`.
        cell: PAPER's cell and its variant, as `table2/cafe/mnist@printed`, with `@NAME` if the measurement has a name.
        seed: seed of the run to write.
        name: name of the file, without its ending.
        results: folder for the file.

    Returns:
        The file that was written.

    Raises:
        ValueError: if the cell was not measured with this seed, or its run is not in the folder.
    """
    _validate.one_of(PAPERS, **{"name of the folder of runs": runs.name})
    ledger = ledger_of(runs.name)
    study = study_of(runs.name, runs)
    measurement = next((m for m in study.measurements() if "@".join(filter(None, m.key)) == cell), None)
    if measurement is None:
        raise ValueError(f"--cell {cell} is no measurement of {runs.name}: it reads CELL@VARIANT or CELL@VARIANT@NAME")
    entry = ledger.entries.get(measurement.key)
    if entry is None or entry.status not in MEASURED or seed not in entry.seeds:
        raise ValueError(f"--cell {cell} was not measured with seed {seed}")
    if not all(study.runner.done(job, seed) for job in measurement.jobs):
        raise ValueError(f"{runs} does not hold the run of {cell} with seed {seed}; {entry.command} makes it again")
    job = measurement.jobs[0]
    result = study.runner(job, seed)
    if abs(measurement.read([study.runner(other, seed) for other in measurement.jobs]) - entry.seeds[seed]) > 1e-9:
        raise ValueError(f"{runs} holds another run of {cell} than the one in the ledger")
    content = _origin(entry) | {
        "job": dict(study.runner.jobs.identity(job, seed)),
        "metrics": dict(result.scores),
        **{name: np.asarray(result.arrays[name]).tolist() for name in CURVES if name in result.arrays},
    }
    return _write(results / f"{name}.json", json.dumps(jsonable(content)))


def _origin(entry: Entry) -> dict[str, Any]:
    return {
        "experiment": "a cell of the ledger: scores and curves of its file in the run folder",
        "cell": entry.cell,
        "paper": entry.paper,
        "command": entry.command,
        "provenance": {key: getattr(entry, key) for key in ("commit", "versions", "machine", "date", "seconds")},
    }


def _write(path: Path, text: str) -> Path:
    write_text(path, text + "\n")
    return path


if __name__ == "__main__":
    run_command(main, Args, __doc__)
