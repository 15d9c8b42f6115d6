"""What a party recorded of a training loop that is not jaxleak's."""

import logging

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxleak._base import Observation, PartyRecord
from jaxleak._precision import settle_products
from jaxleak.attacks._vertical.record_fields import same_features

_log = logging.getLogger("jaxleak")
#: A larger share of gradients that are exactly zero is logged as a warning.
_FEW_ZEROS = 0.05


def recorded(
    index: ArrayLike,
    own: ArrayLike,
    cut_gradients: ArrayLike,
    *,
    outputs: ArrayLike | None = None,
    outputs_after: ArrayLike | None = None,
) -> Observation:
    """Convert what one party saw in T steps of a split training loop, in any framework, for the attacks here.

    Args:
        index: (T, B) integers in [0, num_samples), which samples took part in each step: their numbers among the
            samples that are attacked, in the order in which the truth is kept for scoring, and not their places in the
            batch. Numbers of a larger table, of which only the ascending rows `victim` are attacked, become these by
            `np.searchsorted(victim, index)`.
        own: (T, B, d) the party's own features of these samples, the same in every step: before an augmentation that
            draws anew.
        cut_gradients: (T, B, e) the gradient that came back for the outputs of the party's bottom model. A constant
            factor, such as B for a sum in place of a mean, does not affect attacks without a shadow run. The regression
            reads logarithms of lengths, and `train_vflrecon` reads the gradients themselves, so for these two the
            shadow run must have the same factor.
        outputs: (T, B, e) these outputs; None, with `outputs_after`, where no attack is to read them.
        outputs_after: (T, B, e) the outputs for the same samples after the step.

    Returns:
        Observations that `flat_observations`, `fit_gradient_regression`, `attacks.train_vflrecon` and `audit.replay`
        take. The `fields` of a record are "gradient" and "inputs", and with outputs also "outputs" and "differences".

    Raises:
        ValueError: if shapes do not fit together, as with a last batch that is smaller, values are not finite, all
            gradients are zero (many that are exactly zero are logged as a warning), one of the outputs is given without
            the other, or a sample has other features in one step than in another.
    """
    settle_products()
    if (outputs is None) != (outputs_after is None):
        raise ValueError("outputs and outputs_after must both be given or neither: no attack reads one alone")
    both = {} if outputs is None or outputs_after is None else {"outputs": outputs, "outputs_after": outputs_after}
    given = {"own": own, "cut_gradients": cut_gradients, **both}
    ids = _array("index", index, 2)
    if not np.issubdtype(ids.dtype, np.integer) or not ids.size or ids.min() < 0:
        raise ValueError(f"index must hold integers >= 0, the numbers of samples, got {ids.dtype} of shape {ids.shape}")
    if ids.min() == 1:
        _log.warning("no step has the sample 0: samples are counted from 0")
    arrays = {name: _array(name, array, 3) for name, array in given.items()}
    for name, array in arrays.items():
        if array.shape[:2] != ids.shape:
            raise ValueError(f"{name} must have one row for each entry of index, {ids.shape}, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, and is not in step {np.argwhere(~np.isfinite(array))[0][0]}")
        if name in both and array.shape != arrays["cut_gradients"].shape:
            raise ValueError(f"{name} must have the shape of cut_gradients, got {array.shape}")
    _same_features(ids, arrays["own"])
    floats = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
    _warn_of_zeros(np.asarray(floats["cut_gradients"]))
    record = PartyRecord(
        x=floats["own"], params=None, params_after=None, params_gradient=None,
        output=floats.get("outputs"),  # type: ignore[arg-type]
        output_after=floats.get("outputs_after"),  # type: ignore[arg-type]
        output_gradient=floats["cut_gradients"],
    )  # fmt: skip
    return Observation(jnp.arange(len(ids)), index=jnp.asarray(ids, jnp.int32), party=record)


def _warn_of_zeros(gradients: np.ndarray) -> None:
    """Warn if many rows (T, B, e) are exactly zero; raise `ValueError` if all are: no attack can read anything."""
    zero = ~gradients.any(axis=-1)
    causes = "a hook that was never called, or float16 without a loss scale, which rounds small numbers to zero"
    if zero.all():
        raise ValueError(f"cut_gradients must not be zero in every row: look for {causes}")
    if zero.mean() > _FEW_ZEROS:
        _log.warning(
            "cut_gradients are exactly zero in %.0f %% of the rows, of which no attack can read anything: unless a "
            "defense does this, look for %s",
            100 * zero.mean(),
            causes,
        )


def _same_features(ids: np.ndarray, own: np.ndarray) -> None:
    """Raise `ValueError` if a sample's features differ between its rows: `ids` then number something else."""
    flat, rows = ids.ravel(), own.reshape(-1, own.shape[-1])
    _, first, sample = np.unique(flat, return_index=True, return_inverse=True)
    wrong = np.flatnonzero(~same_features(rows, rows[first][sample]).all(axis=1))
    if len(wrong):
        step, before = (place // ids.shape[1] for place in (wrong[0], first[sample[wrong[0]]]))
        other = f"step {before}" if before < step else "another row of that step"
        raise ValueError(
            f"index must have the same number for the same sample in every step and epoch, but the own features of "
            f"sample {flat[wrong[0]]} in step {step} are not those in {other}: give the numbers of the samples in "
            "[0, num_samples) among those that are attacked, not their places in the batch, and own features as they "
            "are before an augmentation that draws anew"
        )


def _array(name: str, given: ArrayLike, axes: int) -> np.ndarray:
    shape = "(T, B)" if axes == 2 else "(T, B, width)"
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} must have shape {shape}; leave out a last batch that is smaller") from error
    except (RuntimeError, TypeError) as error:  # a tensor of PyTorch with a graph, on an accelerator, or of bfloat16
        floats = "" if axes == 2 else ", and those of bfloat16 as tensor.detach().float().cpu()"
        raise ValueError(
            f"{name} must be an array that NumPy reads: give tensors as tensor.detach().cpu(){floats}"
        ) from error
    if array.ndim != axes or not array.size or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must hold numbers of shape {shape}, got {array.dtype} of shape {array.shape}")
    return array
