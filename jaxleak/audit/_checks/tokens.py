"""Tokens that an update names: a matrix that reads one-hot codes has a gradient only in the rows of the tokens."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Batch, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves
from jaxleak.protocols import ClientShare

#: How many numbers of tokens a sentence lists.
_LISTED = 20
#: There must be at least this many times as many tokens as places in a sample, since images hardly have such sides.
_TIMES_LENGTH = 2
#: How many simulated clients are tried, all of which must show their tokens.
_TRIALS = 4
#: How near to 0 or 1 all entries of an answer must be if it may be one-hot codes.
_NEAR = 0.25


class Tokens(NamedTuple):
    """The tokens that an update names."""

    leaf: str  # the matrix whose rows name the tokens
    numbers: np.ndarray  # the tokens of the batch, in order
    known: int  # how many tokens the codes distinguish
    momentum: bool = False  # whether the client states a momentum

    def __str__(self) -> str:
        """A sentence with the tokens and the conditions of the claim."""
        listed = ", ".join(map(str, self.numbers[:_LISTED]))
        listed += f" and {len(self.numbers) - _LISTED} more" if len(self.numbers) > _LISTED else ""
        count = f"{len(self.numbers)} of {self.known} tokens"
        return (
            f"If the inputs are one-hot codes and {of_this_batch(momentum=self.momentum)}, the update names the tokens "
            f"of the batch: the rows of {self.leaf} are zero but for those of {count}, {listed}. Which sample holds "
            "which, and where, is not claimed."
        )


def of_this_batch(*, momentum: bool) -> str:
    """The condition under which an update names what is in the batch; it depends on whether a momentum is stated."""
    without = (
        "without weight decay, and its momentum begins at zero" if momentum else "without momentum and weight decay"
    )
    return f"the update is of this batch alone, {without}"


def tokens_of(share: ClientShare, variables: PyTree, payload: PyTree, samples: int, key: jax.Array) -> Tokens | None:
    """The tokens of the batch; None where no matrix has rows of zeros, or where its rows do not show tokens.

    Simulated clients test whether rows show tokens: the rows that are not zero must be exactly those of the tokens
    drawn.

    Args:
        share: what the client computes.
        variables: the weights at which it did.
        payload: the update, in units of a gradient, without a defense.
        samples: number of samples of all local steps and clients.
        key: random key of the simulated tokens.
    """
    shape = share.model.image_shape
    for axis in (1, 0):
        places, length = shape[axis], shape[1 - axis]
        if length < 2 or places < _TIMES_LENGTH * length:  # images are hardly that narrow
            continue
        for name, leaf in named_leaves(payload).items():
            for side in range(2 if leaf.ndim == 2 else 0):
                used = used_rows(leaf, side)
                count = int(used.sum())
                if len(used) != places or not 0 < 2 * count < places or count > samples * length * shape[2]:
                    continue
                keys = jax.random.split(key, _TRIALS)
                if all(_told(share, variables, samples, name, side, (axis, count), k) for k in keys):
                    return Tokens(name, np.flatnonzero(used), places, momentum=bool(share.momentum))
    return None


def are_codes(x: np.ndarray) -> bool:
    """Whether inputs (B, H, W, channels) may be one-hot codes, as nearly as an answer can tell."""
    return bool(np.minimum(np.abs(x), np.abs(x - 1)).max() < _NEAR)


def codes_of(
    key: jax.Array, samples: int, shape: tuple[int, ...], axis: int, some: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Random tokens out of `some` (count,) for every place of each sample, and their one-hot codes (samples, *shape).

    `axis` is the side of a sample, 0 or 1, along which the codes lie.
    """
    codes = some[jax.random.randint(key, (samples, shape[1 - axis], shape[2]), 0, len(some))]
    return codes, jax.nn.one_hot(codes, shape[axis], axis=1 + axis)


def used_rows(leaf: jax.Array | np.ndarray, side: int) -> np.ndarray:
    """(rows,) bool: whether a row of a matrix, or a column if `side` is 1, has an entry that is not zero."""
    return np.asarray((leaf != 0).any(axis=1 - side))


def _told(
    share: ClientShare, variables: PyTree, samples: int, name: str, side: int, sizes: tuple[int, int], key: jax.Array
) -> bool:
    """Whether the rows of a matrix show a simulated client's tokens; `sizes` are the axis and how many to draw."""
    drawn, payload = _simulated(share, samples, *sizes, variables, key)
    return bool((used_rows(named_leaves(payload)[name], side) == np.asarray(drawn)).all())


@jitted_for_few(0, 1, 2, 3)
def _simulated(
    share: ClientShare, samples: int, axis: int, count: int, variables: PyTree, key: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Which of `count` random tokens were drawn, and the update of samples that are one-hot codes of them."""
    shape, (some_key, code_key, label_key) = share.model.image_shape, jax.random.split(key, 3)
    places = shape[axis]
    some = jax.random.permutation(some_key, places)[:count]
    codes, x = codes_of(code_key, samples, shape, axis, some)
    y = jax.random.randint(label_key, (samples,), 0, share.model.num_classes, jnp.int32)
    drawn = jnp.zeros(places, bool).at[codes.ravel()].set(True)
    return drawn, share(variables, Batch(x[:, None], y, jnp.arange(samples)))
