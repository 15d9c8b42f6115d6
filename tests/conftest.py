"""Settings of the whole suite; they must be made before jax is imported."""

import atexit
import gc
import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile

import hypothesis
import pytest

# Nearly all of the suite's time is compilation of tiny programs that run once or twice.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# No program that an earlier run of the suite compiled is used.
os.environ.setdefault("JAXLEAK_KEEP_COMPILED", "0")

# Each program is compiled once per run, for all tests, processes of pytest-xdist and commands that tests start. A
# program that another process is still writing looks damaged, and is compiled again.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jaxleak-tests-")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

# Commands that tests start reuse the bytecode of modules that earlier commands wrote.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Two devices, for tests of programs on several devices; everything else runs on the first.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

# The older code generator compiles a tiny program in two thirds of the time, and a second-order program in one piece
# takes a tenth less than in parts. An unknown flag would end the process, so this is for releases known to have both.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# Chosen by `--hypothesis-profile deep`, see `fuzzing.fuzz`.
hypothesis.settings.register_profile("deep")

# Traced programs are many small long-lived objects, and the garbage collector spends 5 % of the suite's time on them.
gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests that `slow_cases.txt` lists as slow, before `-m` selects tests."""
    here = pathlib.Path(__file__).parent
    listed = {line for line in (here / "slow_cases.txt").read_text().splitlines() if not line.startswith("#")}
    found = {f"{item.path.name}::{item.nodeid.partition('::')[2]}": item for item in items}
    for name in listed & found.keys():
        found[name].add_marker(pytest.mark.slow)
    whole = {item.path.name for item in items} if not any("::" in argument for argument in config.args) else set()
    if gone := sorted(name for name in listed - found.keys() if name.partition("::")[0] in whole):
        raise pytest.UsageError(f"slow_cases.txt lists tests that there are not: {', '.join(gone)}")


def pytest_collection_finish():
    """Exempt all imported objects from garbage collection, since they live to the end."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def forgotten():
    """Clear compiled programs after every file: few are shared, and a process that holds all is a seventh slower."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session")
def perceptron():
    """A small MLP, its weights, a batch of one image, and the gradient that a client sends for it."""
    import small_updates  # imports jax, which must not be imported before the settings above

    model = small_updates.perceptron()
    return model, *small_updates.sent_by(model)


@pytest.fixture(scope="session")
def plain():
    """A client of four images with a small ConvNet without normalisation."""
    from small_updates import Client

    return Client(batch_norm=False)


@pytest.fixture(scope="session")
def normalised():
    """A client of four images with a small ConvNet with batch normalisation."""
    from small_updates import Client

    return Client(batch_norm=True)
