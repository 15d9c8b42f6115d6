"""Helpers of the poison tests: after a round was observed, private values must not change an attack's answer."""

import numpy as np


def same(one, other):
    """Assert that two answers, both lists of arrays, are finite and bitwise equal."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(leaf).all() for leaf in one)


def tell(patch, module, name, change):
    """Patch a function of a study so that `change` replaces the result, given the honest result and the arguments."""
    honest = getattr(module, name)
    patch.setattr(module, name, lambda *args, **options: change(honest(*args, **options), *args))
