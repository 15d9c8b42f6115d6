"""How the weights of a later round come about, as options that are read before JAX is imported."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Training:
    """How the weights of a later round come about."""

    rounds: int = 200
    """Rounds of FedAvg."""
    learning_rate: float = 0.05
    """Learning rate of the clients."""
    clients: int = 100
    """Clients of the federation."""
    clients_per_round: int = 10
    """Clients that train in a round."""
    local_steps: int = 4
    """Steps of a client's upload (of gradient descent)."""
    batch_size: int = 16
    """Samples in a batch."""
