"""Lists of test parameters in which some run only with -m slow."""

import pytest


def slow_among(names, slow):
    """All names as test parameters; those in `slow` run only with -m slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


def slow_but(names, first):
    """All names as test parameters; those outside `first` run only with -m slow."""
    return slow_among(names, set(names) - set(first))
