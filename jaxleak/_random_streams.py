"""Independent streams of random numbers from one key, each with a name."""

import enum

import jax


def stream_of(key: jax.Array, stream: enum.IntEnum, number: int = 0) -> jax.Array:
    """The scalar key of a stream.

    Args:
        key: scalar key from which all streams are derived.
        stream: the stream; streams of one key must have different numbers.
        number: >= 0, selects one of several streams, with numbers that follow the number of `stream`.
    """
    return jax.random.fold_in(key, int(stream) + number)
