"""Federated learning protocols: what runs, and what each round leaves on record."""

from jaxleak.protocols._federated import horizontal, vertical
from jaxleak.protocols._sampling import draw_batch, draw_worker_batches

__all__ = ["draw_batch", "draw_worker_batches", "horizontal", "vertical"]
