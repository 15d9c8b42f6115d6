"""--help: short, every option with a text, and examples that are whole."""

import dataclasses
import importlib
import sys
import typing
from pathlib import Path

import pytest
import tyro

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
    assert short.count("\n") <= 95


def test_the_rest_is_said_on_request(monkeypatch, capsys):
    short, long = (printed(monkeypatch, capsys, "basin", option) for option in ("--help", "--help-verbose"))
    assert "--help-verbose" in short
    assert short.count("\n") < long.count("\n")


def test_a_summary_has_the_first_sentence_and_whole_examples():
    examples = ("    one --a", "    two \\", "        --b", "    three", "    four", "    five \\", "        --c")
    doc = "\n".join(["What it does.", "", *examples, "", "A story."])
    assert _command.summary(doc).splitlines()[:-2] == ["What it does.", "", *examples[:5]]
    assert "A story" not in _command.summary(doc)


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
