"""Runs that are killed or stopped at random moments and then continue must end with the same bits."""

import functools
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_studies import left_by

ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("JAXLEAK_KILLS", "50"))
#: Options by module for a run of seconds that writes several checkpoints.
STUDIES = {
    "cafe_scale": ["--data", "digits", "--num-samples", "24", "--batch-size", "6", "--images", "24"],
    "invert": ["--data", "digits", "--model", "mlp", "--restarts", "2", "--seeds", "0", "1", "--iterations", "800"],
}


def _command(out, study="cafe_scale"):
    return [sys.executable, "-m", f"experiments.{study}", *STUDIES[study], "--out", str(out)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment of processes that share compiled programs."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0", **cache}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, environment):
    """A function of a study: the folder of an uninterrupted run, and its CPU seconds without compilation."""

    @functools.cache
    def of(study):
        out = tmp_path_factory.mktemp("whole")
        for options in ([], ["--fresh"]):
            begin = _children_seconds()
            command = [*_command(out, study), *options]
            subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        return out, _children_seconds() - begin

    return of


def _children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_seconds(process):
    """CPU seconds of a running process, which do not depend on how busy the machine is."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("study", STUDIES)
def test_runs_killed_at_random_moments_end_with_the_same_bits(whole, environment, tmp_path, study):
    """Runs get `JAXLEAK_KILLS` times kill -9. A run that ends before its kill is compared, and a new one begins."""
    undisturbed, duration = whole(study)
    expected = left_by(undisturbed)
    moments, killed, runs = random.Random(0), 0, 0
    while killed < KILLS:
        out, status = tmp_path / str(runs), None
        while status != 0:
            moment = moments.uniform(0, duration) if killed < KILLS else math.inf
            with (tmp_path / "stderr").open("w") as errors:
                process = subprocess.Popen(
                    _command(out, study), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors
                )
            while process.poll() is None and _cpu_seconds(process) < moment:
                time.sleep(0.02)
            process.kill()
            status = process.wait()
            assert status in (0, -signal.SIGKILL), (tmp_path / "stderr").read_text()
            killed += status != 0
        assert left_by(out) == expected, f"run {runs}"
        runs += 1
        print(f"{study}: {killed} kills, {runs} runs of {duration:.1f} CPU seconds: all bits equal", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_keeps_others_out_meanwhile_and_continues(whole, environment, tmp_path, number):
    out, running = tmp_path / "out", {"cwd": ROOT, "env": environment, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*_command(out), "--fresh"], stdout=subprocess.DEVNULL, **running)
    while "Step I:" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)  # else it may end before the second starts
    second = subprocess.run(_command(out), stdout=subprocess.DEVNULL, check=False, **running)
    assert second.returncode == 1
    assert f"error: {out} is in use by process {process.pid} on " in second.stderr
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    command = errors.splitlines()[-1].strip()
    assert command == f"python -m experiments.cafe_scale {' '.join(STUDIES['cafe_scale'])} --out {out}"
    subprocess.run([sys.executable, *command.split()[1:]], stdout=subprocess.DEVNULL, check=True, **running)
    assert left_by(out) == left_by(whole("cafe_scale")[0])
