"""Real data for the private side of a simulation, and how parties divide it.

`load` names a dataset and gives float32 samples in [0, 1] with labels; `image_tiles` and `feature_columns` cut every
sample into one slice per party, for vertical federated learning. All of it is NumPy on the host.
"""

from jaxleak.data._dataset import Dataset
from jaxleak.data._load import load
from jaxleak.data._partitions import (
    ColumnLayout,
    TileLayout,
    assemble_columns,
    assemble_tiles,
    feature_columns,
    image_tiles,
)

__all__ = [
    "ColumnLayout",
    "Dataset",
    "TileLayout",
    "assemble_columns",
    "assemble_tiles",
    "feature_columns",
    "image_tiles",
    "load",
]
