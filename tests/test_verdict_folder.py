"""The budget of an audit, the files in its folder, and the time that counts."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_updates import answer_of, pictures, sent_by

from jaxleak import audit, capture, models, protocols
from jaxleak._lock import FolderInUseError
from jaxleak.audit._verdict import search
from jaxleak.audit._verdict.judgement import told
from jaxleak.audit._verdict.stopwatch import Stopwatch
from jaxleak.audit._verdict.store import Store
from jaxleak.audit._verdict.update import _identity


@pytest.mark.slow
def test_a_search_stops_with_its_budget_and_goes_on(tmp_path, monkeypatch):
    model = models.convnet((4, 4, 1), 10, channels=(4,), strides=(1,))
    variables, _, gradient = sent_by(model, images=2)
    options = {"batch_size": 2, "out": tmp_path}
    shown = []
    done = lambda: [told[1] for told in shown if told[0].startswith("FedLeak") and told[1]]  # noqa: E731
    monkeypatch.setattr(Store, "left", property(lambda _: -1.0 if done() else 60.0))  # a budget that the test can end
    show = lambda *told: shown.append(told)  # noqa: E731
    first = audit.update(model, variables, gradient, show=show, **options)
    assert not first.answers[-1].finished
    assert 0 < done()[-1] == first.answers[-1].iterations < 400
    shown.clear()
    audit.update(model, variables, gradient, show=show, **options)
    assert done()[0] > first.answers[-1].iterations
    with pytest.raises(ValueError, match=r"another audit|other inputs \(seed\)"):
        audit.update(model, variables, gradient, minutes=1, seed=1, **options)


@pytest.mark.slow
def test_another_network_with_the_same_weights_is_another_audit(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    audit.update(model, variables, gradient, batch_size=1, out=tmp_path)
    smooth = models.mlp((4, 4, 1), 10, widths=(16, 8), activation="sigmoid")
    # The gradient of this network would differ; the test covers one that happens to be equal.
    share = protocols.ClientShare(smooth)
    identity = _identity(share, variables, gradient, capture.Facts(batch_size=1), 0)
    with pytest.raises(ValueError, match=r"other inputs \(network\).*--fresh"):
        Store(tmp_path, identity, 1.0)
    Store(tmp_path, identity, 1.0, fresh=True)


def test_another_input_is_another_audit(perceptron):
    model, variables, _, gradient = perceptron
    share, facts = protocols.ClientShare(model), capture.Facts(batch_size=1)
    twice = lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree)  # noqa: E731
    first = _identity(share, variables, gradient, facts, 0)
    for given, differing in (
        ((twice(variables), gradient, facts, 0), {"weights", "network"}),
        ((variables, twice(gradient), facts, 0), {"update"}),
        ((variables, gradient, capture.Facts(batch_size=1, momentum=0.5), 0), {"client"}),
        ((variables, gradient, facts, 1), {"seed"}),
    ):
        other = _identity(share, *given)
        assert {name for name in other if other[name] != first.get(name)} == differing


def test_damaged_files_of_an_audit_are_named_and_can_be_started_afresh(tmp_path):
    notes, fields = tmp_path / "audit.json", {"attack": "peeling", "misfit": 0.5, "cosine_distance": 0.5}
    good = {"identity": {"seed": 0}, "seconds": 1.0, "answers": {"peeling": fields}}
    for damage in (
        "",
        "[1]",
        json.dumps(good | {"seconds": -1}),
        json.dumps(good | {"seconds": "long"}),
        json.dumps(good | {"answers": {"peeling": 3}}),
        json.dumps(good | {"answers": {"peeling": fields | {"misfit": "nan"}}}),
        json.dumps({"seconds": 1, "answers": {}}),
    ):
        notes.write_text(damage)
        with pytest.raises(ValueError, match=r"audit.json is damaged .*--fresh"):
            Store(tmp_path, {"seed": 0}, 1.0)
        assert Store(tmp_path, {"seed": 0}, 1.0, fresh=True).answer("peeling") is None
    notes.write_text(json.dumps(good))
    x, y = pictures(2), np.zeros(2, int)
    np.savez(tmp_path / "good.npz", x=x, y=y)
    np.savez(tmp_path / "short.npz", x=x, y=y[:1])
    np.savez(tmp_path / "without.npz", x=x)
    whole = (tmp_path / "good.npz").read_bytes()
    damaged = [
        b"",
        b"PK",
        whole[: len(whole) // 2],
        *((tmp_path / f"{n}.npz").read_bytes() for n in ("short", "without")),
    ]
    for damage in damaged:
        (tmp_path / "peeling.npz").write_bytes(damage)
        with pytest.raises(ValueError, match=r"peeling.npz is damaged .*--fresh"):
            Store(tmp_path, {"seed": 0}, 1.0).answer("peeling")
    (tmp_path / "peeling.npz").write_bytes(whole)
    assert Store(tmp_path, {"seed": 0}, 1.0).answer("peeling").misfit == 0.5


def test_images_of_another_audit_are_no_answer_of_this_one(tmp_path):
    answer = answer_of("peeling")
    for folder in ("a", "b"):
        Store(tmp_path / folder, {"seed": 0}, 1.0).keep("peeling", answer)
    (tmp_path / "b" / "peeling.npz").write_bytes((tmp_path / "a" / "peeling.npz").read_bytes())
    np.testing.assert_array_equal(Store(tmp_path / "b", {"seed": 0}, 1.0).answer("peeling").x, answer.x)
    Store(tmp_path / "a", {"seed": 0}, 1.0).keep("peeling", answer._replace(x=1 - answer.x))
    (tmp_path / "b" / "peeling.npz").write_bytes((tmp_path / "a" / "peeling.npz").read_bytes())
    with pytest.raises(ValueError, match=r"peeling.npz is damaged \(it is not the file .*--fresh"):
        Store(tmp_path / "b", {"seed": 0}, 1.0).answer("peeling")


def test_a_default_that_is_stated_is_the_same_client(perceptron, tmp_path, monkeypatch):
    model, variables, _, gradient = perceptron
    options = {"batch_size": 1, "minutes": 1e-4, "out": tmp_path}
    audit.update(model, variables, gradient, **options)
    taken = {"reduction": "mean", "local_steps": 1, "momentum": 0.0, "batch_norm": "train", "framework": "jax"}
    audit.update(model, variables, gradient, **options, **taken)
    with pytest.raises(ValueError, match=r"holds an audit of other inputs \(client\)"):
        audit.update(model, variables, gradient, **options, defense="other")
    # An audit with certificates of earlier rules is not continued.
    monkeypatch.setattr(sys.modules["jaxleak.audit._verdict.update"], "_RULES", 10**9)
    with pytest.raises(ValueError, match=r"holds an audit of other inputs \(rules\)"):
        audit.update(model, variables, gradient, **options)


def test_inconsistent_inputs_do_not_take_the_place_of_an_audit(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    audit.update(model, variables, gradient, batch_size=1, minutes=1e-4, out=tmp_path)
    lacking = {name: leaf for name, leaf in gradient.items() if name != "dense_0"}
    for sent, why in ((lacking, "names and shapes"), (jax.tree.map(jnp.negative, gradient), "sign of absent classes")):
        options = {"batch_size": 1, "minutes": 1e-4}
        assert audit.update(model, variables, sent, **options).verdict == "inputs inconsistent"
        with pytest.raises(ValueError, match=rf"holds an audit of other inputs, and these are .*{why}.*--fresh"):
            audit.update(model, variables, sent, **options, out=tmp_path)
        assert (
            audit.update(model, variables, sent, **options, out=tmp_path, fresh=True).verdict == "inputs inconsistent"
        )


def test_an_audit_locks_its_folder(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    code = "import sys, time; from pathlib import Path; from jaxleak._lock import lock_folder\n"
    code += "lock = lock_folder(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"locked\n"
            with pytest.raises(FolderInUseError, match=f"in use by process {other.pid}"):
                audit.update(model, variables, gradient, batch_size=1, out=tmp_path)
        finally:
            other.kill()


def test_the_budget_is_over_before_an_attack_where_checks_and_compiling_have_spent_it(perceptron):
    model, variables, _, _ = perceptron
    variables, _, gradient = sent_by(model, images=2)
    late = time.monotonic() - 60
    verdict = audit.update(model, variables, gradient, batch_size=2, minutes=0.9, since=late)
    assert not verdict.answers
    assert any(reason.startswith("No time was left for") for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("gradient", "left", "chunk"),
    # Two starts take four gradients each, and a chunk takes less than a quarter of the remaining time.
    [(0.01, 16.1, 50), (0.01, 16.0, 10), (0.01, 3.21, 10), (0.01, 3.2, 2), (0.01, 0.65, 2), (0.01, 0.1, 2)],
)
def test_a_search_looks_at_the_clock_in_time(monkeypatch, gradient, left, chunk):
    clock = [0.0]

    def misfits(*_):
        clock[0] += gradient
        return jnp.zeros(2)

    monkeypatch.setattr(search, "misfits", misfits)
    monkeypatch.setattr(search.time, "monotonic", lambda: clock[0])
    share = SimpleNamespace(model=SimpleNamespace(image_shape=(2, 2, 1)))
    seen = SimpleNamespace(params=None, payload=None)
    store = SimpleNamespace(left=left)
    case = SimpleNamespace(share=share, received=None, observation=seen, samples=1, store=store)
    assert search._chunk(case) == chunk


def test_spans_of_compiling_that_overlap_are_counted_once():
    watch = Stopwatch()
    now = time.monotonic()
    for begin, end in ((1, 2), (3, 4), (2.5, 5), (4.5, 6), (7, 8)):
        watch.add(now + begin, now + end)
    assert watch.spent["compiling"] == pytest.approx(1 + 3.5 + 1)
    late = Stopwatch()
    late.add(late._begin - 9, late._begin + 1)  # time before the start does not count
    assert late.spent["compiling"] == pytest.approx(1)


def test_a_program_is_compiled_at_its_first_call_alone():
    inner = jax.jit(lambda x: jnp.linalg.svd(x, compute_uv=False))
    program = jax.jit(lambda x: jax.lax.scan(lambda y, _: (y * inner(y).sum(), None), x, None, length=2)[0])
    x = jnp.ones((3, 3))
    seconds = []
    for _ in range(2):
        watch = Stopwatch()
        jax.block_until_ready(program(x))
        seconds.append(watch.spent)
    assert 0 < seconds[0]["compiling"] <= seconds[0]["seconds"]
    assert seconds[1]["compiling"] == 0


@pytest.mark.slow
def test_verdict_and_report_say_what_compiling_took(perceptron, tmp_path):
    model, variables, _, gradient = perceptron
    jax.clear_caches()
    verdict = audit.update(model, variables, gradient, batch_size=1)
    (answer,) = verdict.answers
    assert 0 < answer.compiling <= answer.seconds
    sentence = told(answer._replace(seconds=12.0, compiling=7.0))
    assert "(12 s, 7 of them compiling)" in sentence
    assert "compiling" not in told(answer._replace(compiling=0.0))
    verdict = verdict._replace(answers=(answer._replace(seconds=12.0, compiling=7.0),))
    report = audit.write_report(tmp_path / "report.html", verdict, {}).read_text()
    assert "<th>Of them compiling</th>" in report
    assert "<td>12</td><td>7</td>" in report
