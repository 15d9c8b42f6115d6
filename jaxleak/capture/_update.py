"""The update file: a safetensors file with a header that says how the client computed the update."""

import dataclasses
import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import safetensors.numpy

from jaxleak._base import PyTree
from jaxleak._replacing import replacing
from jaxleak._stated import Kind
from jaxleak._steps import weight_of_steps
from jaxleak.capture._arrays import read_arrays, tensor_to_numpy
from jaxleak.capture._facts import FactOptions, Facts
from jaxleak.capture._names import fit

_HEADER = "jaxleak"

_log = logging.getLogger("jaxleak")


class Update(NamedTuple):
    """A client's update, by the client's own names of the arrays, with the facts about it."""

    arrays: dict[str, np.ndarray]
    facts: Facts
    source: str = "update"  # the file, for messages
    sha256: str = ""  # digest of the file's contents; "" if there is no file


def save(path: str | Path, update: Any, **facts: Unpack[FactOptions]) -> None:
    """Write an update file, whichever framework the client uses.

    In PyTorch, call `capture.save("update.safetensors", net, batch_size=4, reduction="mean")` after
    `loss.backward()`, or call it after the local steps with `kind="weights"`. In JAX, pass the tree of gradients that
    `jax.grad` returned.

    Args:
        path: the file to write; an existing file is replaced once the new one is complete.
        update: a PyTorch module, a dictionary of tensors or arrays by name, which may be nested, a list of arrays, as
            Flower sends it, or any PyTree of arrays, such as those of Flax and Equinox. For a module, the `.grad` of
            its parameters are written, or with `kind="weights"` its state dict. The header then has the names of the
            parameters that require no gradient (`frozen`).
        facts: known facts about the client, the fields of `Facts`. For a PyTorch module, `batch_norm` is by default the
            mode of its layers of batch normalisation. If some of these layers are in training mode, `eval_layers` are
            by default the others. The mode is that at the time of the call, and nothing in the module tells whether it
            was another one in training: save before `net.eval()`. If `batch_norm` is stated, another mode is refused.

    Values that are not finite are written and logged: the client goes on, and an audit refuses the file.

    Raises:
        FileNotFoundError: if the folder of `path` does not exist.
        TypeError: naming a fact that `Facts` does not have.
        ValueError: if a fact is out of range, if no audit knows the loss or the defense, if there are no arrays, or if
            a module's gradients are missing. Also for a module with `kind="difference"` or with a gradient of several
            steps, and for one whose layers of batch normalisation are in another mode than is stated.
    """
    taken = as_update(update, **(FactOptions(framework=_framework(update)) | facts))
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that exists, got {path}")
    bad = [name for name, array in taken.arrays.items() if not np.isfinite(array).all()]
    if bad:
        _log.warning("%s holds values that are not finite, so that an audit will refuse %s", bad[0], path)
    if taken.facts.kind != "gradient" and taken.facts.learning_rate is None:
        _log.warning("learning_rate is not stated, so that an audit of %s will ask for it", path)
    of_defense = (taken.facts.strength, taken.facts.noise_multiplier, taken.facts.learning_rate)
    if taken.facts.defense not in (None, "none", "other") and of_defense == (None, None, None):
        _log.warning("strength of %s is not stated, so that an audit of %s will ask for it", taken.facts.defense, path)
    contiguous = {name: np.asarray(array, order="C") for name, array in taken.arrays.items()}
    with replacing(path) as partial:
        safetensors.numpy.save_file(contiguous, partial, metadata={_HEADER: taken.facts.as_text()})


def as_update(update: Any, **facts: Unpack[FactOptions]) -> Update:
    """Make the update that `save` would write, without a file.

    Args:
        update: update as in `save`.
        facts: known facts about the client, the fields of `Facts`.

    Raises:
        TypeError: naming a fact that `Facts` does not have.
        ValueError: as in `save`.
    """
    stated = Facts.of(**(FactOptions(frozen=_frozen(update)) | facts))
    steps = (stated.local_steps or 1) * (stated.local_epochs or 1)
    if stated.kind == "gradient" and steps > 1 and hasattr(update, "named_parameters"):
        raise ValueError(
            f"kind must be weights for a module after {steps} local steps, got gradient: a module holds that of its "
            'last step. Give kind="weights" and the learning_rate'
        )
    mode, eval_layers = _modes_of(update, stated.batch_norm)
    of_layers = stated.eval_layers if stated.eval_layers is not None else eval_layers
    stated = dataclasses.replace(stated, batch_norm=mode, eval_layers=of_layers)
    arrays = named_arrays(update, kind=stated.kind)
    if not arrays:
        raise ValueError("update must hold arrays, got none")
    return Update(arrays, stated)


def load(path: str | Path) -> Update:
    """Read an update file, or a plain safetensors, npz or PyTorch file, for which the facts are unknown.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: in one line, naming the file and what is wrong with it.
        ImportError: if the file is a PyTorch file and PyTorch is not installed.
    """
    arrays, header = read_arrays(path)
    try:
        facts = Facts.from_text(header[_HEADER]) if _HEADER in header else Facts()
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} has a header that cannot be understood: {error}") from error
    return Update(arrays, facts, str(path), hashlib.sha256(Path(path).read_bytes()).hexdigest())


def gradient_of(update: Update, params: PyTree, *, names: Sequence[str] | None = None) -> PyTree:
    """Convert an update to units of a gradient, as a tree like `params`.

    A difference of weights, or the weights themselves, become `(before - after) / (learning_rate * steps)`, with the
    steps of all epochs. With momentum, steps count by their weights (`weight_of_steps`). `protocols.ClientShare`
    computes updates in the same way.

    Args:
        update: update from `load`.
        params: the model's parameters before the client's steps.
        names: names for the entries of a list, as in `fit`.

    Raises:
        ValueError: as in `fit`, also for a list without names; and for differences and weights if the learning rate is
            unknown.
    """
    tree = fit(update.arrays, params, names=names, what=update.source)
    facts = update.facts
    if facts.kind == "gradient":
        return tree
    import jax

    scale = per_weight(update)
    if facts.kind == "weights":
        return jax.tree.map(lambda before, after: (before - after) * scale, params, tree)
    return jax.tree.map(lambda difference: -difference * scale, tree)


def per_weight(update: Update) -> float:
    """Compute the factor from a difference of weights to a gradient; `ValueError` if the learning rate is unknown."""
    facts = update.facts
    if facts.learning_rate is None:
        what = "a difference of weights" if facts.kind == "difference" else "weights"
        raise ValueError(
            f"{update.source}: learning_rate must be given: it turns {what} into a gradient (--learning-rate)"
        )
    steps = (facts.local_steps or 1) * (facts.local_epochs or 1)
    return 1 / (facts.learning_rate * weight_of_steps(steps, facts.momentum or 0.0))


def _frozen(update: Any) -> tuple[str, ...] | None:
    """List the untrained parameters of a PyTorch module by name; None if there are none, or for another update."""
    if not hasattr(update, "named_parameters"):
        return None
    return tuple(name for name, p in update.named_parameters() if not p.requires_grad) or None


def _modes_of(update: Any, stated: str | None) -> tuple[str | None, tuple[str, ...] | None]:
    """Find the mode of a PyTorch module's batch normalisation, and its layers in evaluation mode if others train.

    If the module keeps no running statistics, or the update is no module, the mode is the stated one.

    Raises:
        ValueError: if a layer trains although "eval" is stated, or if no layer trains although "train" is stated.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(update, torch.nn.Module):
        return stated, None
    # Without running statistics a layer normalises by the batch in either mode. Instance normalisation reads none here.
    kind = torch.nn.modules.batchnorm._BatchNorm
    layers = {name: layer for name, layer in update.named_modules() if isinstance(layer, kind)}
    layers = {name: layer for name, layer in layers.items() if layer.running_mean is not None}
    if not layers:
        return stated, None
    in_eval = tuple(name for name, layer in layers.items() if not layer.training)
    mode = "eval" if len(in_eval) == len(layers) else "train"
    if stated not in (None, mode):
        name = next(name for name, layer in layers.items() if layer.training == (mode == "train"))
        raise ValueError(
            f"batch_norm must be {mode}, the mode of {name or 'the module'} ({type(layers[name]).__name__}), got "
            f"{stated}: if the client computed the update in the stated mode, put the module back into it by "
            f"net.{stated}()"
        )
    return mode, in_eval if in_eval and mode == "train" else None


def _framework(update: Any) -> str:
    if hasattr(update, "named_parameters"):
        leaves = [update]
    else:
        import jax

        leaves = jax.tree.leaves(update)
    return "torch" if any(map(_is_torch, leaves)) else "jax"


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor | torch.nn.Module)


def named_arrays(update: Any, *, kind: Kind = "gradient") -> dict[str, np.ndarray]:
    """Return the arrays by name that `save` would write for an update.

    Args:
        update: update as in `save`.
        kind: what is read from a PyTorch module: "gradient" reads the gradients of the trained parameters, and
            "weights" reads the state dict, with running statistics. Other updates are read as they are.

    Raises:
        ValueError: if a parameter of a PyTorch module requires a gradient and has none, if the kind is "difference" for
            a module, or if an entry is no array.
    """
    if hasattr(update, "named_parameters") and kind == "difference":
        raise ValueError(
            "kind must be gradient or weights with a module, got difference: a module holds no weights of before its "
            'steps. Give kind="weights" with the module, or a dictionary of names with the weights after minus those '
            "before"
        )
    if hasattr(update, "named_parameters") and kind == "weights":
        return {name: tensor_to_numpy(value) for name, value in update.state_dict().items() if _is_torch(value)}
    if hasattr(update, "named_parameters"):
        gradients = {name: p.grad for name, p in update.named_parameters() if p.requires_grad}
        if missing := [name for name, gradient in gradients.items() if gradient is None]:
            raise ValueError(f"{missing[0]} has no gradient: call loss.backward() before, and zero_grad() after")
        return {name: tensor_to_numpy(gradient) for name, gradient in gradients.items()}
    import jax

    if isinstance(update, Mapping):
        update = dict(update)  # an OrderedDict's keys are paths of another form
    arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(update):
        if not path:
            got = type(leaf).__name__
            raise ValueError(f"update must hold its arrays by name, as a dictionary, a tree or a module, got {got}")
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        array = tensor_to_numpy(leaf) if _is_torch(leaf) else np.asarray(leaf)
        if array.dtype == object:
            raise ValueError(f"{name} must be an array, got {type(leaf).__name__}")
        if array.dtype.kind in "cSUmM" or np.ma.isMaskedArray(leaf):
            got = "a mask" if np.ma.isMaskedArray(leaf) else f"dtype {array.dtype}"
            raise ValueError(f"{name} must be an array of real numbers, got {got}")
        if name in arrays:
            raise ValueError(
                f"update has two arrays under the name {name}: a dot in a name reads as a level of the tree"
            )
        arrays[name] = array
    # A state of Flax's NNX ends every path with the attribute that holds the array.
    if arrays and all(name.endswith(".value") for name in arrays):
        arrays = {name.removesuffix(".value"): array for name, array in arrays.items()}
    return arrays
