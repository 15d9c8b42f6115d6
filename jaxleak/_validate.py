"""Checks of user input: keyword-named, early, and in one style of message.

Every function takes `name=value` pairs, so that the message names the argument as the caller wrote it:
`positive(batch_size=0)` raises `ValueError: batch_size must be > 0, got 0`.
"""

import inspect
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from jaxleak._near_names import meant

#: Largest number that the arrays of an attack can hold.
LARGEST = float(np.finfo(np.float32).max)
#: How far from one the sum of a row of soft labels may be; labels in 16 bits are rounded by that much.
SUM_ROUNDING = 1e-2
#: Pixels that are whole numbers and exceed this are taken for bytes.
LARGEST_PIXEL = 16.0


def positive(**named: float) -> None:
    """Raise `ValueError` unless every value is > 0 and finite in float32."""
    for name, value in named.items():
        if not (_in_some_range(name, value) and value > 0):
            raise ValueError(f"{name} must be > 0, got {value}")
        _not_too_large(name, value)


def count(**named: int) -> None:
    """Raise `ValueError` unless every value is whole, > 0 and fits the int32 counters of a compiled loop."""
    positive(**named)
    _whole(named)


def count_or_zero(**named: int) -> None:
    """Raise `ValueError` unless every value is whole, >= 0 and fits the int32 counters of a compiled loop."""
    non_negative(**named)
    _whole(named)


def _whole(named: dict[str, int]) -> None:
    for name, value in named.items():
        try:
            operator.index(value)
        except TypeError as error:
            # Shapes and counters take no float, not even a whole one.
            which = ", a float" if value == int(value) else ""
            raise ValueError(f"{name} must be a whole number, got {value}{which}") from error
        if value > np.iinfo(np.int32).max:
            raise ValueError(f"{name} must be at most {np.iinfo(np.int32).max}, got {value}")


def seeds(**named: int | Collection[int]) -> None:
    """Raise `ValueError` unless every value is a seed, or holds at least one seed and none of them twice.

    A seed is a whole number in [0, 2^32): `jax.random.key` reads 32 bits only, so that 2^32 would be the seed 0 again.
    """
    for name, value in named.items():
        several = tuple(value) if isinstance(value, Collection) else (value,)
        if not several:
            raise ValueError(f"{name} must hold at least one seed")
        for seed in several:
            if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**32:
                raise ValueError(f"{name} must be whole numbers in [0, 2^32), got {seed!r}")
        once("a seed", **{name: several})


def once(what: str, **named: Sequence[Any]) -> None:
    """Raise `ValueError` if a list holds something twice; `what` says what its members are."""
    for name, several in named.items():
        twice = [value for value in dict.fromkeys(several) if several.count(value) > 1]
        if twice:
            raise ValueError(f"{name} must not hold {what} twice, got {twice[0]} {several.count(twice[0])} times")


def non_negative(**named: float) -> None:
    """Raise `ValueError` unless every value is >= 0 and finite in float32."""
    for name, value in named.items():
        if not (_in_some_range(name, value) and value >= 0):
            raise ValueError(f"{name} must be >= 0, got {value}")
        _not_too_large(name, value)


def in_range(low: float, high: float, **named: float) -> None:
    """Raise `ValueError` unless `low <= value <= high` for every value."""
    for name, value in named.items():
        if not (_in_some_range(name, value) and low <= value <= high):
            raise ValueError(f"{name} must be in [{low}, {high}], got {value}")


def below_one(**named: float) -> None:
    """Raise `ValueError` unless `0 <= value < 1` for every value."""
    for name, value in named.items():
        if not (_in_some_range(name, value) and 0 <= value < 1):
            raise ValueError(f"{name} must be in [0, 1), got {value}")


def count_in_range(low: int, high: int, **named: int) -> None:
    """Raise `ValueError` unless every value is whole and `low <= value <= high`; `low` is 1 or more."""
    in_range(low, high, **named)
    count(**named)


def index_below(size: int, **named: int) -> None:
    """Raise `ValueError` unless every value is whole and in [0, size), as a place in a list of that size."""
    for name, value in named.items():
        if not (_in_some_range(name, value) and 0 <= value < size):
            raise ValueError(f"{name} must be in [0, {size}), got {value}")
    _whole(named)


def one_of(allowed: Collection[Any], **named: Any) -> None:
    """Raise `ValueError` unless every value is one of `allowed`, which the message lists."""
    for name, value in named.items():
        if value not in allowed:
            known = ", ".join(map(str, allowed))
            raise ValueError(f"{name} must be one of {known}, got {value!r}{meant(value, allowed)}")


def some_of(allowed: Collection[str], **named: Collection[str]) -> None:
    """Raise `ValueError` unless every value lists one or more of the `allowed` names, which the message names."""
    for name, value in named.items():
        if isinstance(value, str):
            raise ValueError(f"{name} must be a list of names, such as ({value!r},), got a text")
        if not value or set(value) - set(allowed):
            raise ValueError(f"{name} must be some of {', '.join(allowed)}, got {', '.join(value) or 'none'}")


def _in_some_range(name: str, value: Any) -> bool:
    """Whether a number is not NaN, which is in no range; raise `ValueError` if the value is not a number."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return not math.isnan(value)
    except OverflowError:  # an integer that no float can hold
        return True
    except TypeError as error:
        # A message about the range alone would mislead: the text "0.1" looks as if it were in the range.
        raise ValueError(f"{name} must be a number, got a {type(value).__name__}: {value!r}") from error


def _not_too_large(name: str, value: float) -> None:
    if value > LARGEST:
        raise ValueError(f"{name} must be finite and at most {LARGEST:.2e}, got {value}")


def integer_labels(rule: str, dtype: Any) -> None:
    """Raise `ValueError` with the broken `rule` unless labels of this dtype are integers."""
    if not np.issubdtype(dtype, np.integer):
        hint = ""
        if np.issubdtype(dtype, np.floating):
            hint = "; regression is not supported: make classes of a target that is a number, such as by its quantiles"
        elif np.issubdtype(dtype, np.bool_):
            hint = "; y.astype(int) makes classes 0 and 1 of them"
        raise ValueError(f"{rule}, got dtype {dtype}{hint}")


def label_remedy(y: Any) -> str:
    """Say how labels (N, 1), or one-hot rows (N, C), become labels (N,); the text is empty for any other form."""
    if y.ndim != 2 or y.dtype.kind not in "biuf" or not y.size:
        return ""
    if y.shape[1] == 1:
        return ": labels of one column become labels of this shape by y[:, 0]"
    one_hot = ((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all()
    return ": one-hot rows become labels of this shape by y.argmax(axis=1)" if one_hot else ""


def labels_in_range(y: Any, num_classes: int) -> None:
    """Raise `ValueError` unless `y` holds integers in [0, num_classes)."""
    y = np.asarray(y)
    integer_labels("y must hold integer labels", y.dtype)
    if y.size and (y.min() < 0 or y.max() >= num_classes):
        raise ValueError(f"y must be in [0, {num_classes}), got labels from {y.min()} to {y.max()}")


def batch_labels(y: Any, samples: int, num_classes: int, *, distributions: bool = False) -> None:
    """Raise `ValueError` unless y is (samples,) integers in [0, num_classes), or (samples, num_classes) soft labels.

    Soft labels are finite and >= 0, and rows sum to one where they must be `distributions`: under a cross-entropy, but
    not under a loss of several labels per image. A traced y has no values yet, so only its shape and dtype are checked.
    """
    import jax  # for its tracers alone; options are checked before JAX is imported

    if tuple(y.shape) not in ((samples,), (samples, num_classes)):
        raise ValueError(
            f"labels must have shape ({samples},), one per sample, or ({samples}, {num_classes}) if they are soft, "
            f"got {tuple(y.shape)}"
        )
    if y.ndim == 1:
        integer_labels("labels must be integers", y.dtype)
    if isinstance(y, jax.core.Tracer):
        return
    values = np.asarray(y)
    if not len(values):
        raise ValueError("a batch must hold at least one sample, got none")
    if values.ndim == 2:
        _soft_labels(values.astype(np.float64), distributions)
        return
    wrong = values[(values < 0) | (values >= num_classes)]
    if wrong.size:
        raise ValueError(f"labels must be in [0, {num_classes}), got {wrong[0]}")


def _soft_labels(values: np.ndarray, distributions: bool) -> None:
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if wrong.size:
        raise ValueError(f"soft labels must be finite and >= 0, got {wrong[0]:g}")
    sums = values.sum(axis=1)
    far = sums[np.abs(sums - 1) > SUM_ROUNDING]
    if distributions and far.size:
        raise ValueError(
            f"soft labels of a cross-entropy must sum to one in every row, got {far[0]:.4g}: divide rows by their "
            "sums, or give the protocol a loss of several labels per image, such as a binary cross-entropy"
        )


def logits_of_classes(logits: Any, num_classes: int) -> None:
    """Raise `ValueError` unless logits are (B, C), or (B, 1) for two classes, which a binary loss takes.

    A label beyond the last logit would give its sample no gradient, so that nothing would seem to leak.
    """
    shape = tuple(logits.shape)
    if len(shape) != 2 or not (shape[1] == num_classes or (shape[1] == 1 and num_classes == 2)):
        raise ValueError(f"the model's logits must have shape (B, num_classes) = (B, {num_classes}), got {shape}")


def private_set(private: Any, num_samples: int, num_classes: int, *, distributions: bool = False) -> None:
    """Raise `ValueError` unless x, y and index of `private` hold one row for each of so many samples, and y labels.

    JAX clamps an index that is out of range, so that a smaller set would silently show its last sample again. Labels
    are checked as by `batch_labels`.
    """
    for name, rows in zip(("x", "y", "index"), private, strict=True):
        if rows is not None and (rows.ndim == 0 or rows.shape[0] != num_samples):
            raise ValueError(f"private.{name} must hold num_samples = {num_samples} samples, got shape {rows.shape}")
    batch_labels(private.y, num_samples, num_classes, distributions=distributions)


def slices(x: Any, parties: int, slice_shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless x is (N, P, *slice), one slice of every sample for each of P parties."""
    if tuple(x.shape[1:]) != (parties, *slice_shape):
        wanted = ", ".join(map(str, (parties, *slice_shape)))
        raise ValueError(
            f"private.x must hold one slice per party, of shape (N, {wanted}), got {tuple(x.shape)}: "
            "data.image_tiles cuts images into slices, and data.feature_columns tables; x[:, None] is a single party's"
        )


def batch_as_planned(index: Any, batch_size: int) -> None:
    """Raise `ValueError` unless the `index` of an observed round holds as many samples as the attack was made for."""
    if tuple(index.shape) != (batch_size,):
        raise ValueError(f"batch_size of the rounds must be the attack's, {batch_size}, got index {tuple(index.shape)}")


def batch_of_images(x: Any, image_shape: tuple[int, int, int]) -> None:
    """Raise `ValueError` unless x is (B, 1, H, W, channels) floats: images of one party, as a `Batch` holds them.

    If x has values, they must not be those of bytes; tracers and shapes have none.
    """
    shape, wanted = tuple(x.shape), (1, *image_shape)
    if shape[1:] != wanted:
        hint = ": add the axis of parties, x[:, None]" if shape[1:] == image_shape else ""
        raise ValueError(f"x of a batch must have shape (B, {', '.join(map(str, wanted))}), got {shape}{hint}")
    if np.dtype(x.dtype).kind in "biu":
        raise ValueError(f"x of a batch must hold float pixels in [0, 1], got dtype {x.dtype}: divide bytes by 255")
    import jax  # for tracers alone

    values = np.zeros(0) if isinstance(x, jax.core.Tracer | jax.ShapeDtypeStruct) else np.asarray(x)
    # This finds bytes that were made floats. Normalised pixels and columns of tables may be large too, but are not
    # whole.
    if values.max(initial=0) > LARGEST_PIXEL and values.min() >= 0 and (values == np.round(values)).all():
        raise ValueError(
            f"x of a batch must hold pixels in [0, 1], got whole numbers up to {values.max():.4g}: divide by 255"
        )


def made(kind: type, maker: str, **named: Any) -> None:
    """Raise `ValueError` unless every value is of this kind; `maker` names what makes such a value."""
    for name, value in named.items():
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {_one(kind)}, as {maker} makes, got {kind_of(value)}")


def granted_paths(**named: Any) -> None:
    """Raise `ValueError` unless every value is None or a tuple of texts, which keys a compiled program by its hash."""
    for name, value in named.items():
        if value is not None and not (isinstance(value, tuple) and all(isinstance(path, str) for path in value)):
            raise ValueError(f'{name} must be a tuple of paths, such as ("first/bias",), or None, got {value!r}')


def members(of: str, **named: Any) -> tuple[Any, ...]:
    """The members of the one value that is named; raise `ValueError` unless it is a list or another iterable of them.

    Args:
        of: what the members are, in the plural, such as "devices".
    """
    ((name, value),) = named.items()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name} must be a list of {of}, got {kind_of(value)}")
    return tuple(value)


def functions(**named: Any) -> None:
    """Raise `ValueError` unless every value is a function, or None."""
    for name, value in named.items():
        if not (value is None or callable(value)):
            raise ValueError(f"{name} must be a function, got {kind_of(value)}")


def takes(form: str, **named: Any) -> None:
    """Raise `ValueError` unless every value is a function that can be called as `form`, such as "(key, **extra)"."""
    functions(**named)
    for name, value in named.items():
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):  # a function in C may not say what it takes
            continue
        alone = [key for key, one in signature.parameters.items() if one.kind is one.KEYWORD_ONLY]
        places, _, extra = form.strip("()").partition(", **")
        try:
            signature.bind(*places.split(", "), **(dict.fromkeys([*alone, "any other"]) if extra else {}))
        except TypeError as error:
            raise ValueError(f"{name} must be a function of {form}, got one of {signature}") from error


def optimizer(**named: Any) -> None:
    """Raise `ValueError` unless every value is a transform of optax, or None."""
    import optax  # for its type alone; options are checked before JAX is imported

    for name, value in named.items():
        if not (value is None or isinstance(value, optax.GradientTransformation)):
            raise ValueError(f"{name} must be one of optax, such as optax.sgd(0.01), got {kind_of(value)}")


def random_key(**named: Any) -> None:
    """Raise `ValueError` unless every value is one random key, as `jax.random.key` makes."""
    import jax  # for its keys alone; options are checked before JAX is imported

    for name, value in named.items():
        typed = isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        raw = not typed and getattr(value, "dtype", None) == np.uint32 and getattr(value, "ndim", 0) == 1
        if not (raw or (typed and value.shape == ())):
            got = f"an array of shape {value.shape}" if typed else kind_of(value)
            raise ValueError(f"{name} must be one random key, as jax.random.key(0) makes, got {got}")


def kind_of(value: Any) -> str:
    """What a value is, for messages: "a str", "an int" or "None"."""
    return "None" if value is None else _one(type(value))


def _one(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def variables(tree: Any, *, name: str = "variables") -> None:
    """Raise `ValueError` unless the tree is a model's variables, {"params": ..., "batch_stats": ...}."""
    if not isinstance(tree, Mapping) or "params" not in tree:
        held = f"a dict of {', '.join(map(str, tree))}" if isinstance(tree, Mapping) else type(tree).__name__
        raise ValueError(
            f'{name} must be {{"params": ..., "batch_stats": ...}}, as models.from_flax or the init of a model gives '
            f"them, not the parameters alone; got {held}"
        )


def weights(tree: Any) -> None:
    """Raise `ValueError` unless the tree is a model's variables, whose parameters are finite floats."""
    variables(tree)
    import jax  # for trees alone; options are checked before JAX is imported

    for path, leaf in jax.tree_util.tree_leaves_with_path(tree["params"]):
        name, values = jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf)
        if not jax.numpy.issubdtype(values.dtype, jax.numpy.floating):
            raise ValueError(f"variables must hold floats, got {values.dtype} in {name}")
        if not np.isfinite(values).all():
            raise ValueError(f"variables must be finite, got NaN or infinity in {name}: has the training diverged?")


def finite_arrays(**named: np.ndarray) -> None:
    """Raise `ValueError` unless all entries are finite.

    Comparisons with NaN are false, so without this check there would be an answer that no gradient supports.
    """
    for name, values in named.items():
        wrong = values[~np.isfinite(values)]
        if wrong.size:
            raise ValueError(f"{name} must be finite, got {wrong[0]} in {wrong.size} of {values.size} entries")


def finite(tree: Any, where: str) -> None:
    """Raise `FloatingPointError` if a leaf of `tree` is not finite; `where` says where, e.g. the round."""
    import jax  # for trees alone; options are checked before JAX is imported

    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise FloatingPointError(f"{where}: non-finite values in {jax.tree_util.keystr(path)}")
