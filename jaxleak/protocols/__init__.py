"""Federated learning protocols: the computation of each round, and the transcript that it leaves."""

from jaxleak.protocols._client import ClientShare, averaged_share, client
from jaxleak.protocols._encrypted import encrypted_first
from jaxleak.protocols._federated import horizontal, vertical
from jaxleak.protocols._federated_averaging import FederatedAveraging, FederatedState, federated_averaging
from jaxleak.protocols._sampling import draw_batch, draw_worker_batches
from jaxleak.protocols._secure_aggregation import MaskedPayloads, aggregate, largest_entry, masked_payloads
from jaxleak.protocols._split_training import InteractiveLayer, split_state, split_training

__all__ = [
    "ClientShare",
    "FederatedAveraging",
    "FederatedState",
    "InteractiveLayer",
    "MaskedPayloads",
    "aggregate",
    "averaged_share",
    "client",
    "draw_batch",
    "draw_worker_batches",
    "encrypted_first",
    "federated_averaging",
    "horizontal",
    "largest_entry",
    "masked_payloads",
    "split_state",
    "split_training",
    "vertical",
]
