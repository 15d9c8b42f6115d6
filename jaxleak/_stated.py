"""Names of what a client may state of itself, for the help of a command, which imports nothing heavy."""

from typing import Literal, get_args

#: What an update holds. "gradient": the gradient of the loss. "difference": the weights after the local steps minus
#: those before. "weights": the weights after the local steps.
Kind = Literal["gradient", "difference", "weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: Losses: the one that all attacks know, the one whose labels can be told from signs, and any other.
LOSSES = ("cross_entropy", "binary_cross_entropy", "other")

#: How a loss is reduced over a batch.
REDUCTIONS = ("mean", "sum")

#: Modes of normalisation layers: "train" uses the batch's statistics, "eval" the running ones.
MODES = ("train", "eval")
