"""Make classifiers of networks that others wrote; nothing in these networks is rewritten, renamed or transposed."""

from jaxleak.models._door.describe import describe
from jaxleak.models._door.equinox import from_equinox
from jaxleak.models._door.flax import classifier, from_flax
from jaxleak.models._door.from_file import from_file
from jaxleak.models._door.function import from_function
from jaxleak.models._door.torch_export import from_torch

__all__ = ["classifier", "describe", "from_equinox", "from_file", "from_flax", "from_function", "from_torch"]
