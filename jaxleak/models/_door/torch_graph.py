"""Compute a graph of `torch.export` in JAX."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxleak.models._door import torch_entries, torch_resize, torch_shapes  # noqa: F401, they fill the table of operators
from jaxleak.models._door.refused import RefusedError
from jaxleak.models._door.torch_layers import WITHOUT_DROPOUT, ActiveDropoutError, normalised
from jaxleak.models._door.torch_table import OPERATORS, PYTHON

Dropout = Literal["refuse", "off"]
DROPOUTS: tuple[Dropout, ...] = ("refuse", "off")

#: Operators of batch normalisation, and the places of three arguments: whether to normalise by the batch, momentum,
#: epsilon. Operators without running statistics (the overload "no_stats") have these two places earlier.
_BATCH_NORMS: dict[str, tuple[int | None, int, int]] = {
    "batch_norm": (5, 6, 7),
    "native_batch_norm": (5, 6, 7),
    "cudnn_batch_norm": (5, 6, 7),
    "_native_batch_norm_legit": (5, 6, 7),
    "_native_batch_norm_legit_functional": (5, 6, 7),
    "_native_batch_norm_legit_no_training": (None, 5, 6),
}

#: Operators that give random numbers. Code of stochastic depth, for example, rounds uniform numbers to a mask.
_RANDOM = ("rand", "rand_like")

#: Advice for an operator without a rule.
_WAY_OUT = (
    "Write that part of the module with operators that are known, or the network as a function of JAX for "
    "models.from_function"
)

#: Operators with results that share memory with their input: a change of the result in place changes the input as well.
_VIEWS = frozenset(
    ["view", "reshape", "select", "slice", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze", "narrow",
     "split", "chunk", "unbind", "flatten", "unflatten", "python.getitem", "detach", "alias", "view_as", "expand_as"]
)  # fmt: skip
#: Operators with a result that may be their argument itself, or a part of it.
_MAY_SHARE = _VIEWS | {"dropout", "contiguous", "to", "_to_copy", "type_as", "identity"}


class Buffers(NamedTuple):
    """The statistics of batch normalisation after a pass."""

    running: dict[str, jax.Array]  # running statistics after the batch
    batch: dict[str, jax.Array]  # mean and biased variance of the batch, by the names of the running ones


class Graph:
    """An exported program without its weights."""

    def __init__(self, exported: Any, dropout: Dropout):
        """Read an `ExportedProgram`.

        Raises:
            ValueError: if there are unknown operators, or changes in place that cannot be followed; the message names
                them.
        """
        self.nodes = tuple(exported.graph.nodes)
        signature = exported.graph_signature
        self.parameters: dict[str, str] = _by_first_name(signature.inputs_to_parameters, exported.state_dict)
        self.buffers: dict[str, str] = dict(signature.inputs_to_buffers)
        self.constants: dict[str, Any] = dict(signature.inputs_to_lifted_tensor_constants)
        self.operators = {**OPERATORS, **(WITHOUT_DROPOUT if dropout == "off" else {})}
        if len(signature.user_inputs) != 1:
            raise ValueError(f"the program must take images alone, got inputs {', '.join(signature.user_inputs)}")
        self.image = signature.user_inputs[0]
        self.given_back: tuple[str, ...] = tuple(signature.user_outputs)
        # Copies, since PyTorch may go on to change shared memory. jnp.asarray would compile a program for every shape.
        self.tensors = {
            name: jax.device_put(numpy_of(tensor).copy())
            for name, tensor in {**exported.state_dict, **exported.constants}.items()
            if hasattr(tensor, "numpy")
        }
        self.check()

    def check(self) -> None:
        """Raise `UnknownOperatorsError` for unknown operators and for changes in place that cannot be followed."""
        unknown = sorted({str(node.target) for node in self.calls() if self.function(name_of(node)) is None})
        if unknown:
            raise UnknownOperatorsError(unknown)
        for node in self.calls():
            changed = node.args[0] if node.args and in_place(node) else None
            if changed is None or getattr(changed, "op", "") != "call_function":
                continue
            if name_of(changed) in _VIEWS:
                raise UnknownOperatorsError([f"{node.target} on a part of another array"])
            if self._aliased(changed, node):
                raise UnknownOperatorsError([f"{node.target} on an array of which a part is read afterwards"])

    def _aliased(self, changed: Any, at: Any) -> bool:
        """Whether an array that may share memory with `changed` is read after the node `at` changes it in place."""
        place = {node: number for number, node in enumerate(self.nodes)}
        left, seen = [user for user in changed.users if name_of(user) in _MAY_SHARE], set[Any]()
        while left:
            alias = left.pop()
            if alias in seen or place[alias] > place[at]:
                continue
            seen.add(alias)
            if any(place[user] > place[at] for user in alias.users):
                return True
            left += [user for user in alias.users if name_of(user) in _MAY_SHARE]
        return False

    def calls(self) -> list[Any]:
        """Nodes that compute something that is used."""
        calls = [node for node in self.nodes if node.op in ("call_function", "call_module")]
        return [node for node in calls if node.users or in_place(node)]

    def function(self, name: str) -> Callable[..., Any] | None:
        """The function that computes the operator of this name; None if it is unknown."""
        if name in _BATCH_NORMS:
            return normalised
        library, _, function = name.rpartition(".")
        return PYTHON.get(function) if library == "python" else self.operators.get(name)

    def statistics(self) -> tuple[str, ...]:
        """Names of the buffers that are running statistics of batch normalisation."""
        found: dict[str, None] = {}
        for node in self._batch_norms():
            found.update(dict.fromkeys(self.buffers[arg.name] for arg in _running(node)))
        return tuple(found)

    def other_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that are read, except running statistics and batch counters, which change no output."""
        read = {self.buffers[node.name] for node in self.nodes if node.name in self.buffers and node.users}
        others = read & set(self.tensors) - set(self.statistics())
        return tuple(sorted(name for name in others if not name.endswith("num_batches_tracked")))

    def __call__(
        self, parameters: Mapping[str, jax.Array], statistics: Mapping[str, jax.Array], x: jax.Array
    ) -> tuple[Any, Buffers]:
        """The program's output for images (B, channels, H, W).

        Raises:
            ActiveDropoutError: if dropout acts and was not switched off; the message names the node.
        """
        table: dict[str, Any] = {self.image: x}
        table.update({node: parameters[name] for node, name in self.parameters.items()})
        buffers = {**self.tensors, **statistics}
        table.update({node: buffers[name] for node, name in {**self.buffers, **self.constants}.items()})
        changed = Buffers({}, {})

        def read(argument: Any) -> Any:
            if hasattr(argument, "op") and hasattr(argument, "name"):
                return table[argument.name]
            if isinstance(argument, (list, tuple)):
                return [read(entry) for entry in argument]
            return argument

        for node in self.calls():
            name = name_of(node)
            arguments, keywords = [read(a) for a in node.args], {k: read(v) for k, v in node.kwargs.items()}
            try:
                if name in _BATCH_NORMS:
                    table[node.name] = self._batch_norm(name, node, arguments, changed)
                else:
                    function = self.function(name)
                    assert function is not None
                    table[node.name] = function(*arguments, **keywords)
            except ActiveDropoutError as error:
                raise ActiveDropoutError(f"{error}, in {where(node)}") from None
            except (TypeError, NotImplementedError) as error:
                raise RefusedError(
                    f"operator {node.target} in {where(node)} is not known in this form: {error}. {_WAY_OUT}"
                ) from error
            if in_place(node):
                table[node.args[0].name] = table[node.name]
        found = [table[name] for name in self.given_back]
        return (found[0] if len(found) == 1 else found), changed

    def mode(self) -> Literal["train", "eval"] | None:
        """The mode in which batch normalisation was exported; None if no layer keeps running statistics."""
        flags = [_by_batch(node) for node in self._batch_norms() if _running(node)]
        return None if not flags else "train" if any(flags) else "eval"

    def normalises_by_batch(self) -> bool:
        """Whether any layer normalises by statistics over several images."""
        # Core operators write instance normalisation as batch normalisation of one image with more channels.
        return any(_by_batch(node) and node.args[0].meta["val"].shape[0] != 1 for node in self._batch_norms())

    def _batch_norms(self) -> list[Any]:
        return [node for node in self.calls() if is_batch_norm(node)]

    def _batch_norm(self, name: str, node: Any, arguments: list[Any], changed: Buffers) -> Any:
        _, momentum_at, eps_at = _places(node)
        x, weight, bias = arguments[:3]
        running: list[Any] = arguments[3:5] if _running(node) else [None, None]
        running_mean, running_var = running
        momentum, eps = arguments[momentum_at], arguments[eps_at]
        axes = (0, *range(2, x.ndim))
        mean = x.mean(axis=axes)
        shape = (1, -1, *(1,) * (x.ndim - 2))
        # x.var is avoided: its derivatives write out constants of the size of x.
        variance = ((x - mean.reshape(shape)) ** 2).mean(axis=axes)
        by_batch = _by_batch(node)
        new_mean, new_var = running_mean, running_var
        if running_mean is not None:
            names = [self.buffers[arg.name] for arg in _running(node)]
            changed.batch.update(zip(names, (mean, variance), strict=True))
            if by_batch:
                count = x.size // x.shape[1]
                unbiased = variance * (count / max(count - 1, 1))
                new_mean = running_mean + momentum * (mean - running_mean)
                new_var = running_var + momentum * (unbiased - running_var)
            changed.running.update(zip(names, (new_mean, new_var), strict=True))
        if not by_batch:
            mean, variance = running_mean, running_var
        y = normalised(x, mean, variance, weight, bias, eps)
        return y if name == "batch_norm" else (y, None, None, new_mean, new_var)


def _by_first_name(names: Mapping[str, str], tensors: Mapping[str, Any]) -> dict[str, str]:
    """Names of parameters by node; a parameter that several modules share has the name that autograd reports.

    PyTorch lists tied weights under every name in a state dict, and their gradient under the first name alone.
    """
    first: dict[int, str] = {}
    return {node: first.setdefault(id(tensors[name]), name) for node, name in names.items()}


def _places(node: Any) -> tuple[int | None, int, int]:
    """The places of a batch normalisation's arguments, see `_BATCH_NORMS`."""
    flag, momentum, eps = _BATCH_NORMS[name_of(node)]
    return (3, 4, 5) if str(node.target).endswith(".no_stats") else (flag, momentum, eps)


def _by_batch(node: Any) -> bool:
    """Whether a batch normalisation takes the batch's own statistics."""
    flag = _places(node)[0]
    return flag is not None and bool(node.args[flag])


def _running(node: Any) -> list[Any]:
    """The nodes of a batch normalisation's running mean and variance; empty if it keeps none."""
    return [arg for arg in node.args[3:5] if hasattr(arg, "name")]


class UnknownOperatorsError(RefusedError):
    """The graph has operators without a rule."""

    def __init__(self, names: list[str]):
        """Name the unknown operators, as the exported program has them, and known operators of similar names."""
        known = ", ".join(dict.fromkeys(kin for name in names for kin in _kin(name)))
        super().__init__(
            f"the program has operators that are not known here: {', '.join(names)}. {_WAY_OUT}"
            + (f". Known operators of similar names: {known}" if known else "")
        )
        self.names = names


def _kin(operator: str) -> list[str]:
    """Names of known operators that resemble an unknown one, such as "aten.max_unpool2d.default"."""
    name = operator.split()[0].removeprefix("aten.").split(".")[0]
    return difflib.get_close_matches(name, [known for known in OPERATORS if known != name])


def name_of(node: Any) -> str:
    """An operator's name without library and overload: "conv2d" of aten.conv2d.default, "relu" of aten.relu_.

    A function of Python has a name such as "python.add". An operator of another library keeps the library's name in
    front.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return f"python.{getattr(node.target, '__name__', node.target)}"
    library, name = schema.name.split("::")
    if library != "aten":
        return schema.name
    return name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name


def in_place(node: Any) -> bool:
    """Whether the operator changes its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.endswith("_") and not schema.name.endswith("__")


def draws(node: Any) -> bool:
    """Whether an operator gives random numbers other than a mask of known mean, such as a Bernoulli mask."""
    return name_of(node) in _RANDOM


def is_batch_norm(node: Any) -> bool:
    """Whether an operator is a batch normalisation, by the statistics of the batch or by running ones."""
    return name_of(node) in _BATCH_NORMS


def part_of(node: Any) -> str:
    """The name of the innermost module whose code called the operator; "" for the whole module's own code."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values()) if path), "")


def where(node: Any) -> str:
    """The module that a node belongs to, or the node's own name if the program does not tell."""
    return part_of(node) or str(node.name)


def numpy_of(tensor: Any) -> np.ndarray:
    """A PyTorch tensor as a NumPy array; double precision becomes single."""
    array = tensor.detach().cpu().numpy()
    return array.astype(np.float32) if array.dtype == np.float64 else array
