"""Horizontal partitions: which client of a federation holds which samples, evenly or skewed.

Every partition is a function `(seed, samples, clients, ...) -> one sorted index array per client`. The arrays are
disjoint, none is empty, and the same seed gives the same arrays. A seed is anything that `numpy.random.default_rng`
accepts: an integer, or a list of integers such as the words of a JAX key.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxleak import _validate

Seed = int | Sequence[int]

# Number of draws after which the Dirichlet partition gives up, if each of them left a client without samples.
_ATTEMPTS = 100


def iid(seed: Seed, y: ArrayLike, clients: int) -> list[np.ndarray]:
    """Cut all samples, in random order, into parts whose sizes differ by at most one (FedLeak, section 5).

    Args:
        seed: see the module.
        y: (N, ...) labels or samples; only the length counts.
        clients: 1 <= clients <= N.

    Returns:
        Per client its sorted indices (N_i,); together they are all N.

    Raises:
        ValueError: if there are more clients than samples.
    """
    total = _check(np.asarray(y), clients)
    return _sorted(np.array_split(np.random.default_rng(seed).permutation(total), clients))


def label_skew(seed: Seed, y: ArrayLike, clients: int, *, classes_per_client: int = 2) -> list[np.ndarray]:
    """Give every client samples of a few classes only (FedLeak, section 6.3, with 1 to 5 classes).

    One after the other, each client chooses the classes that the fewest clients hold so far, at random among equals.
    Then every class is dealt evenly to the clients that hold it. If the number of clients times the classes per client
    is smaller than the number of classes, the classes that nobody holds are left out.

    Args:
        seed: see the module.
        y: (N,) integer labels.
        clients: at least 1.
        classes_per_client: from 1 to the number of classes in y.

    Returns:
        Per client its sorted indices (N_i,), of exactly `classes_per_client` classes.

    Raises:
        ValueError: if an argument is out of range, or a class has fewer samples than holders.
    """
    y = _labels(y)
    _check(y, clients)
    classes = np.unique(y)
    if not 1 <= classes_per_client <= len(classes):
        raise ValueError(f"classes_per_client must be from 1 to {len(classes)}, got {classes_per_client}")
    rng = np.random.default_rng(seed)
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(clients):
        burden = np.array([len(h) for h in holders])
        for c in np.lexsort((rng.random(len(classes)), burden))[:classes_per_client]:
            holders[c].append(client)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, held_by in zip(classes, holders, strict=True):
        members = rng.permutation(np.flatnonzero(y == label))
        if len(members) < len(held_by):
            raise ValueError(
                f"class {label} has {len(members)} samples for {len(held_by)} clients; take fewer clients or classes "
                "per client"
            )
        if held_by:
            for client, share in zip(held_by, np.array_split(members, len(held_by)), strict=True):
                parts[client].append(share)
    return _sorted([np.concatenate(shares) for shares in parts])


def quantity_skew(seed: Seed, y: ArrayLike, clients: int, *, low: int = 50, high: int = 250) -> list[np.ndarray]:
    """Give clients different numbers of samples, uniform integers in [low, high] (FedLeak, section 6.3).

    Samples are drawn without replacement; samples that no client draws are left out.

    Args:
        seed: see the module.
        y: (N, ...) labels or samples; only the length counts.
        clients: at least 1.
        low: fewest samples of a client, >= 1.
        high: most samples of a client, >= low.

    Returns:
        Per client its sorted indices (N_i,).

    Raises:
        ValueError: if an argument is out of range, or the sizes drawn add up to more than N.
    """
    total = _check(np.asarray(y), clients)
    _validate.count(low=low, high=high)
    if high < low:
        raise ValueError(f"high must be at least low, {low}, got {high}")
    rng = np.random.default_rng(seed)
    sizes = rng.integers(low, high, clients, endpoint=True)
    if sizes.sum() > total:
        raise ValueError(
            f"{clients} clients drew {sizes.sum()} samples in all, but there are {total}; take fewer clients or a "
            "smaller high"
        )
    order = rng.permutation(total)[: sizes.sum()]
    return _sorted(np.split(order, np.cumsum(sizes)[:-1]))


def feature_skew(seed: Seed, x: ArrayLike, clients: int, *, groups: int = 5) -> list[np.ndarray]:
    """Give each client images of similar complexity (FedLeak, section 6.3: five percentile groups by total variation).

    Images are sorted by their anisotropic total variation and cut into groups, simplest first. Clients are dealt to
    groups in order, evenly: client k belongs to group floor(k groups / clients). A group is dealt to its clients at
    random and evenly.

    Args:
        seed: see the module.
        x: (N, H, W, C) images, in any unit.
        clients: at least `groups`.
        groups: number of percentile groups, at least 1.

    Returns:
        Per client its sorted indices (N_i,); together they are all N.

    Raises:
        ValueError: if x does not hold images, if there are fewer clients than groups, or if a group has fewer images
            than clients.
    """
    x = np.asarray(x)
    if x.ndim != 4:
        raise ValueError(f"feature_skew needs images (N, H, W, C), got shape {x.shape}")
    total = _check(x, clients)
    _validate.in_range(1, clients, groups=groups)
    rng = np.random.default_rng(seed)
    ranked = np.argsort(_total_variation(x), kind="stable")
    group_of = np.arange(clients) * groups // clients
    parts: list[np.ndarray] = []
    for group, members in enumerate(np.array_split(ranked, groups)):
        share = int(np.sum(group_of == group))
        if len(members) < share:
            raise ValueError(f"{total} images in {groups} groups are too few for {clients} clients")
        parts += np.array_split(rng.permutation(members), share)
    return _sorted(parts)


def dirichlet(seed: Seed, y: ArrayLike, clients: int, *, alpha: float = 0.5) -> list[np.ndarray]:
    """Divide every class among the clients in Dirichlet proportions (FedLeak, Table 6).

    For each class, proportions over the clients are drawn from Dir(alpha, ..., alpha), and the class is cut at their
    rounded cumulative sums (Yurochkin et al., *Bayesian nonparametric federated learning*, ICML 2019; Li et al.,
    *Federated learning on non-IID data silos*, ICDE 2022). A small alpha gives every client few classes, and a large
    alpha gives every client the same mixture. As usual, the whole draw is repeated while a client has no samples.

    Args:
        seed: see the module.
        y: (N,) integer labels.
        clients: 1 <= clients <= N.
        alpha: concentration, > 0.

    Returns:
        Per client its sorted indices (N_i,); together they are all N.

    Raises:
        ValueError: if an argument is out of range, or every one of 100 draws left a client without samples.
    """
    y = _labels(y)
    _check(y, clients)
    _validate.positive(alpha=alpha)
    rng = np.random.default_rng(seed)
    for _ in range(_ATTEMPTS):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(y):
            members = rng.permutation(np.flatnonzero(y == label))
            borders = np.rint(np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(members)).astype(int)
            for part, share in zip(parts, np.split(members, borders), strict=True):
                part.append(share)
        indices = [np.concatenate(shares) for shares in parts]
        if min(map(len, indices)) > 0:
            return _sorted(indices)
    raise ValueError(
        f"alpha={alpha} left one of {clients} clients without samples in each of {_ATTEMPTS} draws from {len(y)} "
        "samples; take a larger alpha or fewer clients"
    )


CLIENT_PARTITIONS: Mapping[str, Callable[..., list[np.ndarray]]] = {
    "iid": iid,
    "label_skew": label_skew,
    "quantity_skew": quantity_skew,
    "feature_skew": feature_skew,
    "dirichlet": dirichlet,
}


def partition_clients(
    name: str, seed: Seed, x: ArrayLike, y: ArrayLike, clients: int, **options: Any
) -> list[np.ndarray]:
    """Deal samples to clients by the partition of the given name.

    Args:
        name: one of `CLIENT_PARTITIONS`.
        seed: see the module.
        x: (N, ...) samples in any unit; read by "feature_skew".
        y: (N,) labels; read by all others.
        clients: number of clients, at least 1.
        options: options of the named partition: `classes_per_client`, `low` and `high`, `groups`, `alpha`.

    Returns:
        Per client its sorted indices (N_i,): disjoint, none empty.

    Raises:
        ValueError: if the name is unknown, if x and y differ in length, or if the partition raises it.
        TypeError: if the partition does not have one of the options.
    """
    _validate.one_of(CLIENT_PARTITIONS, partition=name)
    x, y = np.asarray(x), np.asarray(y)
    if x.shape[:1] != y.shape[:1]:
        raise ValueError(f"x and y must have one length, got shapes {x.shape} and {y.shape}")
    return CLIENT_PARTITIONS[name](seed, x if name == "feature_skew" else y, clients, **options)


def _check(samples: np.ndarray, clients: int) -> int:
    total = len(samples)
    if not 1 <= clients <= total:
        raise ValueError(f"clients must be from 1 to the number of samples, {total}, got {clients}")
    return total


def _labels(y: ArrayLike) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"y must be integer labels of shape (N,), got {y.dtype} of shape {y.shape}")
    return y


def _sorted(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sort(part) for part in parts]


def _total_variation(x: np.ndarray) -> np.ndarray:
    """Sum the absolute differences of neighbouring pixels of every image: (N,)."""
    x = np.asarray(x, np.float32)  # differences of unsigned bytes would wrap around
    vertical, horizontal = np.abs(np.diff(x, axis=1)), np.abs(np.diff(x, axis=2))
    return vertical.sum(axis=(1, 2, 3), dtype=np.float64) + horizontal.sum(axis=(1, 2, 3), dtype=np.float64)
