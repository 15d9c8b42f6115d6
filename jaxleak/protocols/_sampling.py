"""The samples that take part in round t: pure functions of the key and t, so any round can be drawn again."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxleak import _validate

Sampling = Literal["epoch", "uniform"]
SAMPLINGS: tuple[Sampling, ...] = ("epoch", "uniform")
#: Tag that is folded into the keys of defenses. `draw_batch` folds the round into the run's key and shuffles with
#: children of that key. Without the tag a defense could get the same child key, and its noise would depend on the
#: choice of the batch.
_DEFENSE = int.from_bytes(b"nois")


def defense_key(key: jax.Array, round_: jax.Array) -> jax.Array:
    """The key for defenses and masks in a round, independent of the keys that choose the round's samples.

    Args:
        key: key of the whole run.
        round_: () int32, number of the round.
    """
    return jax.random.fold_in(jax.random.fold_in(key, _DEFENSE), round_)


def draw_batch(key: jax.Array, step: jax.Array, *, num_samples: int, batch_size: int, sampling: Sampling) -> jax.Array:
    """Positions (batch_size,) of round `step` in the private set, integers in [0, num_samples) without repeats.

    Args:
        key: key of the whole run.
        step: () int32, number of the round.
        num_samples: N.
        batch_size: K <= N.
        sampling: "uniform" draws every batch independently from all C(N, K) (CAFE's set S); "epoch" cuts a fresh
            permutation per epoch into floor(N / K) batches and leaves the remainder out of that epoch.

    Raises:
        ValueError: on another sampling, or a batch that is larger than the private set.
    """
    _validate.one_of(SAMPLINGS, sampling=sampling)
    _validate.count_in_range(1, num_samples, batch_size=batch_size)
    if sampling == "uniform":
        return jax.random.permutation(jax.random.fold_in(key, step), num_samples)[:batch_size]
    per_epoch = num_samples // batch_size
    permutation = jax.random.permutation(jax.random.fold_in(key, step // per_epoch), num_samples)
    return jax.lax.dynamic_slice_in_dim(permutation, (step % per_epoch) * batch_size, batch_size)


def draw_worker_batches(
    key: jax.Array, step: jax.Array, *, workers: int, num_samples: int, batch_size: int, sampling: Sampling
) -> jax.Array:
    """Positions of a horizontal round: K / M samples from each worker's own block of N / M.

    Args:
        key: random key of the draw.
        step: (), the round's number.
        workers: M, which divides N and K.
        num_samples: N.
        batch_size: K.
        sampling: see `draw_batch`.

    Returns:
        (K,) integers, worker by worker.

    Raises:
        ValueError: on another sampling, or workers who do not divide N and K.
    """
    _validate.count(workers=workers)
    if num_samples % workers or batch_size % workers:
        raise ValueError(f"workers={workers} must divide num_samples={num_samples} and batch_size={batch_size}")

    def one(worker: jax.Array) -> jax.Array:
        own = draw_batch(
            jax.random.fold_in(key, worker),
            step,
            num_samples=num_samples // workers,
            batch_size=batch_size // workers,
            sampling=sampling,
        )
        return own + worker * (num_samples // workers)

    return jax.vmap(one)(jnp.arange(workers)).reshape(-1)
