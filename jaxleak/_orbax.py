"""Orbax without reports of its own, where an exception says in one line what is wrong."""

import contextlib
import logging
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Orbax from printing a traceback of its own, beside the exception that it raises.

    Orbax gives up at the first array that cannot be read or written, and closes its event loop while TensorStore still
    works on other arrays. Each of these threads then reports a closed loop, which is a consequence of the first error.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    hook = sys.unraisablehook
    if hook is not _without_late_threads:
        _without_late_threads.shown_by = hook
        sys.unraisablehook = _without_late_threads
    try:
        yield
        # After a failure the hook stays, since the threads that are still at work end later.
        sys.unraisablehook = hook
    finally:
        logger.setLevel(before)


class _LateThreads:
    """An unraisable hook that leaves out what threads report of a closed event loop."""

    shown_by = staticmethod(sys.__unraisablehook__)

    def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self.shown_by(unraisable)


_without_late_threads = _LateThreads()
