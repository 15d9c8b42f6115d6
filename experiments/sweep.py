"""Many runs as lines of one file, for the array jobs of any scheduler.

    python -m experiments.sweep --sweep runs.jsonl --index 3        # run line 3, counted from 0
    python -m experiments.sweep merge --sweep runs.jsonl            # what all lines found, as one table

A line of the file is one run: a module of `experiments` and its options, as its command line would have them,

    {"study": "cafe_scale", "options": {"data": "digits", "num-samples": 100, "batch-size": 10, "seed": 0}}
    {"study": "invert", "options": {"attack": "fedleak", "seeds": [0, 1], "exact-kinks": true}}

and goes to `runs/sweep/<file>/<line>`. Whatever starts these commands knows the number: `$SLURM_ARRAY_TASK_ID`,
`$JOB_COMPLETION_INDEX`, or a loop in the shell. A run that was stopped goes on when its line is started again. `merge`
writes `merged.json` and `merged.csv` beside the runs and ends with 1 while lines are missing or wrong. A line that is
wrong holds up no other. Lines may be appended to a file that has been started; a changed line is refused where its
number has run before.
"""

import csv
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tyro

from jaxleak import _validate
from jaxleak.study import default_out, require_own_folder, run_command
from jaxleak.study.files import naming, read_json, write_json

#: What a sweep may start: every study, but no sweep.
STUDIES = tuple(
    sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_") and p.stem != "sweep")
)

#: What a run's folder remembers of the line that it was started from.
LINE_FILE = "line.json"


@dataclass(frozen=True)
class Args:
    """What to do with which lines."""

    sweep: Path
    """The file, one JSON object per line."""
    action: tyro.conf.Positional[Literal["run", "merge"]] = "run"
    """Run the file's commands, or merge what several machines ran."""
    index: int | None = None
    """Number of the line to run, from 0."""
    out: Path | None = None
    """Folder of all runs; default runs/sweep/<name of the file>."""


class Line(NamedTuple):
    """One run."""

    study: str
    options: dict[str, Any]

    def command(self, out: Path) -> list[str]:
        """The words of its command."""
        words = [sys.executable, "-m", f"experiments.{self.study}"]
        for name, value in self.options.items():
            words += _option(name, value)
        return [*words, "--out", str(out)]


def main(args: Args) -> None:
    """Run a line, in place of this process, or merge."""
    if args.out is not None:
        require_own_folder(args.out)
    texts = args.sweep.read_text().splitlines()
    if not texts:
        raise ValueError(f"{args.sweep} has no lines")
    out = (args.out or default_out("sweep", args.sweep.stem)).absolute()
    if args.action == "merge":
        missing = merge([_line_or_error(text, f"{args.sweep}, line {i}") for i, text in enumerate(texts)], out)
        if missing:
            raise ValueError(f"{len(missing)} of {len(texts)} runs are not complete: {_ranges(missing)}")
        return
    if args.index is None:
        raise ValueError(f"--index is missing; {args.sweep} has lines 0 to {len(texts) - 1}")
    _validate.in_range(0, len(texts) - 1, index=args.index)
    line = parse_line(texts[args.index], f"{args.sweep}, line {args.index}")
    folder = out / str(args.index)
    if not _same_line(folder, line):
        raise ValueError(f"{folder} belongs to another line than {args.sweep} now has there; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LINE_FILE, line._asdict())
    command = line.command(folder)
    sys.stdout.flush()
    # In place of this process, so that the scheduler's signals and the exit status are the run's own.
    os.execv(command[0], command)


def parse_line(text: str, where: str) -> Line:
    """The run that one line of the file describes.

    Raises:
        ValueError: naming the line as `where` does, and what is wrong with it.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON object: {error}") from error
    if not isinstance(content, dict) or content.keys() - {"study", "options"} or "study" not in content:
        raise ValueError(f'{where}: must be {{"study": NAME, "options": {{...}}}}')
    options = content.get("options", {})
    if content["study"] not in STUDIES:
        raise ValueError(f"{where}: study must be one of {', '.join(STUDIES)}, got {content['study']!r}")
    if not isinstance(options, dict) or {"out", "fresh"} & options.keys():
        raise ValueError(f"{where}: options must be an object without out and fresh, which the sweep decides")
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise ValueError(f"{where}: {name!r} is no name of an option")
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value)):
            raise ValueError(f"{where}: {name} must be a value or a list of values")
    return Line(content["study"], options)


def _line_or_error(text: str, where: str) -> Line | ValueError:
    try:
        return parse_line(text, where)
    except ValueError as error:
        return error


def _option(name: str, value: Any) -> list[str]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if value is None:
        return []
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


def merge(lines: Sequence[Line | ValueError], out: Path) -> list[int]:
    """Write merged.json and merged.csv, one row per line, and return the numbers of the lines without a result.

    What is wrong with a line, given in its place, is printed; the line then has a row without study and options.
    """
    rows, missing = list[dict[str, Any]](), list[int]()
    for i, line in enumerate(lines):
        if isinstance(line, ValueError):
            print(line, file=sys.stderr)
            missing.append(i)
            rows.append({"index": i, "study": None, "options": {}, "status": "wrong line", "metrics": {}})
            continue
        folder = out / str(i)
        file = folder / "results.json"
        result = _result(file) if file.exists() else {"status": "missing"}
        if not _same_line(folder, line):
            result = {"status": "of another line"}
        if result["status"] != "complete":
            missing.append(i)
        rows.append({"index": i, **line._asdict(), "status": result["status"], "metrics": result.get("metrics", {})})
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "merged.json", rows)
    flat = [
        {"index": row["index"], "study": row["study"], "status": row["status"], **row["options"], **row["metrics"]}
        for row in rows
    ]
    with naming(out / "merged.csv"), (out / "merged.csv").open("w", newline="") as file_:
        table = csv.DictWriter(file_, list(dict.fromkeys(name for row in flat for name in row)))
        table.writeheader()
        table.writerows(flat)
    print(f"{len(lines) - len(missing)} of {len(lines)} runs merged in {out / 'merged.csv'}")
    return missing


def _same_line(folder: Path, line: Line) -> bool:
    file = folder / LINE_FILE
    return not file.exists() or read_json(file, lambda content: content == line._asdict())


def _result(file: Path) -> dict[str, Any]:
    try:
        return read_json(
            file, lambda found: {"status": str(found["status"]), "metrics": dict(found["metrics"].items())}
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return {"status": "damaged"}


def _ranges(numbers: list[int]) -> str:
    """The numbers as array jobs take them: 1,4-6."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


if __name__ == "__main__":
    run_command(main, Args, f"{__doc__}\nStudies: {', '.join(STUDIES)}.\n")
