"""What a check of an update says."""

from collections.abc import Collection
from typing import Literal, NamedTuple

from jaxleak._stated import Kind

#: "failed": no client of the stated kind could have sent this. "suspicious": hardly any could.
Status = Literal["passed", "failed", "suspicious", "not applicable"]

#: The general options, each with what it is for; every check that names one says this.
LOSS_OTHER = "--loss other (another loss or scale)"
DEFENSE_OTHER = "--defense other (an update that was changed after it was computed)"
REVERSED = "the sign of the update is reversed"
#: The options that reverse the sign of a gradient, and what reverses the sign of each kind of update.
TURN = "--kind difference --learning-rate 1"
_TURNED: dict[Kind, str] = {
    "gradient": TURN,
    "difference": "a difference that is the weights after training minus those before",
    "weights": "--weights with the file of the weights before training, and --update with the file of those after it",
}
#: A cause of an update that is too large.
ADDED_UP = "gradients that were added up over several micro-batches without dividing"

#: What a client of a network with running statistics may have forgotten to state.
MIXED_MODES = "layers of batch normalisation in different modes (eval_layers)"
#: The option for such a client.
EVAL_LAYERS = "eval_layers, the names of those in evaluation mode, as capture.save records them of a PyTorch module"


def only_clipped(norm: float | None = None) -> str:
    """The option for a client that clips its update and adds no noise; `norm` is the norm of the update, if known."""
    clip = "C" if norm is None else f"{norm:.4g}"
    return f"--defense dp_update --clip {clip} --noise-multiplier 0 (clipping at a norm of {clip}, of a mean loss)"


#: The cause of a difference, and the options that mend it.
Mended = tuple[str, tuple[str, ...]]


class Finding(NamedTuple):
    """The answer of one check.

    Attributes:
        name: what the check is called.
        status: "passed"; "failed", the update cannot come from the stated client; "suspicious", it hardly can; or "not
            applicable", and the evidence then says why.
        evidence: a sentence with the numbers that were compared.
        cause: the likeliest mistake, where the check did not pass.
        options: the arguments that mend it, the likeliest first; none where none does.
    """

    name: str
    status: Status
    evidence: str
    cause: str = ""
    options: tuple[str, ...] = ()

    def of_kind(self, kind: Kind) -> "Finding":
        """The finding on an update of this kind, with the options that reverse the sign of this kind."""
        return self._replace(options=tuple(_TURNED[kind] if option == TURN else option for option in self.options))

    def without(self, stated: Collection[str]) -> "Finding":
        """The finding that advises none of these options, because the client states them already."""
        return self._replace(options=tuple(option for option in self.options if option not in stated))

    @property
    def option(self) -> str:
        """The options in words; empty without any."""
        *others, last = self.options or ("",)
        return ", ".join((*others, f"or {last}")) if others else last

    def __str__(self) -> str:
        """One line for a terminal."""
        parts = [f"{self.name}: {self.status}. {self.evidence}"]
        parts += [f"Likeliest cause: {self.cause}."] if self.cause else []
        return " ".join(parts + ([f"Option: {self.option}."] if self.option else []))


def failed(findings: list[Finding]) -> list[Finding]:
    """The checks that no client of the stated kind could fail."""
    return [finding for finding in findings if finding.status == "failed"]
