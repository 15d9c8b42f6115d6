"""The texts of --help: short, with a text for every option, and with complete examples."""

import dataclasses
import importlib
import re
import sys
import typing
from pathlib import Path

import pytest
import tyro

from jaxleak.__main__ import parser
from jaxleak._command.invert.options import GROUPS
from jaxleak._command.invert.options import Args as Inverting
from jaxleak.study import _command, _help

STUDIES = sorted(path.stem for path in (Path(__file__).parent.parent / "experiments").glob("[!_]*.py"))


def printed(monkeypatch, capsys, study, option, groups=None):
    module = importlib.import_module(f"experiments.{study}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", f"experiments.{study}", option])
    with pytest.raises(SystemExit) as stop:
        _command.run_command(lambda _: None, module.Args, module.__doc__, words=[option], groups=groups)
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("study", STUDIES)
def test_help_fits_few_screens_and_shows_how_the_command_is_typed(study, monkeypatch, capsys):
    if not hasattr(importlib.import_module(f"experiments.{study}"), "Args"):
        pytest.skip("is the front door of a command of the package")
    short = printed(monkeypatch, capsys, study, "--help")
    assert short.startswith(f"usage: python -m experiments.{study} ")


def test_the_rest_is_said_on_request(monkeypatch, capsys):
    short, long = (printed(monkeypatch, capsys, "basin", option) for option in ("--help", "--help-verbose"))
    assert "--help-verbose" in short
    assert short.count("\n") < long.count("\n")


def test_so_it_is_by_a_command_of_few_options(monkeypatch, capsys):
    short, long = (printed(monkeypatch, capsys, "numbers", option) for option in ("--help", "--help-verbose"))
    assert "--help-verbose" in short
    assert "picks from a list" in long
    assert "picks from a list" not in short


def test_a_summary_has_the_first_sentence_and_whole_examples():
    examples = ["    one --a", "    two \\", "        --b", *_help.MOST_EXAMPLES * ["    three \\", "        --c"]]
    whole = _help.MOST_EXAMPLES - (_help.MOST_EXAMPLES - 3) % 2
    doc = "\n".join(["What it does.", "", *examples, "", "A story."])
    assert _help.summary(doc).splitlines()[:-2] == ["What it does.", "", *examples[:whole]]
    assert "A story" not in _help.summary(doc)


def test_long_examples_are_folded_where_a_shell_goes_on_and_remarks_stand_above():
    line = "    run --alpha one --beta two --gamma three --delta four --epsilon five --zeta six  # a remark"
    folded = _help.summary(f"What it does.\n\n{line}\n    run\n").splitlines()[2:-2]
    assert folded[0] == "    # a remark"
    assert max(map(len, folded)) <= 80
    assert "".join(part.removesuffix("\\") for part in folded[1:-1]).split() == line.partition("#")[0].split()
    assert [part.endswith("\\") for part in folded[1:-1]] == [True, False]
    assert folded[-1] == "    run"


def of_study(study):
    module = importlib.import_module(f"experiments.{study}")
    return _help.short_help(study, module.Args, module.__doc__ or "", getattr(module, "GROUPS", {}))


def test_options_have_their_defaults_their_words_and_the_prefix_with_which_they_are_typed():
    text = of_study("fedleak")
    assert re.search(r"\n  --preset demo +What runs without --table\n", text)
    assert "\nHow --weights warm trains, with defaults:\n  --warm.rounds 200            Rounds of FedAvg\n" in text
    # A flag that is on by default has an option to switch it off; a default of zero is shown.
    assert re.search(r"\n  --no-features +Leave out the reconstruction of features\n", of_study("vflrecon"))
    assert re.search(r"\n  --strength 0.0 +Strength of the defense\n", of_study("vflrecon"))
    # The command's own default overrides that of its nested dataclass.
    assert re.search(r"\n  --data photographs  Data set +--pool 256 ", of_study("invert"))


@dataclasses.dataclass
class Few:
    first: int = 3
    """How many: this is said by --help-verbose alone."""
    second: str | None = None
    """What is
    there [0, 1] (again, not here)."""
    third_of_all: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    """Numbers; more."""


def test_words_end_at_a_mark_and_a_long_default_moves_no_words_of_others():
    lines = _help.short_help("few", Few, "What it does.").splitlines()
    assert lines[:3] == ["usage: few [-h] [OPTIONS]", "", "What it does."]
    assert lines[-6:] == [
        "options, with defaults:",
        "  --first 3       How many",
        "  --second        What is there [0, 1]",
        "  --third-of-all 1 2 3 4 5 6 7 8 9  Numbers",
        "  --help          Show this help",
        "  --help-verbose  Explain every option",
    ]


def test_two_columns_where_one_is_longer_than_a_screen(monkeypatch):
    monkeypatch.setattr(_help, "MOST_LINES", 8)
    assert _help.short_help("few", Few, "What it does.").splitlines()[-3:] == [
        "  --first 3  How many                     --help          Show this help",
        "  --second   What is there [0, 1]         --help-verbose  Explain every option",
        "  --third-of-all 1 2 3 4 5 6 7 8 9  Numbers",
    ]


def test_groups_sort_the_options():
    text = _help.short_help("few", Few, "", {"more": ["third-of-all"], "options": ["help", "second"]})
    names = re.findall(r"^(?:  (--[\w-]+)|(\w.*):$)", text, re.MULTILINE)
    assert ["".join(name) for name in names] == [
        "more, with defaults", "--third-of-all",
        "options, with defaults", "--help", "--second", "--first", "--help-verbose",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="options that there are not: width_of"):
        _help.short_help("few", Few, "", {"options": ["width_of"]})


def test_every_option_of_an_inversion_has_a_group():
    assert list(_help.grouped(Inverting, GROUPS)) == list(GROUPS)


@pytest.mark.parametrize("study", STUDIES)
def test_the_short_help_says_of_every_option_what_it_is(study, monkeypatch, capsys):
    module = importlib.import_module(f"experiments.{study}")
    monkeypatch.setattr(module, "__doc__", getattr(module, "HELP", module.__doc__))
    text = printed(monkeypatch, capsys, study, "--help", getattr(module, "GROUPS", None))
    lines = text.splitlines()
    assert len(lines) <= 60
    assert max(len(line) for line in lines if not line.startswith("usage:")) <= 80
    # The text of an option follows its name, default and kind after two or more spaces, or on the next line.
    said = re.findall(r" {2}(?:--no-|--|\[\{)([\w.-]+)(?:,\S+)?,?(?: \S+)*?(?: {2,}| *\n +)(?=[A-Z]\S)", text)
    said = [{"run": "action"}.get(name, name) for name in said]  # `sweep` shows this argument by its values
    found = [name.partition(": ")[2].replace("_", "-") for name, _ in options(module.Args)]
    assert [name for name in found if not any(name == shown or name.endswith(f".{shown}") for shown in said)] == []


def test_every_option_of_the_other_commands_has_a_text():
    commands = parser()._subparsers._group_actions[0].choices
    own = [action for name in ("audit", "models") for action in commands[name]._actions]
    assert [action.dest for action in own if not action.help] == []


def test_how_defenses_of_a_vertical_run_are_compared_is_said(monkeypatch, capsys):
    """A run has one defense, so the help shows the loop that a user types."""
    short = printed(monkeypatch, capsys, "vflrecon", "--help")
    assert re.search(r"--defense none +Defense of the real run, one in each run", short)
    assert re.search(r"for d in none \w+ \w+; do .* \\\n +--defense \$d --out runs/\S+\$d; done", short)


@pytest.mark.parametrize("study", STUDIES)
def test_what_to_expect_of_an_example_stands_above_it(study):
    module = importlib.import_module(f"experiments.{study}")
    doc = getattr(module, "HELP", module.__doc__)
    assert not re.search(r"\bThe (first|second|third|\w+th|last)( line| two lines| takes| needs)\b", doc)


def options(arguments, prefix=""):
    """Yield the name of every option, and whether the option has a text."""
    kinds = typing.get_type_hints(arguments)
    source = importlib.import_module(arguments.__module__)
    for field in dataclasses.fields(arguments):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            yield from options(kind, f"{prefix}{field.name}.")
        else:
            text = tyro._docstrings.get_field_docstring(arguments, field.name, ())
            yield f"{source.__name__}: {prefix}{field.name}", bool(text)


@pytest.mark.parametrize("study", STUDIES)
def test_every_option_has_a_text(study):
    module = importlib.import_module(f"experiments.{study}")
    if hasattr(module, "Args"):
        assert [name for name, text in options(module.Args) if not text] == []
