"""Every study in a folder, on a file of random data, with stubs for slow parts, and a kill in the middle of a study."""

import dataclasses
import json
import shutil
import typing

import numpy as np
import pytest

from experiments import (
    agreement,
    audited,
    basin,
    cafe_scale,
    cafe_tables,
    defenses,
    fedleak,
    homotopy,
    invert,
    mistakes,
    vflrecon,
)
from experiments._fedleak import demo as fedleak_demo
from experiments._fedleak import jobs as fedleak_jobs
from experiments._mistakes import clients as mistakes_clients
from experiments._mistakes import study as mistakes_study
from jaxleak import models
from jaxleak._command.cafe_scale import descent as cafe_descent
from jaxleak._command.cafe_scale import exact as cafe_exact
from jaxleak._command.invert import run as invert_run
from jaxleak.audit import Agreement
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study.files import write_json
from jaxleak.study.parties import SplitSetup
from jaxleak.study.parties import _jobs as parties_jobs
from jaxleak.study.parties import _problem as parties_problem
from jaxleak.study.rounds import runs as cafe_runs
from jaxleak.study.updates import Case, Outcome, Utilities, _inversions, victim
from jaxleak.study.updates import basin as measured_basin

SAMPLES = 64
TINY = Case(model="mlp", pool=8, iterations=2)
VERTICAL = SplitSetup(shadow_records=16, victim_records=16, batch_size=4)
SCORES = (
    "psnr", "psnr_best_match", "psnr_up_to_scale", "psnr_grey", "ssim", "ssim_max", "recognised", "cosine_distance",
    "l2_distance", "label_accuracy", "answered", "gradient_matched", "score", "seconds",
)  # fmt: skip
VERTICAL_SCORES = ("label_accuracy_shared", "label_accuracy_free", "feature_mse_shared", "seconds_per_step")
#: Prefixes of keys with measured time or memory; and the key for the path of the run.
_MEASURED, _WHERE = ("seconds", "samples_per_second", "peak_memory", "timing", "provenance"), "out"


class Killed(BaseException):
    """Raised to end a run like a kill, after its work has begun."""


def killed(*_, **__):
    """A stub for any function: raise `Killed`."""
    raise Killed


def args_of(arguments, **options):
    """Make a command's options from flat names, which include the fields of nested dataclasses."""
    for name, kind in typing.get_type_hints(arguments).items():
        if dataclasses.is_dataclass(kind) and name not in options:
            of_kind = {field.name for field in dataclasses.fields(kind)} & options.keys()
            options[name] = kind(**{one: options.pop(one) for one in of_kind})
    return arguments(**options)


def write_images(file, seed):
    """Write an npz file of random images with labels."""
    rng = np.random.default_rng(seed)
    np.savez(file, x=rng.random((SAMPLES, 8, 8, 1), np.float32), y=np.arange(SAMPLES) % 4)


def write_table(file, seed):
    """Write an npz file of random records with labels."""
    rng = np.random.default_rng(seed)
    np.savez(file, x=rng.random((SAMPLES, 6), np.float32), y=np.arange(SAMPLES) % 2, is_categorical=np.zeros(6, bool))


def left_by(folder):
    """The files of a run without clocks, memory, locks and checkpoints: JSON is parsed, other files are bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name.startswith(("checkpoints/", ".lock", "timing.json")):
            continue
        if path.suffix in (".json", ".jsonl"):
            found[name] = [_without_clocks(json.loads(line)) for line in _documents(path)]
        else:
            found[name] = path.read_bytes()
    return found


def files_of(folder):
    """The bytes of all files of a run, without its lock and without a refused start's partial config.json."""
    passing = (".lock", ".lock.holder", "config.json.partial")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in passing}


def _documents(path):
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


def _without_clocks(value):
    if isinstance(value, dict):
        kept = {name: v for name, v in value.items() if not name.startswith(_MEASURED) and name != _WHERE}
        return {name: _without_clocks(v) for name, v in kept.items()}
    return [_without_clocks(entry) for entry in value] if isinstance(value, list) else value


class Studies:
    """Any study with stubs, on `d.npz` below `root` (vertical tables: `sensorless.npz`), in the folder `out` there."""

    def __init__(self, root):
        """Keep all files below `root`; `kill_at` is the number of the stub's call that ends the run, or None."""
        self.root, self.out, self.spec = root, root / "out", f"npz:{root / 'd.npz'}"
        self.calls, self.kill_at = 0, None

    def draw(self, name, seed):
        """Write the data of a study."""
        write = write_table if name.startswith("vflrecon") else write_images
        for file in ("d.npz", "sensorless.npz", "mnist.npz"):
            write(self.root / file, seed)
        parties_problem.whole_table.cache_clear()

    def run(self, name, **options):
        """Start or continue a study."""
        self.calls = 0
        return getattr(self, name.replace(", ", "_"))(out=self.out, **options)

    def resumed(self, name, kill_at, **options):
        """The files of an uninterrupted study, and those of one that was killed and started again."""
        self.run(name, **options)
        whole = left_by(self.out)
        shutil.rmtree(self.out)
        self.kill_at = kill_at
        with pytest.raises(Killed):
            self.run(name, **options)
        self.kill_at = None
        self.run(name, **options)
        return whole, left_by(self.out)

    def refuse_other_data(self, name, **options):
        """Redraw the data of a finished run; continuing must raise an error that names the data and change no file."""
        before = files_of(self.out)
        assert self.out / "sources.json" in before
        self.draw(name, 1)
        spec = {"cafe_tables": "mnist", "vflrecon, tables": "sensorless"}.get(name, "npz:.*d.npz")
        with pytest.raises(ConfigMismatchError, match=rf"results on other contents of the data {spec} \(.*--fresh"):
            self.run(name, **options)
        assert files_of(self.out) == before

    def count(self):
        """Count a call of a stub, and raise `Killed` at call number `kill_at`."""
        self.calls += 1
        if self.calls == self.kill_at:
            raise Killed

    def attack(self, case, seed, **_):
        """A stub that finds grey images and scores the mean of the true ones; the agreement depends on the seed."""
        self.count()
        truth = np.asarray(victim(case, seed).private.x[: case.images, 0])
        scores = dict.fromkeys(SCORES, float(truth.mean()))
        second = Agreement(np.full(len(truth), 1 / (1 + seed)), truth) if case.restarts > 1 else None
        labels = np.arange(len(truth))
        return Outcome(truth, np.full_like(truth, 0.5), scores, np.linspace(2, 1, 2 + seed), second, labels, labels)

    def distances(self, case, sharpness, batches, seed, *_):
        """A stub with random distances that depend on the seed."""
        self.count()
        return np.random.default_rng(seed).random((batches, len(sharpness), len(measured_basin.CANDIDATES)))

    def exact(self, setting, problem):
        """A stub of the exact engine that answers everything."""
        self.count()
        return {"psnr": 100.0 + float(problem.dataset.x.mean()), "answered": 1.0}

    def train(self, case, seed):
        """A stub of a training that learns nothing."""
        self.count()
        return {"test_accuracy": 0.5, "train_accuracy": 0.5, "diverged": 0.0}

    def run_case(self, case, seed, runs):
        """A stub of a vertical run with random features that depend on the seed."""
        self.count()
        rng = np.random.default_rng(seed)
        return dict.fromkeys(VERTICAL_SCORES, 0.5), {"victims": rng.random((9, 12)), "estimate": rng.random((9, 12))}

    def audit(self, case, images, args, own):
        """A stub that writes the files of an audit, with a score from the images, the seed and the budget."""
        self.count()
        score = float(images.x[: case.batch_size].mean()) + args.seed + args.minutes
        attacks = [{"attack": "stub", "misfit": 0.0, "seconds": 1.0}]
        metrics = {"verdict": "leaks", "psnr": score, "gradient_misfit": 0.0}
        (own / "audit").mkdir()
        provenance = {"command": f"jaxleak audit --out {own / 'audit'}"}
        results = {"metrics": metrics, "attacks": attacks, "reasons": [], "provenance": provenance}
        write_json(own / "audit" / "results.json", results)

    def checked(self, claim, batch, minutes):
        """A stub for the outcome of a mistake, which depends on the batch size."""
        self.count()
        return {
            "status": "failed" if claim["batch_size"] == 1 else "not_attacked",
            "false_images": 0,
            "false_labels": 1,
        }

    def agreement(self, **options):
        """Run two cases, one of them defended."""
        return agreement.main(agreement.Args(**options))

    def audited(self, **options):
        """Run the networks of two clients."""
        return audited.main(audited.Args(data=self.spec, only=("cnn-b1", "vit-b4"), **options))

    def mistakes(self, **options):
        """Run two draws of one model."""
        return mistakes.main(mistakes_study.Args(draws=2, data=self.spec, minutes=0, **options))

    def invert(self, **options):
        """Run the inversion of one image."""
        return invert.main(invert.Args(dataclasses.replace(TINY, data=self.spec), **options))

    def homotopy(self, **options):
        """Run one variant of one row."""
        args = homotopy.Args(rows=("convnet-b1",), variants=("exact",), data=self.spec, iterations=2, **options)
        return homotopy.main(args)

    def basin(self, **options):
        """Run one row."""
        return basin.main(basin.Args(rows=("convnet-b1",), data=self.spec, sharpness=(3.0, 5.0), batches=1, **options))

    def _cafe_scale(self, solver, out):
        with pytest.raises(Killed):
            cafe_scale.main(cafe_scale.Args(data=self.spec, num_samples=8, batch_size=4, solver=solver, out=out))

    def cafe_scale_exact(self, out):
        """Run the exact engine until its computation begins."""
        self._cafe_scale("exact", out)

    def cafe_scale_nested(self, out):
        """Run the paper's algorithm until its computation begins."""
        self._cafe_scale("nested", out)

    def cafe_tables(self, **options):
        """Run the cells of MNIST of one table."""
        sizes = {"num_samples": 8, "images": 4}
        args = cafe_tables.Args(table=("table3",), only="mnist", datasets=("mnist",), **sizes, **options)
        return cafe_tables.main(args)

    def fedleak(self, **options):
        """Run one cell of one table."""
        sizes = {"model": "mlp", "iterations": 2, "batch_size": 1, "pool": 8}
        return fedleak.main(args_of(fedleak.Args, table=("table16",), only="lambda0.1", **sizes, **options))

    def fedleak_demo(self, **options):
        """Run FedLeak and one baseline."""
        return fedleak.main(fedleak.Args(**options))

    def defenses(self, **options):
        """Run the demonstration with one defense."""
        sizes = {"rounds": 1, "clients": 2, "samples": 16, "test_samples": 8, "batch_size": 2, "iterations": 2}
        what = {"data": self.spec, "model": "mlp", "unseen": True, "strengths": ("quantization=1",)}
        return defenses.main(args_of(defenses.Args, **what, **sizes, **options))

    def vflrecon(self, **options):
        """Run one case."""
        return vflrecon.main(vflrecon.Args(data=(self.spec,), setup=VERTICAL, **options))

    def vflrecon_tables(self, **options):
        """Run two tables, one of them with its own figure."""
        args = vflrecon.Args(table=("encryption", "fig6"), setup=VERTICAL, budget=1e6, **options)
        return vflrecon.main(args)


@pytest.fixture
def studies(monkeypatch, tmp_path):
    """All studies in a temporary folder, with stubs."""
    found = Studies(tmp_path)
    for module in (invert_run, _inversions):
        monkeypatch.setattr(module, "attack", found.attack)
    for module in (homotopy, basin):
        monkeypatch.setitem(module.HOMOTOPY_ROWS, "convnet-b1", TINY)
    monkeypatch.setattr(parties_jobs, "run_case", found.run_case)
    monkeypatch.setattr(Utilities, "_train", lambda _, job, seed: found.train(job.case, seed))
    monkeypatch.setattr(measured_basin, "distances", found.distances)
    monkeypatch.setattr(cafe_runs, "exact", found.exact)
    for module in (cafe_exact, cafe_descent):
        monkeypatch.setattr(module, "forward_features", killed)
    monkeypatch.setattr(
        fedleak_demo,
        "ATTACKS",
        {name: dataclasses.replace(TINY, data=found.spec, attack=name.lower()) for name in ("FedLeak", "iDLG")},
    )
    cases = {"quick": dataclasses.replace(TINY, data=found.spec, restarts=2)}
    cases["defended"] = dataclasses.replace(cases["quick"], defense="gaussian", strength=1e-3)
    monkeypatch.setattr(agreement, "CASES", cases)
    monkeypatch.setattr(agreement, "MOST_SEEDS", dict.fromkeys(cases, 2))
    monkeypatch.setattr(audited, "_audit", found.audit)
    monkeypatch.setattr(audited, "_require_frameworks", lambda _: None)
    monkeypatch.setattr(mistakes_study, "_outcome", found.checked)
    monkeypatch.setattr(mistakes_study, "IMAGES", SAMPLES)
    monkeypatch.setattr(mistakes_clients, "IMAGES", SAMPLES)
    small = models.mlp((16, 16, 3), 10, widths=(8,))
    monkeypatch.setattr(mistakes_study, "build_models", lambda: {"mlp": (small, "train")})
    monkeypatch.setitem(fedleak_jobs.DATASETS, "CIFAR-10", found.spec)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    return found
