"""Real data for the private side of a simulation, and how parties divide it.

`load` takes the name of a dataset and returns float32 samples in [0, 1] with labels. `image_tiles` and
`feature_columns` cut every sample into one slice per party, for vertical federated learning. All functions work with
NumPy arrays on the host.

`archive` turns the files in which a data set is published into a file that `load` reads.

`partition_clients` deals samples to the clients of horizontal federated learning, evenly or skewed.

Studies of split vertical training start from `load_table`; its encoding is fitted on the attacker's rows only.
"""

from jaxleak.data._archive import archive, sample_digests
from jaxleak.data._client_partitions import (
    CLIENT_PARTITIONS,
    dirichlet,
    feature_skew,
    iid,
    label_skew,
    partition_clients,
    quantity_skew,
)
from jaxleak.data._dataset import Dataset
from jaxleak.data._encoding import (
    TABLES,
    Table,
    TableEncoding,
    check_classes,
    encode,
    fit_encoding,
    load_table,
    missing_entries,
)
from jaxleak.data._feature_partitions import partition_features, party_slices
from jaxleak.data._load import OVERLAPPING, load
from jaxleak.data._partitions import (
    ColumnLayout,
    TileLayout,
    assemble_columns,
    assemble_tiles,
    feature_columns,
    image_tiles,
)
from jaxleak.data._published import PUBLISHED

__all__ = [
    "CLIENT_PARTITIONS",
    "OVERLAPPING",
    "PUBLISHED",
    "TABLES",
    "ColumnLayout",
    "Dataset",
    "TableEncoding",
    "Table",
    "TileLayout",
    "archive",
    "assemble_columns",
    "assemble_tiles",
    "check_classes",
    "dirichlet",
    "encode",
    "feature_columns",
    "feature_skew",
    "fit_encoding",
    "iid",
    "image_tiles",
    "label_skew",
    "load",
    "load_table",
    "missing_entries",
    "partition_clients",
    "partition_features",
    "party_slices",
    "quantity_skew",
    "sample_digests",
]
