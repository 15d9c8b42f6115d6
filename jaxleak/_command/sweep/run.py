"""Runs one line of a sweep in place of this process, and merges the results of the lines."""

import csv
import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxleak import _validate
from jaxleak._command.sweep.options import PROGRAMS, Args
from jaxleak.study import default_out, require_own_folder
from jaxleak.study.files import naming, read_json, write_json

#: The file in a run's folder that stores the line from which the run was started.
LINE_FILE = "line.json"


class Line(NamedTuple):
    """One line of a sweep's file: a run."""

    study: str
    options: dict[str, Any]

    def command(self, program: Sequence[str], out: Path) -> list[str]:
        """Return the words of the run's command; `program` has the words after `python -m` that start the study."""
        words = [sys.executable, "-m", *program]
        for name, value in self.options.items():
            words += _option(name, value)
        return [*words, "--out", str(out)]


def main(args: Args, programs: Mapping[str, Sequence[str]] = PROGRAMS) -> None:
    """Run a line in place of this process, or merge the results of all lines.

    Args:
        args: the options.
        programs: the studies that a line may start: maps a name to the words after `python -m` that start the study.

    Raises:
        ValueError: naming a line that is wrong, or a folder that belongs to another line; or, on merging, if runs are
            not complete.
        OSError: if the file cannot be read, or if a folder cannot be written.
    """
    if args.out is not None:
        require_own_folder(args.out)
    texts = args.sweep.read_text().splitlines()
    if not texts:
        raise ValueError(f"{args.sweep} has no lines")
    out = (args.out or default_out("sweep", args.sweep.stem)).absolute()
    if args.action == "merge":
        lines = [_line_or_error(text, f"{args.sweep}, line {i}", programs) for i, text in enumerate(texts)]
        missing = merge(lines, out)
        if missing:
            raise ValueError(f"{len(missing)} of {len(texts)} runs are not complete: {_ranges(missing)}")
        return
    if args.index is None:
        raise ValueError(f"--index is missing; {args.sweep} has lines 0 to {len(texts) - 1}")
    _validate.in_range(0, len(texts) - 1, index=args.index)
    line = parse_line(texts[args.index], f"{args.sweep}, line {args.index}", programs)
    folder = out / str(args.index)
    if not _same_line(folder, line, more_time=True):
        raise ValueError(f"{folder} belongs to another line than {args.sweep} now has there; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / LINE_FILE, line._asdict())
    command = line.command(programs[line.study], folder)
    sys.stdout.flush()
    # The run replaces this process, so that it gets the scheduler's signals and its exit status is the process's.
    os.execv(command[0], command)


def parse_line(text: str, where: str, studies: Collection[str]) -> Line:
    """Parse one line of the file into the run that it describes.

    Args:
        text: the line.
        where: name of the line in messages.
        studies: names of the studies that the line may start.

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
    if not isinstance(content["study"], str) or content["study"] not in studies:
        raise ValueError(f"{where}: study must be one of {', '.join(studies)}, got {content['study']!r}")
    if not isinstance(options, dict) or {"out", "fresh"} & options.keys():
        raise ValueError(f"{where}: options must be an object without out and fresh, which the sweep decides")
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise ValueError(f"{where}: {name!r} is no name of an option")
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value)):
            raise ValueError(f"{where}: {name} must be a value or a list of values")
    return Line(content["study"], options)


def _line_or_error(text: str, where: str, studies: Collection[str]) -> Line | ValueError:
    try:
        return parse_line(text, where, studies)
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

    A wrong line is given as its error, which is printed; the line then has a row without study and options.
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


def _same_line(folder: Path, line: Line, *, more_time: bool = False) -> bool:
    """Whether a folder's run was started from this line, or is new; with `more_time`, `minutes` may differ."""
    file = folder / LINE_FILE
    aside = {"minutes"} if more_time else set()

    def compared(study: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return study, {name: value for name, value in options.items() if name not in aside}

    return not file.exists() or read_json(file, lambda content: compared(**content) == compared(*line))


def _result(file: Path) -> dict[str, Any]:
    try:
        return read_json(
            file, lambda found: {"status": str(found["status"]), "metrics": dict(found["metrics"].items())}
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return {"status": "damaged"}


def _ranges(numbers: list[int]) -> str:
    """Write numbers in the form that array jobs take, such as 1,4-6."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
