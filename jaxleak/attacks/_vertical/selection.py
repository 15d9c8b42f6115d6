"""Which fields a record should hold, chosen by the attacker on shadow records that R has not learned."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import Batch, Observation
from jaxleak.attacks._vertical.reconstruction_net import ReconstructionNet, task_losses
from jaxleak.attacks._vertical.vflrecon import join_runs, targets_of, train_vflrecon
from jaxleak.models import BottomTopModel

#: Few, because each costs a training. Own features help where shadow records are many compared with them, and are
#: learned by heart where they are not. Parameters are left out: all samples of a step have the same.
FIELD_CANDIDATES: tuple[tuple[str, ...], ...] = (
    ("gradient",),
    ("gradient", "outputs"),
    ("gradient", "inputs"),
    ("gradient", "outputs", "inputs"),
)


class FieldSelection(NamedTuple):
    """The fields that won, and what every candidate lost on the held-out records."""

    fields: tuple[str, ...]
    losses: dict[tuple[str, ...], float]  # cross-entropy, or mean square error; by it the fields won


def select_fields(
    key: jax.Array,
    shadows: Sequence[Observation],
    private: Batch,
    model: BottomTopModel,
    *,
    party: int,
    task: Literal["labels", "features"],
    candidates: Sequence[Sequence[str]] = FIELD_CANDIDATES,
    held_out: float = 0.25,
    **options: Any,
) -> FieldSelection:
    """Choose the fields of a record by validation on the attacker's own shadow runs; no victim's data take part.

    The network R of every candidate learns from all runs but the last, and from all records but a random share. It is
    judged on the steps of the last run, and only on the records of that share. As in the real run, R then knows neither
    the targets of these records nor that run's path of the parameters. With a single run, R learns from that run, and
    only records are held out. Held-out records still trained the shadow model, just as the real run's records train the
    real model.

    Args:
        key: random key of the share and of the networks; every candidate's R gets the same key.
        shadows: stacked observations, one per shadow run (`audit.watch`); at least two, or the choice ignores how
            much runs differ.
        private: the attacker's complete shadow records.
        model: the model of both runs.
        party: the attacker.
        task: "labels" or "features".
        candidates: sets of fields, each some of `FIELDS`.
        held_out: share of the records in (0, 1); at least one is held out and one is left.
        **options: of `train_vflrecon`, such as `hidden` and `epochs`.

    Raises:
        ValueError: on an empty list of runs or candidates, a share out of range, or whatever `train_vflrecon` refuses.
        FloatingPointError: if a network's loss is not finite.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be in (0, 1), got {held_out}")
    if not candidates:
        raise ValueError("candidates must name at least one set of fields")
    if not shadows:
        raise ValueError("select_fields needs at least one shadow run")
    count = len(private.y)
    size = min(max(1, round(held_out * count)), count - 1)
    split, train = jax.random.split(key)
    chosen = jnp.zeros(count, bool).at[jax.random.permutation(split, count)[:size]].set(True)
    learned, judged = join_runs(shadows[:-1] or shadows), shadows[-1]
    if not bool(chosen[judged.index.ravel()].any()):  # type: ignore[union-attr]
        raise ValueError(
            f"shadows must hold steps of held-out records in the last run, by which fields are judged: none of the "
            f"{size} of {count} records took part in it; run more steps, or raise held_out"
        )
    target = targets_of(model, private, party, task)
    losses = {}
    for fields in candidates:
        net = train_vflrecon(
            train, learned, private, model, party=party, task=task, fields=fields, held_out=chosen, **options
        )
        losses[tuple(fields)] = _held_out_loss(net, judged, target, chosen, task)
    return FieldSelection(min(losses, key=lambda fields: losses[fields]), losses)


def _held_out_loss(
    net: ReconstructionNet, judged: Observation, target: jax.Array, chosen: jax.Array, task: str
) -> float:
    rows = judged.index.ravel()  # type: ignore[union-attr]
    losses = task_losses(_apply_all(net, judged.party).reshape(len(rows), -1), target[rows], task)
    loss = float(np.mean(np.asarray(losses)[np.asarray(chosen[rows])]))
    # A comparison with NaN is false, so that `min` could let a network win that answers it.
    return loss if np.isfinite(loss) else float("inf")


@jax.jit
def _apply_all(net: ReconstructionNet, steps: Any) -> jax.Array:
    return jax.lax.map(net, steps)
