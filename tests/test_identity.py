"""What a checkpoint knows of the settings that an attack's functions carry with them."""

import copy

import numpy as np
import pytest
from flax.core import FrozenDict

from jaxleak import _identity


def closed_over(value):
    return lambda: value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.1, 0.2),
        ("sum", "mean"),
        ((1, 2), (2, 1)),
        ({1, 2}, {1, 3}),
        ({"a": 1}, {"a": 2}),
        (FrozenDict({"a": 1}), FrozenDict({"a": 2})),
        (np.arange(3.0), np.arange(3.0) + 1e-7),
        (closed_over(0.1), closed_over(0.2)),
    ],
)
def test_functions_over_other_values_have_another_digest(one, other):
    same = one if callable(one) else copy.deepcopy(one)
    assert _identity.of_code(closed_over(one)) == _identity.of_code(closed_over(same))
    assert _identity.of_code(closed_over(one)) != _identity.of_code(closed_over(other))


def test_sketches_let_rounding_pass_and_nothing_else():
    tree = {"x": np.linspace(0, 1, 50), "y": np.array([1, 2])}
    rounded = {**tree, "x": tree["x"] * (1 + 1e-6)}
    assert _identity.same(_identity.of_arrays(rounded), _identity.of_arrays(tree))
    for other in ({**tree, "x": tree["x"][::-1]}, {**tree, "y": np.array([2, 1])}, {"x": tree["x"]}):
        assert not _identity.same(_identity.of_arrays(other), _identity.of_arrays(tree))
    for damaged in (None, {}, {"x": None, "y": 3}, {"x": [1], "y": ["a", "b", "c"]}):
        assert not _identity.same(_identity.of_arrays(tree), damaged)
