"""Time a call only while nothing else loads the machine.

Under load a comparison means nothing: PyTorch's threads wait for each other at every operation, and one busy core slows
them down far more than XLA's. So every round waits until other processes are quiet. A round during which they were not
is spoiled and does not count. An entry that could not be timed in quiet is marked as loaded.
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

#: Seconds of untimed calls before a timed one. Threads that slept while the machine was watched wake up on one core,
#: and the kernel takes this long to spread them. A call that takes much longer needs no such calls.
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
    # User time includes guests. Time stolen by other virtual machines is a load like any other.
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def _own_cpu_seconds() -> float:
    times = psutil.Process().cpu_times()
    return times.user + times.system


def wait() -> Load:
    """Wait until the machine has been quiet for `WINDOW` seconds, or for one window if the patience is used up.

    Returns:
        The load from the beginning of that window, so that even a round much shorter than the clock's ticks can be
        judged.
    """
    global _waited
    while True:
        load = Load()
        time.sleep(WINDOW)
        if load.quiet() or _waited >= PATIENCE:
            return load
        _waited += WINDOW


def first_call(benchmark, call: Callable):
    """Make a first call and return its result; its seconds, compilation included, are stored."""
    result, benchmark.extra_info["first_call_seconds"] = timed_first_call(call)
    return result


def timed_first_call(call: Callable) -> tuple:
    """Make a first call; return its result and its seconds, compilation included."""
    # The reference of a test may have compiled the same program already.
    jax.clear_caches()
    wait()
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - start


def in_turns(calls: dict[str, Callable], rounds: int) -> dict[str, tuple[list[float], list[bool]]]:
    """Seconds of every call in `rounds` rounds, and which were spoiled; spoiled rounds are repeated, up to 2 `rounds`.

    A machine's speed changes by the minute, here by a fifth, so calls that are compared take turns.
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
    """Store what `in_turns` measured as the row of a test; the other arguments are those of `measure`."""
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
    """Time a call, after `first_call`; the report has the median of the rounds that were not spoiled.

    Args:
        benchmark: pytest-benchmark's fixture.
        call: the function that is timed, without arguments; if it returns JAX arrays, they are waited for.
        group: the table.
        name: the row.
        per_call: iterations of an attack per call; the table shows seconds per iteration.
        rounds: number of rounds that are not spoiled; default: enough for about two seconds, between 3 and 7.
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
