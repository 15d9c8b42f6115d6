"""Update files: a client's update, from any framework, and the known facts about how the client computed it.

A client writes an update file with `save`, in PyTorch, Flax, Equinox or NumPy. An auditor reads it with `load`, which
also reads plain safetensors, npz and PyTorch files, and brings it to the names and shapes of a model with `fit` or
`gradient_of`.
"""

from jaxleak._stated import KINDS
from jaxleak.capture._arrays import read_arrays, read_npz_array
from jaxleak.capture._facts import FactOptions, Facts
from jaxleak.capture._flower import flower_mod, flower_strategy
from jaxleak.capture._names import fit
from jaxleak.capture._update import Update, as_update, gradient_of, load, named_arrays, save

__all__ = [
    "KINDS",
    "FactOptions",
    "Facts",
    "Update",
    "as_update",
    "fit",
    "flower_mod",
    "flower_strategy",
    "gradient_of",
    "load",
    "named_arrays",
    "read_arrays",
    "read_npz_array",
    "save",
]
