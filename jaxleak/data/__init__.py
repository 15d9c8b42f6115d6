"""Real data for the private side of a simulation, and how parties divide it.

`load` names a dataset and gives float32 samples in [0, 1] with labels; `image_tiles` and `feature_columns` cut every
sample into one slice per party, for vertical federated learning. All of it is NumPy on the host.

Studies of split vertical training start from `load_table`, whose encoding is fitted on the attacker's rows only.
"""

from jaxleak.data._dataset import Dataset
from jaxleak.data._encoding import Encoding, Table, check_classes, encode, fit_encoding, load_table
from jaxleak.data._feature_partitions import partition_features, party_slices
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
    "Encoding",
    "Table",
    "TileLayout",
    "assemble_columns",
    "assemble_tiles",
    "check_classes",
    "encode",
    "feature_columns",
    "fit_encoding",
    "image_tiles",
    "load",
    "load_table",
    "partition_features",
    "party_slices",
]
