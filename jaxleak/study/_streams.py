"""Keep a run alive when the reader of its output goes away, as in `command | head`."""

import os
import sys
from typing import Any, TextIO


class _Outliving:
    """A text stream that turns to the null device once its reader has gone away."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._turn()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._turn()

    def _turn(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


def outlive_readers() -> None:
    """Let this process go on, and write its files, even if the reader of its printed output has gone away."""
    sys.stdout, sys.stderr = _Outliving(sys.stdout), _Outliving(sys.stderr)  # type: ignore[assignment]
