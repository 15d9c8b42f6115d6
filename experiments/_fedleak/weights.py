"""Trained weights for attacks on a model that is not fresh: FedAvg on samples that the attacked client never holds."""

from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import data, models, protocols
from jaxleak._base import Batch, PyTree
from jaxleak.study import digest
from jaxleak.study.files import naming, read_numbers, write_json
from jaxleak.study.updates import Case, build_model

#: Share of the disjoint samples that is kept for the test accuracy.
TEST_SHARE = 0.2


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
    """Steps of gradient descent that a client takes before it uploads."""
    batch_size: int = 16
    """Samples in a batch."""


def trained(case: Case, training: Training, seed: int, folder: Path) -> tuple[PyTree, dict[str, float]]:
    """Variables of the case's model after training, and what they reach.

    The client of the case draws from the first `case.taken` samples of the data; training sees only later ones. (Crops
    of `natural_patches` may overlap across that line.) Results are kept in `folder` and read from there the next time.

    Args:
        case: model and data.
        training: see there. With fewer samples than clients, every sample gets a client of its own.
        seed: of data, initial weights and rounds.
        folder: for the safetensors files.

    Returns:
        Variables, and `train_accuracy` and `test_accuracy` in [0, 1].

    Raises:
        ValueError: if no samples are left to train on.
        FloatingPointError: if training diverged.
    """
    dataset = data.load(case.data, None, seed)
    x, y = dataset.x[case.taken :], dataset.y[case.taken :]
    held_out = int(len(y) * TEST_SHARE)
    if held_out < 1:
        raise ValueError(
            f"{case.data} has {len(dataset.y)} samples, of which the clients' pool takes {case.taken}: none left to "
            "train on; take a smaller pool"
        )
    model = build_model(case, x.shape[1:], len(dataset.classes))
    like = jax.eval_shape(model.init, jax.random.key(0))
    depends_on = ("model", "activation", "width", "init", "data", "pool", "skip")
    what = {name: getattr(case, name) for name in depends_on} | asdict(training) | {"seed": seed}
    path = folder / f"{digest(what)}.safetensors"
    reached = path.with_suffix(".json")
    if path.exists() and reached.exists():
        return models.load_weights(path, like), read_numbers(reached)
    test_x, test_y = jnp.asarray(x[:held_out]), jnp.asarray(y[:held_out])
    train_x, train_y = jnp.asarray(x[held_out:]), jnp.asarray(y[held_out:])
    parts = data.partition_clients("iid", seed, train_x, train_y, min(training.clients, len(train_y)))
    federation = protocols.federated_averaging(
        model,
        parts,
        batch_size=training.batch_size,
        local_steps=training.local_steps,
        learning_rate=training.learning_rate,
        clients_per_round=min(training.clients_per_round, len(parts)),
    )
    key = jax.random.key(seed)
    batch = Batch(train_x[:, None], train_y, jnp.arange(len(train_y)))
    state = federation.run(jax.random.fold_in(key, 1), federation.init(key), batch, training.rounds)
    variables = jax.tree.map(np.asarray, state.variables)
    accuracy = {
        "train_accuracy": federation.evaluate(variables, train_x, train_y),
        "test_accuracy": federation.evaluate(variables, test_x, test_y),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with naming(path):
        models.save_weights(path, variables)
    write_json(reached, accuracy)
    return variables, accuracy
