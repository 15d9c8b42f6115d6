"""How long a stage of an audit took, and how much of that was compiling, which a second run would not repeat."""

import functools
import time
import weakref

import jax

#: Events that JAX reports before a program can run. The last one includes reading the program from a cache.
_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
}


class Stopwatch:
    """A stopwatch that runs from the moment at which it is made."""

    def __init__(self) -> None:
        """Start to count."""
        self._begin = time.monotonic()
        self._spans: list[tuple[float, float]] = []  # apart from each other, in order
        _listen_to_jax()
        _running.add(self)

    @property
    def spent(self) -> dict[str, float]:
        """`seconds` since the beginning, and how many of them were spent on `compiling`.

        Compiling is the time in which JAX traced or compiled a program of this process, or read one from a cache.
        """
        compiling = sum(end - begin for begin, end in self._spans)
        return {"seconds": time.monotonic() - self._begin, "compiling": compiling}

    def add(self, begin: float, end: float) -> None:
        """Count a span of compiling that ends after all earlier spans; time in which spans overlap is counted once.

        JAX reports a function that is traced inside another one before the outer one, each with its full time.

        Args:
            begin: when the span began, by `time.monotonic()`; time before the start of this watch is left out.
            end: when the span ended.
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


@functools.cache  # once per process, and only if it measures: the listener hears all JAX programs
def _listen_to_jax() -> None:
    jax.monitoring.register_event_duration_secs_listener(_listen)
