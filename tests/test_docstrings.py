"""Docstrings of public objects describe the arguments and the errors."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest
from test_public_names import NAMES

from jaxleak import metrics

#: A reference to another object's docstring for the arguments.
REFERS = re.compile(r"[Aa]rguments(?: and errors)? (?:as in|of) `")
#: Errors that tell the caller of a wrong argument.
REFUSALS = ("ValueError", "TypeError")

#: An argument or a result that is an array: `jax.Array | None`, a tuple of them, and no function or dictionary of them.
#: Older versions of NumPy write `ArrayLike` out, with a class `_SupportsArray`.
ARRAY = re.compile(r"\b(?:Array|ArrayLike|ndarray|_SupportsArray)\b")
NO_ARRAY = re.compile(r"\b(?:Callable|Mapping|dict)\b")
#: One axis of a shape: B, 32, ..., "P e", "H // k", "ceil(F / 2)", "*slice", "max d_p", "sum of the others' d_p".
AXIS = r"(?:\.\.\.|(?:max |sum of the others' |ceil\()?\*?\w+'?(?: ?(?:[*+/-]|//) ?\w+| [A-Za-z]\b)*\)?)"
#: Text that states a shape: (B, H, W, C), (N,), (), "a scalar", "the same shape".
SHAPE = re.compile(rf"\(\)|\({AXIS},\)|\({AXIS}(?:, {AXIS})+\)|\bscalar\b|\bshape\b")
#: Text that states the range or unit of a number ("in (0, 1]", ">= 0", "dB", "in the unit of the data", "without a
#: unit"), that it is no quantity ("integers", "booleans", "indices"), or where to find this.
RANGE = r"[\[(]-?\d[\w.]*, [\w./ ^+*-]+[\])]|[<>]=? ?[\w.]+|in \{|positive|negative|in the range|the largest value"
UNIT = (
    r"\b(?:units?|scale|dB|decibels?|seconds?|inch(?:es)?|pixels?|bytes|GB|nats|bits|per cent|times|dtype|share of)\b"
)
OF_A_KIND = r"norm|fraction|probabilit|standard deviation|epsilon|relative|cosine|learning rate|logits|L[12]|squared"
NO_QUANTITY = r"\b(?:integers?|booleans?|bool|indices|positions)\b"
ELSEWHERE = r"\b(?:as|see|that of) `"
MEASURED = re.compile("|".join((RANGE, UNIT, OF_A_KIND, NO_QUANTITY, ELSEWHERE)), re.IGNORECASE)
#: Names of arguments that hold samples or reconstructions.
SAMPLES = re.compile(r"images?|public|truth|estimates?|x")
#: Functions that need not state shapes.
WITHOUT_SHAPE = {"score"}
#: Random keys, which are no quantities.
WITHOUT_UNIT = {"init_key"}


def described(module):
    """Yield name, function and docstring for each function of a module and each class with its own constructor."""
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


def is_array(annotation):
    text = inspect.formatannotation(annotation)
    return annotation is not inspect.Parameter.empty and bool(ARRAY.search(text)) and not NO_ARRAY.search(text)


def entry(text, argument):
    """A docstring's text on an argument; the whole docstring if it has no list of arguments."""
    found = re.search(rf"^( *){argument}: (.*(?:\n\1 +.*)*)", text, re.MULTILINE)
    return found[2] if found else text * ("Args:" not in text)


def result(text):
    """A docstring's text on the result: its section on it, or else the first paragraph."""
    found = re.search(r"^ *Returns:\n((?:(?: .*)?\n?)*)", text, re.MULTILINE)
    return found[1] if found else text.strip().split("\n\n")[0]


@pytest.mark.parametrize("module", NAMES)
def test_arrays_have_a_shape(module):
    for name, thing, text in described(module):
        if name in WITHOUT_SHAPE or REFERS.search(text):
            continue
        signature = inspect.signature(thing)
        arrays = [p.name for p in signature.parameters.values() if is_array(p.annotation) and p.name != "key"]
        assert [argument for argument in arrays if not SHAPE.search(entry(text, argument))] == [], name
        if is_array(signature.return_annotation):
            assert SHAPE.search(result(text)), f"{name}: result"


def is_number(annotation):
    text = inspect.formatannotation(annotation)
    return annotation is not inspect.Parameter.empty and bool(re.search(r"\bfloat\b", text)) and "Callable" not in text


@pytest.mark.parametrize("module", NAMES)
def test_numbers_have_a_range_or_a_unit(module):
    for name, thing, text in described(module):
        if REFERS.search(text):
            continue
        signature = inspect.signature(thing)
        for argument, parameter in signature.parameters.items():
            samples = is_array(parameter.annotation) and SAMPLES.fullmatch(argument)
            if samples or is_number(parameter.annotation):
                assert MEASURED.search(entry(text, argument)), f"{name}: {argument}"
        back = signature.return_annotation
        if name not in WITHOUT_UNIT and (is_array(back) or is_number(back)):
            assert MEASURED.search(result(text) if "Returns:" in text else text), f"{name}: result"


def test_the_rule_of_units():
    assert is_number(inspect.signature(metrics.psnr).parameters["peak"].annotation)
    measured = ("weight >= 0.", "(N,) float64 in dB.", "share in (0, 1].", "(B, d) in [-1, 1].", "in the unit of `x`.")
    for text in (*measured, "Labels (n,), int32 integers.", "see `epsilon_of`.", "seconds since the start."):
        assert MEASURED.search(text), text
    for text in (
        "(N, H, W, C).",
        "(B,), per image",
        "weight of the prior.",
        "()",
        "the number",
        "the best one of all.",
    ):
        assert not MEASURED.search(text), text


def test_the_rule_of_shapes():
    assert is_array(inspect.signature(metrics.psnr).return_annotation)
    for shape in ("(B, H, W, C)", "(N,)", "()", "(P e, d)", "(B, H // k, C)", "(T B,)", "(n, 2 C + 1)", "(E * B,)"):
        assert SHAPE.search(f"{shape} in [0, 1]."), shape
    for text in ("in [0, 1]", "(see there)", "the labels (one by one, as they come)", "`f(x)`"):
        assert not SHAPE.search(text), text
    text = "What.\n\nArgs:\n    x: (N,) of\n        y.\n    z: all.\n\nReturns:\n    Some.\n\nRaises:\n    E: (N,).\n"
    assert entry(text, "x") == "(N,) of\n        y."
    assert entry(text, "z") == "all."
    assert result(text).strip() == "Some."


@pytest.mark.parametrize("module", NAMES)
def test_every_argument_can_be_named(module):
    for name, thing, _ in described(module):
        kinds = {argument: parameter.kind for argument, parameter in inspect.signature(thing).parameters.items()}
        assert inspect.Parameter.POSITIONAL_ONLY not in kinds.values(), f"{name}: {kinds}"


@pytest.mark.parametrize("module", NAMES)
def test_every_class_says_what_it_is(module):
    shown = importlib.import_module(module)
    for name in NAMES[module].split():
        thing = getattr(shown, name)
        if inspect.isclass(thing):
            assert thing.__doc__, name
            assert not thing.__doc__.startswith(f"{name}("), name  # generated for dataclasses and named tuples
