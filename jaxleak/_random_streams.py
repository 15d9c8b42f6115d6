"""Independent streams of random numbers from one key, each with a name."""

import enum

import jax


def stream_of(key: jax.Array, stream: enum.IntEnum, number: int = 0) -> jax.Array:
    """The scalar key of a stream.

    Args:
        key: scalar key that all streams come from.
        stream: what draws; streams of one key must have different numbers.
        number: >= 0, which of several streams whose numbers follow that of `stream`.
    """
    return jax.random.fold_in(key, int(stream) + number)
