"""The text of --help: a summary with examples, and a few words about every option, on one screen of 60 lines."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Mapping, Sequence
from types import MappingProxyType

#: Largest number of lines in the text of --help, and the width of its lines in characters.
MOST_LINES, WIDTH = 60, 80
#: Largest number of lines of examples that --help shows.
MOST_EXAMPLES = 9
#: Maps a heading of --help to the options below it, as they are typed, without the dashes.
Groups = Mapping[str, Sequence[str]]
#: Longest option, with default, that sets the width of the first column, by the number of columns of options.
_LONGEST = {1: 30, 2: 20}
#: Marks at which the first words of a text end.
_MARK = re.compile(r"[.:;](?:\s|$)| \(")


class Option(typing.NamedTuple):
    """An option as --help shows it."""

    typed: str  # the name as it is typed, and the default
    words: str  # what the option is, in a few words


def short_help(program: str | None, arguments: type, doc: str, groups: Groups = MappingProxyType({})) -> str:
    """Make the text of --help: usage, summary, and every option with its default and a few words.

    Args:
        program: the command as it is typed.
        arguments: the dataclass of the command's options. The words of an option are the first words of the text below
            its field, up to a colon, a semicolon, a bracket or the end of the sentence. For a flag that is on by
            default, they say what the flag does.
        doc: what --help-verbose says about the command.
        groups: how the options are sorted. Options without a group stand below the first words about their dataclass,
            or below `options`.

    Raises:
        ValueError: if `groups` has an option that does not exist.
    """
    head = f"usage: {program} [-h] [OPTIONS]\n\n{summary(doc)}\n"
    found = grouped(arguments, groups)
    lines = [line for heading, options in found.items() for line in _group(heading, options, columns=1)]
    if head.count("\n") + len(lines) > MOST_LINES:
        lines = [line for heading, options in found.items() for line in _group(heading, options, columns=2)]
    return head + "\n".join(lines)


def summary(doc: str) -> str:
    """Shorten a command's text for --help to the first paragraph and the first examples; --help-verbose says all."""
    first, *others = doc.strip().split("\n\n")
    examples = next((part for part in others if part.startswith("    ")), "")
    lines = [line for command in examples.splitlines() for line in _folded(command)][:MOST_EXAMPLES]
    while lines and (lines[-1].endswith("\\") or lines[-1].lstrip().startswith("#")):  # what follows would be missing
        lines.pop()
    parts = [textwrap.fill(first, WIDTH), "\n".join(lines)]
    parts.append("--help-verbose says what each option means and what to expect.")
    return "\n\n".join(part for part in parts if part)


def _folded(command: str) -> list[str]:
    """Break a line of an example into lines that fit: the remark goes above, and lines break before options."""
    if len(command) <= WIDTH:
        return [command]
    indent = " " * (len(command) - len(command.lstrip()))
    command, _, remark = (part.strip() for part in command.partition("  #"))
    continued, words = command.endswith("\\"), command.removesuffix("\\").strip().split(" --")
    lines = [f"{indent}# {remark}"] if remark else []
    lines.append(indent + words[0])
    for word in words[1:]:
        if len(lines[-1]) + len(word) + len(" -- \\") <= WIDTH:
            lines[-1] += f" --{word}"
        else:
            lines[-1] += " \\"
            lines.append(f"{indent}    --{word}")
    return [*lines[:-1], lines[-1] + (" \\" if continued else "")]


def grouped(arguments: type, groups: Groups = MappingProxyType({})) -> dict[str, dict[str, Option]]:
    """Sort the options below their headings, by their names as they are typed; see `short_help`."""
    found = _by_heading(arguments, {}, "", "options")
    shown = {name: option for options in found.values() for name, option in options.items()}
    named = [name for group in groups.values() for name in group]
    if unknown := sorted(set(named) - shown.keys()):
        raise ValueError(f"the groups of the help have options that there are not: {', '.join(unknown)}")
    parts = {heading: {name: shown[name] for name in group} for heading, group in groups.items()}
    for heading, options in found.items():
        parts[heading] = parts.get(heading, {}) | {n: option for n, option in options.items() if n not in named}
    return {heading: options for heading, options in parts.items() if options}


def count_options(arguments: type) -> int:
    """Count the options of a dataclass, including those of the dataclasses in it."""
    kinds = typing.get_type_hints(arguments)
    names = [field.name for field in dataclasses.fields(arguments)]
    return sum(count_options(kinds[name]) if dataclasses.is_dataclass(kinds[name]) else 1 for name in names)


def _by_heading(
    arguments: type, defaults: Mapping[str, typing.Any], prefix: str, heading: str
) -> dict[str, dict[str, Option]]:
    """Map every heading to the options below it; `defaults` take precedence over those of the dataclass."""
    kinds, texts = typing.get_type_hints(arguments), _texts(arguments)
    own: dict[str, Option] = {}
    found = {heading: own}
    for field in dataclasses.fields(arguments):
        name, kind = prefix + field.name.replace("_", "-"), kinds[field.name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = defaults.get(field.name, default)
        if dataclasses.is_dataclass(kind):
            hint = typing.get_type_hints(arguments, include_extras=True)[field.name]
            inner = "" if _without_prefix(hint) else f"{name}."
            words = _first_words(texts.get(field.name) or inspect.getdoc(kind) or "")
            found |= _by_heading(kind, vars(default), inner, words)  # type: ignore[arg-type]
        else:
            own[name] = _option(name, default, _first_words(texts.get(field.name, "")))
    if heading == "options":
        own["help"] = Option("--help", "Show this help")
        own["help-verbose"] = Option("--help-verbose", "Explain every option")
    return found


def _first_words(text: str) -> str:
    return _MARK.split(text, maxsplit=1)[0]


def _option(name: str, default: typing.Any, words: str) -> Option:
    if default is True:
        return Option(f"--no-{name}", f"Leave out {words[:1].lower()}{words[1:]}")
    values = default if isinstance(default, (tuple, list)) else [default]
    shown = [str(value) for value in values if value not in (None, "") and value is not False]
    return Option(" ".join([f"--{name}", *shown]), words)


def _texts(arguments: type) -> dict[str, str]:
    """Read the text below every field of a dataclass, each as one line."""
    found = {}
    for kind in filter(dataclasses.is_dataclass, reversed(arguments.__mro__)):
        definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        for field, text in itertools.pairwise(typing.cast(ast.ClassDef, definition).body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split())
    return found


def _group(heading: str, options: Mapping[str, Option], columns: int) -> list[str]:
    """Lay out one group of --help below its heading; each column is filled from top to bottom."""
    height, room = -(-len(options) // columns), WIDTH // columns - 2
    parts = [list(options.values())[first : first + height] for first in range(0, len(options), height)]
    rows = itertools.zip_longest(*(_aligned(part, columns) for part in parts), fillvalue="")
    lines = ["".join(f"  {cell:<{room}}" for cell in row).rstrip() for row in rows]
    return ["", f"{heading}, with defaults:", *lines]


def _aligned(options: Sequence[Option], columns: int) -> list[str]:
    """Lay out one column, with the words of most options aligned."""
    width = max((len(option.typed) for option in options if len(option.typed) <= _LONGEST[columns]), default=0)
    return [f"{option.typed:<{width}}  {option.words}" for option in options]


def _without_prefix(kind: typing.Any) -> bool:
    """Whether the options of a dataclass in a dataclass are typed without the name of its field."""
    import tyro

    markers = typing.get_args(tyro.conf.OmitArgPrefixes[int])[1:]
    return bool(set(markers) & set(typing.get_args(kind)[1:]))
