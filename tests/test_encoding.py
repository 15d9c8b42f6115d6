"""Tables, encodings fitted on shadow rows, and feature partitions."""

import numpy as np
import pytest

from jaxleak import data
from jaxleak.data import _feature_partitions

NUMERIC = np.array([[0.0, 5, 1], [10, 5, np.nan], [5, 5, 3], [20, 6, 9], [-4, 5, 2]])
CATEGORICAL = np.array([[7, 1], [7, 1], [3, 1], [9, 1], [105, 2]])
TABLE = data.Table(NUMERIC, CATEGORICAL, np.array([0, 1, 0, 1, 0], np.int32), 2, "small")
SHADOW = np.arange(3)


def test_only_the_fitted_rows_count():
    encoding = data.fit_encoding(TABLE, SHADOW)
    other = TABLE._replace(numeric=NUMERIC.copy(), categorical=CATEGORICAL.copy())
    other.numeric[3:] = 1e6
    other.categorical[3:] = 55
    again = data.fit_encoding(other, SHADOW)
    np.testing.assert_array_equal(data.encode(encoding, TABLE), data.encode(again, TABLE))
    assert encoding.numeric == (0, 2)
    assert encoding.categorical == (0,)


def test_hashed_encoding_by_hand():
    x = data.encode(data.fit_encoding(TABLE, SHADOW, buckets=10), TABLE)
    expected = [
        [0.0, 0.0, 7 / 9],
        [1.0, 0.0, 7 / 9],  # a missing value is 0
        [0.5, 1.0, 3 / 9],
        [1.0, 1.0, 9 / 9],  # beyond the fitted range: clipped
        [0.0, 0.5, 5 / 9],  # 105 mod 10
    ]
    np.testing.assert_allclose(x, expected, atol=1e-6)
    assert x.dtype == np.float32


def test_a_column_of_one_bucket_is_dropped_as_a_constant_one_is():
    table = TABLE._replace(categorical=np.array([[5, 1], [105, 2], [205, 3], [7, 4], [8, 5]]))
    assert data.fit_encoding(table, SHADOW, buckets=100).categorical == (1,)
    assert data.fit_encoding(table, SHADOW, categories="one_hot").categorical == (0, 1)


def test_one_hot_and_quantiles_by_hand():
    encoding = data.fit_encoding(TABLE, SHADOW, scaling="quantile", categories="one_hot", max_categories=1)
    x = data.encode(encoding, TABLE)
    # Fitted values 0, 5, 10: a value's code is the middle of its ranks among them.
    np.testing.assert_allclose(x[:, 0], [1 / 6, 5 / 6, 3 / 6, 1.0, 0.0], atol=1e-6)
    np.testing.assert_array_equal(x[:, 2], [1, 1, 0, 0, 0])
    assert [list(own) for own in encoding.columns] == [[0], [1], [2]]
    wider = data.fit_encoding(TABLE, SHADOW, categories="one_hot", max_categories=3)
    np.testing.assert_array_equal(data.encode(wider, TABLE)[:, 2:], [[1, 0], [1, 0], [0, 1], [0, 0], [0, 0]])
    assert [list(own) for own in wider.columns] == [[0], [1], [2, 3]]


def test_two_buckets_are_even_and_odd_and_columns_without_a_value_are_dropped():
    mixed = TABLE._replace(categorical=np.add(CATEGORICAL, [[0, 0], [1, 0], [0, 0], [0, 0], [1, 0]]))
    x = data.encode(data.fit_encoding(mixed, SHADOW, buckets=2), mixed)
    np.testing.assert_array_equal(x[:, 2], [1, 0, 1, 1, 0])
    empty = TABLE._replace(
        numeric=np.hstack([NUMERIC, np.full((5, 1), np.nan)]), categorical=np.add(mixed.categorical, [1, 0])
    )
    encoding = data.fit_encoding(empty, SHADOW, buckets=2)
    assert encoding.numeric == (0, 2)
    np.testing.assert_array_equal(data.encode(encoding, empty)[:, 2], [0, 1, 0, 0, 1])


def test_tables_from_files_and_names(tmp_path):
    path = tmp_path / "ctr.npz"
    np.savez(path, x_num=NUMERIC.astype(np.float32), x_cat=CATEGORICAL, y=TABLE.y)
    table = data.load_table(f"npz:{path}")
    np.testing.assert_array_equal(table.categorical, CATEGORICAL)
    assert np.isnan(table.numeric[1, 2])
    marked = tmp_path / "marked.npz"
    np.savez(marked, x=np.arange(10.0).reshape(5, 2), y=TABLE.y, is_categorical=np.array([True, False]))
    table = data.load_table(f"npz:{marked}")
    np.testing.assert_array_equal(table.numeric[:, 0], [1, 3, 5, 7, 9])
    np.testing.assert_array_equal(table.categorical[:, 0], [0, 2, 4, 6, 8])
    for members, shape in (({"x_num": NUMERIC}, (5, 3, 0)), ({"x_cat": CATEGORICAL}, (5, 0, 2))):
        np.savez(path, y=TABLE.y, **members)
        table = data.load_table(f"npz:{path}")
        assert (len(table.numeric), table.numeric.shape[1], table.categorical.shape[1]) == shape
        assert (table.num_features, table.num_classes) == (sum(shape[1:]), 2)
    colours = data.load_table("photographs:8")
    pixels = data.load("photographs:8").x
    np.testing.assert_allclose(colours.numeric, pixels.mean(axis=3).reshape(200, 64), rtol=1e-6)
    digits = data.load_table("digits")
    assert digits.num_classes == 10
    assert digits.numeric.shape == (1797, 64)
    assert digits.num_features == 64


def test_bad_tables(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match=r"JAXLEAK_DATA_DIR.*docs/data\.md"):
        data.load_table("criteo")
    monkeypatch.setenv("JAXLEAK_DATA_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"criteo needs .*criteo\.npz.*docs/data\.md"):
        data.load_table("criteo")

    def saved(**members):
        np.savez(tmp_path / "bad.npz", **members)
        return f"npz:{tmp_path / 'bad.npz'}"

    for y in ([0, 2, 2, 0, 0], [1, 2, 1, 2, 1], [0, 0, 0, 0, 0]):
        with pytest.raises(ValueError, match=r"labels must be 0 \.\.\. C-1"):
            data.load_table(saved(x=np.ones((5, 2)), y=np.array(y)))
    with pytest.raises(ValueError, match="must have an array y"):
        data.load_table(saved(x=np.ones((5, 2))))
    with pytest.raises(ValueError, match="must have an array y, and x or x_num and x_cat; it has y"):
        data.load_table(saved(y=TABLE.y))
    for marked in (np.array([True]), np.array([1, 0])):
        with pytest.raises(ValueError, match=r"is_categorical must be bool of shape \(2,\)"):
            data.load_table(saved(x=np.ones((5, 2)), y=TABLE.y, is_categorical=marked))
    with pytest.raises(ValueError, match=r"numeric columns must have shape \(5, F\), got \(5,\)"):
        data.load_table(saved(x_num=np.ones(5), y=TABLE.y))
    with pytest.raises(ValueError, match=r"categorical columns must have shape \(5, F\), got \(4, 2\)"):
        data.load_table(saved(x_cat=CATEGORICAL[:4], y=TABLE.y))
    with pytest.raises(ValueError, match=r"only numeric columns may hold missing values .* a code of their own$"):
        data.load_table(saved(x_cat=np.full((5, 1), np.nan), y=TABLE.y))
    with pytest.raises(ValueError, match=r"categorical columns must hold whole numbers as codes, got 1\.5$"):
        data.load_table(saved(x=np.full((5, 2), 1.5), y=TABLE.y, is_categorical=np.array([False, True])))
    with pytest.raises(ValueError, match="numeric columns must have shape"):
        data.load_table(saved(x=np.ones((4, 2)), y=TABLE.y))
    with pytest.raises(ValueError, match="infinite"):
        data.load_table(saved(x=np.full((5, 2), np.inf), y=TABLE.y))
    with pytest.raises(ValueError, match=r"bad\.npz: x has dtype object, which is never unpickled: store numbers"):
        data.load_table(saved(x=np.array([{}] * 5), y=TABLE.y))
    names = np.array(["age", "sex"], object)  # nobody reads them
    assert data.load_table(saved(x=np.ones((5, 2)), y=TABLE.y, feature_names=names)).num_features == 2
    for name in ("x", "x_num", "x_cat"):
        message = rf"bad\.npz: {name} must hold numbers, got dtype <U1: encode text columns as codes first$"
        with pytest.raises(ValueError, match=message):
            data.load_table(saved(**{name: np.full((5, 2), "f"), "y": TABLE.y}))
    for options in ({"buckets": 1}, {"scaling": "log"}, {"categories": "codes"}, {"max_categories": 0}):
        with pytest.raises(ValueError, match="must be"):
            data.fit_encoding(TABLE, SHADOW, **options)
    with pytest.raises(ValueError, match="every column is constant"):
        data.fit_encoding(TABLE, np.array([0]))
    with pytest.raises(ValueError, match="rows must not be empty"):
        data.fit_encoding(TABLE, np.array([], int))


@pytest.mark.parametrize("kind", ["random", "gaussian", "gibbs"])
def test_partitions_have_their_sizes(kind):
    x = np.random.default_rng(0).random((30, 20))
    for share, own in ((0.05, 1), (0.25, 5), (0.75, 15), (None, 7)):
        parts = data.partition_features(20, 3, share=share, adversary=1 if share else 0, kind=kind, x=x, seed=1)
        assert sorted(np.concatenate(parts)) == list(range(20))
        assert len(parts[1 if share else 0]) == own
        assert min(map(len, parts)) >= 1
    again = data.partition_features(20, 3, kind=kind, x=x, seed=1)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("seed", [0, 1])
def test_gaussian_parties_hold_neighbours_behind_blurred_borders(seed):
    """The reference follows the docstring: sort by j + F / (2 P) Z_j, cut into pieces, and order them randomly."""
    rng = np.random.default_rng(seed)
    pieces = rng.permutation(3)
    positions = np.arange(10) + 10 / (2 * 3) * rng.standard_normal(10)
    sizes, begin, expected = (4, 3, 3), 0, {}
    for party in pieces:
        expected[party] = sorted(np.argsort(positions)[begin : begin + sizes[party]])
        begin += sizes[party]
    found = data.partition_features(10, 3, kind="gaussian", seed=seed)
    assert [list(own) for own in found] == [expected[party] for party in range(3)]


def test_gibbs_keeps_correlated_features_together_and_gaussian_neighbours():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((200, 2)), 6, axis=1)[:, rng.permutation(12)]
    correlation = np.abs(np.corrcoef(x.T))

    def within(kind, seed):
        parts = data.partition_features(12, 2, kind=kind, x=x, seed=seed)
        return sum(correlation[np.ix_(part, part)].sum() for part in parts)

    assert within("gibbs", 0) > 1.3 * np.mean([within("random", seed) for seed in range(20)])
    spread = {
        kind: np.mean([np.ptp(data.partition_features(60, 3, kind=kind, seed=s)[0]) for s in range(20)])
        for kind in ("random", "gaussian")
    }
    assert spread["gaussian"] < 0.85 * spread["random"]


def test_slices_are_padded_with_zeros():
    x = np.arange(12.0).reshape(2, 6)
    slices = data.party_slices(x, [np.array([5]), np.array([0, 2, 1])])
    np.testing.assert_array_equal(slices, [[[5, 0, 0], [0, 2, 1]], [[11, 0, 0], [6, 8, 7]]])
    with pytest.raises(ValueError, match="party 1 has no features"):
        data.party_slices(x, [np.array([5]), np.array([], int)])
    np.testing.assert_array_equal(data.party_slices(x, [[0], range(4, 6)])[0], [[0, 0], [4, 5]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([[0, 1], [1, 2]], "columns must have one party each, got column 1 for parties 0 and 1"),
        ([[0], [2, 1, 2]], "columns of party 1 must differ, got column 2 twice"),
        ([[0], [-1]], r"columns of party 1 must be in \[0, 6\), got -1"),
        ([[6], [1]], r"columns of party 0 must be in \[0, 6\), got 6"),
        ([["age"], ["sex"]], r"columns of party 0 must be whole numbers \(F_p,\), got dtype <U3 of shape \(1,\)$"),
        ([[0.0], [1.0]], "columns of party 0 must be whole numbers"),
        ([[[0]], [[1]]], r"columns of party 0 must be whole numbers \(F_p,\), got dtype int64 of shape \(1, 1\)$"),
        (
            [np.arange(6) < 3, np.arange(6) >= 3],
            r"got dtype bool of shape \(6,\): of a mask take np\.flatnonzero\(mask",
        ),
        ([], "columns must be those of at least one party"),
    ],
)
def test_columns_that_would_be_read_otherwise_than_meant_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        data.party_slices(np.arange(12.0).reshape(2, 6), columns)


def test_slices_are_made_of_finite_numbers():
    table = np.arange(12.0).reshape(2, 6)
    for bad, hint in ((np.nan, ": 1 of 2 values of column 4 are missing, which must be filled in first"), (np.inf, "")):
        table[1, 4] = bad
        with pytest.raises(ValueError, match=f"x must be finite, got {bad} in row 1, column 4{hint}$"):
            data.party_slices(table, [[0], [1]])
    table[:, 4] = np.nan
    with pytest.raises(
        ValueError, match=r"column 4: all values .* one was missing before .* or a constant column has no dev"
    ):
        data.party_slices(table, [[0], [1]])
    for x, message in (
        (np.array([["f", "3"]]), "x must hold numbers, got dtype <U1: encode text columns as codes"),
        (np.array([["f", 3]], object), "x must hold numbers, got dtype object"),
        (np.zeros((2, 3, 4)), r"x must be a table \(N, width\), got shape \(2, 3, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            data.party_slices(x, [[0], [1]])


def test_bad_partitions():
    with pytest.raises(ValueError, match="from 2 to the number of features, 3, got 4"):
        data.partition_features(3, 4)
    with pytest.raises(ValueError, match="from 2 to the number of features, 3, got 1"):
        data.partition_features(3, 1)
    assert sorted(own.tolist() for own in data.partition_features(3, 3)) == [[0], [1], [2]]
    for adversary in (-1, 2):
        with pytest.raises(ValueError, match=r"adversary must be in \[0, 1\]"):
            data.partition_features(6, 2, adversary=adversary)
    for x in (np.ones(6), np.ones((4, 5)), np.ones((4, 6, 1))):
        with pytest.raises(ValueError, match=r"needs x of shape \(n, 6\)"):
            data.partition_features(6, 2, kind="gibbs", x=x)
    for share in (0.0, 1.0, -0.5):
        with pytest.raises(ValueError, match="share must be in"):
            data.partition_features(6, 2, share=share)
    with pytest.raises(ValueError, match="needs x of shape"):
        data.partition_features(6, 2, kind="gibbs")
    with pytest.raises(ValueError, match="kind must be one of"):
        data.partition_features(6, 2, kind="exponential")


@pytest.mark.parametrize(
    ("features", "parties", "share", "adversary", "sizes"),
    [
        (10, 3, None, 0, [4, 3, 3]),
        (10, 3, 0.5, 0, [5, 3, 2]),
        (10, 3, 0.5, 1, [3, 5, 2]),
        (10, 3, 0.01, 2, [5, 4, 1]),  # at least one
        (10, 3, 0.99, 0, [8, 1, 1]),  # and one for each other party
        (5, 2, 0.3, 0, [2, 3]),
    ],
)
def test_sizes_of_partitions_by_hand(features, parties, share, adversary, sizes):
    assert _feature_partitions._sizes(features, parties, share, adversary) == sizes


def test_correlations_of_constant_columns_are_zero():
    x = np.array([[1.0, 2.0, 5.0], [2.0, -4.0, 5.0], [4.0, 3.0, 5.0]])
    found = _feature_partitions._absolute_correlations(x)
    expected = abs(np.corrcoef(x[:, :2].T)[0, 1])
    np.testing.assert_allclose(found, [[1, expected, 0], [expected, 1, 0], [0, 0, 0]], atol=1e-12)


def test_cold_swaps_only_gather_what_correlates_and_hot_ones_go_anywhere():
    """In an example of two pairs of copies, a large beta refuses swaps that separate correlated features."""
    correlation = np.kron(np.eye(2), np.ones((2, 2)))
    apart = np.array([0, 1, 0, 1])
    for seed in range(5):
        cold = _feature_partitions._gibbs(apart, correlation, 1e3, np.random.default_rng(seed))
        assert cold[0] == cold[1] != cold[2] == cold[3]
        together = np.array([0, 0, 1, 1])
        kept = _feature_partitions._gibbs(together, correlation, 1e3, np.random.default_rng(seed))
        assert kept[0] == kept[1] != kept[2] == kept[3]
    hot = {tuple(_feature_partitions._gibbs(apart, correlation, 0.0, np.random.default_rng(s))) for s in range(40)}
    assert len(hot) == 6
    np.testing.assert_array_equal(apart, [0, 1, 0, 1])
    # A party with one feature holds no pair, so no swap is refused, however large beta is.
    alone = np.array([0, 1])
    cold = {tuple(_feature_partitions._gibbs(alone, np.eye(2), 1e3, np.random.default_rng(s))) for s in range(20)}
    assert cold == {(0, 1), (1, 0)}
