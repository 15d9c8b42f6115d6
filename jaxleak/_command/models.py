"""Models by name, or out of somebody's file; and `jaxleak models`."""

import argparse
import ast
import functools
import importlib.util
import inspect
import math
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jaxleak._tree import named_leaves
from jaxleak.models import CLASSIFIERS, Classifier, build, from_equinox, from_flax, from_torch, normalized
from jaxleak.models._door.flax import drawn
from jaxleak.models._door.refused import RefusedError


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
    """What a built-in model is: the first line of its factory's docstring, or the options that tell it from its kin."""
    if not isinstance(factory, functools.partial):
        return (inspect.getdoc(factory) or "").partition("\n")[0].replace("*", "").replace("`", "")
    options = ", ".join(f"{name} {value}" for name, value in factory.keywords.items())
    return f"{factory.func.__name__} with {options}"


def model_of(options: argparse.Namespace) -> Classifier:
    """The model that `--model` names.

    Raises:
        ValueError: if there is none of that name, or what the file has is no model.
        FileNotFoundError: if there is no such file.
    """
    height, width, channels = options.image
    shape, classes = (height, width, channels), options.classes
    if ":" not in options.model:
        if options.model not in CLASSIFIERS:
            raise ValueError(f"--model must be FILE.py:NAME or one of {', '.join(CLASSIFIERS)}, got {options.model!r}")
        _refuse_options_of_modules(options, "a built-in model")
        model = build(options.model, shape, classes, **_named_values(options.option))
    else:
        model = _classifier(_made(_from_file(options.model), options.model), options)
    if getattr(options, "mean", None) or getattr(options, "std", None):
        model = normalized(model, options.mean or [0.0] * shape[2], options.std or [1.0] * shape[2])
    return model


def _from_file(spec: str) -> Any:
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"--model: no such file: {file}")
    found = importlib.util.spec_from_file_location(path.stem, path)
    if found is None or found.loader is None:
        raise ValueError(f"--model: {file} is no Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever somebody's file does
        raise ValueError(f"--model: {file} cannot be imported: {_where(error, path)}") from error
    if not hasattr(module, name):
        public = [n for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
        raise ValueError(f"--model: {file} has no {name!r}; it has {', '.join(public)}")
    return getattr(module, name)


def _where(error: Exception, path: Path) -> str:
    """The error in a line, with the line of the file that raised it where the traceback has one."""
    inside = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f" (line {inside[-1]})" if inside else ""
    return f"{type(error).__name__}: {error}{line}"


def _kinds() -> dict[str, type]:
    """What a module may be, by the library that it is of, for the libraries that somebody's file has imported."""
    names = {
        "torch.nn": "Module",
        "torch.export": "ExportedProgram",
        "flax.linen": "Module",
        "flax.nnx": "Module",
        "equinox": "Module",
    }
    return {library: getattr(sys.modules[library], name) for library, name in names.items() if library in sys.modules}


def _made(found: Any, spec: str) -> Any:
    """What stands under the name; a class or a function is called.

    Raises:
        ValueError: if it needs arguments, or fails.
    """
    if not callable(found) or isinstance(found, (Classifier, *_kinds().values())):
        return found
    file, _, name = spec.rpartition(":")
    if needed := _arguments(found):
        raise ValueError(
            f"--model: {name} needs arguments ({', '.join(needed)}): write a function without any that makes the "
            f"network, such as 'def net(): return {name}(...)', and give {file}:net"
        )
    try:
        return found()
    except Exception as error:  # whatever somebody's code does
        raise ValueError(f"--model: {name} cannot be made: {_where(error, Path(file))}") from error


def _arguments(found: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a call needs."""
    is_class = isinstance(found, type)
    try:  # not of the class itself: the libraries' metaclasses take any arguments
        parameters = list(inspect.signature(found.__init__ if is_class else found).parameters.values())
    except (TypeError, ValueError):
        return []
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters[is_class:] if p.default is p.empty and p.kind not in anything]


def _classifier(found: Any, options: argparse.Namespace) -> Classifier:
    """A Classifier as it is, or made of a module; of a pair, the second is what a door gives or asks for beside it."""
    found, beside = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if isinstance(found, Classifier):
        _refuse_options_of_modules(options, "a jaxleak Classifier")
        return found
    library = next((library for library, kind in _kinds().items() if isinstance(found, kind)), None)
    if library is None:
        raise ValueError(
            f"--model: must be a jaxleak Classifier or a module of PyTorch, Flax or Equinox, got {type(found).__name__}"
        )
    try:
        return _through_a_door(library, found, beside, options)
    except RefusedError:
        raise
    except (ValueError, TypeError) as error:
        taken = f"--image {' '.join(map(str, options.image))} and --classes {options.classes}"
        reason = str(error).split("\n")[0]
        raise ValueError(f"{reason} (the model was built for {taken}: are they those of the client?)") from error


def _through_a_door(library: str, found: Any, beside: Any, options: argparse.Namespace) -> Classifier:
    height, width, channels = options.image
    known: dict[str, Any] = {
        "image_shape": (height, width, channels),
        "num_classes": options.classes,
        "head": options.head,
    }
    if library.startswith("torch"):
        if options.layout == "NHWC":
            raise RefusedError("--layout NHWC is not for PyTorch, whose images are (channels, H, W)")
        return from_torch(found, dropout=options.dropout, **known)[0]
    if options.dropout == "off":
        raise RefusedError("--dropout off is for PyTorch alone: set the rate to 0 in the module's own code")
    if options.layout is not None:
        known["layout"] = options.layout
    if library == "equinox":
        return from_equinox(found, beside, **known)[0]
    if library == "flax.linen":
        beside = drawn(found, known["image_shape"], options.layout or "NHWC") if beside is None else beside
    return from_flax(found, beside, **known)[0]


def _refuse_options_of_modules(options: argparse.Namespace, what: str) -> None:
    given = {"--head": options.head, "--layout": options.layout, "--dropout": options.dropout == "off"}
    for name, value in given.items():
        if value:
            raise ValueError(f"{name} is for modules of other libraries, and --model is {what}")


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
