"""Public objects say what they take and what they refuse."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest
from test_public_names import NAMES

#: A docstring may leave arguments to that of another object.
REFERS = re.compile(r"[Aa]rguments(?: and errors)? (?:as in|of) `")
#: Errors that tell a caller what is wrong with an argument.
REFUSALS = ("ValueError", "TypeError")


def described(module):
    """Every function of a module, and every class that has a constructor of its own, with what is said of it."""
    shown = importlib.import_module(module)
    for name in NAMES[module].split():
        thing = getattr(shown, name)
        made = vars(thing).get("__init__") if inspect.isclass(thing) else None
        generated = hasattr(thing, "__dataclass_fields__") or getattr(thing, "_is_protocol", False)
        if inspect.isfunction(thing):
            yield name, thing, inspect.getdoc(thing) or ""
        elif inspect.isfunction(made) and not generated:
            yield name, made, f"{inspect.getdoc(thing)}\n{inspect.getdoc(made)}"


def refuses(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    raised = (ast.unparse(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc)
    return any(call.startswith("_validate.") for call in calls) or any(e.startswith(REFUSALS) for e in raised)


@pytest.mark.parametrize("module", NAMES)
def test_docstrings_name_the_arguments_and_the_errors(module):
    for name, thing, text in described(module):
        assert text, name
        taken = [argument for argument in inspect.signature(thing).parameters if argument != "self"]
        if len(taken) > 2 and not REFERS.search(text):
            assert [argument for argument in taken if not re.search(rf"\b{argument}\b", text)] == [], name
        if refuses(thing):
            assert re.search(r"[Rr]aises|[Rr]efuse|ValueError|TypeError|errors as in", text), name


@pytest.mark.parametrize("module", NAMES)
def test_every_class_says_what_it_is(module):
    shown = importlib.import_module(module)
    for name in NAMES[module].split():
        thing = getattr(shown, name)
        if inspect.isclass(thing):
            assert thing.__doc__, name
            assert not thing.__doc__.startswith(f"{name}("), name  # what a dataclass or a named tuple gets by itself
