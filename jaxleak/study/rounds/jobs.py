"""CAFE's runs as jobs of a `Runner`, and about how long they take on two CPU cores."""

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
#: A round of any step through the network with a quarter of the channels, for at most 16 samples.
NARROW_ROUND = 0.01


#: Curves (points, iteration and values), and the first images: `index` (I,), `truth` and `estimate` (I, H, W, C).
ARRAYS = ("curve", "f_history", "index", "truth", "estimate")


class CafeJobs:
    """Settings as jobs: every seed of one runs with that seed in place of its own."""

    def __init__(self, specs: Mapping[str, str]):
        """`specs` has a data specification by dataset name."""
        self.specs = specs
        self._tables: dict[Setting, NestedTables] = {}  # V and H by what they depend on

    def identity(self, setting: Setting, seed: int) -> dict[str, Any]:
        """The setting and its data."""
        fields = named_before(asdict(replace(setting, seed=seed)), steps="adam", steps_at=0, data_optimizer="adam")
        return fields | {"data": self.specs[setting.dataset]}

    def sources(self, setting: Setting, seed: int) -> Arrays:
        """The private and held-out samples that the results come from."""
        return drawn(self.specs[setting.dataset], setting.num_samples + _held_out(setting), seed)

    def require(self, setting: Setting, seed: int) -> None:
        """Nothing is known before the problem is built."""

    def cost(self, setting: Setting) -> Cost:
        """As `seconds` says."""
        return Cost(seconds(setting))

    def run(self, setting: Setting, seed: int) -> Result:
        """Scores have `psnr`, but for a training; arrays are those of `ARRAYS` that the kind of setting has."""
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
    """Estimated seconds of a setting on two CPU cores."""
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
