"""Records of a user's training loop become observations, or are refused by name."""

import numpy as np
import pytest

from jaxleak.attacks import party_records


def arrays(steps=3, batch=2):
    rng = np.random.default_rng(0)
    index = np.arange(steps * batch).reshape(steps, batch) % 4
    return {
        "index": index,
        "own": rng.normal(size=(4, 4))[index],
        "cut_gradients": rng.normal(size=(steps, batch, 5)),
    }


def test_records_are_what_attacks_read():
    given = arrays()
    after = 3 * given["cut_gradients"]
    seen = party_records.recorded(**given, outputs=2 * given["cut_gradients"], outputs_after=after)
    index, own, gradients = party_records.flat_observations(seen)
    np.testing.assert_array_equal(index, given["index"].ravel())
    np.testing.assert_allclose(own, given["own"].reshape(-1, 4), rtol=1e-6)
    np.testing.assert_allclose(gradients, given["cut_gradients"].reshape(-1, 5), rtol=1e-6)
    np.testing.assert_allclose(seen.party.output, 2 * given["cut_gradients"], rtol=1e-6)
    np.testing.assert_allclose(seen.party.output_after, after, rtol=1e-6)
    np.testing.assert_array_equal(seen.round, [0, 1, 2])
    assert party_records.recorded(**given).party.output is None


def test_a_sample_may_be_drawn_twice_in_a_step():
    given = arrays()
    given["own"][1, 1] = given["own"][1, 0]
    given["index"][1] = 5
    np.testing.assert_array_equal(party_records.recorded(**given).index[1], [5, 5])


def test_own_features_of_a_sample_may_differ_by_rounding():
    given = arrays()
    given["own"][2] *= 1 + 1e-6
    np.testing.assert_array_equal(party_records.recorded(**given).index, given["index"])


def test_a_factor_of_the_gradients_changes_attacks_with_a_shadow_run_alone():
    given = arrays(steps=8)
    one = party_records.recorded(**given)
    other = party_records.recorded(**given | {"cut_gradients": 16 * given["cut_gradients"]})
    (index, own, gradients), (_, _, larger) = (party_records.flat_observations(seen) for seen in (one, other))
    prior = np.log(np.where(index[:, None] % 2 == [0, 1], 0.8, 0.2))
    for attack in (
        lambda gradients: party_records.free_labels(gradients, index, prior, num_samples=4).labels,
        lambda gradients: party_records.norm_labels(gradients, 0.3),
        lambda gradients: party_records.direction_labels(gradients, gradients[0]),
        lambda gradients: party_records.sign_labels(gradients)[0],
    ):
        np.testing.assert_array_equal(attack(gradients), attack(larger))
    own_features = party_records.fit_feature_baseline(own[:4], own[:4, :1])
    regression = party_records.GradientRegression(
        party_records.FeatureBaseline(lambda rows: rows[:, -1:], "lengths", 0.0, np.zeros(4)), own_features, 1.0, 0.1
    )
    answers = [regression.predict(seen, own[:4]) for seen in (one, other)]
    np.testing.assert_allclose(answers[1] - answers[0], np.log(16), rtol=1e-5)


@pytest.mark.parametrize(("zeros", "warned"), [(1, False), (2, True)])
def test_gradients_that_are_exactly_zero_are_warned_of(zeros, warned, caplog):
    given = arrays(steps=10)
    given["cut_gradients"][:zeros, 0] = 1e-60  # zero in float32
    party_records.recorded(**given)
    assert ("cut_gradients are exactly zero in 10 % of the rows" in caplog.text) is warned
    assert bool(caplog.records) is warned


class Tensor:
    """A stub of a PyTorch tensor that cannot become an array."""

    def __init__(self, error):
        self.error = error

    def __array__(self, *_, **__):
        raise self.error


GOOD = np.ones((3, 2, 5))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"index": np.full((3, 2), -1)}, "index must hold integers >= 0, the numbers of samples, got int64"),
        ({"index": np.zeros((3, 2))}, "index must hold integers >= 0, the numbers of samples, got float64"),
        ({"index": np.zeros((3, 2, 1), int)}, r"index must hold numbers of shape \(T, B\), got int64 of shape"),
        ({"index": [[0, 1], [2]]}, "index must have shape .* leave out a last batch that is smaller"),
        (
            {"own": np.zeros((2, 2, 4))},
            r"own must have one row for each entry of index, \(3, 2\), got \(2, 2, 4\)",
        ),
        ({"own": np.full((3, 2, 4), "a")}, "own must hold numbers"),
        ({"cut_gradients": np.zeros((3, 2, 5))}, "cut_gradients must not be zero in every row: look for a hook that"),
        ({"cut_gradients": np.full((3, 2, 5), np.nan)}, "cut_gradients must be finite, and is not in step 0"),
        (
            {"outputs": np.zeros((3, 2, 4)), "outputs_after": GOOD},
            r"outputs must have the shape of .*, got \(3, 2, 4\)",
        ),
        ({"outputs": GOOD, "outputs_after": GOOD[:2]}, "outputs_after must have one row for each entry of index"),
        ({"outputs": GOOD, "outputs_after": np.inf * GOOD}, "outputs_after must be finite"),
        ({"outputs": GOOD}, "outputs and outputs_after must both be given or neither"),
        ({"outputs_after": GOOD}, "outputs and outputs_after must both be given or neither"),
        (
            {"index": [[0, 1], [2, 3], [4, 4]]},
            "the own features of sample 4 in step 2 are not those in another row of that step: give the numbers",
        ),
        (
            {"index": [[0, 1], [0, 1], [0, 1]]},
            "index must have the same number for the same sample in every step and epoch, but the own features of "
            r"sample 0 in step 1 are not those in step 0: .* not their places in the batch",
        ),
        ({"own": Tensor(RuntimeError())}, r"own must be an array that NumPy reads: .*detach\(\)\.cpu\(\)"),
        ({"own": Tensor(TypeError())}, r"those of bfloat16 as tensor\.detach\(\)\.float\(\)\.cpu\(\)$"),
        ({"index": Tensor(TypeError())}, r"index must be an array that NumPy reads: .* tensor\.detach\(\)\.cpu\(\)$"),
    ],
)
def test_what_is_no_record_is_refused(changed, match):
    with pytest.raises(ValueError, match=match):
        party_records.recorded(**(arrays() | changed))
