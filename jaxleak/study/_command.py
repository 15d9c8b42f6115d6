"""Running a study as a command: options from the command line, and errors that say in one line what to fix."""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxleak._near_names import near, unknown_option
from jaxleak.study._help import Groups, count_options, grouped, short_help, summary
from jaxleak.study._streams import outlive_readers

Arguments = TypeVar("Arguments")

#: With more options than this, --help says a few words about each option, and --help-verbose explains them.
MOST_OPTIONS_WITH_TEXT = 12


def run_command(
    main: Callable[[Arguments], Any],
    arguments: type[Arguments],
    doc: str | None,
    *,
    name: str | None = None,
    words: Sequence[str] | None = None,
    groups: Groups | None = None,
) -> None:
    """Run a study with options from the command line; an error that a user can fix is one line without a traceback.

    Args:
        main: function that runs the study.
        arguments: dataclass of the study's options.
        doc: text of --help.
        name: the command's name in its help; None takes the name of the running program.
        words: the options as they are typed; None takes those of the command line.
        groups: how --help sorts the options, see `jaxleak.study._help.short_help`.
    """
    import tyro

    outlive_readers()
    try:
        typed = sys.argv[1:] if words is None else list(words)
        whole = not {"-H", "--help-verbose"}.isdisjoint(typed)
        many = count_options(arguments) > MOST_OPTIONS_WITH_TEXT
        if {"-h", "--help"} & set(typed) and many:
            print(short_help(name or _started_as(), arguments, doc or "", groups or {}))
            sys.exit(0)
        try:
            given = tyro.cli(
                arguments,
                prog=name or _started_as(),
                args=typed,
                description=doc if whole or doc is None else summary(doc),
                compact_help=many or whole,  # without it no --help-verbose is known
            )
        except SystemExit as stop:
            if stop.code:
                print(*_unknown(typed, arguments), sep="", end="", file=sys.stderr)
            raise
        from jaxleak._compiled import keep_compiled  # JAX comes after the options: --help and typos need none of it

        keep_compiled()
        main(given)
    except KeyboardInterrupt:
        from jaxleak.study._progress import stopped_message

        print(stopped_message("SIGINT"), file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except _MENDABLE as error:
        message = _message(error)
        if message is None:
            raise
        from jaxleak.study._folder import take_back_folders

        take_back_folders()
        sys.exit(f"error: {message}")


def _unknown(typed: Sequence[str], arguments: type) -> list[str]:
    """Say which typed options are another word for a defense; tyro itself names options that are spelled alike."""
    known = [name for options in grouped(arguments).values() for name in options]
    names = [word.removeprefix("--").partition("=")[0] for word in typed if word.startswith("--")]
    said = [unknown_option(f"--{name}", known) for name in names if name and not near(name, known)]
    return [f"{text}\n" for text in said if "; " in text]


def _started_as() -> str | None:
    """Return the command that started this module, as a person types it; None if it was not `python -m`."""
    words = sys.orig_argv
    return f"python -m {words[words.index('-m') + 1]}" if "-m" in words[:-1] else None


#: Errors that may end a command with their message alone; others, and most `RuntimeError`s, show a traceback.
_MENDABLE = (ValueError, OSError, FloatingPointError, MemoryError, ImportError, RuntimeError)


def _message(error: Exception) -> str | None:
    """Say in words what is wrong, even if the error has no text; None for a bug or what a user cannot fix."""
    if isinstance(error, RuntimeError):
        from jax.errors import JaxRuntimeError

        from jaxleak.checkpoint import ConfigMismatchError

        if isinstance(error, JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            error = MemoryError()
        elif not isinstance(error, ConfigMismatchError):
            return None
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory: what was asked for does not fit; take fewer or smaller images, or a smaller model"
    return str(error).strip() or f"{type(error).__name__}, about which nothing more is known"


#: Names in words of metrics whose name in results.json is not clear by itself.
_CALLED = {
    "psnr": "PSNR, dB",
    "psnr_mean": "PSNR, mean over images, dB",
    "psnr_median": "PSNR, median, dB",
    "psnr_min": "PSNR, worst image, dB",
    "psnr_spread": "PSNR, deviation over seeds, dB",
    "psnr_grey": "PSNR of a grey image, dB",
    "psnr_best_match": "PSNR in the best order, dB",
    "psnr_up_to_scale": "PSNR up to a factor, dB",
    "psnr_channel_peak": "PSNR by the paper's peak, dB",
    "ssim": "SSIM",
    "ssim_mean": "SSIM, mean over images",
    "feature_r2": "R2, share of the table's variance",
    "ssim_best_match": "SSIM in the best order",
    "mse_mean": "mean squared error",
    "answered": "answered, share of images",
    "answered_fraction": "answered, share of samples",
    "certified_fraction": "certified by the attack, share",
    "gradient_matched": "gradient matched, share",
    "label_accuracy": "labels right, share",
    "peak_memory_gb": "peak memory, GB",
}


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print metrics, one per line, by their names in words; a single seed has no deviation, which is left out."""
    shown = {_CALLED.get(name, name.replace("_", " ")): value for name, value in metrics.items()}
    if metrics.get("seeds") == 1:
        shown.pop(_CALLED["psnr_spread"], None)
    width = max(map(len, shown))
    for name, value in shown.items():
        print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, (int, float)) else f"  {name:<{width}}  {value}")
