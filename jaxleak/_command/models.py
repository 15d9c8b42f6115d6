"""Models by name, or out of somebody's file; and `jaxleak models`."""

import argparse
import ast
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from jaxleak._tree import named_leaves
from jaxleak.models import CLASSIFIERS, Classifier, build, from_equinox, from_flax, from_torch, normalized

#: What `jaxleak models` says of every built-in model.
BUILT_IN = {
    "lenet": "convolutions of 12 channels and sigmoids, as in Deep Leakage",
    "convnet": "a small stack of convolutions and a dense layer",
    "convnet_ig": "eight convolutions, as in Inverting Gradients",
    "mlp": "a perceptron of three layers",
    "resnet10": "ResNet of 10 layers with batch normalisation",
    "resnet10_x3": "ResNet10 with three times the channels",
    "resnet10_x5": "ResNet10 with five times the channels",
    "resnet18": "ResNet of 18 layers",
    "resnet34": "ResNet of 34 layers",
    "densenet121": "DenseNet of 121 layers",
    "mobilenet_v2": "MobileNetV2 at width 1",
    "vit_tiny": "vision transformer, tiny",
    "vit_small": "vision transformer, small",
}


def models(options: argparse.Namespace) -> int:
    """Print the names and shapes that a model expects, or the built-in models if none is named."""
    if options.model is None:
        width = max(map(len, BUILT_IN))
        for name, text in BUILT_IN.items():
            print(f"{name:<{width}}  {text}")
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
    return 0


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
        model = build(options.model, shape, classes, **_named_values(options.option))
    else:
        model = _classifier(_from_file(options.model), shape, classes)
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


def _classifier(found: Any, shape: tuple[int, int, int], classes: int) -> Classifier:
    """A Classifier as it is, or made of a module; a class or factory is called first."""
    modules = {
        library: getattr(sys.modules[library], name)
        for library, name in (("torch.nn", "Module"), ("flax.nnx", "Module"), ("equinox", "Module"))
        if library in sys.modules
    }
    kinds = tuple(modules.values())
    if callable(found) and not isinstance(found, (Classifier, *kinds)):
        found = found()
    if isinstance(found, Classifier):
        return found
    doors: dict[str, Callable[..., tuple[Classifier, Any]]] = {
        "torch.nn": from_torch,
        "flax.nnx": from_flax,
        "equinox": from_equinox,
    }
    for library, kind in modules.items():
        if isinstance(found, kind):
            try:
                model, _ = doors[library](found, image_shape=shape, num_classes=classes)
            except ValueError as error:
                taken = f"--image {' '.join(map(str, shape))} and --classes {classes}"
                raise ValueError(f"{error} (the model was built for {taken}: are they those of the client?)") from error
            return model
    raise ValueError(
        f"--model: must be a jaxleak Classifier or a module of PyTorch, Flax NNX or Equinox, got {type(found).__name__}"
    )


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
