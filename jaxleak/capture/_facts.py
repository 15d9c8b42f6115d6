"""What is known of how a client computed its update."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from jaxleak import _validate
from jaxleak._registry import names_in
from jaxleak._stated import KINDS, LOSSES, MODES, REDUCTIONS, Kind

#: The fields that are whole numbers, and those that are real ones.
_COUNTS = ("local_steps", "local_epochs", "batch_size")
_REALS = ("learning_rate", "momentum", "strength", "clip", "noise_multiplier")
#: What a client is taken to have done of which nothing is known.
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
    """What the file says of the client; None means that the file does not say.

    Attributes:
        kind: what the arrays are: "gradient", "difference" (weights after minus weights before) or "weights" (after).
        framework: what wrote the arrays, for example "torch" or "jax".
        loss: name of the loss function: "cross_entropy"; "binary_cross_entropy" of several outputs, each of which is a
            finding that a sample has or has not; or "other" for all else.
        reduction: how the loss is reduced over a batch, "mean" or "sum".
        local_steps: E >= 1 steps of gradient descent in an epoch, each on samples of its own.
        local_epochs: K >= 1 passes over the same E * B samples.
        learning_rate: step size of the local steps, > 0.
        momentum: momentum of the local steps, in [0, 1), with a velocity that begins at zero.
        batch_size: B >= 1 samples of each step.
        batch_norm: "train" where batch statistics normalised, "eval" where the running ones did.
        eval_layers: names of PyTorch's submodules that were in evaluation mode while the others trained.
        defense: kind of the defense that the client applied, a key of `jaxleak.defenses.CLIENT_DEFENSES`; "none" for
            none, and "other" for any other.
        strength: how strong that defense is, >= 0, in its own unit.
        clip: norm C > 0 at which a defense clips, in units of the gradient of the mean loss; unknown is 1.
        noise_multiplier: the standard deviation of such a defense's noise over C, >= 0, in the place of its strength.
        frozen: names of layers or parameters that the client did not train, so that they have no gradient.

    Raises:
        ValueError: naming the field, on a value out of its range.
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
        """Refuse values out of range."""
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
        """Facts by name, which an audit takes as they are; those of a file may need its options.

        Raises:
            TypeError: naming a fact that there is not, and those that there are.
            ValueError: as `Facts`, and on a loss or a defense that no audit knows.
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
        if stated.defense not in (None, "none", "other", *_defenses()):
            raise ValueError(
                f"defense must be one that an attacker can know ({', '.join(_defenses())}), none, or other for any "
                f"other; got {stated.defense!r}"
            )
        return stated

    def as_taken(self) -> dict[str, Any]:
        """Everything on which an audit depends: unknown facts have the value for which it takes them."""
        found = {name: _TAKEN.get(name) if value is None else value for name, value in dataclasses.asdict(self).items()}
        return {name: value for name, value in found.items() if name != "framework"}  # the arrays have been read

    def as_text(self) -> str:
        """The facts that are known, as JSON."""
        return json.dumps({name: value for name, value in dataclasses.asdict(self).items() if value is not None})

    @staticmethod
    def from_text(text: str) -> "Facts":
        """What `as_text` wrote.

        Raises:
            ValueError: if it is not JSON, has a field that is not known, or a value out of its range.
        """
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("the header must be a JSON object")
        known = {field.name for field in dataclasses.fields(Facts)}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"the header has unknown fields: {', '.join(unknown[:3])}")
        return Facts(**given)


def check_loss(name: str | None) -> None:
    """Raise `ValueError` unless a loss is one of `LOSSES`, or None where it is not known."""
    if name not in (None, *LOSSES):
        raise ValueError(
            "loss must be cross_entropy, binary_cross_entropy (of several outputs), or other for any other loss; got "
            f"{name!r}"
        )


@functools.cache
def _defenses() -> tuple[str, ...]:
    """The keys of `jaxleak.defenses.CLIENT_DEFENSES`; a client of PyTorch has no need to import JAX for them."""
    return names_in(Path(__file__).parents[1] / "defenses/_client_defenses.py", "CLIENT_DEFENSES")
