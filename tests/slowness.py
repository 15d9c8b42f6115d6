"""Test parameters of which some run with -m slow only."""

import pytest


def slow_among(names, slow):
    """All names as test parameters; those among `slow` run with -m slow only."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]


def slow_but(names, first):
    """All names as test parameters; those that are not among `first` run with -m slow only."""
    return slow_among(names, set(names) - set(first))
