"""What the poison tests share: once a round has been seen, nothing private may change an attack's answer."""

import numpy as np


def same(one, other):
    """Whether two answers, lists of arrays, are finite and have the same bits."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(leaf).all() for leaf in one)


def tell(patch, module, name, change):
    """Let a function of a study return what truth has changed."""
    honest = getattr(module, name)
    patch.setattr(module, name, lambda *args, **options: change(honest(*args, **options), *args))
