"""A study's report.md for a colleague: the answer, numbers and pictures, what was not run, and how it was made."""

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

#: Options that say where a run is stored, and not what it computes.
_WHERE = ("out", "fresh")


class Section(NamedTuple):
    """A part of a report: a heading, sentences below it, and a table, which may have no rows."""

    heading: str
    text: Sequence[str] = ()  # paragraphs
    header: Sequence[str] = ()  # header of the table
    rows: Sequence[Sequence[str]] = ()  # rows of the table, each as long as the header


class Measure(NamedTuple):
    """How reports and the terminal show a score of results.json."""

    name: str  # name of the score in words
    key: str  # name of the score in results.json
    unit: str = ""  # unit such as dB; % for a share in [0, 1]; empty if the score has no unit
    form: str = ".1f"  # format of the number; not used for shares

    def text(self, value: float) -> str:
        """Format a value with its unit, such as `114.2 dB` or `100 %`."""
        number = f"{100 * value:.4g}" if self.unit == "%" else f"{value:{self.form}}"
        return f"{number} {self.unit}".rstrip()


def measured(measures: Iterable[Measure], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the name and the formatted value, with its unit, of every measure in `scores`.

    A score that is NaN is left out.
    """
    return [
        (measure.name, measure.text(scores[measure.key]))
        for measure in measures
        if measure.key in scores and not math.isnan(scores[measure.key])
    ]


def print_measures(measures: Iterable[Measure], scores: Mapping[str, float]) -> None:
    """Print one line for each pair that `measured` returns; the units of `scores` are those of the measures."""
    rows = measured(measures, scores)
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}")


def command_line(program: str, options: Any) -> str:
    """Write the command line of a run for a report: the program, and the options that differ from their defaults.

    Args:
        program: the program as a person types it, such as `python -m experiments.fedleak`.
        options: instance of a command's dataclass of options; `out` and `fresh` are left out.
    """
    return shlex.join([*program.split(), *_words(options, {}, "")])


def _words(options: Any, defaults: Mapping[str, Any], prefix: str) -> list[str]:
    """List the words of the options that differ from `defaults`, or from the dataclass if `defaults` lack them."""
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
    """Make a list in Markdown, with one line for each text."""
    return "\n".join(f"* {text}" for text in texts)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Make the lines of a table in Markdown; every row has as many entries as the header."""
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
    """Write report.md into a run folder; the report shows the folder's figures.

    The report begins with the answer, the numbers and the pictures, and ends with how they were made.

    Args:
        folder: the run's folder, with its figures drawn.
        title: the report's title.
        command: command that gives the same numbers.
        seeds: seeds over which the numbers were measured.
        sections: sections with the results.
        answer: one or two sentences that say what was found; they stand above everything else.
        method: paragraphs that say what was done; they stand above the seeds and the command.
        not_run: maps a reason to the names of what was not run for this reason.
        captions: maps a pattern of file names, such as `*-distance.png`, to the caption of the figures that fit it.
            The first pattern that fits counts; a figure that fits none has its file name as caption.

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
