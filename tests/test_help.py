"""--help: short, every option with a text, and examples that are whole."""

import dataclasses
import importlib
import re
import sys
import typing
from pathlib import Path

import pytest
import tyro

from jaxleak._command.invert.options import GROUPS
from jaxleak._command.invert.options import Args as Inverting
from jaxleak.study import _command

STUDIES = sorted(path.stem for path in (Path(__file__).parent.parent / "experiments").glob("[!_]*.py"))


def printed(monkeypatch, capsys, study, option):
    module = importlib.import_module(f"experiments.{study}")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", f"experiments.{study}", option])
    with pytest.raises(SystemExit) as stop:
        _command.run_command(lambda _: None, module.Args, module.__doc__, words=[option])
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
    examples = ["    one --a", "    two \\", "        --b", *_command.MOST_EXAMPLES * ["    three \\", "        --c"]]
    whole = _command.MOST_EXAMPLES - (_command.MOST_EXAMPLES - 3) % 2
    doc = "\n".join(["What it does.", "", *examples, "", "A story."])
    assert _command.summary(doc).splitlines()[:-2] == ["What it does.", "", *examples[:whole]]
    assert "A story" not in _command.summary(doc)


def test_long_examples_are_folded_where_a_shell_goes_on_and_remarks_stand_above():
    line = "    run --alpha one --beta two --gamma three --delta four --epsilon five --zeta six  # a remark"
    folded = _command.summary(f"What it does.\n\n{line}\n    run\n").splitlines()[2:-2]
    assert folded[0] == "    # a remark"
    assert max(map(len, folded)) <= 80
    assert "".join(part.removesuffix("\\") for part in folded[1:-1]).split() == line.partition("#")[0].split()
    assert [part.endswith("\\") for part in folded[1:-1]] == [True, False]
    assert folded[-1] == "    run"


def test_packed_options_have_their_defaults_and_the_prefix_with_which_they_are_typed():
    text = _command.packed(importlib.import_module("experiments.fedleak").Args)
    assert "  --help  --help-verbose  --table  --preset demo" in text
    assert "\nwarm options, with their defaults:\n  --warm.rounds 200" in text
    assert "  --no-features" in _command.packed(importlib.import_module("experiments.vflrecon").Args)
    # The command's own default goes before that of the dataclass which it contains.
    assert "  --data photographs  --pool 256" in _command.packed(importlib.import_module("experiments.invert").Args)


def test_groups_sort_the_options_and_say_what_the_most_used_are():
    text = _command.packed(Inverting, {"data options": {"data": "whose images", "pool": ""}, "options": {"seeds": "s"}})
    of_data = text[text.index("data options, with their defaults:") :]
    assert of_data.startswith("data options, with their defaults:\n  --data photographs  whose images\n  --pool 256")
    assert "options, with their defaults:\n  --seeds 0  s\n  --help  --help-verbose  --payload" in text
    assert "case options, with their defaults:\n  --attack fedleak" in text  # what no group has stays where it was
    with pytest.raises(ValueError, match="options that there are not: width_of"):
        _command.packed(Inverting, {"options": {"width_of": ""}})


def test_every_option_of_an_inversion_has_a_group_and_a_dozen_or_more_have_words():
    text = _command.packed(Inverting, GROUPS)
    assert "case options" not in text
    words = [said for group in GROUPS.values() for said in group.values() if said]
    assert len(words) >= 12
    assert max(len(said.split()) for said in words) <= 6


@pytest.mark.parametrize("study", STUDIES)
def test_what_to_expect_of_an_example_stands_above_it(study):
    module = importlib.import_module(f"experiments.{study}")
    doc = getattr(module, "HELP", module.__doc__)
    assert not re.search(r"\bThe (first|second|third|\w+th|last)( line| two lines| takes| needs)\b", doc)


def options(arguments, prefix=""):
    """Every option's name and whether it has a text."""
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
