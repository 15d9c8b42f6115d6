"""Runs that are stopped, started twice, short of disk or memory, or given numbers that are not finite."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import _memory, audit
from jaxleak._base import Attack, Batch, Observation, Protocol, Reconstruction
from jaxleak._lock import FolderInUseError, lock_folder
from jaxleak._replacing import replacing
from jaxleak.audit._restarts import trial_keys
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import Progress, RunFolder, StoppedBySignal, _programs, run_command

ROOT = Path(__file__).parent.parent
TREE = {"round": jnp.asarray(7, jnp.int32), "table": jnp.arange(4096.0).reshape(64, 64)}
START = jax.tree.map(jnp.zeros_like, TREE)
NOISE = {**TREE, "table": jax.random.normal(jax.random.key(0), (64, 64))}

#: A program that can write its first checkpoint to a folder but nothing later; it prints the error of each attempt.
FULL_DISK = """
import resource, sys
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder, plots
from tests.test_reliability import NOISE, TREE
folder = RunFolder(sys.argv[1], "study", {}, fresh=False)
saved = Checkpoints(folder.checkpoints, {})
with folder.phase("attack"):
    saved.save(1, TREE)
    folder.log(round=1)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
else:
    with open(folder.path / "ballast", "wb", buffering=0) as ballast:
        try:
            while ballast.write(bytes(512)):
                pass
        except OSError:
            pass

def checkpoint():
    with folder.phase("attack"):
        saved.save(2, NOISE)

def figure():
    plots.curves(folder.figure("distance.png"), {"seed 0": ([0, 1], [2, 1])}, xlabel="", ylabel="")

for attempt in (checkpoint, figure, lambda: folder.log(text="x" * 9000), lambda: folder.finish({"y" * 9000: 1.0})):
    try:
        attempt()
    except OSError as error:
        print(error)
"""

#: A program that logs a line and then has no room for its first checkpoint.
NO_ROOM = """
import resource, sys
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder
from tests.test_reliability import TREE
folder = RunFolder(sys.argv[1], "study", {}, fresh=False)
folder.log(round=1)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
try:
    Checkpoints(folder.checkpoints, {}).save(1, TREE)
except OSError as error:
    print(error)
"""


#: A save that fails while a thread of TensorStore still writes; the thread ends after the event loop was closed. Two
#: other writers failed before, and nothing reads their errors.
LATE_WRITER = """
import asyncio, gc, sys, time
import tensorstore
from jaxleak.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], {})
promise, writing = tensorstore.Promise.new()

async def wait():
    await writing

def failing(path):
    names = {}
    exec(compile(f"async def fail(): raise ValueError('raised in {path}')", path, "exec"), names)
    return names["fail"]()

async def give_up():
    task = asyncio.ensure_future(wait())
    for path in ("site-packages/orbax/serialization.py", "site-packages/another/serialization.py"):
        asyncio.ensure_future(failing(path))
    await asyncio.sleep(0)
    gc.collect()
    return task

def save(*_, **__):
    loop = asyncio.new_event_loop()
    checkpoints.task = loop.run_until_complete(give_up())
    loop.close()
    raise OSError("no room")

checkpoints._manager.save = save
try:
    checkpoints.save(1, {})
except OSError as error:
    print(error)
promise.set_result(1)
time.sleep(0.2)

class Late:
    def __del__(self):
        raise RuntimeError(sys.argv[2])

Late()
"""


#: A program that takes a folder's lock and is then refused.
FAILED_START = """
import pathlib, sys
from jaxleak._lock import lock_folder
folder = pathlib.Path(sys.argv[1])
lock = lock_folder(folder)
print(*sorted(path.name for path in folder.iterdir()))
raise RuntimeError("refused")
"""


@pytest.fixture
def small_disk(tmp_path, request):
    """A folder on a disk of a few kB (if this process may mount one), and the way to make the disk full.

    One checkpoint of `TREE` takes 90 kB, since Orbax writes some twenty files and each fills pages of 4 kB.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield disk / "run", "limit"
        return
    yield disk / "run", "ballast"
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def other_process(tmp_path):
    """Another process that holds the lock of a folder."""
    hold = "import sys, time, pathlib\nfrom jaxleak._lock import lock_folder\n"
    hold += "lock = lock_folder(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


class TestTwoRunsOnOneFolder:
    def test_the_second_is_refused_until_the_first_is_dead(self, tmp_path, other_process):
        busy = f"{tmp_path} is in use by process {other_process.pid} on "
        with pytest.raises(FolderInUseError, match=busy):
            RunFolder(tmp_path, "study", {}, fresh=True)
        with pytest.raises(FolderInUseError, match=busy):
            Checkpoints(tmp_path, {}, fresh=True)
        (tmp_path / ".lock.holder").write_text('{"pid": ')
        with pytest.raises(FolderInUseError, match=f"{tmp_path} is in use by another process; wait"):
            lock_folder(tmp_path)
        other_process.kill()
        other_process.wait()
        RunFolder(tmp_path, "study", {}, fresh=False)

    def test_one_process_may_open_a_folder_twice(self, tmp_path):
        assert lock_folder(tmp_path) is not None
        first = lock_folder(tmp_path)
        assert lock_folder(tmp_path / "..") is not first
        assert lock_folder(tmp_path / "." / "") is first

    def test_a_start_that_fails_leaves_no_lock(self, tmp_path):
        done = subprocess.run([sys.executable, "-c", FAILED_START, str(tmp_path)], capture_output=True, text=True)
        assert "RuntimeError: refused" in done.stderr
        assert done.stdout.split() == [".lock", ".lock.holder"]
        assert list(tmp_path.iterdir()) == []

    def test_starting_over_keeps_the_lock(self, tmp_path):
        first = Checkpoints(tmp_path, {})
        first.save(1, TREE)
        inode = (tmp_path / ".lock").stat().st_ino
        assert Checkpoints(tmp_path, {"other": 1}, fresh=True).latest_step() is None
        assert (tmp_path / ".lock").stat().st_ino == inode


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_waits_for_the_chunk_and_says_how_to_continue(self, number, capfd, monkeypatch):
        monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "experiments.invert", "--fresh", "--out", "a b"])
        before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        finished = []

        def run():
            with Progress() as progress:
                progress.update("Step", 1, 3)
                os.kill(os.getpid(), number)
                finished.append("chunk")
                progress.update("Step", 2, 3)
                finished.append("another chunk")

        with pytest.raises(StoppedBySignal) as stop:
            run()
        assert finished == ["chunk"]
        assert stop.value.code == 128 + number
        printed = capfd.readouterr().err
        assert f"{number.name}: stopping when this chunk is done" in printed
        assert "Continue with:\n  python -m experiments.invert --out 'a b'\n" in printed
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before

    def test_a_signal_after_the_last_update_is_not_forgotten(self, capfd):
        def run():
            with Progress() as progress:
                progress.update("Step", 3, 3)
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(StoppedBySignal):
            run()
        assert "SIGTERM: stopped" in capfd.readouterr().err

    def test_ctrl_c_outside_of_chunks_ends_with_the_same_message(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["study"])

        def interrupted(_):
            raise KeyboardInterrupt

        with pytest.raises(SystemExit) as stop:
            run_command(interrupted, Empty, "")
        assert stop.value.code == 130
        assert "Continue with:" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class Empty:
    """The options of a study without options."""


class TestFiles:
    def test_a_run_that_is_refused_before_it_works_leaves_the_configuration(self, tmp_path):
        def stored():
            return json.loads((tmp_path / "config.json").read_text())

        RunFolder(tmp_path, "study", {"seed": 0}, fresh=False).log(round=1)
        again = RunFolder(tmp_path, "study", {"seed": 1}, fresh=False)
        assert stored() == {"seed": 0}
        with again.phase("attack"):
            assert stored() == {"seed": 1}
        RunFolder(tmp_path, "study", {"seed": 2}, fresh=False).finish({})
        assert stored() == {"seed": 2}

    def test_a_line_written_by_half_is_dropped_on_reopening(self, tmp_path):
        folder = RunFolder(tmp_path, "study", {}, fresh=False)
        folder.log(round=1)
        folder.log(round=2)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"round": 3, "nor')
        again = RunFolder(tmp_path, "study", {}, fresh=False)
        again.log(round=3)
        again.keep_log_before(round=2)
        assert [json.loads(line)["round"] for line in (tmp_path / "metrics.jsonl").open()] == [1, 2]

    @pytest.mark.slow
    @pytest.mark.parametrize("small_disk", [256], indirect=True)  # room for two checkpoints, once the ballast is gone
    def test_a_full_disk_is_told_in_one_line_per_file_and_leaves_what_was_there(self, small_disk):
        """The disk is really full, or files temporarily may not grow beyond 8 kB, which gives the same errors.

        The test uses its own process: the limit holds for all threads of a process, and Orbax leaves writers behind
        that may complain at any later time that nothing waits for them.
        """
        out, how = small_disk
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(out), how], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        checkpoint, *others = done.stdout.splitlines()
        assert re.search(rf"cannot write checkpoint 2 to {out}/checkpoints: .*; checkpoint 1 stays valid$", checkpoint)
        for name, line in zip(("figures/distance.png", "metrics.jsonl", "results.json"), others, strict=True):
            assert line.startswith(f"cannot write {out / name}: ")
            assert line.endswith("; what was written before stays valid")
        (out / "ballast").unlink(missing_ok=True)
        assert not list(out.rglob("*.partial"))
        RunFolder(out, "study", {}, fresh=False).log(round=2)
        assert [json.loads(line)["round"] for line in (out / "metrics.jsonl").open()] == [1, 2]
        again = Checkpoints(out / "checkpoints", {})
        chex.assert_trees_all_equal(again.restore_latest(START), TREE)
        again.save(2, NOISE)
        chex.assert_trees_all_equal(Checkpoints(out / "checkpoints", {}).restore_latest(START), NOISE)
        assert sorted(path.name for path in (out / "checkpoints" / "steps").iterdir()) == ["1", "2"]

    @pytest.mark.slow
    @pytest.mark.parametrize("small_disk", [60], indirect=True)
    def test_a_full_disk_without_room_for_the_first_checkpoint_keeps_the_log(self, small_disk):
        out, how = small_disk
        done = subprocess.run([sys.executable, "-c", NO_ROOM, str(out), how], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        (line,) = done.stdout.splitlines()
        assert line.startswith(f"cannot write checkpoint 1 to {out}/checkpoints: ")
        assert line.endswith("; no earlier checkpoint exists")
        # Opening the folder again removes what Orbax left half written, and this makes room for the log.
        assert Checkpoints(out / "checkpoints", {}).latest_step() is None
        RunFolder(out, "study", {}, fresh=False).log(round=2)
        assert [json.loads(line)["round"] for line in (out / "metrics.jsonl").open()] == [1, 2]

    def test_threads_that_end_after_a_failed_save_print_nothing_and_other_errors_are_still_shown(self, tmp_path):
        argv = [sys.executable, "-c", LATE_WRITER, str(tmp_path), "another error"]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"cannot write checkpoint 1 to {tmp_path}: no room")
        assert "Event loop is closed" not in done.stderr
        assert "RuntimeError: another error" in done.stderr
        assert "raised in site-packages/orbax" not in done.stderr
        assert "ValueError: raised in site-packages/another" in done.stderr

    @pytest.mark.parametrize(
        ("cells", "status"),
        [
            (None, "complete"),
            ([{"seed": 0, "psnr": 20.0}], "complete"),
            ([{"not_run": "no data: mnist"}], "nothing was run"),
            ([{"not_run": "no data: mnist"}, {"ours": 20.0}], "complete"),
        ],
    )
    def test_the_status_says_whether_anything_ran(self, tmp_path, cells, status):
        path = RunFolder(tmp_path / "out", "study", {}, fresh=False).finish({}, cells=cells)
        assert json.loads(path.read_text())["status"] == status

    def test_a_read_only_folder_is_named_before_anything_is_computed_and_keeps_what_it_has(self):
        with _nobodys_folder() as folder:
            RunFolder(folder, "study", {}, fresh=False).log(round=1)
            Checkpoints(folder / "checkpoints", {}).save(1, TREE)
            for path in (folder, folder / "checkpoints", folder / "checkpoints" / "steps"):
                path.chmod(0o500)
            with pytest.raises(OSError, match="cannot be written"):
                RunFolder(folder, "study", {}, fresh=False)
            with pytest.raises(OSError, match=f"cannot write checkpoints to {folder}"):
                Checkpoints(folder / "checkpoints", {})
            for path in (folder, folder / "checkpoints", folder / "checkpoints" / "steps"):
                path.chmod(0o700)
            RunFolder(folder, "study", {}, fresh=False).log(round=2)
            rounds = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").open()]
            assert rounds == [1, 2]
            chex.assert_trees_all_equal(Checkpoints(folder / "checkpoints", {}).restore_latest(START), TREE)


@contextlib.contextmanager
def _nobodys_folder():
    """A folder of a user who must obey permissions; root need not, and so becomes another user meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid():
            yield Path(folder)
            return
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


class TestCompiledPrograms:
    @pytest.mark.slow
    def test_they_are_given_up_before_the_system_runs_out_of_maps(self, tmp_path, monkeypatch):
        monkeypatch.setattr(_programs, "_LIMIT", tmp_path / "max_map_count")
        double = jax.jit(lambda x: 2 * x)
        for limit, kept in ((10_000_000, 1), (2, 0)):
            (tmp_path / "max_map_count").write_text(str(limit))
            assert double(1.5) == 3
            with RunFolder(tmp_path / "run", "study", {}, fresh=False).phase("cell"):
                assert double._cache_size() == 1
            assert double._cache_size() == kept

    @pytest.mark.slow
    def test_maps_are_given_back(self):
        def used():
            return len(Path("/proc/self/maps").read_text().splitlines())

        before = used()
        for n in range(8):
            jax.jit(lambda x, n=n: jnp.cumsum(x) @ x + n)(jnp.ones(50 + n))
        between = used()
        assert between > before
        assert _programs.forget_when_many(share=0.0)
        assert used() < between

    def test_without_such_a_limit_nothing_happens(self, tmp_path, monkeypatch):
        monkeypatch.setattr(_programs, "_LIMIT", tmp_path / "missing")
        assert not _programs.forget_when_many(share=0.0)


def _halving(poison):
    """An attack that halves a number per step; from step 3 on, one trial (given by the payload) has loss `poison`."""

    def init(key, template):
        del template
        return {"x": jax.random.uniform(key), "frozen": jnp.zeros((), bool), "step": jnp.zeros((), jnp.int32)}

    def step(key, state, observation):
        del key
        bad = (state["step"] >= 3) & (observation.payload == state["x"] * 2.0 ** state["step"])
        loss = jnp.where(bad, poison, state["x"])
        frozen = state["frozen"] | bad
        x = jnp.where(frozen, state["x"], state["x"] / 2)
        return {"x": x, "frozen": frozen, "step": state["step"] + 1}, {"loss": loss, "frozen": frozen}

    def reconstruct(state, observation):
        del observation
        score = jnp.where(state["frozen"], jnp.nan, state["x"])
        return Reconstruction(state["x"][None, None], jnp.zeros(1, jnp.int32), score[None], jnp.ones(1, bool))

    return Attack(init, step, reconstruct)


def _invert(attack, payload=-1.0, **options):
    shown = Observation(jnp.zeros((), jnp.int32), payload=jnp.float32(payload))
    template = audit.template_of(Batch(jnp.zeros((1, 1)), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
    return audit.invert(attack, shown, template, key=jax.random.key(0), iterations=8, chunk=4, **options)


class TestNumbers:
    @pytest.mark.parametrize(
        ("poison", "cause"), [(np.nan, "its objective was nan"), (1.0, "the gradient of its objective was not finite")]
    )
    def test_one_trial_freezes_and_the_others_go_on(self, poison, cause, caplog):
        first = jax.random.uniform(trial_keys(jax.random.fold_in(jax.random.key(0), 2), 3)[1])
        found, run, infos = _invert(_halving(poison), first, restarts=3)
        np.testing.assert_array_equal(infos["frozen"].sum(axis=0), [0, 5, 0])
        whole, expected, _ = _invert(_halving(poison), restarts=3)
        for trial in (0, 2):
            assert run.attack["x"][trial] == expected.attack["x"][trial]
        assert found.x == min(expected.attack["x"][0], expected.attack["x"][2])
        assert np.isfinite(whole.x).all()
        assert caplog.messages == [f"trial 1 of 3 is frozen in iterations 3 to 7: {cause}; the others went on"]
        assert audit.frozen_trials({"loss": np.zeros(3)}) == []

    def test_nan_is_no_score(self):
        both = Reconstruction(
            jnp.arange(2.0).reshape(2, 1), jnp.zeros((2, 1)), jnp.array([[jnp.nan], [5.0]]), jnp.ones((2, 1))
        )
        assert audit.best_restart(both).x[0] == 1


class TestMemory:
    @pytest.mark.parametrize("executor", ["scan", "step"])
    def test_what_does_not_fit_is_refused_before_the_first_step(self, monkeypatch, executor):
        monkeypatch.setattr(_memory, "available_bytes", lambda device: 10)
        seen = []
        message = (
            r"out of memory: this needs about .* GB, 1e-08 GB are free; lower microbatch "
            r"\(now 2 of 3 restarts at once\)"
        )
        with pytest.raises(MemoryError, match=message):
            _invert(_halving(0.0), restarts=3, microbatch=2, executor=executor, callbacks=[seen.append])
        assert not seen
        with pytest.raises(MemoryError, match=r"fewer images at once \(batch_size\)"):
            _invert(_halving(0.0), executor=executor)

    def test_a_state_that_does_not_fit_is_refused_before_it_is_there(self):
        def init(key, template):
            return jnp.zeros((2**30, 2**20))

        attack = Attack(init, None, None)
        with pytest.raises(MemoryError, match=r"needs about 4.5e\+06 GB, .* free; attack fewer samples"):
            audit.start(
                attack, Protocol(None, None, None), Batch(jnp.zeros((1, 1)), jnp.zeros(1), jnp.zeros(1)),
                key=jax.random.key(0),
            )  # fmt: skip

    def test_an_allocation_that_fails_says_the_same(self):
        lowered = jax.jit(lambda x: x + 1).lower(jnp.zeros(3))

        def run(status):
            with _memory.within_memory(lowered, "lower restarts"):
                raise jax.errors.JaxRuntimeError(f"{status}: Out of memory allocating 1 bytes.")

        with pytest.raises(MemoryError, match=r"this needs about .* GB.*lower restarts"):
            run("RESOURCE_EXHAUSTED")
        with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
            run("INTERNAL")

    def test_free_memory_is_known_here(self):
        free = _memory.available_bytes(jax.devices("cpu")[0])
        assert free is None or 1e6 < free < 1e15


class TestReplacing:
    def test_a_file_is_replaced_at_the_end_and_stays_on_an_error(self, tmp_path):
        path = tmp_path / "some.txt"
        path.write_text("old")

        def fails():
            with replacing(path) as partial:
                partial.write_text("ne")
                raise OSError("no space")

        with pytest.raises(OSError, match="no space"):
            fails()
        assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
        with replacing(path) as partial:
            partial.write_text("new")
            assert path.read_text() == "old"
        assert [file.read_text() for file in tmp_path.iterdir()] == ["new"]
