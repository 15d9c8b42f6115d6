"""How long a stage of an audit took, and how much of it was compiling, which a second run of it would not repeat."""

import functools
import time
import weakref

import jax

#: What JAX reports of a program before it can run. Reading a program that was kept is part of the last.
_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
}


class Stopwatch:
    """Runs from the moment at which it is made."""

    def __init__(self) -> None:
        """Start to count."""
        self._begin = time.monotonic()
        self._spans: list[tuple[float, float]] = []  # apart from each other, in order
        _listen_to_jax()
        _running.add(self)

    @property
    def spent(self) -> dict[str, float]:
        """`seconds` since the beginning, and of them those of `compiling`.

        These are the seconds in which JAX traced or compiled a program of this process, or read one that was kept.
        """
        compiling = sum(end - begin for begin, end in self._spans)
        return {"seconds": time.monotonic() - self._begin, "compiling": compiling}

    def add(self, begin: float, end: float) -> None:
        """Count a span of compiling that ends last of all so far; what overlaps it is counted once.

        A function that is traced inside of another one is reported before it, and both with all their time.

        Args:
            begin: when it began, by `time.monotonic()`; what lies before the beginning of this watch is left out.
            end: when it ended.
        """
        begin = max(begin, self._begin)
        while self._spans and self._spans[-1][1] > begin:
            begin = min(begin, self._spans.pop()[0])
        self._spans.append((begin, end))


_running: weakref.WeakSet[Stopwatch] = weakref.WeakSet()


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    if event in _EVENTS:
        now = time.monotonic()
        for watch in tuple(_running):
            watch.add(now - duration_secs, now)


@functools.cache  # once for a process, and only in one that measures: a listener is every JAX program's
def _listen_to_jax() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)
