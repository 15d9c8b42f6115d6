"""Silence Orbax's own reports, since an exception says in one line what is wrong."""

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Orbax from printing its own tracebacks in addition to the exception that it raises.

    Orbax gives up at the first array that cannot be read or written, and closes its event loop while TensorStore still
    works on other arrays. Each of TensorStore's threads then reports a closed loop, and asyncio reports that nobody
    retrieved the errors of the other arrays. Both are consequences of the first error.
    """
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    hook = sys.unraisablehook
    if hook is not _without_late_threads:
        _without_late_threads.shown_by = hook
        sys.unraisablehook = _without_late_threads
    logging.getLogger("asyncio").addFilter(_not_of_orbax)  # adding it again changes nothing
    try:
        yield
        # After a failure the hook and the filter stay, since threads that still work end later.
        sys.unraisablehook = hook
        if hook is not _without_late_threads:
            logging.getLogger("asyncio").removeFilter(_not_of_orbax)
    finally:
        logger.setLevel(before)


class _LateThreads:
    """An unraisable hook that leaves out threads' reports of a closed event loop."""

    shown_by = staticmethod(sys.__unraisablehook__)

    def __call__(self, unraisable: "sys.UnraisableHookArgs") -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self.shown_by(unraisable)


def _not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether to show a log record: records of errors in Orbax' code that nobody retrieved are left out."""
    if record.exc_info is None or "was never retrieved" not in record.getMessage():
        return True
    return not any("orbax" in Path(frame.filename).parts for frame in traceback.extract_tb(record.exc_info[2]))


_without_late_threads = _LateThreads()
