"""Checks of user input: values just inside and just outside the allowed range, and the messages."""

import numpy as np
import pytest

from jaxleak import _validate, defenses, models
from jaxleak._base import Batch
from jaxleak.attacks import client_updates

NAN = float("nan")
BEYOND = 2 * _validate.LARGEST


def refused(check, value, message, *bounds):
    with pytest.raises(ValueError, match=f"^x {message}"):
        check(*bounds, x=value)


def test_positive_numbers_are_above_zero_and_finite_in_float32():
    _validate.positive(x=1e-300, y=1, z=_validate.LARGEST)
    for value in (0, 0.0, -1e-300, NAN):
        refused(_validate.positive, value, "must be > 0, got ")
    for value in (float("inf"), BEYOND, 10**400):
        refused(_validate.positive, value, r"must be finite and at most 3\.40e\+38, got ")
    assert np.isfinite(np.float32(_validate.LARGEST))
    with pytest.raises(ValueError, match=r"^z must be > 0"):
        _validate.positive(x=1, y=2, z=0)


@pytest.mark.parametrize(
    "value", [None, "5", (1,), np.arange(2), True, np.True_], ids=lambda value: type(value).__name__
)
def test_what_is_no_number_is_refused_as_such(value):
    for check, bounds in (
        (_validate.positive, ()),
        (_validate.count, ()),
        (_validate.non_negative, ()),
        (_validate.in_range, (0, 9)),
        (_validate.below_one, ()),
        (_validate.count_in_range, (1, 9)),
    ):
        refused(check, value, f"must be a number, got a {type(value).__name__}: ", *bounds)


def test_counts_are_whole_and_fit_a_counter_of_32_bits():
    _validate.count(x=1, y=np.int64(2), z=2**31 - 1)
    for value in (0, -1, NAN):
        refused(_validate.count, value, "must be > 0, got ")
    refused(_validate.count, 1.5, "must be a whole number, got 1.5$")
    refused(_validate.count, 2.0, "must be a whole number, got 2.0, a float$")
    refused(_validate.count, 2**31, "must be at most 2147483647, got 2147483648")


def test_a_count_may_be_zero_where_nothing_is_something_to_ask_for():
    _validate.count_or_zero(x=0, y=7)
    refused(_validate.count_or_zero, -1, "must be >= 0, got -1")
    refused(_validate.count_or_zero, 0.5, "must be a whole number, got 0.5")
    refused(_validate.count_or_zero, 2**31, "must be at most 2147483647")


@pytest.mark.parametrize(
    ("counted", "name"),
    [
        (lambda n: defenses.guardian(1.0, probes=n), "probes"),
        (lambda n: defenses.fake_gradients(max_redraws=n), "max_redraws"),
        (lambda n: client_updates.generator_weights(stages=n), "stages"),
        (lambda n: client_updates.generator_latents(lambda z: z, n), "latent_size"),
        (lambda n: models.mlp((4, 4, 1), 3, widths=(8, n)), r"widths\[1\]"),
        (lambda n: models.build("resnet10", (8, 8, 1), 3, width=n), "width"),
        (lambda n: models.vit((8, 8, 1), 3, patch_size=4, depth=n), "depth"),
    ],
)
def test_halves_of_what_is_counted_are_refused(counted, name):
    """Otherwise halves would cause an obscure error of JAX much later, or be truncated."""
    with pytest.raises(ValueError, match=f"^{name} must be a whole number, got 2.5"):
        counted(2.5)


def test_seeds_are_words_of_32_bits_and_all_different():
    _validate.seeds(x=0, y=2**32 - 1, z=(3, 1, 2))
    _validate.seeds(x=np.int64(5), y=[np.uint32(7)])
    for value in (-1, 2**32, 1.0, True, None, (0, 2**32), (0, 1.5), [True]):
        refused(_validate.seeds, value, r"must be whole numbers in \[0, 2\^32\), got ")
    refused(_validate.seeds, (), "must hold at least one seed")
    refused(_validate.seeds, (1, 2, 1, 1), "must not hold a seed twice, got 1 3 times")


def test_lists_of_names_are_of_those_that_exist_and_once():
    _validate.some_of(("a", "b"), x=("b",), y=["a", "b"])
    refused(_validate.some_of, ("b", "c"), "must be some of a, b, got b, c$", ("a", "b"))
    refused(_validate.some_of, (), "must be some of a, b, got none$", ("a", "b"))
    refused(_validate.some_of, "a", r"must be a list of names, such as \('a',\), got a text$", ("a", "b"))
    _validate.once("a name", x=("a", "b"), y=())
    refused(_validate.once, ("a", "b", "b"), "must not hold a name twice, got b 2 times$", "a name")


def test_numbers_that_may_be_zero():
    _validate.non_negative(x=0, y=0.0, z=_validate.LARGEST)
    for value in (-1e-300, NAN):
        refused(_validate.non_negative, value, "must be >= 0, got ")
    refused(_validate.non_negative, BEYOND, "must be finite and at most")


def test_a_private_set_holds_every_sample_once():
    def rows(*lengths):
        return Batch(*(np.zeros((length, 2)) for length in lengths))

    _validate.private_set(rows(3, 3, 3), 3, 2)
    _validate.private_set(rows(3, 3, 3)._replace(index=None), 3, 2)
    for name, lengths in (("x", (2, 3, 3)), ("y", (3, 4, 3)), ("index", (3, 3, 1))):
        with pytest.raises(ValueError, match=rf"^private\.{name} must hold num_samples = 3 samples, got shape \("):
            _validate.private_set(rows(*lengths), 3, 2)


def test_ranges_hold_their_ends():
    for value in (-1, 0, 2.5):
        _validate.in_range(-1, 2.5, x=value)
    for value in (-1.001, 2.501, NAN):
        refused(_validate.in_range, value, r"must be in \[-1, 2\.5\], got ", -1, 2.5)


def test_shares_stay_below_one():
    for value in (0, 0.5, np.float32(0.999)):
        _validate.below_one(x=value)
    for value in (-0.1, 1, np.nan, np.inf):
        refused(_validate.below_one, value, r"must be in \[0, 1\), got ")


def test_counts_in_a_range_are_whole_and_hold_their_ends():
    for value in (2, 5):
        _validate.count_in_range(2, 5, x=value)
    for value in (1, 6):
        refused(_validate.count_in_range, value, r"must be in \[2, 5\], got ", 2, 5)
    refused(_validate.count_in_range, 2.5, "must be a whole number, got ", 2, 5)


def test_names_are_listed():
    _validate.one_of(("a", "b"), x="a", y="b")
    refused(_validate.one_of, "c", "must be one of a, b, got 'c'", ("a", "b"))
    with pytest.raises(ValueError, match=r"^y must be one of"):
        _validate.one_of(("a",), x="a", y=None)


def test_labels_are_below_the_number_of_classes():
    _validate.labels_in_range([0, 2], 3)
    _validate.labels_in_range(np.zeros(0, int), 3)
    for y in ([0, 3], [-1, 2]):
        with pytest.raises(ValueError, match=rf"y must be in \[0, 3\), got labels from {y[0]} to {y[1]}"):
            _validate.labels_in_range(y, 3)
    with pytest.raises(
        ValueError, match=r"^y must hold integer labels, got dtype float64; regression is not supported"
    ):
        _validate.labels_in_range([0.0, 1.0], 3)
    with pytest.raises(ValueError, match=r"^y must hold integer labels, got dtype <U1$"):
        _validate.labels_in_range(["a"], 3)


@pytest.mark.parametrize(
    ("shape", "hint"), [((2, 4, 3, 1), True), ((2, 1, 4, 3), False), ((4, 3, 1), False), ((2, 2, 4, 3, 1), False)]
)
def test_images_of_a_batch_have_the_axis_of_parties(shape, hint):
    _validate.batch_of_images(np.zeros((2, 1, 4, 3, 1)), (4, 3, 1))
    with pytest.raises(ValueError, match=r"x of a batch must have shape \(B, 1, 4, 3, 1\), got ") as error:
        _validate.batch_of_images(np.zeros(shape), (4, 3, 1))
    assert ("add the axis of parties, x[:, None]" in str(error.value)) == hint


def test_the_leaf_that_is_not_finite_is_named():
    _validate.finite({"a": np.ones(2), "b": (np.zeros((0, 3)), 5)}, "round 3")
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(FloatingPointError, match=r"^round 3: non-finite values in \['b'\]\[1\]$"):
            _validate.finite({"a": np.ones(2), "b": (np.zeros(3), np.array([1.0, bad]))}, "round 3")
