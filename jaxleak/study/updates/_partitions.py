"""The samples that an attacked client holds in a skewed federation (FedLeak, section 6.3)."""

from typing import Any

import numpy as np

from jaxleak import _validate, data

_DEFAULTS = {"label_skew": 2.0, "quantity_skew": 50.0, "dirichlet": 0.5, "feature_skew": 0.0}


def client_samples(partition: str, dataset: data.Dataset, clients: int, needed: int, seed: int) -> np.ndarray:
    """Choose the attacked client's samples: all of an IID pool, or else those of one client that has enough samples.

    Args:
        partition: "iid", "label_skew:CLASSES", "quantity_skew:SAMPLES", "dirichlet:ALPHA", or "feature_skew:GROUP" with
            0 the smoothest fifth of the images and 4 the busiest. What follows the colon may be left out.
        dataset: the pool that all clients share.
        clients: number of clients in the federation; not read for "iid", where a client is a draw from the pool.
        needed: number of samples that the attacked round takes.
        seed: random seed of the partition, and of the choice among clients that have enough samples.

    Returns:
        Sorted indices into the pool, at least `needed`.

    Raises:
        ValueError: if the partition is unknown, if the data do not allow it, or if no client has enough samples.
    """
    kind, _, text = partition.partition(":")
    if kind == "iid":
        return np.arange(len(dataset.y))
    _validate.one_of(data.CLIENT_PARTITIONS, partition=kind)
    number, options = float(text or _DEFAULTS[kind]), dict[str, Any]()
    if kind == "label_skew":
        options = {"classes_per_client": int(number)}
    elif kind == "quantity_skew":
        options = {"low": int(number), "high": int(number)}
    elif kind == "dirichlet":
        options = {"alpha": number}
    parts = data.partition_clients(kind, seed, dataset.x, dataset.y, clients, **options)
    if kind == "feature_skew":
        groups = np.arange(clients) * 5 // clients
        parts = [part for part, group in zip(parts, groups, strict=True) if group == int(number)]
    enough = [part for part in parts if len(part) >= needed]
    if not enough:
        raise ValueError(
            f"no client of {partition} has {needed} samples; the largest has {max(map(len, parts))}: take a "
            "smaller federation or batch"
        )
    return enough[np.random.default_rng(seed).integers(len(enough))]
