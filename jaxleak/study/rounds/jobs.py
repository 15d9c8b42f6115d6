"""CAFE's runs as jobs of a `Runner`, with estimates of their time on two CPU cores."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np

from jaxleak.attacks import adaptive
from jaxleak.study.rounds import Problem, horizontal_problem, vertical_problem
from jaxleak.study.rounds import runs as cafe_runs
from jaxleak.study.rounds.runs import NestedTables, Setting
from jaxleak.study.runner import Cost, Result, named_before
from jaxleak.study.sources import Arrays, drawn

__all__ = ["CafeJobs", "seconds"]

#: Seconds measured on two CPU cores; they are only used to decide what fits a budget.
EXACT_SETUP, EXACT_PER_IMAGE = 45.0, 1.0
#: Seconds of an attacker who knows about fake gradients, at 200 samples: for every feature, one decomposition of a
#: system of all samples.
CENSORED = 240.0
#: Seconds of the same attacker if fake gradients keep only the order of entries; most of it is sorting in every round.
ORDINAL = 600.0
STEPS_ONE_TWO_PER_ROUND, STEP_THREE_PER_ROUND, TRAINING_PER_ROUND = 0.02, 0.4, 0.12
#: Least seconds of a round of training or of Step III, however small the batch; and seconds that fake gradients add.
ROUND_AT_LEAST, FAKE_PER_ROUND = 0.02, 0.24
#: Seconds of a round of any step through the network with a quarter of the channels, for at most 16 samples.
NARROW_ROUND = 0.01


#: Names of the arrays: curves (points, iteration and values), and the first images with `index` (I,), `truth` and
#: `estimate` (I, H, W, C).
ARRAYS = ("curve", "f_history", "index", "truth", "estimate")


class CafeJobs:
    """Settings as jobs; the seed of a job replaces the setting's own seed."""

    def __init__(self, specs: Mapping[str, str]):
        """Take `specs`, which map the name of a dataset to a data specification."""
        self.specs = specs
        self._tables: dict[Setting, NestedTables] = {}  # V and H by the setting on which they depend

    def identity(self, setting: Setting, seed: int) -> dict[str, Any]:
        """Return what identifies a result: the setting with the seed, and the data specification."""
        fields = named_before(asdict(replace(setting, seed=seed)), steps="adam", steps_at=0, data_optimizer="adam")
        return fields | {"data": self.specs[setting.dataset]}

    def sources(self, setting: Setting, seed: int) -> Arrays:
        """Return the private and held-out samples from which the results come."""
        return drawn(self.specs[setting.dataset], setting.num_samples + _held_out(setting), seed)

    def require(self, setting: Setting, seed: int) -> None:
        """Accept every setting, since errors are known only once the problem is built."""

    def cost(self, setting: Setting) -> Cost:
        """Estimate the cost as `seconds` does."""
        return Cost(seconds(setting))

    def run(self, setting: Setting, seed: int) -> Result:
        """Run the setting; scores have `psnr`, except for a training, and arrays are those of `ARRAYS` that exist."""
        setting = replace(setting, seed=seed)
        problem = self._problem(setting)
        if setting.kind == "descent":
            found = cafe_runs.descent(setting, problem, self._nested(setting, problem))
        else:
            run = {"exact": cafe_runs.exact, "single": cafe_runs.single, "training": cafe_runs.training}[setting.kind]
            found = run(setting, problem)
        found |= found.pop(cafe_runs.PICTURE_KEY, {})
        arrays = {name: np.asarray(found.pop(name)) for name in ARRAYS if name in found}
        return Result(found, arrays)

    def _nested(self, setting: Setting, problem: Problem) -> NestedTables | None:
        if setting.method != "cafe" or dict(setting.overrides).get("gamma") == 0.0:
            return None  # nothing reads H
        # Steps I and II do not depend on what Step III does afterwards.
        same = replace(setting, method="cafe", overrides=(), iterations=0)
        if same not in self._tables:
            self._tables[same] = cafe_runs.nested_tables(setting, problem)
        return self._tables[same]

    def _problem(self, setting: Setting) -> Problem:
        key = jax.random.key(setting.seed)
        spec = self.specs[setting.dataset]
        if setting.workers:
            return horizontal_problem(
                spec, num_samples=setting.num_samples, seed=setting.seed, key=key, network=setting.network
            )
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


def seconds(setting: Setting) -> float:
    """Estimate the seconds of a setting on two CPU cores."""
    if setting.kind == "exact":
        informed, share = 0.0, setting.num_samples / 200
        defense = cafe_runs.defense_named(setting.defense, batch_size=1) if setting.adaptive else None
        if defense is not None:
            censored = adaptive.rounds_attack(defense) == "cafe_censored"
            informed = CENSORED * share**3 if censored else ORDINAL * share
        return EXACT_SETUP * setting.num_samples / 800 + EXACT_PER_IMAGE * setting.images + informed
    if setting.kind == "training":
        round_ = max(ROUND_AT_LEAST, TRAINING_PER_ROUND * setting.batch_size / 40)
        return (round_ + FAKE_PER_ROUND * (setting.defense in cafe_runs.FAKE)) * setting.iterations
    rounds = setting.iterations * (3 if setting.method == "gc" else 1)
    steps = 2 * cafe_runs.steps_of(setting) * (setting.kind == "descent" and setting.method.startswith("cafe"))
    if setting.network == "cafe-small":
        return NARROW_ROUND * (steps + rounds)
    return steps * STEPS_ONE_TWO_PER_ROUND + rounds * max(
        ROUND_AT_LEAST, STEP_THREE_PER_ROUND * setting.batch_size / 40
    )
