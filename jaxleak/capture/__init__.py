"""Update files: what a client sent, with what is known of how it was computed, from any framework.

A client writes one with `save`, in PyTorch, Flax, Equinox or NumPy; an auditor reads it with `load`, together with
plain safetensors, npz and PyTorch files, and gives it the names and shapes of a model with `fit` or `gradient_of`.
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
