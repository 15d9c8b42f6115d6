"""What has to run for a cell of the CAFE tables, and about how long that takes on two CPU cores.

Cells that come from the same run (one curve read at several iterations, say) share it. Finished runs are kept in the
run folder, so that a killed command does not run them again.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments._cafe import runs as cafe_runs
from experiments._cafe.runs import NestedTables, Setting
from jaxleak import data
from jaxleak.study import digest
from jaxleak.study.files import Stored, read_json, read_npz, write_json, write_npz
from jaxleak.study.rounds import Problem, horizontal_problem, vertical_problem
from jaxleak.study.sources import Arrays, drawn

DATASETS = {
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "MNIST": "mnist",
    "Yale 32x32": "yale32",
    "Linnaeus 5": "linnaeus5",
}

#: Seconds measured on two CPU cores; only used to decide what fits a budget.
EXACT_SETUP, EXACT_PER_IMAGE = 45.0, 1.0
#: Seconds of an attacker who knows of fake gradients, at 200 samples: one decomposition of a system of all samples per
#: feature.
CENSORED = 240.0
#: The same where only the order is left, mostly sorting in every round.
ORDINAL = 600.0
STEPS_ONE_TWO_PER_ROUND, STEP_THREE_PER_ROUND, TRAINING_PER_ROUND = 0.02, 0.4, 0.12
#: The least that a round of training or of Step III takes, however small its batch, and what fake gradients add.
ROUND_AT_LEAST, FAKE_PER_ROUND = 0.02, 0.24


@dataclass
class Cell:
    """A cell that can be run: its setting, and how its number is read off the run's results."""

    id: str
    paper: float | None  # None: a figure's, without a printed number
    unit: str
    setting: Setting
    read: Callable[[dict[str, Any]], float]
    note: str = ""


class Runner:
    """Runs settings, each once, and remembers them, in memory and in a folder."""

    def __init__(self, specs: dict[str, str], folder: Path, *, fresh: bool):
        """Results go to `folder`.

        Args:
            specs: data specification by dataset name.
            folder: of this runner alone.
            fresh: forget the results that are there.
        """
        self.specs, self.folder = specs, folder
        self.tables: dict[Setting, Any] = {}  # V and H by what they depend on
        self.results: dict[Setting, dict[str, Any]] = {}  # of all settings asked for in this sitting
        folder.mkdir(exist_ok=True)
        if fresh:
            for file in (*folder.glob("*.json"), *folder.glob("*.npz")):
                file.unlink()

    def done(self, setting: Setting) -> bool:
        """Whether the results are at hand."""
        return setting in self.results or self._path(setting).exists()

    def __call__(self, setting: Setting) -> dict[str, Any]:
        """Results of `setting`, at least `psnr`."""
        if setting not in self.results:
            path = self._path(setting)
            if path.exists():
                stored = read_json(path, lambda content: dict(_numbers(content["results"])))
                self.results[setting] = Stored(path, stored)
            else:
                results = self._run(setting)
                if (drawn_images := results.pop(cafe_runs.PICTURE_KEY, None)) is not None:
                    write_npz(path.with_suffix(".npz"), drawn_images)
                self.results[setting] = results
                write_json(path, {"setting": asdict(setting), "results": results})
        return self.results[setting]

    def pictures(self, setting: Setting) -> dict[str, np.ndarray] | None:
        """The first images of a finished run: `index` (I,), `truth` and `estimate` (I, H, W, C); None without any."""
        path = self._path(setting).with_suffix(".npz")
        return read_npz(path) if path.exists() else None

    def sources(self, setting: Setting) -> Arrays:
        """The private and held-out samples that a setting's results come from."""
        return drawn(self.specs[setting.dataset], setting.num_samples + _held_out(setting), setting.seed)

    def _path(self, setting: Setting) -> Path:
        return self.folder / f"{digest(asdict(setting) | {'data': self.specs[setting.dataset]})}.json"

    def _run(self, setting: Setting) -> dict[str, Any]:
        problem = self._problem(setting)
        if setting.kind == "descent":
            return cafe_runs.descent(setting, problem, self._tables(setting, problem))
        run = {"exact": cafe_runs.exact, "single": cafe_runs.single, "training": cafe_runs.training}[setting.kind]
        return run(setting, problem)

    def _tables(self, setting: Setting, problem: Problem) -> NestedTables | None:
        if setting.method not in ("cafe", "cafe-cosine") or dict(setting.overrides).get("gamma") == 0.0:
            return None  # nothing reads H
        # Steps I and II do not depend on what Step III does afterwards.
        same = replace(setting, method="cafe", overrides=(), iterations=0)
        if same not in self.tables:
            self.tables[same] = cafe_runs.nested_tables(setting, problem)
        return self.tables[same]

    def _problem(self, setting: Setting) -> Problem:
        key = jax.random.key(setting.seed)
        spec = self.specs[setting.dataset]
        if setting.workers:
            return horizontal_problem(spec, num_samples=setting.num_samples, seed=setting.seed, key=key)
        return vertical_problem(
            spec,
            num_samples=setting.num_samples,
            parties=setting.parties,
            seed=setting.seed,
            key=key,
            network=setting.network,
            held_out=_held_out(setting),
        )


def _held_out(setting: Setting) -> int:
    return 100 if setting.kind == "training" and not setting.workers else 0


def _numbers(stored: Any) -> Any:
    # JSON has no NaN, so the harness stores it as text.
    if isinstance(stored, dict):
        return {name: _numbers(value) for name, value in stored.items()}
    if isinstance(stored, list):
        return [_numbers(value) for value in stored]
    return float(stored) if isinstance(stored, str) else stored


def cost(setting: Setting) -> float:
    """Estimated seconds of a setting on two CPU cores."""
    if setting.kind == "exact":
        informed, share = 0.0, setting.num_samples / 200
        if setting.adaptive:
            informed = CENSORED * share**3 if cafe_runs.KNOWLEDGE[setting.defense] == "clamped" else ORDINAL * share
        return EXACT_SETUP * setting.num_samples / 800 + EXACT_PER_IMAGE * setting.images + informed
    if setting.kind == "training":
        round_ = max(ROUND_AT_LEAST, TRAINING_PER_ROUND * setting.batch_size / 40)
        return (round_ + FAKE_PER_ROUND * (setting.defense in cafe_runs.FAKE)) * setting.iterations
    rounds = setting.iterations * (3 if setting.method == "gc" else 1)
    steps_one_two = (
        2 * cafe_runs.cap(setting.dataset) * STEPS_ONE_TWO_PER_ROUND
        if setting.kind == "descent" and setting.method.startswith("cafe")
        else 0.0
    )
    return steps_one_two + rounds * max(ROUND_AT_LEAST, STEP_THREE_PER_ROUND * setting.batch_size / 40)


def available(spec: str) -> str | None:
    """Why a data specification cannot be loaded, or None."""
    try:
        data.load(spec, 1)
    except (ValueError, OSError, MemoryError) as error:
        return str(error)
    return None


def at_iteration(iteration: int, column: int) -> Callable[[dict[str, Any]], float]:
    """Read a run's curve at the last point not after `iteration`."""

    def read(results: dict[str, Any]) -> float:
        return [point for point in results["curve"] if point[0] <= iteration][-1][column]

    return read


def iterations_to(threshold: float) -> Callable[[dict[str, Any]], float]:
    """First recorded iteration at which the truth-side PSNR reaches `threshold`; NaN if it never does."""

    def read(results: dict[str, Any]) -> float:
        reached = [iteration for iteration, psnr in results["curve"] if psnr >= threshold]
        return float(reached[0]) if reached else float("nan")

    return read


def psnr(results: dict[str, Any]) -> float:
    """The final mean PSNR."""
    return results["psnr"]


def with_seed(setting: Setting, seed: int) -> Setting:
    """The same setting with another seed."""
    return replace(setting, seed=seed)
