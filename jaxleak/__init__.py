"""jaxleak: measure how much private data leaks from federated learning."""

from jaxleak._base import Attack, Batch, Observation, Protocol, Reconstruction, Transcript

__all__ = ["Attack", "Batch", "Observation", "Protocol", "Reconstruction", "Transcript"]
