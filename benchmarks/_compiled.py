"""Count what a call compiles, since an eager step that compiles its loops at every call is slow for that alone."""

import contextlib
from collections.abc import Iterator

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_counts: list[list[float]] = []


def _listen(event: str, seconds: float, **_: object) -> None:
    if event == _EVENT:
        for seen in _counts:
            seen.append(seconds)


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def compilations() -> Iterator[list[float]]:
    """Give a list that gets the seconds of every compilation inside the block."""
    seconds: list[float] = []
    _counts.append(seconds)
    try:
        yield seconds
    finally:
        _counts.remove(seconds)
