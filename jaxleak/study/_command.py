"""How a study is a command: options from the command line, and errors that say in one line what to mend."""

import dataclasses
import signal
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from jaxleak.study._streams import outlive_readers

Arguments = TypeVar("Arguments")

#: With more options than this, --help lists them with their defaults, and --help-verbose explains them.
MOST_OPTIONS_WITH_TEXT = 12
#: Lines of examples that --help shows.
MOST_EXAMPLES = 9
#: Headings of --help to the options below them, as they are typed, each with a few words or with none.
Groups = Mapping[str, Mapping[str, str]]
#: Columns of what --help says.
_WIDTH = 80


def run_command(
    main: Callable[[Arguments], Any],
    arguments: type[Arguments],
    doc: str | None,
    *,
    name: str | None = None,
    words: Sequence[str] | None = None,
    groups: Groups | None = None,
) -> None:
    """A study's main block: options from the command line, and one line instead of a traceback for what users can mend.

    Args:
        main: the study.
        arguments: the dataclass of its options.
        doc: what --help says.
        name: the command's name in its help; None takes that of the program that runs.
        words: the options as they are typed; None takes those of the command line.
        groups: how --help sorts the options, each without its dashes, and what it says of those that are used most;
            options that no group has stand under the name of their dataclass.
    """
    import tyro

    outlive_readers()
    try:
        typed = sys.argv[1:] if words is None else list(words)
        whole = not {"-H", "--help-verbose"}.isdisjoint(typed)
        many = _options(arguments) > MOST_OPTIONS_WITH_TEXT
        if {"-h", "--help"} & set(typed) and many:
            print(f"usage: {name or _started_as()} [-h] [OPTIONS]\n\n{summary(doc or '')}")
            print(packed(arguments, groups or {}))
            sys.exit(0)
        given = tyro.cli(
            arguments,
            prog=name or _started_as(),
            args=typed,
            description=doc if whole or doc is None else summary(doc),
            compact_help=many or whole,  # without it no --help-verbose is known
        )
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


def summary(doc: str) -> str:
    """What --help says of a command: the first sentence, and the first of its examples; --help-verbose says all."""
    first, *others = doc.strip().split("\n\n")
    examples = next((part for part in others if part.startswith("    ")), "")
    lines = [line for command in examples.splitlines() for line in _folded(command)][:MOST_EXAMPLES]
    while lines and (lines[-1].endswith("\\") or lines[-1].lstrip().startswith("#")):  # what follows would be missing
        lines.pop()
    parts = [textwrap.fill(first, _WIDTH), "\n".join(lines)]
    parts.append("--help-verbose says what each option means and what to expect.")
    return "\n\n".join(part for part in parts if part)


def _folded(command: str) -> list[str]:
    """A line of an example as lines that fit: a remark above it, and breaks before options as a shell has them."""
    if len(command) <= _WIDTH:
        return [command]
    indent = " " * (len(command) - len(command.lstrip()))
    command, _, remark = (part.strip() for part in command.partition("  #"))
    continued, words = command.endswith("\\"), command.removesuffix("\\").strip().split(" --")
    lines = [f"{indent}# {remark}"] if remark else []
    lines.append(indent + words[0])
    for word in words[1:]:
        if len(lines[-1]) + len(word) + len(" -- \\") <= _WIDTH:
            lines[-1] += f" --{word}"
        else:
            lines[-1] += " \\"
            lines.append(f"{indent}    --{word}")
    return [*lines[:-1], lines[-1] + (" \\" if continued else "")]


def packed(arguments: type, groups: Groups = MappingProxyType({})) -> str:
    """The options of a dataclass with their defaults, in groups: those with words in lines of their own, others packed.

    Args:
        arguments: the dataclass; options of dataclasses in it have groups of their own.
        groups: see `run_command`.

    Raises:
        ValueError: if `groups` has an option that there is not.
    """
    found = _by_heading(arguments, {}, "", "options")
    shown = {name: text for options in found.values() for name, text in options.items()}
    named = {name: words for group in groups.values() for name, words in group.items()}
    if unknown := sorted(named.keys() - shown.keys()):
        raise ValueError(f"the groups of the help have options that there are not: {', '.join(unknown)}")
    parts = {heading: {n: t for n, t in options.items() if n not in named} for heading, options in found.items()}
    for heading, group in groups.items():
        parts[heading] = parts.get(heading, {}) | {name: shown[name] for name in group}
    return "\n".join(_group(heading, options, named) for heading, options in parts.items() if options)


def _by_heading(arguments: type, defaults: Mapping[str, Any], prefix: str, heading: str) -> dict[str, dict[str, str]]:
    """Heading to the options below it, each by its name as it is typed; `defaults` go before those of the dataclass."""
    kinds = typing.get_type_hints(arguments)
    own = {"help": "--help", "help-verbose": "--help-verbose"} if heading == "options" else {}
    found = {heading: own}
    for field in dataclasses.fields(arguments):
        name, kind = prefix + field.name.replace("_", "-"), kinds[field.name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = defaults.get(field.name, default)
        if dataclasses.is_dataclass(kind):
            hint = typing.get_type_hints(arguments, include_extras=True)[field.name]
            inner = "" if _without_prefix(hint) else f"{name}."
            found |= _by_heading(kind, vars(default), inner, f"{field.name.replace('_', ' ')} options")  # type: ignore[arg-type]
        else:
            own[name] = _with_default(name, default)
    return found


def _group(heading: str, options: Mapping[str, str], words: Mapping[str, str]) -> str:
    """One group of --help below its heading."""
    said = {name: text for name, text in options.items() if words.get(name)}
    width = max((len(text) for text in said.values()), default=0)
    lines = [f"  {text:<{width}}  {words[name]}" for name, text in said.items()]
    # What belongs to one option stays on one line.
    rest = "  ".join(text.replace(" ", "\0") for name, text in options.items() if name not in said)
    lines += textwrap.wrap(
        rest, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    return "\n".join([f"\n{heading}, with their defaults:", *lines]).replace("\0", " ")


def _without_prefix(kind: typing.Any) -> bool:
    """Whether the options of a dataclass in a dataclass are typed without the name of its field."""
    import tyro

    markers = typing.get_args(tyro.conf.OmitArgPrefixes[int])[1:]
    return bool(set(markers) & set(typing.get_args(kind)[1:]))


def _with_default(name: str, default: typing.Any) -> str:
    if isinstance(default, bool):
        return f"--no-{name}" if default else f"--{name}"
    values = default if isinstance(default, (tuple, list)) else [default]
    return " ".join([f"--{name}", *(str(value) for value in values if value not in (None, ""))])


def _options(arguments: type) -> int:
    """How many options a dataclass gives, those of the dataclasses in it included."""
    kinds = typing.get_type_hints(arguments)
    names = [field.name for field in dataclasses.fields(arguments)]
    return sum(_options(kinds[name]) if dataclasses.is_dataclass(kinds[name]) else 1 for name in names)


def _started_as() -> str | None:
    """How a module was started, as a person types it; None where it was not by `python -m`."""
    words = sys.orig_argv
    return f"python -m {words[words.index('-m') + 1]}" if "-m" in words[:-1] else None


#: Errors that may end a command with their message; others, and most of the last kind, show where they happened.
_MENDABLE = (ValueError, OSError, FloatingPointError, MemoryError, ImportError, RuntimeError)


def _message(error: Exception) -> str | None:
    """What is wrong, in words, also where the error has none; None for a bug, and what no user can mend."""
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


#: What a person calls a metric whose name in results.json does not say it by itself.
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
    """Print metrics, one per line, by the names that a person would say; one seed has no deviation."""
    shown = {_CALLED.get(name, name.replace("_", " ")): value for name, value in metrics.items()}
    if metrics.get("seeds") == 1:
        shown.pop(_CALLED["psnr_spread"], None)
    width = max(map(len, shown))
    for name, value in shown.items():
        print(f"  {name:<{width}}  {value:.6g}" if isinstance(value, (int, float)) else f"  {name:<{width}}  {value}")
