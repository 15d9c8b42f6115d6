"""Fixtures with the PyTorch code of the comparison, if PyTorch is installed; and facts that timings depend on."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

# The CPU counts as two devices, for tests in which devices share restarts. Everything else runs on the first device,
# with threads that may use all cores.
jax.config.update("jax_num_cpu_devices", 2)


#: Files that `make bench` writes while it runs, excluded from git's status.
WRITTEN = (":!README.md", ":!results.json", ":!summary.json")


def pytest_benchmark_update_machine_info(config, machine_info):
    """Add facts about the machine for `benchmarks.report`; called when results are stored, after the tests."""
    del config
    versions, threads = {"Python": platform.python_version()}, {"cores": os.cpu_count()}
    versions |= {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    threads["JAX devices"] = jax.device_count()
    if importlib.util.find_spec("torch"):
        from benchmarks import peers

        versions["torch"], threads["PyTorch threads"] = peers.torch.__version__, peers.torch.get_num_threads()
    machine_info["jaxleak"] = {
        "device": jax.devices()[0].device_kind,
        "commit": _git("rev-parse", "--short", "HEAD") + (" and changes" if _git("status", "-s", *WRITTEN) else ""),
        "versions": versions,
        "threads": threads,
    }


def _git(*arguments):
    """The answer of git; empty outside of a clone."""
    here = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="session")
def peers():
    """The module `benchmarks.peers`; the test is skipped without PyTorch."""
    pytest.importorskip("torch", reason="needs torch")
    from benchmarks import peers

    return peers


@pytest.fixture(scope="session")
def compiler():
    """Skip a test if there is no C++ compiler, which torch.compile needs on CPU."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("torch.compile needs a C++ compiler")
