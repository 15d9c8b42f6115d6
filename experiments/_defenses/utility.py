"""What a defense costs: the same federation, trained with it and without, scored on held-out samples."""

import functools
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments._fedleak.federation import Federation
from jaxleak import _validate, data, defenses, models, protocols
from jaxleak._base import Batch, PyTree
from jaxleak.study import digest
from jaxleak.study.files import naming
from jaxleak.study.runner import Cost, Result
from jaxleak.study.sources import Arrays
from jaxleak.study.updates import Case, build_model, defense_of

#: Seconds of a training at one local step on two CPU cores, a rough guess.
_SECONDS = 20.0


@dataclass(frozen=True)
class Utility:
    """A job: the accuracies of the federation that trains with a case's defense; `utility_of` makes it."""

    case: Case


def utility_of(case: Case) -> Utility:
    """The training behind a case: equal ones are one job, whatever else the cases attack.

    No model changes by what only hides entries from the server, or by noise that cancels over the clients, as the
    server takes nothing but their mean.
    """
    if case.defense is not None:
        place = defenses.client_defense(case.defense, case.strength).place
        if place in ("server_view", "client_payloads"):
            case = replace(case, defense=None, strength=0.0)
    names = ("model", "activation", "width", "init", "data", "local_steps", "batch_norm", "attacked_round")
    return Utility(Case(**{name: getattr(case, name) for name in (*names, "defense", "strength")}))


class Utilities:
    """The trainings of one federation. Scores are `test_accuracy` and `train_accuracy` in [0, 1].

    Where the weights became infinite both are NaN, and `diverged` is 1. Samples are disjoint from each other: the first
    `samples` of the data are the clients', the next the test's.
    """

    def __init__(self, federation: Federation, folder: Path):
        """Weights of attacked rounds go to `folder`."""
        self.federation, self.folder = federation, folder

    def identity(self, job: Utility, seed: int) -> dict[str, Any]:
        """The case and the federation."""
        return {"case": asdict(job.case), "federation": asdict(self.federation), "seed": seed}

    def sources(self, job: Utility, seed: int) -> Arrays:
        """The samples of clients and test."""
        return self.federation.sources(job.case.data, seed)

    def require(self, job: Utility, seed: int) -> None:
        """Refuse to attack a round that the training does not reach."""
        _validate.in_range(0, self.federation.rounds, attacked_round=job.case.attacked_round)

    def cost(self, job: Utility) -> Cost:
        """A guess: what a training of 200 rounds takes."""
        return Cost(_SECONDS * job.case.local_steps)

    def variables(self, job: Utility, seed: int) -> PyTree:
        """The global model before the attacked round of a finished training.

        Raises:
            FloatingPointError: if its weights were not finite by then.
        """
        path = self._weights_path(job, seed)
        if not path.exists():
            raise FloatingPointError(f"training with seed {seed} diverged before round {job.case.attacked_round}")
        model, _ = self._model(job.case, seed)
        return models.load_weights(path, jax.eval_shape(model.init, jax.random.key(0)))

    def _weights_path(self, job: Utility, seed: int) -> Path:
        return self.folder / f"{digest(self.identity(job, seed))}.safetensors"

    def bits_per_entry(self, case: Case) -> float:
        """What an upload takes on the wire, in bits per entry of the model; 32 without a defense."""
        model, _ = self._model(case, 0)
        params = jax.eval_shape(model.init, jax.random.key(0))["params"]
        bits = defenses.bits_on_the_wire(defense_of(case, model), params)
        return bits / sum(leaf.size for leaf in jax.tree.leaves(params))

    def _model(self, case: Case, seed: int) -> tuple[models.Classifier, data.Dataset]:
        f = self.federation
        dataset = data.load(case.data, f.samples + f.test_samples, seed)
        return build_model(case, dataset.x.shape[1:], len(dataset.classes)), dataset

    def run(self, job: Utility, seed: int) -> Result:
        """Train."""
        return Result(self._train(job, seed), {})

    def _train(self, job: Utility, seed: int) -> dict[str, float]:
        f, case = self.federation, job.case
        model, dataset = self._model(case, seed)
        x, y = jnp.asarray(dataset.x), jnp.asarray(dataset.y, jnp.int32)
        parts = data.partition_clients("iid", seed, dataset.x[: f.samples], dataset.y[: f.samples], f.clients)
        federation = protocols.federated_averaging(
            model,
            parts,
            batch_size=f.batch_size,
            local_steps=case.local_steps,
            learning_rate=f.learning_rate,
            batch_norm=case.batch_norm,  # type: ignore[arg-type]
            defense=defense_of(case, model),
        )
        key = jax.random.key(seed)
        private = Batch(x[: f.samples, None], y[: f.samples], jnp.arange(f.samples))
        run = functools.partial(federation.run, jax.random.fold_in(key, 1))
        try:
            state = run(federation.init(key), private, case.attacked_round)
            if case.attacked_round:
                path = self._weights_path(job, seed)
                path.parent.mkdir(parents=True, exist_ok=True)
                with naming(path):
                    models.save_weights(path, state.variables)
            state = run(state, private, f.rounds - case.attacked_round)
        except FloatingPointError:
            return {"test_accuracy": float("nan"), "train_accuracy": float("nan"), "diverged": 1.0}
        return {
            "test_accuracy": federation.evaluate(state.variables, x[f.samples :], y[f.samples :]),
            "train_accuracy": federation.evaluate(state.variables, x[: f.samples], y[: f.samples]),
            "diverged": 0.0,
        }
