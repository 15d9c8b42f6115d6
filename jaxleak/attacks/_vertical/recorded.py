"""What a party recorded of a training loop that is not jaxleak's."""

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxleak._base import Observation, PartyRecord
from jaxleak._precision import settle_products


def recorded(
    index: ArrayLike, own: ArrayLike, cut_gradients: ArrayLike, *, outputs: ArrayLike | None = None
) -> Observation:
    """What one party saw of T steps of a split training loop, in any framework, as the attacks here read it.

    Args:
        index: (T, B) integers >= 0, which samples took part in each step.
        own: (T, B, d) the party's own features of these samples.
        cut_gradients: (T, B, e) the gradient that came back for the outputs of the party's bottom model. Any constant
            factor, such as B for a sum in place of a mean, changes no attack.
        outputs: (T, B, e) these outputs, for records that hold them; None where no attack is to read them.

    Returns:
        Observations that `flat_observations`, `fit_gradient_regression`, `attacks.train_vflrecon` and `audit.replay`
        take. A record has neither parameters nor outputs after the step, so that `fields` must name neither.

    Raises:
        ValueError: if shapes do not fit together, as with a last batch that is smaller, or values are not finite.
    """
    settle_products()
    given = {"own": own, "cut_gradients": cut_gradients, **({} if outputs is None else {"outputs": outputs})}
    ids = _array("index", index, 2)
    if not np.issubdtype(ids.dtype, np.integer) or ids.min(initial=0) < 0:
        raise ValueError(f"index must hold the numbers >= 0 of samples, got {ids.dtype} from {ids.min(initial=0)}")
    arrays = {name: _array(name, array, 3) for name, array in given.items()}
    for name, array in arrays.items():
        if array.shape[:2] != ids.shape:
            raise ValueError(f"{name} must have one row for each entry of index, {ids.shape}, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, and is not in step {np.argwhere(~np.isfinite(array))[0][0]}")
    if outputs is not None and arrays["outputs"].shape != arrays["cut_gradients"].shape:
        raise ValueError(f"outputs must have the shape of cut_gradients, got {arrays['outputs'].shape}")
    record = PartyRecord(
        x=jnp.asarray(arrays["own"], jnp.float32), params=None, params_after=None, params_gradient=None,
        output=None if outputs is None else jnp.asarray(arrays["outputs"], jnp.float32),  # type: ignore[arg-type]
        output_after=None,  # type: ignore[arg-type]
        output_gradient=jnp.asarray(arrays["cut_gradients"], jnp.float32),
    )  # fmt: skip
    return Observation(jnp.arange(len(ids)), index=jnp.asarray(ids, jnp.int32), party=record)


def _array(name: str, given: ArrayLike, axes: int) -> np.ndarray:
    shape = "(T, B)" if axes == 2 else "(T, B, width)"
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} must have shape {shape}; leave out a last batch that is smaller") from error
    if array.ndim != axes or not array.size or array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must hold numbers of shape {shape}, got {array.dtype} of shape {array.shape}")
    return array
