"""Facts about how a client computed its update."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from jaxleak import _validate
from jaxleak._own_files import file_of, is_own
from jaxleak._registry import names_in
from jaxleak._stated import KINDS, LOSSES, MODES, REDUCTIONS, Kind

#: The fields that are whole numbers, and those that are real ones.
_COUNTS = ("local_steps", "local_epochs", "batch_size")
_REALS = ("learning_rate", "momentum", "strength", "clip", "noise_multiplier")
#: Values that an audit assumes for unknown facts.
_TAKEN = {
    "loss": "cross_entropy", "reduction": "mean", "local_steps": 1, "local_epochs": 1, "momentum": 0.0,
    "batch_norm": "train", "defense": "none", "clip": 1.0, "frozen": (), "eval_layers": (),
}  # fmt: skip


class FactOptions(TypedDict, total=False):
    """The fields of `Facts` as keyword arguments."""

    kind: Kind
    framework: str | None
    loss: str | None
    reduction: str | None
    local_steps: int | None
    local_epochs: int | None
    learning_rate: float | None
    momentum: float | None
    batch_size: int | None
    batch_norm: str | None
    defense: str | None
    strength: float | None
    clip: float | None
    noise_multiplier: float | None
    frozen: Sequence[str] | None
    eval_layers: Sequence[str] | None


@dataclasses.dataclass(frozen=True)
class Facts:
    """The facts that an update file states about the client; None means that the file does not state a fact.

    Attributes:
        kind: what the arrays are: "gradient", "difference" (weights after minus weights before) or "weights" (after).
        framework: framework that wrote the arrays, for example "torch" or "jax".
        loss: name of the loss function: "cross_entropy"; "binary_cross_entropy" of several outputs, each of which is a
            finding that a sample has or does not have; or "other" for any other loss.
        reduction: how the loss is reduced over a batch, "mean" or "sum".
        local_steps: E >= 1 steps of gradient descent in an epoch, each on a batch of other samples.
        local_epochs: K >= 1 passes over the same E * B samples.
        learning_rate: step size of the local steps, > 0.
        momentum: momentum of the local steps, in [0, 1), with a velocity that begins at zero.
        batch_size: B >= 1 samples of each step.
        batch_norm: "train" if batch statistics normalised, "eval" if running statistics did.
        eval_layers: names of PyTorch's submodules that were in evaluation mode while the others trained.
        defense: defense that the client applied, a key of `jaxleak.defenses.CLIENT_DEFENSES`; "none" for no defense;
            "FILE.py:NAME" for the client's own function, which an audit runs only if its own command names it; and
            "other" for any other defense.
        strength: strength of the defense, >= 0, in the defense's own unit.
        clip: norm C > 0 at which a defense clips, in units of the gradient of the mean loss; unknown is 1.
        noise_multiplier: standard deviation of a clipping defense's noise divided by C, >= 0; replaces the strength.
        frozen: names of layers or parameters that the client did not train, so that they have no gradient.

    Raises:
        ValueError: naming the field, if a value is out of range.
    """

    kind: Kind = "gradient"
    framework: str | None = None
    loss: str | None = None
    reduction: str | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    batch_size: int | None = None
    batch_norm: str | None = None
    defense: str | None = None
    strength: float | None = None
    clip: float | None = None
    noise_multiplier: float | None = None
    frozen: tuple[str, ...] | None = None
    eval_layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range, and convert the others to Python's own types."""
        _validate.one_of(KINDS, kind=self.kind)
        for name, allowed in (("reduction", REDUCTIONS), ("batch_norm", MODES)):
            if getattr(self, name) is not None:
                _validate.one_of(allowed, **{name: getattr(self, name)})
        for name in ("framework", "loss", "defense"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r}")
        for name in ("frozen", "eval_layers"):
            layers = getattr(self, name)
            if layers is None:
                continue
            if (
                isinstance(layers, str)
                or not isinstance(layers, Iterable)
                or not all(isinstance(layer, str) and layer for layer in layers)
            ):
                raise ValueError(f"{name} must hold names of layers, got {layers!r}")
            object.__setattr__(self, name, tuple(layers))  # JSON has lists
        _validate.count(**self._given(*_COUNTS))
        _validate.below_one(**self._given("momentum"))
        _validate.positive(**self._given("learning_rate", "clip"))
        _validate.non_negative(**self._given("strength", "noise_multiplier"))
        for kind, names in ((int, _COUNTS), (float, _REALS)):  # JSON knows no scalars of NumPy
            for name, value in self._given(*names).items():
                object.__setattr__(self, name, kind(value))

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @staticmethod
    def of(**facts: Unpack[FactOptions]) -> "Facts":
        """Make facts from keyword arguments, and refuse those that an audit does not know.

        An audit takes these facts as they are, while the facts of a file may need options of the audit.

        Raises:
            TypeError: if a fact does not exist; names it and the existing ones.
            ValueError: as in `Facts`, and if no audit knows the loss or the defense.
        """
        known = [field.name for field in dataclasses.fields(Facts)]
        if unknown := sorted(facts.keys() - set(known)):
            raise TypeError(
                f"{unknown[0]} is not a fact about a client; they are {', '.join(known)}. State what has no name there "
                'as loss="other" (another loss or scale, such as label smoothing) or as defense="other" (an update '
                "that was changed after it was computed, such as by weight decay)"
            )
        stated = Facts(**facts)  # type: ignore[arg-type]
        check_loss(stated.loss)
        if stated.defense not in (None, "none", "other", *_defenses()) and not _names_a_function(stated.defense):
            raise ValueError(
                f"defense must be one that an attacker can know ({', '.join(_defenses())}), none, FILE.py:NAME for a "
                "function of your own, which the audit's command must name too (--defense FILE.py:NAME), or other for "
                f"any other; got {stated.defense!r}"
            )
        return stated

    def as_taken(self) -> dict[str, Any]:
        """Return all facts on which an audit depends; an unknown fact has the value that an audit assumes."""
        found = {name: _TAKEN.get(name) if value is None else value for name, value in dataclasses.asdict(self).items()}
        return {name: value for name, value in found.items() if name != "framework"}  # the arrays have been read

    def as_text(self) -> str:
        """Write the known facts as JSON."""
        return json.dumps({name: value for name, value in dataclasses.asdict(self).items() if value is not None})

    @staticmethod
    def from_text(text: str) -> "Facts":
        """Read the facts that `as_text` wrote.

        Raises:
            ValueError: if the text is not JSON, has an unknown field, or a value out of range.
        """
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("the header must be a JSON object")
        known = {field.name for field in dataclasses.fields(Facts)}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"the header has unknown fields: {', '.join(unknown[:3])}")
        return Facts(**given)


def check_loss(name: str | None) -> None:
    """Raise `ValueError` unless a loss is one of `LOSSES`, or None for an unknown loss."""
    if name not in (None, *LOSSES):
        raise ValueError(
            "loss must be cross_entropy, binary_cross_entropy (of several outputs), or other for any other loss; got "
            f"{name!r}"
        )


def _names_a_function(defense: str | None) -> bool:
    """Whether a defense is named as FILE.py:NAME; the file need not exist here, and is not read."""
    if defense is None or not is_own(defense):
        return False
    return file_of(defense).suffix == ".py" and defense.rpartition(":")[2].isidentifier()


@functools.cache
def _defenses() -> tuple[str, ...]:
    """Read the keys of `jaxleak.defenses.CLIENT_DEFENSES` from source, so that a PyTorch client need not import JAX."""
    return names_in(Path(__file__).parents[1] / "defenses/_client_defenses.py", "CLIENT_DEFENSES")
