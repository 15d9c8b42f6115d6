"""Errors that say why a network cannot become a classifier."""

import contextlib
from collections.abc import Iterator

#: Parts of libraries' errors about floats as indices: Flax, JAX (Equinox too), `jax.numpy.take`, PyTorch.
_FLOATS_AS_INDICES = (
    "Input type must be an integer",
    "Indexer must have integer",
    "indices must have an integer type",
    "'indices' to have one of the following scalar types",
)


class RefusedError(ValueError):
    """A network cannot become a classifier, whatever the shape of its images and the number of its classes."""


@contextlib.contextmanager
def without_tokens() -> Iterator[None]:
    """Explain the error of a network in the block that looks up tokens and so cannot be traced.

    Raises:
        RefusedError: if an embedding was given float images in the place of token ids.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(said in str(error) for said in _FLOATS_AS_INDICES):
            raise
        reason = str(error).split("\n")[0]
        raise RefusedError(
            "the network reads integer token ids, and jaxleak's inputs are float images in [0, 1], so that text is not "
            "audited. The rows of an embedding's gradient that are not zero name the tokens of the batch all the same "
            f"({reason})"
        ) from error
