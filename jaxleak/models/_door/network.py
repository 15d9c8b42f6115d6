"""Trace the functions of a network once for each mode and batch size, and run them."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.models._activations import Sharpness
from jaxleak.models._classifier import BATCH_NORM_MODES, BatchNormMode, Outputs
from jaxleak.models._conv import Form
from jaxleak.models._door.facts import Facts, slots_of_batch
from jaxleak.models._door.plan import Head, Plan
from jaxleak.models._door.program import Program, flattened
from jaxleak.models._door.refused import RefusedError, without_tokens

Layout = Literal["NHWC", "NCHW"]

#: Number of images in the first program that is traced. Comparing this program with that of one more image shows which
#: numbers belong to images.
FEW = 2

#: Primitives that change no number.
_RESHAPES = frozenset(["reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "copy"])

#: Primitives that change numbers by rounding at most.
_SAME_NUMBERS = _RESHAPES | {"convert_element_type", "stop_gradient"}

#: Dtype of images, unless a caller has another, such as bfloat16.
_PIXELS = jnp.dtype("float32")


class Computed(NamedTuple):
    """What a network's function for one mode returns."""

    logits: jax.Array  # (B, C)
    batch_stats: PyTree = None  # running statistics after this batch, or None if they do not change
    statistics: PyTree = None  # statistics of this batch, a tree like the running ones; None to solve them from those


#: (params, batch_stats, x) -> Computed
Function = Callable[[PyTree, PyTree, jax.Array], Computed]


class Network:
    """The functions of a network by mode, each traced once for each batch size."""

    def __init__(
        self,
        functions: dict[BatchNormMode, Function],
        variables: PyTree,
        image_shape: tuple[int, int, int],
        layout: Layout,
        form: Form,
    ):
        self.functions, self.image_shape, self.layout, self.form = functions, image_shape, layout, form
        self.shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), variables)
        self.names = tuple(_tree.named_leaves(variables["params"]))
        self.head_name: str | None = None
        self.one_logit = False
        self.width = 0  # outputs of the head: as many as classes, or one for one logit
        self._logits_alone: dict[tuple[BatchNormMode, int], bool] = {}
        self.kept: PyTree = None
        self._traced: dict[Any, tuple[Program, Any]] = {}
        self._plans: dict[Any, tuple[Plan, Any, Head | None]] = {}

    def traced(self, mode: BatchNormMode, batch: int, shapes: PyTree, dtype: Any = _PIXELS) -> tuple[Program, Any]:
        """The program for `batch` images, and the structure of its outputs."""

        def function(params: PyTree, batch_stats: PyTree, x: jax.Array) -> Computed:
            found = self.functions[mode](params, batch_stats, self._as_given(x))
            alone = _is_one_logit(found.logits, batch)
            self._logits_alone[mode, batch] = alone
            return found._replace(logits=_with_zero(found.logits, batch)) if alone else found

        key = (mode, batch, dtype, *(leaf.dtype for leaf in jax.tree.leaves(shapes)))
        if key not in self._traced:
            x = jax.ShapeDtypeStruct((batch, *self.image_shape), dtype)
            with without_tokens():
                read = jax.make_jaxpr(function, return_shape=True)
                closed, outputs = read(shapes["params"], shapes["batch_stats"], x)
            self._traced[key] = (flattened(closed), outputs)
        return self._traced[key]

    def check_logits(self, num_classes: int | None) -> int:
        """Return C; raise `ValueError` unless every mode gives logits (B, C), or one per image, made two."""
        batch = FEW
        alone = []
        for mode in self.functions:
            _, outputs = self.traced(mode, batch, self.shapes)
            found: Any = getattr(outputs.logits, "shape", None)
            if found is None:
                got = type(outputs.logits).__name__
                raise ValueError(f"the network must give logits (B, C) and nothing else in mode {mode!r}, got a {got}")
            alone.append(self._is_alone(mode, batch))
            if len(found) > 2 and found[0] == batch:
                raise RefusedError(
                    f"the network must give one row of logits (B, C) for each image in mode {mode!r}, got {found} for "
                    f"{batch} images: an output for every pixel or position, as of a segmentation, is not audited, "
                    "since its loss reads many rows of each image. If the client's loss reads one row, such as the "
                    "mean over the pixels, let the network give that row; if there is one pixel alone, flatten it"
                )
            if len(found) != 2 or found[0] != batch or found[1] < 2 or alone[-1] != alone[0]:
                raise ValueError(
                    f"the network must give logits (B, C) with C >= 2 in mode {mode!r}, got {found} for {batch} images;"
                    " for two classes it may give one logit for each image, (B, 1) or (B,), in every mode"
                )
            if num_classes is not None and found[1] != num_classes:
                why = ", since its one logit z is read as the two logits (0, z)" if alone[-1] else ""
                raise ValueError(f"num_classes must be that of the network, {found[1]}{why}, got {num_classes}")
            stats = outputs.batch_stats
            if stats is not None and not same_structure(stats, self.shapes["batch_stats"]):
                raise ValueError(f"batch_stats of mode {mode!r} must have the structure of those in variables")
            num_classes = found[1]
        assert num_classes is not None
        self.one_logit = alone[0]
        self.width = 1 if self.one_logit else num_classes
        return num_classes

    def _is_alone(self, mode: BatchNormMode, batch: int) -> bool:
        """Whether a mode gives one logit for each image.

        Raises:
            ValueError: if the logit is a probability, since its loss is another function of it; or if the number of
                logits does not grow with the batch.
        """
        if not self._logits_alone[mode, batch]:
            return False
        # A row of logits without a batch axis may have as many entries as there are images; one more image tells.
        self.traced(mode, batch + 1, self.shapes)
        if not self._logits_alone[mode, batch + 1]:
            raise ValueError(f"the network must give logits (B, C) in mode {mode!r}, got ({batch},) whatever B is")
        if _ends_in_sigmoid(self.traced(mode, batch, self.shapes)[0]):
            raise RefusedError(
                f"the network ends in a sigmoid in mode {mode!r}, and must give the logit in front of it: binary "
                "cross-entropy of the probability has the same gradients as that of the logit "
                "(PyTorch's BCEWithLogitsLoss)"
            )
        return True

    def plan(self, mode: BatchNormMode, batch: int, variables: PyTree) -> Plan:
        """The plan for `batch` images."""
        return self._planned(mode, batch, variables)[0]

    def _planned(
        self, mode: BatchNormMode, batch: int, variables: PyTree, dtype: Any = _PIXELS
    ) -> tuple[Plan, Any, Head | None]:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), variables)
        key = (mode, batch, dtype, *(leaf.dtype for leaf in jax.tree.leaves(shapes)))
        if key not in self._plans:
            program, outputs = self.traced(mode, batch, shapes, dtype)
            one_more, _ = self.traced(mode, batch + 1, shapes, dtype)
            facts = Facts(program, self.names, slots_of_batch(program, one_more))
            plan = Plan(program, facts, self.form)
            found = (h for h in plan.head(batch, self.width) if h.kernel == self.head_name)
            self._plans[key] = (plan, jax.tree.structure(outputs), next(found, None))
        return self._plans[key]

    def choose_head(self, plan: Plan, batch: int, head: str | None) -> Head | None:
        """The last dense layer, or the dense layer that `head` names."""
        self._plans.clear()  # these plans were made before the head was known
        found = list(plan.head(batch, self.width))
        if head is None:
            return found[0] if found else None
        for candidate in found:
            if head in (candidate.kernel, layer_of(candidate.kernel)):
                return candidate
        known = ", ".join(layer_of(candidate.kernel) for candidate in found) or "none"
        outputs = "1 output" if self.one_logit else f"{self.width} outputs"
        raise RefusedError(f"head must be a dense layer with {outputs} ({known}), got {head!r}")

    def find_weights(self, variables: PyTree) -> None:
        """Find how much of the old running statistics is kept: `a` in `new = a * old + (1 - a) * of this batch`.

        This share is the derivative of the new statistics with respect to the old ones; finding it needs no image.
        """
        if "train" not in self.functions or not jax.tree.leaves(variables["batch_stats"]):
            return
        program, outputs = self.traced("train", FEW, self.shapes)
        new = jax.tree.unflatten(jax.tree.structure(outputs), program.outputs).batch_stats
        if new is None or outputs.statistics is not None:
            return
        x = jnp.zeros((FEW, *self.image_shape))
        leaves = (*jax.tree.leaves(variables["params"]), *jax.tree.leaves(variables["batch_stats"]))
        # Weights that are still to be drawn have only shapes; no derivative by the old statistics reads their values.
        arguments = (*(jnp.zeros(a.shape, a.dtype) if isinstance(a, jax.ShapeDtypeStruct) else a for a in leaves), x)

        def share(*arguments: jax.Array) -> list[jax.Array]:
            params, old, x = arguments[: len(self.names)], arguments[len(self.names) : -1], arguments[-1]

            def after(old: tuple[jax.Array, ...]) -> list[jax.Array]:
                return program.evaluated((*params, *old, x), jax.tree.leaves(new))

            return jax.jvp(after, (old,), (tuple(map(jnp.ones_like, old)),))[1]

        weights = flattened(jax.make_jaxpr(share)(*arguments))
        self.kept = jax.tree.unflatten(jax.tree.structure(new), weights.evaluated(arguments, weights.outputs))

    def _statistics(self, new: PyTree, old: PyTree) -> PyTree:
        """The batch's own mean and variance, solved from the running statistics before and after it."""
        if self.kept is None or new is None:
            return {}
        return jax.tree.map(lambda n, o, a: (n - a * o) / jnp.where(a < 1, 1 - a, jnp.nan), new, old, self.kept)

    def _as_given(self, x: jax.Array) -> jax.Array:
        return jnp.transpose(x, (0, 3, 1, 2)) if self.layout == "NCHW" else x

    def __call__(
        self, variables: PyTree, x: jax.Array, mode: BatchNormMode, sharpness: Sharpness, *, rows: bool = False
    ) -> tuple[Outputs, dict[str, jax.Array]]:
        """Outputs and rows of one pass."""
        _validate.one_of(BATCH_NORM_MODES, mode=mode)
        _validate.variables(variables)
        if x.ndim != 4 or x.shape[1:] != self.image_shape:
            raise ValueError(f"x must be (B, {', '.join(map(str, self.image_shape))}), got {x.shape}")
        if mode not in self.functions:
            raise ValueError(f"what this model computes in mode {mode!r} is not known: give train_apply")
        given = variables.get("batch_stats")
        normalised = jax.tree.leaves(self.shapes["batch_stats"])
        stats = given if given else jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.shapes["batch_stats"])
        if mode == "eval" and normalised and not given:
            raise ValueError('mode="eval" reads running statistics, but batch_stats were not granted')
        known = {"params": variables["params"], "batch_stats": stats}
        self._check(known)
        plan, structure, head = self._planned(mode, len(x), known, jnp.dtype(x.dtype))
        if normalised and not given:
            slots = plan.program.inputs[len(self.names) : -1]
            if plan.used.intersection(slots):
                raise ValueError(
                    "training reads running statistics too in this model, but batch_stats were not granted"
                )
        arguments = (*jax.tree.leaves(known["params"]), *jax.tree.leaves(stats), x)
        found = plan.run(arguments, sharpness, head=head, rows=rows)
        computed: Computed = jax.tree.unflatten(structure, found.outputs)
        features = jnp.zeros((len(x), 0)) if found.features is None else found.features
        new = computed.batch_stats if mode == "train" and given and computed.batch_stats is not None else given
        statistics = computed.statistics
        if statistics is None:
            statistics = self._statistics(computed.batch_stats, stats)
        return Outputs(computed.logits, features, found.activations, statistics, new), found.rows

    def _check(self, variables: PyTree) -> None:
        """Raise `ValueError` if leaves have other names or shapes than the network's; the message names the first."""
        for part in ("params", "batch_stats"):
            wanted, found = _tree.named_leaves(self.shapes[part]), _tree.named_leaves(variables[part])
            if wanted.keys() != found.keys():
                differing = sorted(wanted.keys() ^ found.keys())
                raise ValueError(f"{part} are of another model: {', '.join(differing[:3])} differ")
            for name, leaf in wanted.items():
                if leaf.shape != jnp.shape(found[name]):
                    raise ValueError(f"{part}: {name} must have shape {leaf.shape}, got {jnp.shape(found[name])}")


def _is_one_logit(logits: Any, batch: int) -> bool:
    """Whether logits are floats (B, 1) or (B,); for one image also (), as squeezing every axis leaves it."""
    shape, dtype = getattr(logits, "shape", None), getattr(logits, "dtype", None)
    alone = shape in ((batch,), (batch, 1)) or (batch == 1 and shape == ())
    return alone and dtype is not None and bool(jnp.issubdtype(dtype, jnp.floating))


def _with_zero(logit: jax.Array, batch: int) -> jax.Array:
    """The logits (0, z), (B, 2), whose cross-entropy is the binary cross-entropy of z."""
    column = logit.reshape(batch, 1)
    return jnp.concatenate([jnp.zeros_like(column), column], axis=1)


def _ends_in_sigmoid(program: Program) -> bool:
    """Whether the logit beside the zeros of `_with_zero` is the output of a sigmoid, even after changes of shape."""
    joined = next(step for step in program.steps if program.outputs[0] in step.outputs)
    made = _maker(joined.inputs[-1], program)
    return made is not None and made.name == "logistic"


def ends_in_probabilities(program: Program) -> bool:
    """Whether the logits (B, C) are the output of a softmax or of sigmoids, even after changes of shape."""
    made = _maker(program.outputs[0], program)
    if made is None or made.name != "div":
        return made is not None and made.name == "logistic"
    above, below = (_maker(slot, program) for slot in made.inputs)
    if above is None or below is None or (above.name, below.name) != ("exp", "reduce_sum"):
        return False
    return _maker(below.inputs[0], program) == above


def _maker(slot: Any, program: Program) -> Any:
    """The step that computes a slot's numbers, before changes of shape and rounding; None for an input."""
    makers = {slot: step for step in program.steps for slot in step.outputs}
    while (step := makers.get(slot)) is not None and step.name in _SAME_NUMBERS:
        slot = step.inputs[0]
    return step


def same_structure(a: PyTree, b: PyTree) -> bool:
    """Whether two trees have the same names and leaves."""
    first: Any = jax.tree.structure(a)
    return bool(first == jax.tree.structure(b))


def layer_of(leaf: str) -> str:
    """The layer that a leaf belongs to: "fc" of "fc.weight", "block/conv" of "block/conv/kernel"."""
    cut = max(leaf.rfind("/"), leaf.rfind("."))
    return leaf[:cut] if cut > 0 else leaf
