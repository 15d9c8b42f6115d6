"""PyTorch modules as classifiers, by way of `torch.export`."""

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import PyTree
from jaxleak.models._classifier import BATCH_NORM_MODES, BatchNormMode, Classifier, digest_of
from jaxleak.models._door.function import assemble, check_sizes
from jaxleak.models._door.network import Computed, Function
from jaxleak.models._door.refused import RefusedError, without_tokens
from jaxleak.models._door.torch_graph import (
    DROPOUTS,
    Dropout,
    Graph,
    UnknownOperatorsError,
    draws,
    is_batch_norm,
    part_of,
)
from jaxleak.models._door.torch_layers import ActiveDropoutError

#: Advice for a network that reads rows of numbers.
_FLATTEN = (
    ". The network reads rows of numbers (B, N), and images arrive as (B, channels, H, W): it must flatten them "
    "itself. Wrap it as nn.Sequential(nn.Flatten(), net), and save weights and update of the wrapped network as well"
)


def from_torch(
    module: Any,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int | None = None,
    dropout: Dropout = "refuse",
    eval_layers: Sequence[str] = (),
    head: str | None = None,
) -> tuple[Classifier, PyTree]:
    """A `Classifier` of a PyTorch module, which is left as it is; see `jaxleak.models.from_function`.

    `torch.export` traces the module once in training and once in evaluation mode, and its graph is computed in JAX:
    nothing of PyTorch runs during an attack.

    Args:
        module: an `nn.Module` that reads images (B, channels, H, W) and gives logits (B, C), on any device and in
            either mode; or a `torch.export.ExportedProgram`, which keeps the mode in which it was exported.
        image_shape: (H, W, channels).
        num_classes: C >= 2; by default as many as there are logits, or 2 for one logit.
        dropout: "refuse" raises if dropout or stochastic depth is active in training, since nobody outside of the
            client knows the masks; "off" takes the module without them, for a client that trained without them.
        eval_layers: names of submodules that stay in evaluation mode while the others train, for a client that called
            `net.backbone.eval()`.
        head: name of the last dense layer, as in "fc"; by default the last one with C outputs.

    Returns:
        The classifier, and its variables. Parameters are a dictionary by the names of the state dict, such as
        "layer1.0.conv1.weight", in PyTorch's own layouts. Gradients have the same form; `jaxleak.capture.named_arrays`
        reads them off a module. Running statistics are "batch_stats".

    Raises:
        ImportError: without the package torch (`pip install torch`).
        ValueError: on arguments out of range; if operators are not known here, which the message names; if dropout is
            active; if PyTorch cannot export the module; if it gives no logits (B, C).
        TypeError: if `module` is neither a module nor an exported program.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("from_torch needs the package torch: pip install torch") from error
    _validate.one_of(DROPOUTS, dropout=dropout)
    height, width, channels = check_sizes(image_shape, None)
    kept, untrained, evaluated = tuple(eval_layers), list[str](), list[str]()
    if isinstance(module, torch.export.ExportedProgram):
        if kept:
            raise ValueError("eval_layers are for a module: an exported program has the modes that it was exported in")
        # An exported program has one mode, which shows in whether it normalises by the batch.
        graph = _readable(module, dropout)
        mode = graph.mode()
        modes = BATCH_NORM_MODES if mode is None else (mode,)
        by_mode = dict.fromkeys(modes, graph)
        functions = dict.fromkeys(modes, _function(graph))
    elif isinstance(module, torch.nn.Module):
        with without_tokens():
            graphs = {n: _Graphs(module, n, (channels, height, width), dropout, kept) for n in BATCH_NORM_MODES}
        by_mode = {name: of_mode.first for name, of_mode in graphs.items()}
        graph = by_mode["train"]
        functions = {name: _function(graphs[name].first, graphs[name].of) for name in BATCH_NORM_MODES}
        untrained = [name for name, p in module.named_parameters() if not p.requires_grad]
        evaluated = graphs["train"].evaluated
    else:
        raise TypeError(f"module must be an nn.Module or an ExportedProgram, got {type(module).__name__}")
    names = graph.statistics()
    variables = {
        "params": {name: graph.tensors[name] for name in graph.parameters.values()},
        "batch_stats": {name: graph.tensors[name] for name in names},
    }
    try:
        model, variables = assemble(
            functions, variables, image_shape=image_shape, num_classes=num_classes, layout="NCHW", head=head
        )
    except ActiveDropoutError as error:
        way_out = 'say dropout="off" (--dropout off)' if dropout == "refuse" else "export it in evaluation mode"
        raise RefusedError(
            f"{error}: nobody outside of the client knows its random masks. If the client trained without it, {way_out}"
        ) from None
    except RefusedError as error:
        if isinstance(module, torch.nn.Module) and _reads_rows(module, (channels, height, width)):
            raise RefusedError(f"{error}{_FLATTEN}") from None
        raise
    state = module.state_dict() if isinstance(module, torch.nn.Module) else module.state_dict
    # What the layers compute decides, since not all of them keep statistics.
    by_batch = tuple(mode for mode, one in by_mode.items() if one.normalises_by_batch())
    normalises = model.has_batch_norm or bool(by_batch)
    constants = tuple((name, digest_of(graph.tensors[name])) for name in graph.other_buffers())
    model = model._replace(has_batch_norm=normalises, by_batch=by_batch, order=tuple(state), constants=constants)
    read = tuple(name for name in untrained if name in variables["params"])
    if evaluated:
        said = f"the own code of {', '.join(evaluated)} is that of evaluation mode, without random numbers"
        model = model._replace(notes=(*model.notes, said))
    return model._replace(eval_layers=kept, untrained=read), variables


class _Graphs:
    """A module's graphs in one mode: a single one for batches of any size, or else one for each size on demand."""

    def __init__(
        self, module: Any, mode: BatchNormMode, shape: tuple[int, ...], dropout: Dropout, eval_layers: tuple[str, ...]
    ):
        """Export the module, which is left as it is, for images (channels, H, W)."""
        self.mode, self.shape, self.dropout = mode, shape, dropout
        self.evaluated: list[str] = []  # parts with own code in evaluation mode, which draws no random numbers
        self.module = copy.deepcopy(module).to("cpu").float().train(mode == "train")
        for name in eval_layers:
            _submodule(self.module, name).eval()
        # A module that uses Python's len(x), or a number computed from it, has a graph for a single size only.
        found = self._exported(2, of_any_size=True)
        self.of_any_size = found is not None
        self.by_size = {2: found or self._exported(2, of_any_size=False)}

    @property
    def first(self) -> Graph:
        """A graph for reading names, weights and mode."""
        return self.by_size[2]

    def of(self, size: int) -> Graph:
        """The graph for batches of this size."""
        if self.of_any_size:
            return self.first
        if size not in self.by_size:
            self.by_size[size] = self._exported(size, of_any_size=False)
        return self.by_size[size]

    def _exported(self, size: int, *, of_any_size: bool) -> Any:
        """Export a graph; if PyTorch cannot, return None with `of_any_size` and raise `ValueError` otherwise."""
        import torch

        images = torch.zeros(size, *self.shape)
        with _quiet():
            shapes = ({0: torch.export.Dim("batch")},) if of_any_size else None
            try:
                exported = torch.export.export(self.module, (images,), dynamic_shapes=shapes)
                while self.dropout == "off" and self._stop_drawing(exported):
                    exported = torch.export.export(self.module, (images,), dynamic_shapes=shapes)
            except RefusedError:
                raise
            except Exception as error:
                if of_any_size:
                    return None
                said = (
                    f"PyTorch cannot export this module in mode {self.mode!r} for {size} images {self.shape}: "
                    f"{str(error).splitlines()[0]}"
                )
                if averaging := _averaging(self.module):
                    raise RefusedError(
                        f"{said}. {averaging} has momentum=None, so that a step divides by its number, which PyTorch "
                        "cannot export: give the layer a momentum, such as 0.1, in a copy that is handed over. No "
                        "gradient depends on it"
                    ) from error
                if _reads_rows(self.module, self.shape):
                    raise RefusedError(said + _FLATTEN) from error
                raise ValueError(said) from error
        return _readable(exported, self.dropout)

    def _stop_drawing(self, exported: Any) -> bool:
        """Put parts with own code that draws random numbers into evaluation mode; return whether there are any.

        Submodules of such a part keep their mode: batch normalisation inside of a block with stochastic depth goes on
        training.

        Raises:
            RefusedError: if a part draws random numbers in evaluation mode, too, or normalises by the batch in its own
                code.
        """
        parts = dict(self.module.named_modules(remove_duplicate=False))
        calls = [node for node in exported.graph.nodes if node.op == "call_function"]
        drawing = {part_of(node) for node in calls if draws(node)}
        for name in sorted(drawing):
            shown = name or "the module"
            if not parts[name].training:
                raise RefusedError(f"{shown} draws random numbers in evaluation mode, too: take them out of its code")
            if any(is_batch_norm(node) and part_of(node) == name for node in calls):
                raise RefusedError(
                    f"the code of {shown} draws random numbers and calls a function that normalises by the batch: take "
                    "the random numbers out, or let a layer of torch.nn normalise"
                )
            parts[name].training = False
            self.evaluated.append(shown)
        return bool(drawing)


def _averaging(module: Any) -> str:
    """The name of a layer of batch normalisation that trains with momentum=None; empty if there is none."""
    for name, part in module.named_modules():
        counts = part.training and getattr(part, "running_mean", None) is not None
        if counts and getattr(part, "momentum", 0) is None:
            return name
    return ""


def _reads_rows(module: Any, shape: tuple[int, ...]) -> bool:
    """Whether a module gives logits of flat images (B, channels H W) only, as does an MLP that does not flatten.

    Args:
        module: an `nn.Module`, which is left as it is.
        shape: (channels, H, W).
    """
    import torch

    module, images = copy.deepcopy(module).to("cpu").float().eval(), torch.zeros(2, *shape)

    def gives_logits(x: Any) -> bool:
        try:
            with torch.no_grad(), _quiet():
                return getattr(module(x), "ndim", 0) in (1, 2)
        except Exception:  # a module may raise anything on images that it was not made for
            return False

    return gives_logits(images.flatten(1)) and not gives_logits(images)


def _submodule(module: Any, name: str) -> Any:
    """The part of a module with this name; the name may have the prefix of a client's wrapper."""
    parts = dict(module.named_modules())
    plain = name
    while plain not in parts and plain.startswith(("module.", "_orig_mod.")):
        plain = plain.split(".", 1)[1]
    if plain not in parts:
        known = ", ".join(child for child, _ in module.named_children())
        raise RefusedError(f"eval_layers must name parts of the module ({known}), got {name!r}")
    return parts[plain]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warnings about itself, and its log of an error that is raised as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _readable(exported: Any, dropout: Dropout) -> Graph:
    """The graph as it is, or, if it has unknown operators, decomposed into core operators without changes in place.

    Raises:
        RefusedError: if a part of the module runs without gradients, because the decomposition would lose this.
    """
    for node in exported.graph.nodes:
        if "set_grad_enabled" in str(node.target) and node.args and node.args[0] is False:
            raise RefusedError(
                "a part of the module runs under torch.no_grad(): detach() its output instead, and set "
                "requires_grad=False on what is not trained"
            )
    try:
        return Graph(exported, dropout)
    except UnknownOperatorsError:
        with _quiet():
            return Graph(exported.run_decompositions(), dropout)


def _function(graph: Graph, of_size: Callable[[int], Graph] | None = None) -> Function:
    """The function that a graph computes, or that `of_size` gives a graph for by the size of the batch."""
    statistics = graph.statistics()

    def function(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
        logits, changed = (graph if of_size is None else of_size(len(x)))(params, batch_stats, x)
        if not statistics:
            return Computed(logits)
        new: dict[str, jax.Array] = {name: changed.running[name] for name in statistics}
        return Computed(logits, new, {name: jnp.asarray(changed.batch[name]) for name in statistics})

    return function
