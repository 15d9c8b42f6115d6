"""Shared parts of the fuzz tests: a tiny model, hostile numbers and names, and the definition of a clear error.

`make fuzz` tries more than ten thousand examples, different ones in every run, and prints how many it tried.
"""

import collections
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from jaxleak import _memory, audit, models, protocols
from jaxleak._base import Batch
from jaxleak.checkpoint import ConfigMismatchError

DEEP = settings.get_current_profile_name() == "deep"
TRIED: collections.Counter[str] = collections.Counter()

#: Errors that a user can act on. A TypeError, a KeyError or an error of XLA is a bug.
CLEAR = (ValueError, OSError, FloatingPointError, MemoryError, ConfigMismatchError)
UNCLEAR = ("XLA", "jaxlib", "Traceback", "<class", "object at 0x", "NoneType", "unpack")

SHAPE, CLASSES, B = (4, 4, 1), 3, 2
MODEL = models.mlp(SHAPE, CLASSES, widths=(5,), activation="sigmoid")
VARIABLES = jax.tree.map(np.asarray, jax.jit(MODEL.init)(jax.random.key(0)))
SHARE = protocols.ClientShare(MODEL)
TEMPLATE = audit.template_of(Batch(jnp.zeros((B, 1, *SHAPE)), jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32)))

FLOATS = st.floats() | st.sampled_from([0.0, -1.0, 1e-3, 1.0, 3.5e38, math.nan, math.inf])
INTEGERS = st.integers(-3, 60) | st.sampled_from([10**6, 2**31, 2**63, 10**30])
NAMES = st.text(max_size=8) | st.sampled_from(["iid", "auto", "direct", "given", "joint", "calibrated", "digits", ""])


def fuzz(examples, deep):
    """Settings: examples from a fixed seed by default, and many more, different in every run, with profile "deep"."""
    return settings(
        max_examples=deep if DEEP else examples,
        derandomize=not DEEP,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def few(options):
    """Changes of up to three options. With more, the first bad option would hide all others."""
    names = st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: options[name] for name in chosen}))


@pytest.fixture(autouse=True)
def nothing_is_unpickled(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Make requests for more than a gigabyte fail, so that no example fills this machine's memory."""
    monkeypatch.setattr(_memory, "_available_host_bytes", lambda: 10**9)


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    print(f"\nfuzz: {sum(TRIED.values())} examples tried so far, {dict(TRIED)}")


def clear(what, attempt, mentions=()):
    """The result of an attempt, or None after a clear error; any other error fails the test."""
    TRIED[what] += 1
    try:
        return attempt()
    except CLEAR as error:
        message = str(error)
        assert message.strip(), "an error without a message"
        assert not any(word in message for word in UNCLEAR), message
        assert all(word in message for word in mentions), message
        return None
