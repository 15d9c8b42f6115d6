"""The vertical set-up that every table of the VFLRecon study shares: rows, features, model, both runs."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import data, models, protocols
from jaxleak._base import Batch, Protocol

OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-3),
    "sgd": lambda: optax.sgd(1e-1),
    "adadelta": lambda: optax.adadelta(1.0),
}
ADVERSARY = 0


@dataclass(frozen=True)
class Case:
    """One cell of a table: everything but the seed."""

    data: str
    share: float = 0.5  # of the features, held by the adversary
    batch_size: int = 16
    shadow_records: int = 1000  # at most a third of what exists
    victim_records: int = 2000  # at most what is left
    parties: int = 2
    partition: Literal["random", "gaussian", "gibbs"] = "random"
    optimizer: Literal["adam", "sgd", "adadelta"] = "adam"
    scaling: Literal["minmax", "quantile"] = "minmax"
    categories: Literal["hashed", "one_hot"] = "hashed"
    balanced: bool = False  # as many samples of every class
    shadow_epochs: int = 10
    victim_epochs: int = 1
    network_epochs: int = 5
    fields: tuple[str, ...] = ("gradient", "outputs", "inputs")


class Problem(NamedTuple):
    """A victim's run and an attacker's means to shadow it."""

    model: models.BottomTopModel
    shadow: Batch
    victim: Batch
    shadow_protocol: Protocol
    victim_protocol: Protocol

    @property
    def own_width(self) -> int:
        """Features of the adversary."""
        return self.model.widths[ADVERSARY]

    def own(self, batch: Batch) -> np.ndarray:
        """The adversary's features (N, d)."""
        return np.asarray(batch.x)[:, ADVERSARY, : self.own_width]


def vertical_problem(case: Case, seed: int, *, parameter_free_top: bool = False) -> Problem:
    """Draw disjoint shadow and victim rows, encode them as the shadow rows say, deal the features to parties.

    Raises:
        ValueError: if sizes do not fit; nothing has been trained yet.
    """
    table = _table(case.data)
    rows = _rows(table.y, case.balanced, seed)
    shadow_count = min(case.shadow_records, len(rows) // 3)
    if shadow_count < case.batch_size:
        raise ValueError(f"shadow_records must be at least batch_size={case.batch_size}, got {shadow_count}")
    shadow_rows, victim_rows = rows[:shadow_count], rows[shadow_count : shadow_count + case.victim_records]
    if len(victim_rows) < case.batch_size:
        raise ValueError(f"victim_records must be at least batch_size={case.batch_size}, got {len(victim_rows)}")
    encoding = data.fit_encoding(table, shadow_rows, scaling=case.scaling, categories=case.categories)
    x = data.encode(encoding, table)
    first = np.array([own[0] for own in encoding.columns])
    parts = data.partition_features(
        len(encoding.columns),
        case.parties,
        share=case.share,
        adversary=ADVERSARY,
        kind=case.partition,
        x=x[shadow_rows][:, first],
        seed=seed,
    )
    columns = [np.concatenate([encoding.columns[feature] for feature in part]) for part in parts]
    slices = data.party_slices(x, columns)

    def batch(rows: np.ndarray) -> Batch:
        return Batch(jnp.asarray(slices[rows]), jnp.asarray(table.y[rows]), jnp.arange(len(rows), dtype=jnp.int32))

    model = models.bottom_top(
        [len(own) for own in columns], table.num_classes, top=None if parameter_free_top else (100, 100)
    )

    def protocol(rows: np.ndarray) -> Protocol:
        return protocols.split_training(
            model, num_samples=len(rows), batch_size=case.batch_size, optimizer=OPTIMIZERS[case.optimizer]()
        )

    return Problem(model, batch(shadow_rows), batch(victim_rows), protocol(shadow_rows), protocol(victim_rows))


def rounds_of(batch: Batch, batch_size: int, epochs: int) -> int:
    """Steps of that many epochs; what does not fill a batch is left out of an epoch."""
    return len(batch.y) // batch_size * epochs


def task_accuracy(model: models.BottomTopModel, params: object, batch: Batch) -> float:
    """The trained model's accuracy on `batch`."""
    return float(jnp.mean(jax.jit(model.apply)(params, batch.x).argmax(axis=1) == batch.y))


@lru_cache(maxsize=4)
def _table(spec: str) -> data.Table:
    return data.load_table(spec)


def _rows(y: np.ndarray, balanced: bool, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(y))
    if not balanced:
        return rows
    fewest = np.bincount(y).min()
    return rng.permutation(np.concatenate([rows[y[rows] == c][:fewest] for c in np.unique(y)]))
