"""Federated averaging around an attack: the weights of a later round, and what a defense costs in accuracy.

`trained` gives the weights of a federation to which the attacked client does not belong. `Utilities` trains the
federation that an upload is taken from, with its defense. Weights are kept in files that are named after everything
that they depend on, the samples themselves included: data that were replaced under the same name are trained on anew.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate, data, defenses, metrics, models, protocols
from jaxleak._base import Batch, PyTree
from jaxleak._configuration import fingerprint
from jaxleak.metrics._images import mean_psnr
from jaxleak.study import digest
from jaxleak.study.files import naming, read_numbers, write_json
from jaxleak.study.runner import Cost, Result
from jaxleak.study.sources import Arrays, drawn
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import build_model, defense_of
from jaxleak.study.updates._cost import seconds_of_training
from jaxleak.study.updates._own_defense import kind_of_defense
from jaxleak.study.updates._own_model import given_weights
from jaxleak.study.updates._public_data import require_no_overlap
from jaxleak.study.updates._sources import sources_of_client
from jaxleak.study.updates._training import Training

#: Share of the samples outside the pool that `trained` keeps for the test accuracy.
TEST_SHARE = 0.2
#: Seconds that a training with one local step per round takes on two CPU cores; a rough guess.
_SECONDS = 20.0


@dataclass(frozen=True)
class Federation:
    """The federation that an upload is taken from: all of its clients take part in every round."""

    rounds: int = 200
    """Rounds of federated training."""
    learning_rate: float = 0.5
    """Learning rate of the clients (in training and in the upload under attack)."""
    clients: int = 8
    """Clients of the federation."""
    samples: int = 800
    """Training samples of all clients together."""
    batch_size: int = 4
    """Samples of a client's step (in training and under attack)."""
    test_samples: int = 400
    """Samples on which the accuracy is measured."""

    def check(self) -> None:
        """Raise `ValueError` on a number out of range."""
        _validate.positive(learning_rate=self.learning_rate)
        _validate.count(**{name: value for name, value in asdict(self).items() if name != "learning_rate"})
        _validate.in_range(self.clients, float("inf"), samples=self.samples)
        _validate.in_range(1, self.samples // self.clients, batch_size=self.batch_size)

    def sources(self, spec: str, seed: int) -> Arrays:
        """The samples that the clients train on, and the samples of the test."""
        return drawn(spec, self.samples + self.test_samples, seed)


class _Run:
    """One training by federated averaging, which goes on from the round that it has reached."""

    def __init__(
        self,
        model: models.Classifier,
        train: tuple[np.ndarray, np.ndarray],
        test: tuple[np.ndarray, np.ndarray],
        *,
        seed: int,
        parts: list[np.ndarray],
        start: PyTree = None,
        **settings: Any,
    ):
        """Round 0.

        Args:
            model: the model to train.
            train: images (N, H, W, C) and labels (N,) of all clients.
            test: images and labels that the test accuracy is measured on.
            seed: random seed of the initial weights and the rounds.
            parts: indices into the N samples, one array per client.
            start: variables to begin with; None draws them.
            settings: further arguments of `protocols.federated_averaging`.
        """
        self._train, self._test = ((jnp.asarray(x), jnp.asarray(y, jnp.int32)) for x, y in (train, test))
        self._federation = protocols.federated_averaging(model, parts, **settings)
        self._key = jax.random.key(seed)
        self._state = self._federation.init(self._key, start)

    def go_on(self, rounds: int) -> PyTree:
        """Train for `rounds` more rounds; returns the variables. `FloatingPointError` if not all of them are finite."""
        x, y = self._train
        private = Batch(x[:, None], y, jnp.arange(len(y)))
        self._state = self._federation.run(jax.random.fold_in(self._key, 1), self._state, private, rounds)
        return self._state.variables

    def accuracies(self) -> dict[str, float]:
        """`train_accuracy` and `test_accuracy` in [0, 1]."""
        of = {"train_accuracy": self._train, "test_accuracy": self._test}
        return {name: self._federation.evaluate(self._state.variables, *samples) for name, samples in of.items()}


def _file(folder: Path, case: Case, depends_on: Mapping[str, Any], x: np.ndarray, y: np.ndarray) -> Path:
    """Where weights that depend on these settings and samples, and on the files of the case's client, are kept."""
    of_files = {name: fingerprint(load()) for name, load in sources_of_client(case).items()}
    return folder / f"{digest({**depends_on, **of_files, 'samples': fingerprint({'x': x, 'y': y})})}.safetensors"


def _keep(path: Path, variables: PyTree) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        models.save_weights(path, variables)


def _kept(path: Path, model: models.Classifier) -> PyTree:
    return models.load_weights(path, jax.eval_shape(model.init, jax.random.key(0)))


def refuse_overlap(case: Case) -> None:
    """Raise `ValueError` if the data are crops that overlap, so that training would see the attacked client's pixels.

    Args:
        case: names the data.
    """
    seen = "weights trained on the other samples would have seen the victim's pixels: take other data"
    require_no_overlap(case.data, case.data, seen)


def trained(case: Case, training: Training, seed: int, folder: Path) -> tuple[PyTree, dict[str, float]]:
    """Variables of the case's model after training, and what they reach.

    The client of the case draws from the first `case.taken` samples of the data; training sees only later ones.
    Results are kept in `folder` and read from there the next time, unless the samples are others by then.

    Args:
        case: names the model and the data.
        training: options of the training. With fewer samples than clients, every sample gets a client of its own.
        seed: random seed of the data, the initial weights and the rounds.
        folder: folder of the safetensors files.

    Returns:
        Variables, and `train_accuracy` and `test_accuracy` in [0, 1].

    Raises:
        ValueError: if no samples are left to train on, or the samples are crops that overlap with the client's.
        FloatingPointError: if training diverged.
    """
    refuse_overlap(case)
    dataset = data.load(case.data, None, seed)
    x, y = dataset.x[case.taken :], dataset.y[case.taken :]
    held_out = int(len(y) * TEST_SHARE)
    if held_out < 1:
        raise ValueError(
            f"{case.data} has {len(dataset.y)} samples, of which the clients' pool takes {case.taken}: none left to "
            "train on; take a smaller pool"
        )
    model = build_model(case, x.shape[1:], len(dataset.classes))
    of_case = {name: getattr(case, name) for name in ("model", "activation", "width", "init", "data", "pool", "skip")}
    if case.mean is not None:
        of_case |= {"mean": case.mean, "std": case.std}
    path = _file(folder, case, of_case | asdict(training) | {"seed": seed}, x, y)
    reached = path.with_suffix(".json")
    if path.exists() and reached.exists():
        return _kept(path, model), read_numbers(reached)
    own = x[held_out:], y[held_out:]
    parts = data.partition_clients("iid", seed, *own, min(training.clients, len(own[1])))
    run = _Run(
        model, own, (x[:held_out], y[:held_out]), seed=seed, parts=parts,
        batch_size=training.batch_size, local_steps=training.local_steps, learning_rate=training.learning_rate,
        clients_per_round=min(training.clients_per_round, len(parts)),
    )  # fmt: skip
    variables = jax.tree.map(np.asarray, run.go_on(training.rounds))
    accuracies = run.accuracies()
    _keep(path, variables)
    write_json(reached, accuracies)
    return variables, accuracies


@dataclass(frozen=True)
class Utility:
    """A job: the accuracies of the federation that trains with a case's defense; `utility_of` makes it."""

    case: Case


def utility_of(case: Case) -> Utility:
    """The training behind a case: equal ones are one job, whatever else the cases attack.

    Two kinds of defenses leave the trained model as it is: those that only hide entries from the server, and the
    built-in noise that cancels over the clients, as the server uses nothing but the mean of the uploads.

    Args:
        case: the upload under attack, with its defense.

    Raises:
        ValueError: on a client that the federation has not: with several local epochs, momentum, or another loss than
            the cross-entropy.
    """
    lacks = {"local_epochs": 1, "momentum": 0.0, "loss": "cross_entropy"}
    for name, wanted in lacks.items():
        if (got := getattr(case, name)) != wanted:
            raise ValueError(f"{name} must be {wanted} where the federation is trained to tell its accuracy, got {got}")
    if case.defense is not None:
        place = defenses.client_defense(kind_of_defense(case.defense), case.strength).place
        if place == "server_view" or (place == "client_payloads" and not case.own_defense):
            case = replace(case, defense=None, strength=0.0)
    of_model = ("model", "activation", "width", "init", "mean", "std", "weights")
    names = (*of_model, "data", "local_steps", "batch_norm", "attacked_round", "defense", "strength")
    return Utility(Case(**{name: getattr(case, name) for name in names}))


@functools.cache
def _holds_attacked(spec: str, samples: int, seed: int) -> bool:
    """Whether the first of many samples of a data set is the one that a draw of a single sample has."""
    one, several = (data.load(spec, n, seed).x[0] for n in (1, samples))
    return np.array_equal(one, several)


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
        """The samples of clients and test, and the files of the model and the defense."""
        return {**self.federation.sources(job.case.data, seed), **sources_of_client(job.case)}

    def require(self, job: Utility, seed: int) -> None:
        """Refuse a round that the training does not reach, and data whose attacked samples it would not hold."""
        f, spec = self.federation, job.case.data
        _validate.in_range(0, f.rounds, attacked_round=job.case.attacked_round)
        if not _holds_attacked(spec, f.samples + f.test_samples, seed):
            raise ValueError(
                f"samples must be fewer: {spec} draws so many from other files than the attacked ones, which would not "
                f"be among them, got samples={f.samples} and test_samples={f.test_samples}; mnist has 2,000 in its own "
                "file, and idx:IMAGES,LABELS draws any number from the original ones"
            )

    def cost(self, job: Utility) -> Cost:
        """What the passes of all samples take, or a guess for small networks, whichever is more."""
        f, case = self.federation, job.case
        samples = f.rounds * f.clients * f.batch_size * case.local_steps
        return Cost(max(_SECONDS * case.local_steps, seconds_of_training(case, samples)))

    def run(self, job: Utility, seed: int) -> Result:
        """Train."""
        return Result(self._train(job, seed), {})

    def variables(self, job: Utility, seed: int) -> PyTree:
        """The global model before the attacked round; it is trained up to there if its file does not exist.

        Args:
            job: the training that the variables come from.
            seed: random seed of the data, the initial weights and the rounds.

        Raises:
            FloatingPointError: if the weights were not finite before the attacked round.
        """
        model, dataset = self._model(job.case, seed)
        path = self._weights(job, seed, dataset)
        if not path.exists():
            try:
                self._until_attacked(job, seed)
            except FloatingPointError as error:
                where = f"before round {job.case.attacked_round}"
                raise FloatingPointError(f"training with seed {seed} diverged {where}") from error
        return _kept(path, model)

    def bits_per_entry(self, case: Case) -> float:
        """Size of an upload on the wire, in bits per entry of the model; 32 without a defense."""
        model, _ = self._model(case, 0)
        params = jax.eval_shape(model.init, jax.random.key(0))["params"]
        bits = defenses.bits_on_the_wire(defense_of(case, model), params)
        return bits / sum(leaf.size for leaf in jax.tree.leaves(params))

    def average_psnr(self, case: Case, seed: int, images: np.ndarray) -> float:
        """Mean PSNR in dB of the average training image, which shows nothing of a single sample.

        Args:
            case: case that names the data.
            seed: random seed of the data.
            images: (B, H, W, C) attacked images in [0, 1].
        """
        f = self.federation
        average = data.load(case.data, f.samples + f.test_samples, seed).x[: f.samples].mean(axis=0)
        return mean_psnr(metrics.psnr(images, np.broadcast_to(average, images.shape)))

    def _model(self, case: Case, seed: int) -> tuple[models.Classifier, data.Dataset]:
        f = self.federation
        dataset = data.load(case.data, f.samples + f.test_samples, seed)
        return build_model(case, dataset.x.shape[1:], len(dataset.classes)), dataset

    def _weights(self, job: Utility, seed: int, dataset: data.Dataset) -> Path:
        return _file(self.folder, job.case, self.identity(job, seed), dataset.x, dataset.y)

    def _until_attacked(self, job: Utility, seed: int) -> _Run:
        f, case = self.federation, job.case
        model, dataset = self._model(case, seed)
        own = dataset.x[: f.samples], dataset.y[: f.samples]
        run = _Run(
            model, own, (dataset.x[f.samples :], dataset.y[f.samples :]),
            seed=seed, parts=data.partition_clients("iid", seed, *own, f.clients),
            start=None if case.weights is None else given_weights(case, model),
            batch_size=f.batch_size, local_steps=case.local_steps, learning_rate=f.learning_rate,
            batch_norm=case.batch_norm, defense=defense_of(case, model),
        )  # fmt: skip
        variables = run.go_on(case.attacked_round)
        if case.attacked_round:
            _keep(self._weights(job, seed, dataset), variables)
        return run

    def _train(self, job: Utility, seed: int) -> dict[str, float]:
        try:
            run = self._until_attacked(job, seed)
            run.go_on(self.federation.rounds - job.case.attacked_round)
        except FloatingPointError:
            return {"test_accuracy": float("nan"), "train_accuracy": float("nan"), "diverged": 1.0}
        return run.accuracies() | {"diverged": 0.0}
