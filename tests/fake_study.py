"""A study whose jobs are numbers, for three cells of a printed paper."""

import numpy as np

from experiments._ledger.papers import command
from jaxleak.study import Progress
from jaxleak.study.cells import score_named
from jaxleak.study.ledger import Measurement, Queue
from jaxleak.study.runner import Result

CELL, OTHER, THIRD = "table2/cafe/cifar10", "table2/dlg/mnist", "table3/cafe/k10/cifar10"


class FakeStudy:
    """A study that is its own runner. A job is the number that it gives (plus the seed), or an error to raise."""

    def __init__(self, *measurements, slow=()):
        self.own, self.slow, self.ran, self.runner, self.spent = measurements, slow, [], self, 0.0

    def measurements(self):
        return iter(self.own)

    def impossible(self):
        return {THIRD: "a statement about other cells"}

    def each(self, job):
        return 100.0 if job in self.slow else 1.0

    def lacking(self, jobs, seeds):
        return sum(self.each(job) for job in jobs for seed in seeds if not self.done(job, seed))

    cost = lacking

    def done(self, job, seed):
        return (job, seed) in self.ran

    def __call__(self, job, seed):
        if isinstance(job, Exception):
            raise job
        if not self.done(job, seed):
            self.ran.append((job, seed))
        truth = np.full((3, 4, 4, 1), 0.1 if job < 20 else 0.9)
        images = {} if job == 9.0 else {"truth": truth, "estimate": np.full_like(truth, job / 100)}
        return Result({"value": job + seed}, images)


def measurement(cell, job, variant="printed", **fields):
    return Measurement(cell, variant, "", (job,), score_named("value"), **fields)


def run(study, ledger, tmp_path, *, seeds=(0,), budget=10.0, record=True, commit="unknown"):
    with Progress() as progress:
        queue = Queue(study, ledger, tmp_path, record=record, commit=commit, command=command)
        return list(queue.run(list(study.measurements()), seeds, budget, progress))
