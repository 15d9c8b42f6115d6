"""What a client may state of itself, by name: for the help of a command, which imports nothing that is heavy."""

from typing import Literal, get_args

#: "gradient": of the loss. "difference": the weights after the local steps minus those before. "weights": the weights
#: after the local steps.
Kind = Literal["gradient", "difference", "weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: The loss that all attacks know, the one of which signs tell the labels, and any other.
LOSSES = ("cross_entropy", "binary_cross_entropy", "other")

#: How a loss is reduced over a batch.
REDUCTIONS = ("mean", "sum")

#: By which statistics normalisation layers normalise: the batch's, or the running ones.
MODES = ("train", "eval")
