"""Time a call only while nothing else loads the machine.

Under load a comparison means nothing: PyTorch's threads wait for each other at every operation, and one busy core slows
them down far more than XLA's. So every round waits until other processes are quiet, a round during which they were not
is spoiled and does not count, and what could not be timed in quiet is marked as loaded.
"""

import os
import time
from collections.abc import Callable

import jax
import psutil

from benchmarks._compiled import compilations

#: Cores in use by other processes up to which the machine counts as quiet.
QUIET = 0.08

#: Seconds that the machine must have been quiet before a round begins.
WINDOW = 0.5

#: Seconds of untimed calls before a timed one: threads that slept while the machine was watched wake up on one core,
#: and it takes the kernel that long to spread them. A call that is much longer than that needs none.
WAKING = 0.2

#: Seconds that a whole run of the benchmarks spends on waiting for quiet.
PATIENCE = float(os.environ.get("JAXLEAK_PATIENCE", "600"))

#: Share of this process's own use by which the two clocks below may disagree.
CLOCK_ERROR = 0.05

_waited = 0.0


class Load:
    """CPU use of other processes since this object was made; the kernel counts as one of them."""

    def __init__(self):
        """Start counting."""
        self._seconds, self._all, self._own = time.perf_counter(), _all_cpu_seconds(), _own_cpu_seconds()

    def quiet(self) -> bool:
        """Whether the other processes used less than `QUIET` cores so far."""
        seconds, own = time.perf_counter() - self._seconds, _own_cpu_seconds() - self._own
        others = _all_cpu_seconds() - self._all - own
        return others < QUIET * seconds + CLOCK_ERROR * own


def _all_cpu_seconds() -> float:
    times = psutil.cpu_times()
    # Guests are part of user time, and time stolen by other virtual machines is a load like any other.
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def wait() -> Load:
    """Return when the machine has been quiet for `WINDOW` seconds; after one window if the run's patience is used up.

    Returns:
        The load from the beginning of that window, so that a round much shorter than the clock's ticks can be judged.
    """
    global _waited
    while True:
        load = Load()
        time.sleep(WINDOW)
        if load.quiet() or _waited >= PATIENCE:
            return load
        _waited += WINDOW


def first_call(benchmark, call: Callable):
    """The call's result; its time, which includes compilation, is stored."""
    result, benchmark.extra_info["first_call_seconds"] = timed_first_call(call)
    return result


def timed_first_call(call: Callable) -> tuple:
    """The call's result and its seconds, compilation included."""
    # The reference that a test compares with may have compiled the same program.
    jax.clear_caches()
    wait()
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - start


def in_turns(calls: dict[str, Callable], rounds: int) -> dict[str, tuple[list[float], list[bool]]]:
    """Seconds of every call in `rounds` rounds, and which of them were spoiled; those come again, up to twice as many.

    A machine's speed changes by the minute, here by a fifth. Calls that are compared take turns.
    """
    taken: dict[str, tuple[list[float], list[bool]]] = {name: ([], []) for name in calls}
    for _ in range(2 * rounds):
        for name, call in calls.items():
            seconds, spoiled = taken[name]
            if spoiled.count(False) < rounds:
                load = wait()
                if not seconds or seconds[-1] < 10 * WAKING:
                    _wake(call)
                start = time.perf_counter()
                jax.block_until_ready(call())
                seconds.append(time.perf_counter() - start)
                spoiled.append(not load.quiet())
    return taken


def _wake(call: Callable) -> None:
    awake = time.perf_counter() + WAKING
    while time.perf_counter() < awake:
        jax.block_until_ready(call())


def store(
    benchmark, seconds: list[float], spoiled: list[bool], *, group: str, name: str, per_call: int, **columns
) -> None:
    """What `in_turns` measured, as the row of a test; the arguments after it are those of `measure`."""
    benchmark.group, benchmark.name = group, name
    benchmark.pedantic(lambda: None)
    if benchmark.stats is not None:  # None when timing is switched off
        benchmark.stats.stats.data.clear()
        for each in seconds:
            benchmark.stats.update(each)
    benchmark.extra_info.update(spoiled=spoiled, rounds_per_call=per_call, **columns)


def measure(
    benchmark, call: Callable, *, group: str, name: str, per_call: int = 1, rounds: int | None = None, **columns
) -> None:
    """Time a call, after `first_call`; the report's median is that of the rounds that were not spoiled.

    Args:
        benchmark: pytest-benchmark's fixture.
        call: what is timed, without arguments; waited for if it returns JAX arrays.
        group: the table.
        name: the row.
        per_call: iterations of an attack per call; the table shows seconds per iteration.
        rounds: how often, not counting spoiled ones; default: for about two seconds, between 3 and 7 times.
        **columns: further numbers of this row; `benchmarks.report` knows some by name, others become columns.
    """
    start = time.perf_counter()
    with compilations() as anew:
        jax.block_until_ready(call())
    duration = time.perf_counter() - start
    if anew:
        columns["programs compiled per step"] = len(anew) / per_call
        columns["seconds of it compiling"] = sum(anew) / per_call
    rounds = int(min(7, max(3, 2 / duration))) if rounds is None else rounds
    seconds, spoiled = in_turns({name: call}, rounds)[name]
    store(benchmark, seconds, spoiled, group=group, name=name, per_call=per_call, **columns)
