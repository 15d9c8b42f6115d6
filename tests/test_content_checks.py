"""Checks of an update's numbers, of conservation laws from a network's symmetries, and of other layouts."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak.audit._checks import contents, laws, symmetry


class TestContents:
    @pytest.mark.parametrize(
        ("size", "values", "status"),
        [(2000, 256, "suspicious"), (2000, 257, "passed"), (1999, 2, "not applicable"), (2000, 1, "suspicious")],
    )
    def test_few_sizes_of_entries_are_quantised(self, size, values, status):
        leaf = (1.0 + np.arange(size) % values) * np.where(np.arange(size) % 2, 1, -1)
        found = contents._few_values({"a": leaf, "b": np.zeros(5000), "c": np.arange(5.0)})
        assert found.status == status
        if status != "not applicable":
            assert found.evidence == f"a has {size} entries of {values} different sizes."

    @pytest.mark.parametrize(("sizes", "status"), [(100, "passed"), (8, "suspicious")])
    def test_few_entries_that_are_left_need_not_be_quantised(self, sizes, status):
        """A hundred of five thousand entries are not zero, with as many different values as a gradient has."""
        left = np.linspace(1, 2, sizes).repeat(100 // sizes)
        leaf = np.concatenate([left, np.zeros(4900)]).astype(np.float32)
        assert contents._few_values({"a": leaf}).status == status

    @pytest.mark.parametrize(
        ("change", "status"),
        [
            (lambda leaf: leaf, "passed"),
            (lambda leaf: leaf.T, "passed"),
            (lambda leaf: leaf.astype(np.float16), "passed"),
            (np.sign, "suspicious"),
            (lambda leaf: np.round(leaf * (127 / np.abs(leaf).max())), "suspicious"),
        ],
    )
    def test_a_product_of_few_grey_levels_and_slopes_is_not_quantised(self, change, status):
        rng = np.random.default_rng(0)
        image, slopes = rng.integers(0, 17, 64) / 16, rng.standard_normal(32) * (np.arange(32) < 10)
        found = contents._few_values({"w1": change(np.outer(image, slopes).astype(np.float32))})
        assert found.status == status
        assert found.evidence.startswith("w1 has 2048 entries of ")
        assert ("products of what one sample's layer reads" in found.evidence) == (status == "passed")

    @pytest.mark.parametrize(
        ("cosine", "status"), [(0.91, "failed"), (0.89, "passed"), (-0.91, "failed"), (0, "passed")]
    )
    def test_an_update_like_the_weights_is_taken_for_weights(self, cosine, status):
        weights = {"a": np.full((1, 50), 3.0), "b": np.full(50, 4.0)}
        across = np.sqrt(1 - cosine**2)
        update = {"a": 7 * (cosine * weights["a"] - across * 4), "b": 7 * (cosine * weights["b"] + across * 3)}
        found = contents._weights(update, weights)
        assert found.status == status
        assert f"weights is {cosine:.3f}." in found.evidence
        nothing = {"a": np.zeros((1, 50)), "b": np.zeros(50)}
        assert contents._weights(update, nothing).status == "passed"

    def test_zeros_are_counted(self):
        zero, one = np.zeros(2), np.array([0.0, 1.0])
        assert contents._zeros({"a": one, "b": one}).status == "passed"
        some = contents._zeros({"a": one, "b": zero, "c": zero})
        assert (some.status, some.evidence) == ("suspicious", "2 of 3 leaves are zero throughout, such as b.")
        assert contents._zeros({"a": zero, "b": zero}).status == "failed"
        assert some.option.startswith("--frozen b c, ")
        assert contents._zeros({"a": one, "b": zero}, vanishing=lambda: ["b", "d"]).status == "passed"
        assert contents._zeros({"a": one, "b": zero, "c": zero}, vanishing=lambda: ["b", "d"]).status == "suspicious"
        assert "left out every entry" in contents._zeros({"a": zero}, left_out=True).cause

    @pytest.mark.parametrize(
        ("zero", "layers"),
        [
            ("", []),
            ("a/0/kernel a/0/bias", ["a.0"]),
            ("a/0/bias b", ["a.0.bias", "b"]),
            ("a/0/kernel a/0/bias a/1/kernel ab/kernel", ["a", "ab.kernel"]),
        ],
    )
    def test_layers_of_zeros_are_named_as_high_as_they_are_whole(self, zero, layers):
        names = ("a/0/kernel", "a/0/bias", "a/1/kernel", "ab/kernel", "ab/bias", "b")
        leaves = {name: np.zeros(2) if name in zero.split() else np.array([0.0, 1.0]) for name in names}
        assert contents.zero_layers(leaves) == layers


class TestLaws:
    def test_a_violation_is_the_share_of_the_gradient_along_a_law(self):
        rng = np.random.default_rng(0)
        weights = {"a": rng.standard_normal((4, 2)), "b": rng.standard_normal(3), "c": np.zeros(2)}
        gradients = {name: rng.standard_normal(leaf.shape) for name, leaf in weights.items()}
        directions = (("a", -1), ("a", 0), ("b", -1), ("c", -1))
        combinations = np.linalg.qr(rng.standard_normal((4, 2)))[0]
        along = []
        for name, axis in directions:
            scale = np.asarray(laws._weight(axis, weights[name].shape), np.float64)
            direction = weights[name] * scale
            along.append((direction * gradients[name]).sum() / max(np.linalg.norm(direction), 1e-30))
        norms = np.array([np.linalg.norm(gradients[name]) for name, _ in directions])
        expected = np.abs(combinations.T @ along) / np.sqrt((combinations.T * norms) ** 2 @ np.ones(4))
        found = laws._violations(directions, combinations, {"params": weights}, gradients)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        known = laws.Laws(None, directions, combinations, np.array([0.5, 2.0]), {"a": (0.1, 1e-6), "b": (0.0, 1e-4)})
        broken = laws.against(known, {"params": weights}, gradients)
        np.testing.assert_allclose(broken.violations, expected / [0.5, 2.0], rtol=1e-6)
        assert (broken.laws, broken.worst) == (2, broken.violations.max())
        assert laws.vanishing(known.sizes) == ["a"]
        none = known._replace(combinations=combinations[:, :0], tolerances=np.zeros(0))
        assert laws.against(none, {"params": weights}, gradients)[:2] == (0, 0.0)

    def test_units_that_belong_together_are_scaled_alike(self):
        rows, columns = laws._weight(0, (6, 3)), laws._weight(1, (2, 6))
        assert (rows.shape, columns.shape) == ((6, 1), (1, 6))
        np.testing.assert_array_equal(rows.ravel(), columns.ravel())
        assert 0.5 <= np.abs(rows).min() < np.abs(rows).max() <= 1.5
        assert {-1.0, 1.0} == set(np.sign(laws._weight(0, (50,))).tolist())
        np.testing.assert_array_equal(laws._weight(-1, (2, 3)), [[1.0]])

    def test_directions_are_whole_leaves_and_their_long_axes(self):
        params = {"a": np.zeros((4, 3)), "b": np.zeros(4), "c": np.zeros((3, 3, 8, 7)), "d": np.zeros(3)}
        params["e"] = np.zeros((2, 5, 4))  # no kernel of a convolution
        found = [
            ("a", -1),
            ("a", 0),
            ("b", -1),
            ("b", 0),
            ("c", -1),
            ("c", 2),
            ("d", -1),
            ("e", -1),
            ("e", 1),
            ("e", 2),
        ]
        assert list(laws._directions(params)) == found
        many = {f"leaf{i:03}": np.zeros((4, 4)) for i in range(67)}  # three directions each
        assert len(laws._directions(dict(list(many.items())[:66]))) == 198
        assert set(laws._directions(many)) == {(name, -1) for name in many}

    def test_shares_of_the_norm(self):
        found = laws.shares_of_norm({"a": np.array([[3.0]]), "b": np.array([0.0, 4.0]), "c": np.zeros(2)})
        assert found == pytest.approx({"a": 0.6, "b": 0.8, "c": 0.0})
        assert laws.shares_of_norm({"a": np.zeros(2)}) == {"a": 0.0}


class TestLayouts:
    def test_channels_may_be_counted_first_or_last(self):
        positions_first = np.arange(2 * 2 * 4).reshape(2, 2, 4)  # rows, columns, channels
        leaf = positions_first.reshape(-1, 1)
        found = [np.ravel(changed).tolist() for _, changed in symmetry._reordered(leaf, 0, {4, 5, 16})]
        channels_first = positions_first.transpose(2, 0, 1).ravel().tolist()
        assert channels_first in found
        assert len(found) == 2
        again = [np.ravel(c).tolist() for _, c in symmetry._reordered(np.array(channels_first)[:, None], 0, {4})]
        assert list(range(16)) in again
        assert not list(symmetry._reordered(leaf, 1, {4}))

    def test_equal_axes_are_exchanged_and_single_ones_are_not(self):
        payload = {"a": jnp.arange(9.0).reshape(3, 3), "b": jnp.zeros((1, 1)), "c": jnp.zeros((2, 3))}
        found = list(symmetry.other_layouts(payload, payload))
        assert [(name, layout) for name, layout, _ in found] == [("a", "axes 0 and 1 are exchanged")]
        np.testing.assert_array_equal(found[0][2]["a"], payload["a"].T)
        np.testing.assert_array_equal(found[0][2]["c"], payload["c"])
