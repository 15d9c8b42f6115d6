"""How a study is a command: options from the command line, and errors that say in one line what to mend."""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jaxleak._compiled import keep_compiled
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study._folder import take_back_folders
from jaxleak.study._progress import stopped_message
from jaxleak.study._streams import outlive_readers

Arguments = TypeVar("Arguments")


def run_command(
    main: Callable[[Arguments], Any],
    arguments: type[Arguments],
    doc: str | None,
    *,
    name: str | None = None,
    words: Sequence[str] | None = None,
) -> None:
    """A study's main block: options from the command line, and one line instead of a traceback for what users can mend.

    Args:
        main: the study.
        arguments: the dataclass of its options.
        doc: what --help says.
        name: the command's name in its help; None takes that of the program that runs.
        words: the options as they are typed; None takes those of the command line.
    """
    import tyro

    outlive_readers()
    try:
        given = tyro.cli(arguments, prog=name, args=words, description=doc)
        keep_compiled()
        main(given)
    except KeyboardInterrupt:
        print(stopped_message("SIGINT"), file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except _MENDABLE as error:
        message = _message(error)
        if message is None:
            raise
        take_back_folders()
        sys.exit(f"error: {message}")


#: Errors that end a command with their message; any other is a bug, and shows where it happened.
_MENDABLE = (
    ValueError, OSError, FloatingPointError, MemoryError, ImportError, ConfigMismatchError, jax.errors.JaxRuntimeError,
)  # fmt: skip


def _message(error: Exception) -> str | None:
    """What is wrong, in words, also where the error has none; None for an error of XLA that no user can mend."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        if "RESOURCE_EXHAUSTED" not in str(error):
            return None
        error = MemoryError()
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory: what was asked for does not fit; take fewer or smaller images, or a smaller model"
    return str(error).strip() or f"{type(error).__name__}, about which nothing more is known"


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics, one per line."""
    width = max(map(len, metrics))
    for name, value in metrics.items():
        print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, (int, float)) else f"  {name:<{width}}  {value}")
