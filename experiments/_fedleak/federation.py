"""The federation that trains a model with a defense or without, before it is attacked or scored."""

from dataclasses import asdict, dataclass

from jaxleak import _validate
from jaxleak.study.sources import Arrays, drawn


@dataclass(frozen=True)
class Federation:
    """How the model is trained: `samples` divided among `clients`, all of whom take part in every round."""

    rounds: int = 200
    """Rounds of FedAvg."""
    learning_rate: float = 0.5
    """Learning rate of the clients."""
    clients: int = 8
    """Clients of the federation."""
    samples: int = 800
    """Samples of all clients together."""
    batch_size: int = 4
    """Samples in a batch."""
    test_samples: int = 400
    """Samples behind the test accuracy."""

    def check(self) -> None:
        """Raise `ValueError` on a number out of range."""
        _validate.positive(learning_rate=self.learning_rate)
        _validate.count(**{name: value for name, value in asdict(self).items() if name != "learning_rate"})
        _validate.in_range(self.clients, float("inf"), samples=self.samples)
        _validate.in_range(1, self.samples // self.clients, batch_size=self.batch_size)

    def sources(self, spec: str, seed: int) -> Arrays:
        """The samples that the clients train on, and those of the test."""
        return drawn(spec, self.samples + self.test_samples, seed)
