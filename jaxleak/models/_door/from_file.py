"""Load networks from a user's Python file, whatever library they are written in."""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxleak._own_files import named_in_file, needed_arguments, told
from jaxleak.models._classifier import Classifier
from jaxleak.models._door.equinox import from_equinox
from jaxleak.models._door.flax import classifier, drawn, from_flax
from jaxleak.models._door.network import Layout
from jaxleak.models._door.refused import RefusedError
from jaxleak.models._door.torch_export import from_torch
from jaxleak.models._door.torch_graph import Dropout

#: Pattern of the line by which a file imports PyTorch.
_IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


def from_file(
    spec: str,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    dropout: Dropout = "refuse",
    eval_layers: Sequence[str] = (),
    layout: Layout | None = None,
    head: str | None = None,
) -> Classifier:
    """A `Classifier` of a network that a Python file defines; the file is run, and the network is left as it is.

    Args:
        spec: "FILE.py:NAME". NAME is a class of PyTorch or Linen, a module, a pair of an Equinox module and its state,
            or a function that returns a module or what `from_torch` and similar functions return. Classes and functions
            are called without arguments.
        image_shape: (H, W, channels).
        num_classes: C >= 2.
        dropout: "off" takes a PyTorch module without its dropout; see `from_torch`.
        eval_layers: submodules of a PyTorch module that stay in evaluation mode; see `from_torch`. A `Classifier` keeps
            its own.
        layout: axes of the images that a module of Flax or Equinox reads; by default those of its library.
        head: name of the last dense layer; by default the last one with C outputs.

    Returns:
        The classifier. Its `init` draws the weights of a Linen module by the key. For any other module it gives the
        weights that the file made, whatever the key. If the file imports PyTorch, PyTorch's generator is seeded with 0
        before the file is run and before NAME is called, so that the weights are the same in every process.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be imported or has no such name; if the object of that name is no model, needs
            arguments or fails; on everything that `from_torch`, `from_flax` and `from_equinox` refuse.
    """
    found = _made(named_in_file(spec, inside=_with_torch), spec)
    found, beside = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if isinstance(found, Classifier):
        given = {"head": head, "layout": layout, "dropout": dropout == "off"}
        if unread := [name for name, value in given.items() if value]:
            raise ValueError(f"{unread[0]} is for modules of other libraries, and {spec} is a jaxleak Classifier")
        return found if beside is None else found._replace(init=lambda key: beside)
    library = next((library for library, kind in _kinds().items() if isinstance(found, kind)), None)
    if library is None:
        raise ValueError(
            f"{spec} must be a jaxleak Classifier or a module of PyTorch, Flax or Equinox, got {type(found).__name__}"
        )
    known: dict[str, Any] = {"image_shape": image_shape, "num_classes": num_classes, "head": head}
    try:
        if library.startswith("torch"):
            return _of_torch(found, dropout, eval_layers, layout, known)
        if dropout == "off":
            raise RefusedError("dropout off is for PyTorch alone: set the rate to 0 in the module's own code")
        if eval_layers:
            raise RefusedError(f"eval_layers are for PyTorch alone, got {', '.join(eval_layers)}")
        return _of_jax(library, found, beside, layout, known)
    except RefusedError:
        raise
    except (ValueError, TypeError) as error:
        size = " x ".join(map(str, image_shape))
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"{reason} (it was given images of {size} and {num_classes} classes: are they those that it was made for?)"
        ) from error


@contextlib.contextmanager
def _with_torch(path: Path) -> Iterator[None]:
    """Import PyTorch at once if the file at `path` imports it, and seed its generator with 0 inside the block."""
    if _IMPORTS_TORCH.search(path.read_text(errors="ignore")):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    with _seeded():
        yield


def _kinds() -> dict[str, type]:
    """The type of a network by library, for the libraries that have been imported so far."""
    names = {
        "torch.nn": "Module",
        "torch.export": "ExportedProgram",
        "flax.linen": "Module",
        "flax.nnx": "Module",
        "equinox": "Module",
    }
    return {library: getattr(sys.modules[library], name) for library, name in names.items() if library in sys.modules}


def _made(found: Any, spec: str) -> Any:
    """Return the object that was found, or, if it is a class or a function, what a call of it makes."""
    if not callable(found) or isinstance(found, (Classifier, *_kinds().values())):
        return found
    file, _, name = spec.rpartition(":")
    if needed := needed_arguments(found):
        raise ValueError(
            f"{name} needs arguments ({', '.join(needed)}): write a function without any that makes the network, "
            f"such as 'def net(): return {name}(...)', and give {file}:net"
        )
    try:
        with _seeded():
            return found()
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"{name} cannot be made: {told(error, Path(file))}") from error


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed PyTorch's generator with 0 inside the block, if PyTorch is imported, and restore its state at the end."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _of_torch(
    found: Any, dropout: Dropout, eval_layers: Sequence[str], layout: Layout | None, known: dict[str, Any]
) -> Classifier:
    if layout == "NHWC":
        raise RefusedError("layout NHWC is not for PyTorch, whose images are (channels, H, W)")
    return from_torch(found, dropout=dropout, eval_layers=eval_layers, **known)[0]


def _of_jax(library: str, found: Any, beside: Any, layout: Layout | None, known: dict[str, Any]) -> Classifier:
    axes: dict[str, Any] = {} if layout is None else {"layout": layout}
    if library == "equinox":
        return from_equinox(found, beside, **axes, **known)[0]
    if library == "flax.linen" and beside is None:
        beside = drawn(found, known["image_shape"], layout or "NHWC")
        if layout in (None, "NHWC") and set(beside) <= {"params", "batch_stats"}:
            return classifier(found, **known)
    return from_flax(found, beside, **axes, **known)[0]
