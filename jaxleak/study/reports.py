"""A study's report.md, for a colleague: the answer, its numbers and pictures, what was not run, and how it was made."""

import dataclasses
import math
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, NamedTuple

import tyro

from jaxleak.study._folder import RunFolder
from jaxleak.study._provenance import provenance
from jaxleak.study.files import write_text

__all__ = [
    "Measure",
    "Section",
    "bullets",
    "command_line",
    "markdown_table",
    "measured",
    "print_measures",
    "write_markdown",
]

#: Options that say where a run lies and not what it is.
_WHERE = ("out", "fresh")


class Section(NamedTuple):
    """A part of a report: a heading, sentences below it, and a table, which may have no rows."""

    heading: str
    text: Sequence[str] = ()  # paragraphs
    header: Sequence[str] = ()  # header of the table
    rows: Sequence[Sequence[str]] = ()  # rows of the table, each as long as the header


class Measure(NamedTuple):
    """How reports and the terminal say a score of results.json."""

    name: str  # what a person calls it
    key: str  # the name in results.json
    unit: str = ""  # such as dB; % for a share in [0, 1]; empty where there is none
    form: str = ".1f"  # format of the number; shares have one of their own

    def text(self, value: float) -> str:
        """The value with its unit, such as `114.2 dB` or `100 %`."""
        number = f"{100 * value:.4g}" if self.unit == "%" else f"{value:{self.form}}"
        return f"{number} {self.unit}".rstrip()


def measured(measures: Iterable[Measure], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Name and value in words, with its unit, of every measure that `scores` have.

    NaN says that there is nothing to say.
    """
    return [
        (measure.name, measure.text(scores[measure.key]))
        for measure in measures
        if measure.key in scores and not math.isnan(scores[measure.key])
    ]


def print_measures(measures: Iterable[Measure], scores: Mapping[str, float]) -> None:
    """Print what `measured` gives, a line each; the measures know the units of `scores`."""
    rows = measured(measures, scores)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}")


def command_line(program: str, options: Any) -> str:
    """The command that gives these options, with those that differ from their defaults, for a report.

    Args:
        program: as a person types it, such as `python -m experiments.fedleak`.
        options: an instance of the dataclass of a command; where the run lies, and `fresh`, are left out.
    """
    return shlex.join([*program.split(), *_words(options, {}, "")])


def _words(options: Any, defaults: Mapping[str, Any], prefix: str) -> list[str]:
    """The options that differ from `defaults`, or from those of their dataclass where `defaults` lack them."""
    words = []
    hints = typing.get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value, default = getattr(options, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        default = defaults.get(field.name, default)
        name = prefix + field.name.replace("_", "-")
        if value == default or field.name in _WHERE:
            continue
        if dataclasses.is_dataclass(value):
            unnamed = tyro.conf.OmitArgPrefixes in getattr(hints[field.name], "__metadata__", ())
            words += _words(value, vars(default), prefix if unnamed else f"{name}.")
        elif isinstance(value, bool):
            words.append(f"--{name}" if value else f"--{prefix}no-{name.removeprefix(prefix)}")
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, (tuple, list)) else [value])]
    return words


def bullets(texts: Iterable[str]) -> str:
    """A list in Markdown, with a line for each text."""
    return "\n".join(f"* {text}" for text in texts)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table in Markdown, whose rows are as long as the header."""
    return ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]


def write_markdown(
    folder: RunFolder,
    title: str,
    *,
    command: str,
    seeds: Sequence[int],
    sections: Sequence[Section],
    answer: str = "",
    method: Sequence[str] = (),
    not_run: Mapping[str, Sequence[str]] | None = None,
    captions: Mapping[str, str] | None = None,
) -> None:
    """Write report.md into a run folder, whose figures it shows.

    What a reader wants first comes first: the answer, the numbers, the pictures; how they were made is at the end.

    Args:
        folder: the run's folder, with its figures drawn.
        title: the report's title.
        command: the command that gives the same numbers.
        seeds: the seeds that the numbers are over.
        sections: what was found.
        answer: a sentence or two that say what was found, above everything else.
        method: paragraphs that say what was done, above the seeds and the command.
        not_run: reason to what was not run for it.
        captions: what the figures show, by a pattern of their names such as `*-distance.png`; the first that fits is
            taken, and a figure that no pattern fits has its name.

    Raises:
        OSError: naming the file, if it cannot be written.
    """
    if not folder.writes:
        return
    lines = [f"# {title}", ""]
    if answer:
        lines += [f"**{answer}**", ""]
    for section in sections:
        lines += [f"## {section.heading}", ""]
        for paragraph in section.text:
            lines += [paragraph, ""]
        if section.rows:
            lines += [*markdown_table(section.header, section.rows), ""]
    figures = sorted(path.name for path in (folder.path / "figures").glob("*.png"))
    if figures:
        lines += ["## Pictures", ""]
    for name in figures:
        caption = next((text for pattern, text in (captions or {}).items() if fnmatch(name, pattern)), name)
        lines += [f"![{caption}](figures/{name})", "", f"*{caption}*", ""]
    if not_run:
        lines += ["## What was not run", ""]
        lines += [f"* {reason}: {', '.join(names)}" for reason, names in not_run.items()] + [""]
    made = provenance()
    lines += ["## How it was made", ""]
    for paragraph in method:
        lines += [paragraph, ""]
    version = made["commit"].removeprefix("version ")
    lines += [f"Seeds: {', '.join(map(str, seeds))}. Made by jaxleak {version} on {made['device']}.", ""]
    lines += ["```", command, "```", ""]
    write_text(folder.path / "report.md", "\n".join(lines))
