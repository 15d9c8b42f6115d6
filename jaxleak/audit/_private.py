"""The private set of a protocol, looked at before a compiler takes its values away."""

from jaxleak._base import Batch, Protocol


def check_private(protocol: Protocol, private: Batch) -> None:
    """Raise `ValueError` for a private set that the protocol does not take, such as one with labels out of range."""
    if protocol.check is not None:
        protocol.check(private)
