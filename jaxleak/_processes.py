"""Whether this process is one of several that run the same program; asked before JAX is imported, too.

JAX is imported where it is used: a process that has not imported it cannot have joined others.
"""

import sys

import numpy as np


def several_processes() -> bool:
    """Whether this process is one of several that run the same program."""
    if "jax" not in sys.modules:
        return False
    import jax

    # The first test does not start a backend, so options may still configure it.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_writer() -> bool:
    """Whether this process writes files and messages: the only one, or the first of several."""
    if not several_processes():
        return True
    import jax

    return jax.process_index() == 0


def any_process(condition: bool) -> bool:
    """Whether `condition` holds in any process; every process has to ask, and all get the same answer."""
    if not several_processes():
        return condition
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(condition)).any())
