"""What a defense costs: the same federation, trained with it and without, scored on held-out samples."""

import functools
import time
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp

from experiments._fedleak.federation import Federation
from jaxleak import _validate, data, defenses, models, protocols
from jaxleak._base import Batch, PyTree
from jaxleak.study import digest
from jaxleak.study.files import naming, read_numbers, write_json
from jaxleak.study.updates import Case, build_model, defense_of


class Utility:
    """Trains each (case, seed) once and keeps its accuracies in a folder."""

    def __init__(self, folder: Path, federation: Federation, *, fresh: bool):
        """Results go to `folder`; `fresh` forgets those that are there."""
        self.folder, self.federation = folder, federation
        self.slowest = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for file in folder.glob("*.json"):
                file.unlink()

    def path(self, case: Case, seed: int) -> Path:
        """The file of a result."""
        case = _trained_as(case)
        names = ("model", "activation", "width", "init", "data", "local_steps", "batch_norm", "defense", "strength")
        of_case = {name: getattr(case, name) for name in names}
        return self.folder / f"{digest(of_case | asdict(self.federation) | {'seed': seed})}.json"

    def weights_path(self, case: Case, seed: int) -> Path:
        """The file of the global model before the case's attacked round."""
        return self.path(case, seed).with_suffix(f".round{case.attacked_round}.safetensors")

    def __call__(self, case: Case, seed: int) -> dict[str, float]:
        """`test_accuracy` and `train_accuracy` in [0, 1]; NaN, and `diverged` 1, where the weights became infinite.

        Samples are disjoint from each other: the first `samples` of the data are the clients', the next the test's.

        Raises:
            ValueError: if the data have too few samples, or the training ends before the case's attacked round.
        """
        _validate.in_range(0, self.federation.rounds, attacked_round=case.attacked_round)
        path = self.path(case, seed)
        scores = read_numbers(path) if path.exists() else {}
        stored = not case.attacked_round or self.weights_path(case, seed).exists()
        if not scores or not (stored or scores["diverged"]):
            begin = time.perf_counter()
            scores = self._train(_trained_as(case), seed)
            self.slowest = max(self.slowest, time.perf_counter() - begin)
            write_json(path, scores)
        return scores

    def variables(self, case: Case, seed: int) -> PyTree:
        """The global model before the case's attacked round of this training, which trains if need be.

        Raises:
            FloatingPointError: if its weights were not finite by then.
        """
        self(case, seed)
        path = self.weights_path(case, seed)
        if not path.exists():
            raise FloatingPointError(f"training with seed {seed} diverged before round {case.attacked_round}")
        model, _ = self._model(case, seed)
        return models.load_weights(path, jax.eval_shape(model.init, jax.random.key(0)))

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

    def _train(self, case: Case, seed: int) -> dict[str, float]:
        f = self.federation
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
                with naming(self.weights_path(case, seed)):
                    models.save_weights(self.weights_path(case, seed), state.variables)
            state = run(state, private, f.rounds - case.attacked_round)
        except FloatingPointError:
            return {"test_accuracy": float("nan"), "train_accuracy": float("nan"), "diverged": 1.0}
        return {
            "test_accuracy": federation.evaluate(state.variables, x[f.samples :], y[f.samples :]),
            "train_accuracy": federation.evaluate(state.variables, x[: f.samples], y[: f.samples]),
            "diverged": 0.0,
        }


def _trained_as(case: Case) -> Case:
    """The case whose training this one's equals: no model changes by what only hides entries from the server.

    The same holds for noise that cancels over the clients, as the server takes nothing but their mean.
    """
    if case.defense is None:
        return case
    hides_only = defenses.client_defense(case.defense, case.strength).place in ("server_view", "client_payloads")
    return replace(case, defense=None, strength=0.0) if hides_only else case
