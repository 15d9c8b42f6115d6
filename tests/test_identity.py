"""The identity of a run that its checkpoint stores."""

import numpy as np

from jaxleak import _identity


def test_sketches_let_rounding_pass_and_nothing_else():
    tree = {"x": np.linspace(0, 1, 50), "y": np.array([1, 2])}
    rounded = {**tree, "x": tree["x"] * (1 + 1e-6)}
    assert _identity.same(_identity.of_arrays(rounded), _identity.of_arrays(tree))
    for other in ({**tree, "x": tree["x"][::-1]}, {**tree, "y": np.array([2, 1])}, {"x": tree["x"]}):
        assert not _identity.same(_identity.of_arrays(other), _identity.of_arrays(tree))
    for damaged in (None, {}, {"x": None, "y": 3}, {"x": [1], "y": ["a", "b", "c"]}):
        assert not _identity.same(_identity.of_arrays(tree), damaged)
