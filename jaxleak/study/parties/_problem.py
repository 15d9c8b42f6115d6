"""Set-up of vertical training: records, parties, model, defense, and the protocols of the real and shadow runs."""

from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import _validate, data, models, objectives, protocols, threats
from jaxleak._base import Batch, Protocol, ProtocolState, PyTree
from jaxleak._own_files import is_own
from jaxleak._random_streams import stream_of
from jaxleak.attacks import adaptive
from jaxleak.defenses import Defense, SplitRun
from jaxleak.study.parties._case import SHADOW_RECORDS, VICTIM_RECORDS, OptimizerName, SplitCase
from jaxleak.study.parties._named_columns import named_parts
from jaxleak.study.parties._random_streams import Stream
from jaxleak.study.parties._split_defense import defense_of
from jaxleak.study.sources import Arrays, own_code

#: Learning rates by optimizer. The paper prints 0.001 without naming the optimizer; SGD and AdaDelta have usual rates.
PLAIN_RATES: dict[OptimizerName, float] = {"adam": 1e-3, "sgd": 1e-1, "adadelta": 1.0}
OPTIMIZERS: dict[OptimizerName, Any] = {
    "adam": lambda: optax.adam(PLAIN_RATES["adam"]),
    "sgd": lambda: optax.sgd(PLAIN_RATES["sgd"]),
    "adadelta": lambda: optax.adadelta(PLAIN_RATES["adadelta"]),
}
#: Number of the party that attacks.
ADVERSARY = 0
#: The threat model: the adversary has its own record of every step, and knows which samples are in the batch.
THREAT = threats.party_view(ADVERSARY)

#: Width in pixels of the images in each data set. Parties hold vertical strips of an image, the adversary the left one.
IMAGE_WIDTHS = {"cifar10": 32, "mnist": 28}


class SplitProblem(NamedTuple):
    """A victim's run, and what the attacker needs to run shadows of it. Party p of P parties has d_p features."""

    model: models.BottomTopModel
    shadow: Batch  # the attacker's complete records: x (n, P, max d_p) with zeros beyond d_p, y (n,)
    victim: Batch  # the records of the real run, in the same shapes
    shadow_protocol: Protocol  # protocol of the undefended shadow run
    adaptive_protocol: Protocol  # protocol of the shadow run of an attacker who knows the victim's defense
    victim_protocol: Protocol  # protocol of the real run
    columns: tuple[np.ndarray, ...]  # numbers of every party's columns in the table, numeric ones first
    spans: tuple[np.ndarray, ...]  # how many features each of those columns has
    missing: np.ndarray  # (N, P, max d_p) bool, entries of the victim's records that no score counts; they are 0 in x

    @property
    def own_width(self) -> int:
        """Number of the adversary's features."""
        return self.model.widths[ADVERSARY]

    def own(self, batch: Batch) -> np.ndarray:
        """The adversary's features (N, d)."""
        return np.asarray(batch.x)[:, ADVERSARY, : self.own_width]

    def without_truth(self) -> "SplitProblem":
        """Make the attacker's set-up: the real run's records keep the attacker's features, and all else is zero."""
        own = jnp.zeros_like(self.victim.x).at[:, ADVERSARY].set(self.victim.x[:, ADVERSARY])
        victim = self.victim._replace(x=own, y=jnp.zeros_like(self.victim.y))
        return self._replace(victim=victim, missing=np.zeros_like(self.missing))


class Records(NamedTuple):
    """Numbers of records of the shadow run and of the real run."""

    shadow: int
    victim: int


def records_of(case: SplitCase) -> Records:
    """Count the records of the shadow run and of the real run of a case; the seed does not matter.

    Raises:
        ValueError: if the data have fewer records than the case asks for, or one run has fewer than a batch.
        FileNotFoundError: if the data are missing.
    """
    exist = len(_rows(whole_table(case.data).y, case.balanced, 0))
    of_all = f"a third of the {exist} {'balanced ' if case.balanced else ''}records of {case.data}"
    shadow = _count(case, "shadow_records", SHADOW_RECORDS, exist // 3, of_all)
    return Records(shadow, _count(case, "victim_records", VICTIM_RECORDS, exist - shadow, "what the shadow run leaves"))


def about_records(case: SplitCase) -> str:
    """Say in sentences for a report how many records a case has, and how the table was read.

    Args:
        case: case that names the data.

    Raises:
        FileNotFoundError, ValueError: as in `records_of`.
    """
    count = records_of(case)
    read = f"The data have {whole_table(case.data).about}."
    return f"{case.data}: {count.shadow} shadow records, and {count.victim} in the real run. {read}"


def _count(case: SplitCase, name: str, default: int, most: int, why: str) -> int:
    asked = getattr(case, name)
    if asked is not None and asked > most:
        raise ValueError(f"{name} must be at most {most}, {why}, got {asked}")
    count = min(default, most) if asked is None else asked
    if count < case.batch_size:
        raise ValueError(f"{name} must be at least batch_size={case.batch_size}, got {count}")
    return count


def split_problem(case: SplitCase, seed: int) -> SplitProblem:
    """Draw disjoint shadow and victim records, encode both by the shadow records, and divide the features.

    Args:
        case: case of the run.
        seed: random seed >= 0 of the records and of the features' division among the parties.

    Raises:
        ValueError: if sizes do not fit, an option is out of range, or a strength has no defense; nothing has been
            trained yet.
        FileNotFoundError: if the data are missing.
        ImportError: if an optional library is missing.
    """
    _validate.count(shadow_runs=case.shadow_runs)
    _validate.one_of(("fixed", "validation"), select=case.select)
    case.check_strength()
    if case.defense != "none" and case.victim_epochs > case.task_epochs:
        raise ValueError(
            f"victim_epochs must be at most task_epochs={case.task_epochs} with a defense, which is calibrated for so "
            f"many epochs, got {case.victim_epochs}"
        )
    _validate.one_of(OPTIMIZERS, optimizer=case.optimizer)
    _validate.one_of(("logits", "probabilities"), top_output=case.top_output)
    _validate.one_of(("none", "plain", "ckks"), cipher=case.cipher)
    table, count = whole_table(case.data), records_of(case)
    rows = _rows(table.y, case.balanced, seed)
    shadow_rows, victim_rows = rows[: count.shadow], rows[count.shadow : count.shadow + count.victim]
    encoding = data.fit_encoding(table, shadow_rows, scaling=case.scaling, categories=case.categories)
    x = data.encode(encoding, table)
    kept = _in_table(encoding, table)
    if case.columns:
        parts = named_parts(case, table, kept)
    else:
        first = np.array([own[0] for own in encoding.columns])
        parts = _parts(case, encoding, x[shadow_rows][:, first], seed)
    columns = [np.concatenate([encoding.columns[feature] for feature in part]) for part in parts]
    slices = data.party_slices(x, columns)
    left_out = data.missing_entries(encoding, table) & (case.missing == "left_out")
    missing = data.party_slices(left_out, columns).astype(bool)

    def batch(rows: np.ndarray) -> Batch:
        return Batch(jnp.asarray(slices[rows]), jnp.asarray(table.y[rows]), jnp.arange(len(rows), dtype=jnp.int32))

    model = _model(tuple(len(own) for own in columns), table.num_classes, case.free_top, case.top_output)
    # The attacker plays both sides of its shadow run, so the cipher's algebra needs no ciphertexts there.
    shadow_cipher = "none" if case.cipher == "none" else "plain"
    shared = (model, case.batch_size, case.optimizer)
    # A defense is calibrated to the run whose accuracy is measured.
    defended = SplitRun(table.num_classes, case.batch_size, count.victim, case.task_epochs)
    defenses = _defenses(case.defense, case.strength, defended)
    return SplitProblem(
        model,
        batch(shadow_rows),
        batch(victim_rows),
        _protocol(*shared, count.shadow, shadow_cipher, ()),
        _informed(*shared, count.shadow, shadow_cipher, defenses),
        _protocol(*shared, count.victim, case.cipher, defenses),
        tuple(kept[part] for part in parts),
        tuple(np.array([len(encoding.columns[feature]) for feature in part]) for part in parts),
        missing[victim_rows],
    )


def _in_table(encoding: data.TableEncoding, table: data.Table) -> np.ndarray:
    """Numbers of the encoded features in the table, numeric ones first; constant columns were dropped."""
    numeric = table.numeric.shape[1]
    return np.array([*encoding.numeric, *(numeric + column for column in encoding.categorical)], int)


def sources_of_parties(case: SplitCase) -> Arrays:
    """Name the sources: all rows of the table, on which encoding and draw depend, and the file of a user's defense."""

    def load() -> dict[str, np.ndarray]:
        table = whole_table(case.data)
        return {"numeric": table.numeric, "categorical": table.categorical, "y": table.y}

    own = own_code("defense", case.defense) if is_own(case.defense) else {}
    return {f"the data {case.data} (all rows)": load, **own}


def rounds_of(batch: Batch, batch_size: int, epochs: int) -> int:
    """Number of steps of `epochs` epochs; an epoch leaves out the records that do not fill a batch."""
    return len(batch.y) // batch_size * epochs


def shadow_rounds(case: SplitCase, problem: SplitProblem) -> int:
    """Number of steps of the shadow run."""
    epoch = rounds_of(problem.shadow, case.batch_size, 1)
    real = rounds_of(problem.victim, case.batch_size, case.victim_epochs)
    return epoch * (case.shadow_epochs or max(3, -(-3 * real // (2 * epoch))))


def train(protocol: Protocol, private: Batch, key: jax.Array, rounds: int) -> PyTree:
    """The parameters after `rounds` steps that no attacker observes."""
    return _train(
        protocol, private, protocol.init(stream_of(key, Stream.PARAMETERS)), stream_of(key, Stream.ROUNDS), rounds
    )


def _parts(case: SplitCase, encoding: data.TableEncoding, x: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    image = case.data in IMAGE_WIDTHS
    kind = ("blocks" if image else "random") if case.partition == "auto" else case.partition
    count = len(encoding.columns)
    dealt = data.partition_features(
        count,
        case.parties,
        share=case.share,
        adversary=ADVERSARY,
        kind="random" if kind == "blocks" else kind,
        x=x,
        seed=seed,
    )
    if kind != "blocks":
        return dealt
    # Every party gets as many features as in the random division, but adjacent ones: columns of an image from the left.
    order = np.arange(count)
    if image:
        order = np.lexsort((order, np.asarray(encoding.numeric) % IMAGE_WIDTHS[case.data]))
    return tuple(np.sort(part) for part in np.split(order, np.cumsum([len(part) for part in dealt])[:-1]))


def _train_round(protocol: Protocol, key: jax.Array, private: Batch, state: ProtocolState) -> ProtocolState:
    return protocol.round(key, state, private)[0]


@lru_cache
def _compiled_training(protocol: Protocol, rounds: int) -> Any:
    def run(private: Batch, state: ProtocolState, key: jax.Array) -> ProtocolState:
        return jax.lax.fori_loop(0, rounds, lambda _, state: _train_round(protocol, key, private, state), state)

    return jax.jit(run)


def _train(protocol: Protocol, private: Batch, state: ProtocolState, key: jax.Array, rounds: int) -> PyTree:
    return _compiled_training(protocol, rounds)(private, state, key).params


@lru_cache
def _predictor(model: models.BottomTopModel) -> Any:
    return jax.jit(lambda params, x: model.apply(params, x).argmax(axis=1))


def predict(model: models.BottomTopModel, params: PyTree, x: jax.Array) -> jax.Array:
    """The labels (N,) that the trained model gives."""
    return _predictor(model)(params, x)


@lru_cache(maxsize=4)
def whole_table(spec: str) -> data.Table:
    """The whole table of a data set, unscaled."""
    return data.load_table(spec)


# Equal arguments give the same objects, so that a program that was compiled for one seed serves all seeds.
@lru_cache
def _model(widths: tuple[int, ...], num_classes: int, free_top: bool, top_output: str) -> models.BottomTopModel:
    top = None if free_top else (100, 100)
    return models.bottom_top(widths, num_classes, top=top, probabilities=top_output == "probabilities")


@lru_cache
def _defenses(name: str, strength: float, run: SplitRun) -> tuple[Defense, ...]:
    return () if name == "none" else (defense_of(name, strength, run),)


@lru_cache
def _protocol(
    model: models.BottomTopModel,
    batch_size: int,
    optimizer: OptimizerName,
    num_samples: int,
    cipher: Literal["none", "plain", "ckks"],
    defenses: tuple[Defense, ...],
) -> Protocol:
    return protocols.split_training(
        model,
        num_samples=num_samples,
        batch_size=batch_size,
        optimizer=OPTIMIZERS[optimizer](),
        loss=objectives.negative_log_likelihood if model.probabilities else objectives.cross_entropy,
        defenses=defenses,
        # The last party has the labels, so its own embeddings need no cipher.
        interactive=None if cipher == "none" else protocols.encrypted_first(active=model.parties - 1, cipher=cipher),
    )


def _informed(*settings: Any) -> Protocol:
    """Make a shadow run's protocol with the real run's defense, or without a defense if the real run has none."""
    *undefended, defenses = settings
    return adaptive.informed_party(defenses, partial(_protocol, *undefended)) if defenses else _protocol(*settings)


def _rows(y: np.ndarray, balanced: bool, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(y))
    if not balanced:
        return rows
    fewest = np.bincount(y).min()
    return rng.permutation(np.concatenate([rows[y[rows] == c][:fewest] for c in np.unique(y)]))
