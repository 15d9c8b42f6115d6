"""The PyTorch code of the comparison, where PyTorch is installed."""

import shutil

import jax
import pytest

# Of the CPU's cores two make a device each where restarts are shared; everything else runs on the first device, whose
# threads may use all cores.
jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture(scope="session")
def peers():
    """`benchmarks.peers`."""
    pytest.importorskip("torch", reason="needs torch, of the extra jaxleak[bench]")
    from benchmarks import peers

    return peers


@pytest.fixture(scope="session")
def compiler():
    """Without one, torch.compile cannot run on CPU."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("torch.compile needs a C++ compiler")
