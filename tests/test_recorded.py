"""Records of a foreign training loop become observations, or are refused by name."""

import numpy as np
import pytest

from jaxleak.attacks import party_records


def arrays(steps=3, batch=2):
    rng = np.random.default_rng(0)
    return {
        "index": rng.integers(0, 9, (steps, batch)),
        "own": rng.normal(size=(steps, batch, 4)),
        "cut_gradients": rng.normal(size=(steps, batch, 5)),
    }


def test_records_are_what_attacks_read():
    given = arrays()
    seen = party_records.recorded(**given, outputs=2 * given["cut_gradients"])
    index, own, gradients = party_records.flat_observations(seen)
    np.testing.assert_array_equal(index, given["index"].ravel())
    np.testing.assert_allclose(own, given["own"].reshape(-1, 4), rtol=1e-6)
    np.testing.assert_allclose(gradients, given["cut_gradients"].reshape(-1, 5), rtol=1e-6)
    np.testing.assert_allclose(seen.party.output, 2 * given["cut_gradients"], rtol=1e-6)
    np.testing.assert_array_equal(seen.round, [0, 1, 2])
    assert party_records.recorded(**given).party.output is None


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"index": np.full((3, 2), -1)}, "index must hold the numbers >= 0 of samples, got int64 from -1"),
        ({"index": np.zeros((3, 2))}, "index must hold the numbers >= 0 of samples, got float64"),
        ({"index": np.zeros((3, 2, 1), int)}, r"index must hold numbers of shape \(T, B\), got int64 of shape"),
        ({"index": [[0, 1], [2]]}, "index must have shape .* leave out a last batch that is smaller"),
        (
            {"own": np.zeros((2, 2, 4))},
            r"own must have one row for each entry of index, \(3, 2\), got \(2, 2, 4\)",
        ),
        ({"own": np.full((3, 2, 4), "a")}, "own must hold numbers"),
        ({"cut_gradients": np.full((3, 2, 5), np.nan)}, "cut_gradients must be finite, and is not in step 0"),
        ({"outputs": np.zeros((3, 2, 4))}, r"outputs must have the shape of cut_gradients, got \(3, 2, 4\)"),
        ({"outputs": np.full((3, 2, 5), np.inf)}, "outputs must be finite"),
    ],
)
def test_what_is_no_record_is_refused(changed, match):
    with pytest.raises(ValueError, match=match):
        party_records.recorded(**(arrays() | changed))
