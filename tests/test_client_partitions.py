from itertools import pairwise

import numpy as np
import pytest

from jaxleak import data

N, CLASSES = 300, 6


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    contrast = rng.random((N, 1, 1, 1))
    return contrast * rng.random((N, 5, 4, 2)), rng.integers(0, CLASSES, N)


OPTIONS = {
    "iid": {},
    "label_skew": {"classes_per_client": 2},
    "quantity_skew": {"low": 5, "high": 20},
    "feature_skew": {"groups": 5},
    "dirichlet": {"alpha": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("clients", [5, 12])
def test_partitions_are_disjoint_complete_sorted_and_deterministic(samples, name, clients):
    parts = data.partition_clients(name, 3, *samples, clients, **OPTIONS[name])
    assert set(OPTIONS) == set(data.CLIENT_PARTITIONS)
    assert len(parts) == clients
    held = [int(i) for part in parts for i in part]
    assert len(held) == len(set(held))
    assert set(held) <= set(range(N))
    if name != "quantity_skew":
        assert len(held) == N
    for part in parts:
        assert len(part) > 0
        assert np.issubdtype(part.dtype, np.integer)
        assert list(part) == sorted(part)
    again = data.partition_clients(name, 3, *samples, clients, **OPTIONS[name])
    other = data.partition_clients(name, [3, 4], *samples, clients, **OPTIONS[name])
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    drawn = name != "feature_skew" or clients > OPTIONS[name]["groups"]  # with one client per group, nothing is random
    assert drawn != all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_iid_sizes_differ_by_at_most_one(samples):
    sizes = [len(part) for part in data.iid(0, samples[1], 7)]
    assert sorted(sizes) == [42] + [43] * 6


@pytest.mark.parametrize("per_client", [1, 2, 5, CLASSES])
def test_label_skew_gives_each_client_its_number_of_classes(samples, per_client):
    y = samples[1]
    parts = data.label_skew(1, y, 9, classes_per_client=per_client)
    holders = np.zeros(CLASSES, int)
    for part in parts:
        classes = sorted({int(y[i]) for i in part})
        assert len(classes) == per_client
        holders[classes] += 1
    assert holders.max() - holders.min() <= 1
    for c in range(CLASSES):
        shares = [n for part in parts if (n := int(np.sum(y[part] == c)))]
        assert max(shares) - min(shares) <= 1


def test_label_skew_leaves_classes_out_when_clients_are_few(samples):
    y = samples[1]
    (part,) = data.label_skew(0, y, 1, classes_per_client=2)
    (a, b) = {int(v) for v in y[part]}
    assert sorted(part) == [i for i in range(N) if y[i] in (a, b)]


def test_quantity_skew_draws_the_whole_range(samples):
    sizes = {len(part) for seed in range(30) for part in data.quantity_skew(seed, samples[1], 20, low=2, high=5)}
    assert sizes == {2, 3, 4, 5}


def test_feature_skew_sorts_by_total_variation(samples):
    x = samples[0]

    def variation(image):
        total = 0.0
        for i, j, c in np.ndindex(image.shape):
            total += abs(image[i + 1, j, c] - image[i, j, c]) if i + 1 < image.shape[0] else 0
            total += abs(image[i, j + 1, c] - image[i, j, c]) if j + 1 < image.shape[1] else 0
        return total

    values = np.array([variation(image) for image in x])
    parts = data.feature_skew(0, x, 7, groups=3)
    groups = [np.concatenate(parts[a:b]) for a, b in ((0, 3), (3, 5), (5, 7))]
    assert [len(g) for g in groups] == [100, 100, 100]
    for simple, busy in pairwise(groups):
        assert values[simple].max() <= values[busy].min()
    # Differences of bytes do not wrap around.
    pixels = np.round(255 * (x - x.min()) / np.ptp(x)).astype(np.uint8)
    for of_bytes, of_floats in zip(
        *(data.feature_skew(0, kind(pixels), 7) for kind in (np.array, np.float32)), strict=True
    ):
        np.testing.assert_array_equal(of_bytes, of_floats)


def test_dirichlet_goes_from_single_classes_to_the_overall_mixture(samples):
    y = samples[1]

    def shares(alpha):
        parts = data.dirichlet(0, y, 5, alpha=alpha)
        return np.mean([np.bincount(y[part], minlength=CLASSES).max() / len(part) for part in parts])

    assert shares(0.05) > shares(1.0) > shares(1000.0)
    assert shares(1000.0) < 0.3


def test_partitions_hold_up_to_their_bounds(samples):
    x, y = samples
    assert [len(part) for part in data.iid(0, y, N)] == [1] * N
    # All 35 samples are drawn, and every client has exactly as many as both bounds allow.
    assert [len(part) for part in data.quantity_skew(0, np.zeros(35), 5, low=7, high=7)] == [7] * 5
    assert [len(part) for part in data.quantity_skew(0, y, 3, low=1, high=1)] == [1] * 3
    # Extreme case: as many samples of each class as clients that hold it, and as many images per group as clients.
    pairs = data.label_skew(0, np.array([0, 0, 1, 1]), 2, classes_per_client=2)
    assert [len(part) for part in pairs] == [2, 2]
    assert [len(part) for part in data.feature_skew(0, x[:5], 5, groups=5)] == [1] * 5
    assert [len(part) for part in data.feature_skew(0, x[:6], 2, groups=1)] == [3, 3]
    assert [len(part) for part in data.dirichlet(0, y, 1)] == [N]


def test_bad_partitions(samples):
    x, y = samples
    with pytest.raises(ValueError, match=r"partition must be one of iid, label_skew, .* got 'zipf'"):
        data.partition_clients("zipf", 0, x, y, 5)
    with pytest.raises(ValueError, match="one length"):
        data.partition_clients("iid", 0, x[:10], y, 5)
    with pytest.raises(TypeError, match="alpha"):
        data.partition_clients("iid", 0, x, y, 5, alpha=1.0)
    for clients in (0, N + 1):
        with pytest.raises(ValueError, match=f"clients must be from 1 to the number of samples, {N}, got {clients}"):
            data.iid(0, y, clients)
    with pytest.raises(ValueError, match="classes_per_client must be from 1 to 6, got 7"):
        data.label_skew(0, y, 5, classes_per_client=7)
    with pytest.raises(ValueError, match="classes_per_client must be from 1 to 6, got 0"):
        data.label_skew(0, y, 5, classes_per_client=0)
    with pytest.raises(ValueError, match=r"groups must be in \[1, 4\], got 0"):
        data.feature_skew(0, x, 4, groups=0)
    with pytest.raises(ValueError, match="low must be > 0, got 0"):
        data.quantity_skew(0, y, 5, low=0, high=4)
    with pytest.raises(ValueError, match=r"integer labels of shape \(N,\), got int64 of shape \(300, 1\)"):
        data.label_skew(0, y[:, None], 5)
    with pytest.raises(ValueError, match="class 1 has 1 samples for 2 clients"):
        data.label_skew(0, np.array([0, 0, 0, 1]), 2, classes_per_client=2)
    with pytest.raises(ValueError, match="integer labels"):
        data.dirichlet(0, y + 0.5, 5)
    with pytest.raises(ValueError, match="alpha must be > 0"):
        data.dirichlet(0, y, 5, alpha=0.0)
    with pytest.raises(ValueError, match="without samples in each of 100 draws"):
        data.dirichlet(0, y, 250, alpha=0.01)
    with pytest.raises(ValueError, match="samples in all, but there are 300"):
        data.quantity_skew(0, y, 5)
    with pytest.raises(ValueError, match="high must be at least low, 5, got 4"):
        data.quantity_skew(0, y, 5, low=5, high=4)
    with pytest.raises(ValueError, match="images"):
        data.feature_skew(0, y, 5)
    with pytest.raises(ValueError, match=r"groups must be in \[1, 4\]"):
        data.feature_skew(0, x, 4)
    with pytest.raises(ValueError, match="too few"):
        data.feature_skew(0, x[:7], 7, groups=5)
