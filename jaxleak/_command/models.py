"""The models that `--model` names, and `jaxleak models`."""

import argparse
import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxleak._tree import named_leaves
from jaxleak.models import CLASSIFIERS, Classifier, build, from_file, normalized


def models(options: argparse.Namespace) -> int:
    """Print the names and shapes that a model expects, or the built-in models if none is named."""
    if options.model is None:
        width = max(map(len, CLASSIFIERS))
        for name, factory in CLASSIFIERS.items():
            lines = textwrap.wrap(_sentence(factory), 78 - width)
            print(f"{name:<{width}}  {lines[0]}", *(" " * (width + 2) + line for line in lines[1:]), sep="\n")
        print("\n--model NAME prints what one of them expects, --model FILE.py:NAME one of yours.")
        return 0
    model = model_of(options)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves = named_leaves(shapes)
    width = max(map(len, leaves))
    for name, leaf in leaves.items():
        print(f"{name:<{width}}  {tuple(leaf.shape)}")
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    print(f"\ninput       {' x '.join(map(str, model.image_shape))}, pixels in [0, 1]")
    print(f"parameters  {count:,}")
    print(f"head        {model.head or 'no last dense layer is known'}")
    for note in model.notes:
        print(f"note: {note}")
    return 0


def _sentence(factory: Callable[..., Classifier]) -> str:
    """Describe a built-in model: the first line of its factory's docstring, or the factory's name and its options."""
    if not isinstance(factory, functools.partial):
        return (inspect.getdoc(factory) or "").partition("\n")[0].replace("*", "").replace("`", "")
    options = ", ".join(f"{name} {value}" for name, value in factory.keywords.items())
    return f"{factory.func.__name__} with {options}"


def model_of(options: argparse.Namespace, eval_layers: Sequence[str] = ()) -> Classifier:
    """Make the model that `--model` names, with `eval_layers` in evaluation mode while the other layers train.

    Raises:
        ValueError: if no model has that name, or if the name in the file is no model.
        FileNotFoundError: if the file does not exist.
    """
    height, width, channels = options.image
    shape, classes = (height, width, channels), options.classes
    own = {"head": options.head, "layout": options.layout, "dropout": options.dropout or "refuse"}
    if ":" in options.model:
        try:
            model = from_file(options.model, image_shape=shape, num_classes=classes, eval_layers=eval_layers, **own)
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"--model: {error}") from error
        if options.option:
            raise ValueError(f"--option is for built-in models, and --model is {options.model}")
    elif options.model in CLASSIFIERS:
        if unread := [name for name, value in own.items() if value not in (None, "refuse")]:
            raise ValueError(f"--{unread[0]} is for modules of other libraries, and --model is a built-in model")
        model = build(options.model, shape, classes, **_named_values(options.option))
    else:
        raise ValueError(f"--model must be FILE.py:NAME or one of {', '.join(CLASSIFIERS)}, got {options.model!r}")
    if getattr(options, "mean", None) or getattr(options, "std", None):
        model = normalized(model, options.mean or [0.0] * shape[2], options.std or [1.0] * shape[2])
    return model


def _named_values(options: list[str]) -> dict[str, Any]:
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--option must be NAME=VALUE, got {option!r}")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found
