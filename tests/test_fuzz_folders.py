"""Hostile run folders and checkpoints: always a clear error or what was stored, and nothing is ever unpickled."""

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing import FLOATS, INTEGERS, NAMES, clear, fuzz, little_memory, nothing_is_unpickled, report  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st

from experiments import sweep
from experiments._fedleak import jobs
from experiments._fedleak.runs import UpdateJobs
from jaxleak.checkpoint import Checkpoints
from jaxleak.study import RunFolder
from jaxleak.study.runner import runner_in
from jaxleak.study.updates import Case

WORDS = NAMES | st.sampled_from(
    ["scores", "results", "arrays", "attack", "round", "psnr", "status", "metrics", "study", "options", "diverged"]
)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
#: Contents of files in a good folder; a bad folder may also hold them.
GOOD = [
    {"attack": 1.5},
    {"scores": {"psnr": 30.0}},
    {"scores": {"psnr": "nan"}, "arrays": []},
    {"scores": {"psnr": 1}, "arrays": ["truth"]},
    {"status": "complete", "metrics": {"psnr": 1.0}},
    {"study": "invert", "options": {}},
]
CONTENT = st.one_of(
    JSON.map(json.dumps).map(str.encode),
    st.lists(JSON.map(json.dumps), max_size=3).map("\n".join).map(str.encode),
    st.sampled_from(GOOD).map(json.dumps).map(str.encode),
    st.sampled_from(GOOD).map(lambda good: (json.dumps(good) + "\n").encode()),
    st.binary(max_size=30),
    st.sampled_from([b"[" * 100_000, b"", b"\n", b"NaN", b"1e999", b"\xff\xfe"]),
)
JOB = jobs.Job(Case(data="digits", model="mlp"), kind="parameters")
FILES = ("timing.json", "metrics.jsonl", "config.json", "results.json", ".lock", "line.json")


def _npz(scores):
    content = io.BytesIO()
    np.savez(content, **{name: np.zeros(2) for name in scores})
    return content.getvalue()


def _numbers(stored):
    return all(isinstance(value, float) for value in stored.values())


@fuzz(25, 1200)
@given(
    files=st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=4),
    cell=CONTENT,
    images=st.binary(max_size=40) | st.lists(st.sampled_from(["truth", "curve"]), unique=True).map(_npz),
    fresh=st.booleans(),
    limit=INTEGERS,
)
def test_run_folders(files, cell, images, fresh, limit):
    """Open a run folder with any contents of the files that a command reads, and continue as a command does."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        run = clear("run folders", lambda: RunFolder(folder, "study", {}, fresh=fresh))
        if run is not None:
            clear("logs", lambda: run.keep_log_before(round=limit))
            with run.phase("attack"):
                run.log(round=1)
            assert all(isinstance(value, float) for value in json.loads((folder / "timing.json").read_text()).values())
            run.finish({})
            runner = runner_in(run, UpdateJobs(run, fresh=False), fresh=False)
            runner.path(JOB, 0).write_bytes(cell)
            runner.path(JOB, 0).with_suffix(".npz").write_bytes(images)
            found = clear("finished cells", lambda: runner(JOB, 0), mentions=(str(folder),))
            assert found is None or _numbers(found.scores)
            assert found is None or all(isinstance(array, np.ndarray) for array in found.arrays.values())


@fuzz(25, 600)
@given(result=st.none() | CONTENT, line=st.none() | CONTENT, line_now=st.sampled_from(GOOD))
def test_merged_sweeps(result, line, line_now):
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        (Path(out) / "0").mkdir()
        for name, content in (("results.json", result), ("line.json", line)):
            if content is not None:
                (Path(out) / "0" / name).write_bytes(content)
        sweep_file = Path(out) / "runs.jsonl"
        sweep_file.write_text(json.dumps(line_now))
        clear("merges", lambda: sweep.main(sweep.Args(sweep_file, "merge", out=Path(out))))


TREES = [{"round": np.asarray(step), "table": np.arange(6.0).reshape(2, 3) * step} for step in range(3)]


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    saved = Checkpoints(folder, {"seed": 0})
    for step in (1, 2):
        saved.save(step, TREES[step])
    saved._manager.close()
    return folder


@fuzz(8, 250)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(["flip", "cut", "delete", "replace"]), CONTENT), max_size=3
    )
)
def test_checkpoints(two_checkpoints, changes):
    """After any checkpoint file is flipped, cut, deleted or replaced, one of the stored trees or none is restored."""
    with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(out) / "checkpoints"
        shutil.copytree(two_checkpoints, folder, ignore=shutil.ignore_patterns(".lock*"))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for number, how, content in changes:
            file = files[number % len(files)]
            if not file.exists():
                continue
            before = file.read_bytes()
            middle = len(before) // 2
            if how == "delete":
                file.unlink()
            elif how == "replace":
                file.write_bytes(content)
            elif how == "cut":
                file.write_bytes(before[:middle])
            else:
                file.write_bytes(before[:middle] + bytes([(*before, 0)[middle] ^ 255]) + before[middle + 1 :])

        def attempt():
            saved = Checkpoints(folder, {"seed": 0})
            try:
                return saved.restore_latest(TREES[0])
            finally:
                saved._manager.close()

        found = clear("checkpoints", attempt)
        if found is not None:
            assert any(np.array_equal(found["table"], tree["table"]) for tree in TREES)
            assert any(int(found["round"]) == int(tree["round"]) for tree in TREES)
        if not changes:
            assert int(found["round"]) == 2
