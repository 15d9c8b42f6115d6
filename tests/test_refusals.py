"""Inputs that the commands refuse in words before any computation: seeds, sizes, data, contents of files."""

import importlib
import io
import json
import os
import re
import sys
import zipfile

import numpy as np
import pytest
from rich.console import Console

from experiments import audited, cafe_scale, fedleak, invert, mistakes, reproduce, sweep
from experiments._fedleak import jobs
from experiments._fedleak.runs import UpdateJobs
from experiments._mistakes import clients as mistakes_clients
from jaxleak import _memory, _validate, data
from jaxleak._command.invert import captured
from jaxleak._command.invert import run as invert_run
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError
from jaxleak.study import RunFolder, _streams, run_command
from jaxleak.study.runner import runner_in
from jaxleak.study.updates import Case, attack
from jaxleak.study.updates import _size as inversion_size

#: Commands with a tuple of seeds, and options with which a run would take long.
SEVERAL = {
    "agreement": {},
    "basin": {},
    "cafe_tables": {"table": ("table3",)},
    "defenses": {},
    "fedleak": {"table": ("table15",)},
    "homotopy": {},
    "invert": {},
    "reproduce": {},
    "vflrecon": {},
}
DAMAGED = ["", "null", "[1]", '"text"', '{"scores": 1', '{"scores": [1]}', "[" * 100_000]


def _runner(folder):
    run = RunFolder(folder, "study", {}, fresh=False)
    return runner_in(run, UpdateJobs(run, fresh=False), fresh=False)


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys):
    """A function that runs a command's main block with options, expects an error, and returns its line."""
    monkeypatch.chdir(tmp_path)
    for stream in ("stdout", "stderr"):  # restore the streams that the command wraps
        monkeypatch.setattr(sys, stream, getattr(sys, stream))

    def run(study, *options):
        module = importlib.import_module(f"experiments.{study}")
        monkeypatch.setattr(sys, "argv", [study, *options])
        with pytest.raises(SystemExit) as stop:
            run_command(module.main, module.Args, "")
        assert isinstance(stop.value.code, str), stop.value.code
        assert stop.value.code.startswith("error: ")
        assert len(stop.value.code) > len("error: ")
        return stop.value.code

    return run


class TestSeeds:
    @pytest.mark.parametrize("bad", [(2**32,), (2**64,), (-1,), (0, 0), (), (0.5,), (True,)])
    def test_only_what_makes_its_own_key_is_a_seed(self, bad):
        with pytest.raises(ValueError, match="seeds must"):
            _validate.seeds(seeds=bad)

    def test_the_whole_range_is_allowed(self):
        _validate.seeds(seeds=(0, np.int64(7), 2**32 - 1), seed=5)
        assert len(data.load("digits", 2, 2**32 - 1).y) == 2
        with pytest.raises(ValueError, match=r"seed must be whole numbers in \[0, 2\^32\), got 4294967296"):
            data.load("digits", 2, 2**32)

    @pytest.mark.parametrize("bad", [(2**32,), (0, 0)])
    @pytest.mark.parametrize("study", SEVERAL)
    def test_every_command_refuses_others_at_once(self, study, bad, tmp_path):
        module = importlib.import_module(f"experiments.{study}")
        with pytest.raises(ValueError, match="seeds must"):
            module.main(module.Args(**SEVERAL[study], seeds=bad, out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()

    def test_so_do_those_that_take_one_seed(self, tmp_path):
        with pytest.raises(ValueError, match="seed must be whole numbers"):
            cafe_scale.main(cafe_scale.Args(seed=2**64, out=tmp_path / "out"))
        with pytest.raises(ValueError, match="seed must be whole numbers"):
            audited.main(audited.Args(seed=2**32, out=tmp_path / "out"))
        with pytest.raises(ValueError, match="seed must be whole numbers"):
            reproduce.main(reproduce.Args(check=1, seed=2**32, out=tmp_path / "out"))

    def test_a_study_that_makes_keys_of_its_seed_takes_none_that_would_wrap(self, tmp_path):
        last = mistakes_clients.LARGEST_SEED
        keys = [seed * 100_000 + number for seed in (last, last + 1) for number in (0, 4999)]
        assert keys[1] < 2**32 <= keys[3]
        with pytest.raises(ValueError, match=rf"seed must be in \[0, {last}\]"):
            mistakes.main(mistakes.Args(seed=last + 1, out=tmp_path / "out"))
        with pytest.raises(ValueError, match=r"draws must be in \[1, 1000\]"):
            mistakes.main(mistakes.Args(draws=1001, out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()


class TestFilesOfARunFolder:
    @pytest.mark.parametrize("content", [*DAMAGED[:5], '{"attack": "soon"}', '{"attack": -1}', '{"attack": null}'])
    def test_timing_is_read_or_named(self, content, tmp_path):
        (tmp_path / "timing.json").write_text(content)
        with pytest.raises(ValueError, match=r"timing.json is damaged .*; delete it, or start over with --fresh"):
            RunFolder(tmp_path, "study", {}, fresh=False)
        assert [path.name for path in tmp_path.iterdir()] == ["timing.json"]
        with RunFolder(tmp_path, "study", {}, fresh=True).phase("attack"):
            pass
        assert json.loads((tmp_path / "timing.json").read_text()).keys() == {"attack"}

    @pytest.mark.parametrize("line", ["[1]", "7", "nonsense", '{"round": "soon"}'])
    def test_a_line_of_the_log_is_read_or_named(self, line, tmp_path):
        (tmp_path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{line}\n')
        with pytest.raises(ValueError, match=r"metrics.jsonl, line 2, is damaged"):
            RunFolder(tmp_path, "study", {}, fresh=False).keep_log_before(round=1)

    @pytest.mark.parametrize("content", ["null", "[1]", "[" * 100_000])
    def test_whose_checkpoints_they_are_is_read_or_said_to_be_unknown(self, content, tmp_path):
        Checkpoints(tmp_path, {"seed": 0}).save(1, {"x": np.zeros(3)})
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigMismatchError, match=r"config.json is damaged"):
            Checkpoints(tmp_path, {"seed": 0})

    @pytest.mark.parametrize("content", DAMAGED)
    def test_finished_cells_are_read_or_named(self, content, tmp_path):
        runner, job = _runner(tmp_path), jobs.Job(Case(data="digits", model="mlp"), kind="parameters")
        runner.path(job, 0).write_text(content)
        with pytest.raises(ValueError, match=r"\.json is damaged"):
            runner(job, 0)

    def test_a_number_that_is_not_there_names_the_file(self, tmp_path):
        runner, job = _runner(tmp_path), jobs.Job(Case(data="digits", model="mlp"))
        path = runner.path(job, 0)
        path.write_text('{"scores": {"psnr": "nan"}, "arrays": ["truth"]}')
        np.savez(path.with_suffix(".npz"), truth=np.zeros(1))
        found = runner(job, 0)
        assert np.isnan(found.scores["psnr"])
        with pytest.raises(ValueError, match=rf"{path.name} is damaged \(it lacks ssim\)"):
            found.scores["ssim"]
        with pytest.raises(ValueError, match=r"\.npz is damaged \(it lacks curve\)"):
            found.arrays["curve"]

    def test_arrays_that_were_deleted_are_named(self, tmp_path):
        runner, job = _runner(tmp_path), jobs.Job(Case(data="digits", model="mlp"))
        runner.path(job, 0).write_text('{"scores": {"psnr": 1.0}, "arrays": ["truth"]}')
        with pytest.raises(FileNotFoundError, match=rf"{runner.path(job, 0).stem}\.npz"):
            runner(job, 0)

    @pytest.mark.parametrize("shape", [(2**70,), (2**40, 2**40), (2**62,), (10**9, 10**6)])
    @pytest.mark.parametrize("load", [data.load, data.load_table])
    def test_a_header_of_any_shape_is_refused(self, shape, load, tmp_path):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
            for name in ("x", "y", "numeric", "categorical"):
                archive.writestr(f"{name}.npy", header.getvalue())
        with pytest.raises(ValueError, match=r"bomb.npz cannot be read, it may be corrupt: .+"):
            load(f"npz:{tmp_path / 'bomb.npz'}")


class TestData:
    @pytest.mark.parametrize("study", ["basin", "cafe_scale", "defenses", "homotopy", "invert", "mistakes", "vflrecon"])
    def test_unknown_data_end_every_command_and_leave_nothing(self, study, ended, tmp_path):
        assert "nosuch" in ended(study, "--data", "nosuch", "--out", "out/below")
        assert not list(tmp_path.iterdir())

    def test_so_do_the_data_of_the_tables(self, ended, tmp_path):
        assert "--svhn cannot be loaded" in ended("fedleak", "--table", "table3", "--svhn", "nosuch", "--out", "out")
        assert "--linnaeus5 cannot be loaded" in ended("cafe_tables", "--linnaeus5", "nosuch", "--out", "out")
        assert "--only x is in no cell's id" in ended("vflrecon", "--table", "table3", "--only", "x", "--out", "out")
        assert "leaves nothing to run" in ended("defenses", "--study", "fedleak-fig7", "--only", "soteria")
        assert not list(tmp_path.iterdir())

    def test_more_samples_than_there_are_end_a_study_of_defenses(self, ended, tmp_path):
        assert "digits has 1797 samples" in ended("defenses", "--samples", "10000000", "--out", "out")
        assert not list(tmp_path.iterdir())

    def test_data_that_take_the_place_of_missing_ones_are_used_or_said_not_to_be(self, monkeypatch):
        monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
        sizes = fedleak.sizes_of(fedleak.Args(table=("table15",), sizes=jobs.Replacements(substitute="digits")))
        assert set(sizes.specs.values()) == {"digits"}
        plan = next(iter(fedleak.cells("table15", sizes)))
        assert plan.jobs[0].case.data == "digits"
        assert "digits in place of" in plan.note


def _one_sample_of(load):
    def loaded(spec, n=None, seed=0):
        assert n == 1, "data were read"
        return load(spec, n, seed)

    return loaded


class TestMemory:
    @pytest.fixture(autouse=True)
    def twenty_gigabytes(self, monkeypatch):
        monkeypatch.setattr(_memory, "_available_host_bytes", lambda: 20 * 10**9)

    def test_the_direct_solver_is_refused_before_data_are_read(self, monkeypatch, ended):
        monkeypatch.setattr(data, "load", lambda *_: pytest.fail("data were read"))
        message = ended("cafe_scale", "--num-samples", "200000", "--linear-solver", "direct", "--data", "mnist")
        assert "needs about 640 GB, 20 GB are free; --linear-solver matrix_free" in message

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--model", "resnet10", "--width", "1000000"), r"GB, 20 GB are free; --width \(now 1000000\) lowers it"),
            (("--model", "resnet18", "--batch-size", "4096"), r"GB, .*; --batch-size \(now 4096\) lowers it"),
            (("--restarts", "1000000"), r"GB, .*; --microbatch \(now 1000000\) lowers it"),
            (("--local-steps", "1000000"), r"GB, .*; --local-steps \(now 1000000\) lowers it"),
        ],
    )
    def test_an_inversion_that_cannot_fit_is_refused_from_its_shapes(self, options, message, monkeypatch, ended):
        monkeypatch.setattr(invert_run, "victim", lambda *_: pytest.fail("data were read"))
        assert re.search(message, ended("invert", *options))

    def test_a_study_of_which_no_attack_fits_is_refused_before_it_writes(self, monkeypatch, ended, tmp_path):
        monkeypatch.setattr(data, "load", _one_sample_of(data.load))
        options = ("--study", "fedleak-fig4", "--model", "resnet18", "--width", "1000000", "--out", "out")
        assert re.search(r"GB, 20 GB are free; --width \(now 1000000\) lowers it", ended("defenses", *options))
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_what_runs_is_not_refused(self, monkeypatch):
        """The memory bound of the check is below the need of the attack that XLA reports after compilation."""
        needs, bounds = [], []
        measured = _memory._needed_bytes
        monkeypatch.setattr(_memory, "_needed_bytes", lambda compiled: needs.append(measured(compiled)))
        monkeypatch.setattr(inversion_size.audit, "require_bytes", lambda need, *_: bounds.append(need))
        case = Case(attack="sapag", model="mlp", data="digits", batch_size=64, iterations=1)
        inversion_size.require_memory_of_update(case)
        attack(case, 0)
        weights, payload = 2 * [bounds[0] / inversion_size.PARAMETER_COPIES]  # present when the attack begins
        assert 0 < bounds[0] < bounds[1] < weights + payload + needs[0]

    @pytest.mark.parametrize("spec", ["natural_patches", "photographs"])
    def test_more_crops_than_fit_are_refused(self, spec):
        with pytest.raises(MemoryError, match=r"307 GB, 20 GB are free; 20000000 samples"):
            data.load(spec, 20_000_000)

    def test_images_that_are_too_large_are_refused(self, ended, tmp_path):
        (tmp_path / "images" / "a").mkdir(parents=True)
        (tmp_path / "images" / "a" / "0.png").write_bytes(b"")
        message = ended("invert", "--data", f"folder:{tmp_path / 'images'}?size=99999", "--out", "out")
        assert "makes 1 images of 99999 x 99999: take a smaller size" in message


class TestWords:
    @pytest.mark.parametrize("error", [MemoryError(), OSError(), ValueError(), ValueError(" \n")])
    def test_no_message_is_empty(self, error, monkeypatch, ended):
        def fail(_):
            raise error

        monkeypatch.setattr(invert, "main", fail)
        assert len(ended("invert").split()) > 3

    def test_an_unknown_defense_is_said_to_be_unknown(self, ended):
        assert "defense must be FILE.py:NAME of your own or one of soteria, " in ended("invert", "--defense", "nosuch")

    def test_the_current_folder_is_not_filled(self, ended, tmp_path):
        for out in ("", "."):
            assert "--out must name a folder of its own" in ended("invert", "--data", "digits", "--out", out)
        assert "--out must name a folder of its own" in ended("reproduce", "--budget", "0", "--out", "")
        (tmp_path / "runs.jsonl").write_text("{}")
        with pytest.raises(ValueError, match="--out must name a folder of its own"):
            sweep.main(sweep.Args(tmp_path / "runs.jsonl", out=type(tmp_path)("")))
        assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]

    def test_the_payload_is_named_as_it_is_written(self, tmp_path, ended):
        assert "--save-payload must name a file" in ended("invert", "--save-payload", str(tmp_path))
        written = captured.save_payload(tmp_path / "update.v1", {"kernel": np.ones(3)})
        assert written.name == "update.v1.npz"
        assert [path.name for path in tmp_path.iterdir()] == [written.name]


class TestAStartThatFails:
    def test_leaves_the_folder_as_it_was(self, tmp_path, ended, monkeypatch):
        def fail(args):
            folder = RunFolder(args.out, "invert", {"new": True}, fresh=args.fresh)
            Checkpoints(folder.checkpoints, {"new": args.fresh}, fresh=args.fresh)
            (folder.path / "cells").mkdir()
            raise ValueError("something is wrong")

        monkeypatch.setattr(invert, "main", fail)
        out = tmp_path / "runs" / "out"
        ended("invert", "--out", str(out))
        assert not list(tmp_path.iterdir())
        old = RunFolder(out, "invert", {"new": False}, fresh=False)
        old.log(round=1)
        old.finish({"psnr": 1.0})
        Checkpoints(old.checkpoints, {"new": False}).save(1, {"x": np.ones(3)})

        def content():
            return {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name[0] != "."}

        before = content()
        ended("invert", "--out", str(out), "--fresh")
        assert content() == before

    def test_keeps_what_it_had_begun(self, tmp_path, ended, monkeypatch):
        def fail(args):
            RunFolder(args.out, "invert", {}, fresh=False).log(round=1)
            raise ValueError("something is wrong")

        monkeypatch.setattr(invert, "main", fail)
        ended("invert", "--out", str(tmp_path / "out"))
        assert (tmp_path / "out" / "metrics.jsonl").read_text() == '{"round": 1}\n'


def test_a_reader_that_goes_away_does_not_end_a_run(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        _streams.outlive_readers()
        print("first line", flush=True)
        os.close(reading)
        for _ in range(3):
            print("x" * 10_000, flush=True)
        Console().print("a table")
        sys.stdout.flush()
