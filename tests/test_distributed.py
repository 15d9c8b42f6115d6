"""CAFE on several devices and in several processes: the single-process result within float tolerance."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax._src import distributed as jax_distributed
from jax._src.clusters.k8s_cluster import K8sCluster
from jax.sharding import AxisType

from experiments import cafe_scale
from jaxleak import _mesh, attacks, audit, models, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks import aggregated
from jaxleak.attacks._cafe import least_squares
from jaxleak.study import distributed
from jaxleak.study.distributed import Devices

ROOT = Path(__file__).parent.parent
N, K, P = 24, 6, 2
MODEL = models.frozen_features(models.all_dense((8,), parties=P, num_classes=3, width=16, hidden=8))
PRIVATE = Batch(
    jax.random.uniform(jax.random.key(1), (N, P, 8)), jax.random.randint(jax.random.key(2), (N,), 0, 3), jnp.arange(N)
)
STUDY = ["--data", "digits", "--num-samples", "24", "--batch-size", "6", "--images", "24"]

#: Collective operations in a compiled program, with the shape of the moved array.
COLLECTIVE = re.compile(
    r"= \(?(\w+\[[\d,]*\]).* (?:all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def _plan(solver="matrix_free", model=MODEL):
    return attacks.plan_cafe_exact(model, num_samples=N, batch_size=K, solver=solver)


def _recover(mesh):
    plan = _plan()
    attack, private = attacks.cafe_exact(MODEL, plan, invert=False, mesh=mesh), PRIVATE
    protocol = protocols.vertical(MODEL, num_samples=N, batch_size=K)
    state = audit.start(attack, protocol, private, key=jax.random.key(0))
    if mesh is not None:
        tables, private = aggregated.shard_cafe(MODEL, plan, state.attack, private, mesh)
        state = _mesh.place(state._replace(attack=None), _mesh.replicated(mesh))._replace(attack=tables)
    state, _ = audit.run(
        attack,
        protocol,
        threats.FIRST_LAYER_ONLY,
        private,
        key=jax.random.key(0),
        rounds=plan.rounds,
        state=state,
        chunk=100,
    )
    return reference.recovered(attack, state.attack, state.protocol.params)


def _same_as_alone(shared):
    alone = _recover(None)
    np.testing.assert_allclose(shared.V, alone.V, atol=1e-6)
    np.testing.assert_allclose(shared.H, alone.H, atol=1e-5)
    np.testing.assert_array_equal(shared.labels, alone.labels)
    return shared


@pytest.mark.slow
def test_a_mesh_of_one_device_recovers_the_same():
    shared = _same_as_alone(_recover(_mesh.device_mesh(1)))
    np.testing.assert_array_equal(shared.answered, True)


def test_what_cannot_be_shared_out_is_refused():
    mesh = _mesh.device_mesh(1)
    plan = _plan("direct")
    state = attacks.cafe_exact(MODEL, plan).init(jax.random.key(0), audit.template_of(PRIVATE))
    with pytest.raises(ValueError, match="several devices need solver='matrix_free'"):
        aggregated.shard_cafe(MODEL, plan, state, PRIVATE, mesh)

    other = jax.make_mesh((1,), ("columns",))
    with pytest.raises(ValueError, match=r"single axis .devices., got the axes \('columns',\)"):
        aggregated.shard_cafe(MODEL, _plan(), state, PRIVATE, other)

    explicit = jax.make_mesh((1,), ("devices",), axis_types=(AxisType.Explicit,))
    with pytest.raises(ValueError, match=r"axis of type Auto.* got an explicit one"):
        aggregated.shard_cafe(MODEL, _plan(), state, PRIVATE, explicit)

    class Three:
        size, axis_names, axis_types = 3, ("devices",), (AxisType.Auto,)

    with pytest.raises(ValueError, match=r"must divide d1=8 and d2=16, .* divisors of 8 do; got 3"):
        aggregated.shard_cafe(MODEL, _plan(), state, PRIVATE, Three())
    with pytest.raises(ValueError, match=r"devices must be in \[1, \d+\], .* process 0 has, got 10000"):
        _mesh.device_mesh(10_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Devices(devices=0), "devices must be > 0, got 0"),
        (Devices(coordinator="localhost:1"), "--coordinator, --num-processes and --process-id go together"),
        (Devices(coordinator="localhost:1", num_processes=2, process_id=2), r"process_id must be in \[0, 1\], got 2"),
        (Devices(coordinator="localhost:1", num_processes=0, process_id=0), "num_processes must be > 0, got 0"),
        (
            Devices(distributed=True),
            "the processes cannot join: .*outside Slurm, Open MPI and Kubernetes, give --co",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        distributed.join_devices(options)


SLURM = {
    "SLURM_JOB_ID": "5000",
    "SLURM_STEP_NODELIST": "node[003-005],other",
    "SLURM_NTASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}


@pytest.fixture
def joined(monkeypatch):
    """JAX's state of the cluster that it joins; stubs prevent any connection."""
    state = jax_distributed.State()
    monkeypatch.setattr(jax_distributed._jax, "get_distributed_runtime_service", lambda *_, **__: "service")
    monkeypatch.setattr(jax_distributed._jax, "get_distributed_runtime_client", lambda *_, **__: mock.Mock())
    monkeypatch.setattr(jax_distributed.config, "update", lambda *_: None)  # which GPUs are visible
    monkeypatch.setattr(state, "initialize_preemption_sync_manager", lambda: None)
    monkeypatch.setattr(jax.distributed, "initialize", state.initialize)
    return state


@pytest.mark.parametrize(
    ("variables", "address", "processes", "number"),
    [(SLURM, "node003:62344", 3, 2), (OPEN_MPI, "10.96.0.1:62624", 4, 0)],
)
def test_schedulers_say_who_is_who(monkeypatch, joined, variables, address, processes, number):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    distributed._join_processes(Devices(distributed=True))
    assert (joined.coordinator_address, joined.num_processes, joined.process_id) == (address, processes, number)


def test_kubernetes_is_asked(monkeypatch, joined):
    """JAX's answers about the cluster are stubs, since there is no cluster here; the test covers their use."""
    answers = {
        "is_env_present": True,
        "get_coordinator_address": "job-0.service:55527",
        "get_process_count": 2,
        "get_process_id": 1,
        "get_local_process_id": None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(K8sCluster, name, lambda *_, answer=answer, **__: answer)
    distributed._join_processes(Devices(distributed=True))
    assert (joined.coordinator_address, joined.num_processes, joined.process_id) == ("job-0.service:55527", 2, 1)


def test_what_is_given_goes_before_what_a_scheduler_says(monkeypatch, joined):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    distributed._join_processes(Devices(coordinator="head:1234", num_processes=5, process_id=4))
    assert (joined.coordinator_address, joined.num_processes, joined.process_id) == ("head:1234", 5, 4)


def test_studies_that_use_one_device_say_so(tmp_path):
    with pytest.raises(ValueError, match="several devices share one run of --solver exact"):
        cafe_scale.main(cafe_scale.Args(solver="nested", out=tmp_path, where=Devices(devices=2)))


def _script(devices):
    """Run this file as a program with the given number of devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    done = subprocess.run(
        [sys.executable, __file__], cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_four_devices_recover_the_same_and_exchange_only_scalars_while_they_solve():
    _script(4)


def main():
    mesh = _mesh.device_mesh(4)
    _same_as_alone(_recover(mesh))
    whole, columns = _mesh.replicated(mesh), _mesh.divided(mesh, 3, axis=-1)
    batches = np.zeros((20, K), np.int32)
    step_1 = jax.jit(lambda b, g: least_squares.solve_output_gradients(b, g, N, direct=False))
    arguments = _mesh.place(batches, whole), _mesh.place(np.ones((20, P, 16), np.float32), columns)
    step_2 = least_squares._matrix_free_features
    more = (
        _mesh.place(batches, whole),
        _mesh.place(np.ones((N, P, 16), np.float32), whole),
        _mesh.place(np.ones((N, P, 8), np.float32), columns),
    )
    for program, inputs in ((step_1, arguments), (step_2, more)):
        moved = COLLECTIVE.findall(program.lower(*inputs).compile().as_text())
        assert set(moved) == {"f32[]"}, moved


def _metrics(out):
    return json.loads((out / "results.json").read_text())["metrics"]


@pytest.mark.slow
def test_two_processes_of_two_devices_recover_what_one_does(tmp_path):
    """The processes connect by loopback and gloo. A signal to one stops both, and the same command resumes both."""
    command = [sys.executable, "-m", "experiments.cafe_scale", *STUDY]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [*command, "--linear-solver", "matrix_free", "--out", one],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
    )
    for status in (143, 0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        joined = ["--devices", "2", "--coordinator", address, "--num-processes", "2", "--out", two]
        processes = [
            subprocess.Popen(
                [*command, *joined, "--process-id", str(i)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(2)
        ]
        if status:
            while "Step I:" not in processes[0].stderr.readline():
                assert processes[0].poll() is None
            processes[1].terminate()
        printed = [process.communicate() for process in processes]
        assert [process.returncode for process in processes] == [status, status], printed
        assert printed[1][0] == ""
    assert "results are in" in printed[0][0]
    lines = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "round" in line] == [25, 50, 64, 88]
    expected, found = _metrics(one), _metrics(two)
    for name in ("answered_fraction", "certified_fraction", "label_accuracy", "output_rank", "feature_rank"):
        assert found[name] == expected[name]
    assert found["feature_relative_error"] < 1e-6
    assert found["psnr_min"] > 100
    assert sorted(path.name for path in (two / "checkpoints" / "rounds" / "steps").iterdir()) == ["64", "88"]


if __name__ == "__main__":
    main()
