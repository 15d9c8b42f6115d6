"""Runs measurements within a budget and records their outcomes; one failure does not stop the others.

Every cell gets its first number before any cell gets a second one, and cheap measurements go first.
"""

import datetime
import functools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import Progress, digest, forget_when_many, provenance
from jaxleak.study.files import write_json
from jaxleak.study.ledger._entry import MEASURED, Entry, Status
from jaxleak.study.ledger._measurement import Measurement, Study
from jaxleak.study.ledger._store import Ledger
from jaxleak.study.ledger._verdict import judge, mean_and_spread
from jaxleak.study.runner import Result

#: First words of an entry's reason if the run did not fit the budget, and if it lacks something such as data.
TOO_COSTLY, LACKING = "needs about", "lacks"


class Job(NamedTuple):
    """How long a finished job took, and the commit that ran it."""

    seconds: float
    commit: str


class JobLog:
    """A file that records how long the jobs of a run folder took, and which commit ran them.

    All cells that share a job get its time from here, and a number that is read back keeps the commit that computed it.
    """

    def __init__(self, path: Path):
        """Read the log from `path`, if the file exists."""
        self.path = path
        stored = json.loads(path.read_text()) if path.exists() else {}
        self.by_name = {name: Job(**job) for name, job in stored.items()}

    def __getitem__(self, job: tuple[Hashable, int]) -> Job:
        """Return the record of a job with a seed; a job that was never logged has 0 seconds and an unknown commit."""
        return self.by_name.get(_name(*job), Job(0.0, "unknown"))

    def __setitem__(self, job: tuple[Hashable, int], made: Job) -> None:
        """Store the record of a job with a seed."""
        self.by_name[_name(*job)] = made
        write_json(self.path, {name: kept._asdict() for name, kept in self.by_name.items()})


def _name(job: Hashable, seed: int) -> str:
    return digest({"job": repr(job), "seed": seed})


class Queue:
    """Runs the measurements of one paper in order of cost and makes their entries."""

    def __init__(
        self,
        study: Study,
        ledger: Ledger,
        folder: Path,
        *,
        record: bool,
        commit: str = "unknown",
        estimates_for: str = "this machine",
        command: Callable[[str, Measurement, Sequence[int]], str] = lambda *_: "",
    ):
        """Read the log of the run folder.

        Args:
            study: the study, whose runner runs the jobs.
            ledger: ledger that gets the entries and has the printed numbers.
            folder: folder of the runs, which must exist.
            record: whether to write every new entry to the ledger's file at once.
            commit: the commit that runs, see `commit_of`.
            estimates_for: the machine for which the study estimates the seconds.
            command: function that returns the command that repeats an entry, given the paper's name, the measurement
                and the seeds.
        """
        self.runner, self.ledger, self.record = study.runner, ledger, record
        self.log = JobLog(folder / "jobs.json")
        self.made, self.commit, self.command = provenance(), commit, command
        self.estimates_for = estimates_for

    def wanted(self, measurement: Measurement, seeds: Sequence[int]) -> bool:
        """Whether the ledger lacks this measurement or some of its seeds; a failed measurement is not tried again.

        An entry with another text in `differs` comes from another set-up and does not count.
        """
        if self.recorded(measurement) is not None:
            return bool(self.lacking(measurement, seeds))
        entry = self.ledger.entries.get(measurement.key)
        return entry is None or entry.status in ("not run", "impossible") or entry.differs != measurement.differs

    def recorded(self, measurement: Measurement) -> Entry | None:
        """Return the ledger's entry with numbers of this measurement in the same set-up, or None."""
        entry = self.ledger.entries.get(measurement.key)
        same = entry is not None and entry.status in MEASURED and entry.differs == measurement.differs
        return entry if same else None

    def lacking(self, measurement: Measurement, seeds: Sequence[int]) -> list[int]:
        """Return the seeds without a recorded number; the others do not run again, even if their run folder is gone."""
        there = self.recorded(measurement)
        return [seed for seed in seeds if there is None or seed not in there.seeds]

    def kept(self, measurements: Sequence[Measurement], seeds: Sequence[int]) -> list[Entry]:
        """Return the entries of the measurements that do not run again: recorded with these seeds, or failed before."""
        return [self.ledger.entries[m.key] for m in measurements if not self.wanted(m, seeds)]

    def run(
        self, measurements: Sequence[Measurement], seeds: Sequence[int], budget: float, progress: Progress
    ) -> Iterator[Entry]:
        """Run the measurements that the ledger lacks, in the order of `in_turn`, and yield an entry for each.

        A measurement that does not fit the budget gets an entry too.

        Args:
            measurements: the measurements to run.
            seeds: seeds for which each measurement is run, unless a number of the seed is recorded.
            budget: seconds that all measurements may take together.
            progress: progress line, which shows every cell and reacts to signals.
        """
        left = budget
        lacking = self.in_turn([m for m in measurements if self.wanted(m, seeds)], seeds)
        for number, measurement in enumerate(lacking):
            progress.update("cells", number, len(lacking), "/".join(filter(None, measurement.key)))
            new = self.lacking(measurement, seeds)
            need = self.runner.cost(measurement.jobs, new)
            if measurement.reason:
                entry = self._entry(measurement, status=_status_of(measurement.reason), why=measurement.reason)
            elif need > max(left, 0.0):
                entry = self._entry(
                    measurement,
                    status="not run",
                    why=_duration(self.runner.lacking(measurement.jobs, new), len(new), self.estimates_for),
                )
            else:
                begin = time.perf_counter()
                entry = self.measure(measurement, seeds)
                left -= time.perf_counter() - begin
            # A recorded number is kept: it is worth more than a note that further seeds cost too much.
            there = self.ledger.entries.get(measurement.key)
            if entry.status in MEASURED or measurement.partial or there is None or there.status not in MEASURED:
                self._keep(entry)
            yield entry

    def in_turn(self, lacking: Sequence[Measurement], seeds: Sequence[int]) -> list[Measurement]:
        """Order measurements: first the cheapest of every cell without a number, then second ones, and so on.

        Cheap measurements go first. The cost of a job is divided by the number of measurements that need it, so that a
        job that serves many goes first.
        """
        sharing = Counter(job for m in lacking for job in m.jobs)
        new = {m.key: self.lacking(m, seeds) for m in lacking}
        costs = {m.key: sum(self.runner.lacking([job], new[m.key]) / sharing[job] for job in m.jobs) for m in lacking}
        before = Counter(entry.cell for entry in self.ledger.entries.values() if entry.status in MEASURED)
        turns = {}
        for measurement in sorted(lacking, key=lambda m: costs[m.key]):
            turns[measurement.key] = before[measurement.cell]
            before[measurement.cell] += 1
        return sorted(lacking, key=lambda m: (turns[m.key], costs[m.key]))

    def measure(self, measurement: Measurement, seeds: Sequence[int]) -> Entry:
        """Run the jobs and judge the numbers, including those recorded before; an error becomes an entry too.

        An `OSError`, for example for missing data, gives the status "not run": the measurement is tried again later.
        """
        there, new = self.recorded(measurement), self.lacking(measurement, seeds)
        values: dict[int, float] = {} if there is None else dict(there.seeds)
        try:
            for seed in new:
                values[seed] = float(measurement.read([self._run(job, seed) for job in measurement.jobs]))
        except ConfigMismatchError:  # the data have changed, which concerns other cells too
            raise
        except MemoryError as error:
            return self._entry(measurement, status="impossible", why=f"this machine has too little memory: {error}")
        except OSError as error:
            return self._entry(measurement, status="not run", why=str(error))
        except Exception as error:  # an error in one cell must not stop the others
            return self._entry(
                measurement, status="failed", why=f"{type(error).__name__}: {error}", **self._made(measurement, seeds)
            )
        printed = self.ledger.printed[measurement.cell]
        how = self.ledger.directions.of(measurement.cell, printed["unit"])
        values = dict(sorted(values.items()))
        status, why = judge(float(printed["value"]), list(values.values()), how, printed.get("relation", ""))
        if measurement.partial and status == "met":
            return self._entry(measurement, status="not run", why=f"refuted by no number so far: {why}")
        mean, spread = mean_and_spread(list(values.values()))
        jobs = [self.log[job, seed] for job in measurement.jobs for seed in new]
        taken, made = sum(job.seconds for job in jobs), self._made(measurement, list(values))
        made["commit"] = ", ".join(dict.fromkeys(job.commit for job in jobs))
        if there is not None:
            taken += there.seconds or 0.0
            made |= _with_former(there, made)
        return self._entry(
            measurement,
            status=status,
            why=why,
            value=mean,
            spread=spread,
            seeds=values,
            seconds=round(taken, 1),
            **made,
        )

    def _run(self, job: Hashable, seed: int) -> Result:
        if self.runner.done(job, seed):
            return self.runner(job, seed)
        forget_when_many()
        begin = time.perf_counter()
        result = self.runner(job, seed)
        self.log[job, seed] = Job(time.perf_counter() - begin, self.commit)
        return result

    def _made(self, measurement: Measurement, seeds: Sequence[int]) -> dict[str, Any]:
        versions = {"python": self.made["python"], **self.made["versions"]}
        return {
            "command": self.command(self.ledger.paper, measurement, seeds),
            "commit": self.commit,
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "machine": f"{self.made['device']}, {self.made['cores']} cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }

    def _entry(self, measurement: Measurement, **fields: Any) -> Entry:
        printed = self.ledger.printed[measurement.cell]
        same = {name: getattr(measurement, name) for name in ("cell", "variant", "name", "differs")}
        return Entry(**same, paper=float(printed["value"]), unit=printed["unit"], **fields)

    def _keep(self, entry: Entry) -> None:
        if self.record:
            self.ledger.record([entry])


def require_measured(made: Sequence[Entry], asked: int) -> None:
    """Raise an error that says why a command measured nothing, unless there was nothing left to measure.

    Args:
        made: the entries that `Queue.run` yielded.
        asked: number of measurements that were asked for, including those that the ledger already has.

    Raises:
        ValueError: if no measurement was asked for, or if none of those that the ledger lacks gave a number.
    """
    if not asked:
        raise ValueError("nothing was run: no cell that the options name has a measurement in such a variant")
    if not made or any(entry.status in MEASURED for entry in made):
        return
    costly = [entry for entry in made if entry.why.startswith(TOO_COSTLY)]
    first = (costly or made)[0]
    raise ValueError(f"nothing was measured: {first.cell}: {first.why}{'; raise --budget' if costly else ''}")


def impossible_entries(study: Study, ledger: Ledger) -> list[Entry]:
    """Make the entries of the cells without a measurement, with the study's reasons.

    The status is "not run" if the reason begins with `LACKING`, and "impossible" otherwise.
    """
    entries = []
    for cell, reason in study.impossible().items():
        printed, status = ledger.printed[cell], _status_of(reason)
        entries.append(Entry(cell, "printed", status, reason, float(printed["value"]), printed["unit"]))
    return entries


def _status_of(reason: str) -> Status:
    """Return the status for a reason: "not run" if something is lacking, which another machine may have."""
    return "not run" if reason.startswith(LACKING) else "impossible"


def commit_of(root: Path, but_for: Sequence[str] = ()) -> str:
    """Return the commit of a clone in 12 digits, with "-dirty" if tracked files differ; "unknown" without a clone.

    Args:
        root: the clone's folder.
        but_for: paths below that folder whose changes do not count, such as the ledger's own files.
    """
    git = functools.partial(subprocess.run, cwd=root, capture_output=True, text=True, check=True)
    try:
        commit = git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        kept = [f":!{path}" for path in but_for]
        changed = git(["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *kept]).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _with_former(there: Entry, made: Mapping[str, Any]) -> dict[str, str]:
    """Join commits, versions and machines of an entry's former seeds (`there`) and of its new seeds (`made`)."""
    joints = {"commit": ", ", "versions": "; ", "machine": "; "}
    former = {name: getattr(there, name).split(joint) for name, joint in joints.items()}
    return {
        name: joint.join(dict.fromkeys([*former[name], *made[name].split(joint)])) for name, joint in joints.items()
    }


def _duration(seconds: float, seeds: int, machine: str) -> str:
    about = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    return f"{TOO_COSTLY} {about} on {machine} for {seeds} seed{'s' if seeds > 1 else ''}"
