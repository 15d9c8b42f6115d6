"""Distances between the observed gradient and the gradients of images near the truth, and the reach made from them.

This module does not attack: the truth is one of the candidates that are compared.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import models, objectives, protocols
from jaxleak._base import Batch, PyTree
from jaxleak.attacks import client_updates
from jaxleak.attacks._inversion.row_space import distance_of_rows, informative_layers
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import victim

__all__ = [
    "CANDIDATES",
    "NOISE",
    "distances",
    "reach_of_row",
]

#: Strengths of the noise, as the PSNR in dB of noisy images whose pixels lie in [0, 1].
NOISE = (40, 30, 20)
#: Names of the candidates whose gradients are compared with the gradient of the truth.
CANDIDATES = ("truth", *(f"{level} dB" for level in NOISE), "grey", "other")


def distances(
    case: Case,
    sharpness: tuple[float, ...],
    batches: int,
    seed: int,
    variables: PyTree | None = None,
    compare: str = "gradients",
) -> np.ndarray:
    """Measure distances >= 0 from the truth's exact gradient, (batches, S, K) for S sharpnesses and K `CANDIDATES`.

    Args:
        case: case that names the model, the data, the batch size and the mode of batch normalisation.
        sharpness: S values > 0 of the sharpness; the candidates' gradients are those of a smoothed copy of the model.
        batches: number of batches, each of which serves as the truth once.
        seed: random seed of the data, the weights and the noise.
        variables: variables of the model; None draws them.
        compare: "gradients" for the cosine distance of gradients, in [0, 2]; "row_spaces" for a distance in [0, 1].
    """
    side = victim(case, seed)
    gradient = _gradient(side.share)
    distance = _distance(side.model, side.share, compare, case.batch_size)
    if variables is None:
        variables = jax.jit(side.model.init)(jax.random.key(seed))
    size = case.batch_size
    found = np.empty((batches, len(sharpness), len(CANDIDATES)))
    for number in range(batches):
        x, y = (side.private[i][number * size : (number + 1) * size] for i in (0, 1))
        others = side.private.x[-(number + 1) * size :][:size]
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed), number), x.shape)
        # The grey image needs a little noise: some networks divide by the spread of the pixels, which would be 0.
        grey = jnp.full_like(x, 0.5) + 0.01 * noise
        candidates = (x, *(x + 10 ** (-level / 20) * noise for level in NOISE), grey, others)
        observed = gradient(variables, x, y, None)
        for i, beta in enumerate(sharpness):
            for j, candidate in enumerate(candidates):
                found[number, i, j] = distance(variables, observed, candidate, y, jnp.float32(beta))
    return found


@functools.cache
def _gradient(share: protocols.ClientShare) -> Any:
    @jax.jit
    def gradient(variables: PyTree, x: jax.Array, y: jax.Array, sharpness: jax.Array | None) -> PyTree:
        return share(variables, Batch(x, y, jnp.arange(len(y))), sharpness=sharpness)

    return gradient


@functools.cache
def _distance(model: models.Classifier, share: protocols.ClientShare, compare: str, batch_size: int) -> Any:
    if compare == "row_spaces":
        plan = client_updates.RowSpaces()
        of_rows = distance_of_rows(
            model, plan, informative_layers(model, plan, batch_size), share.batch_norm, batch_size
        )

    @jax.jit
    def distance(variables: PyTree, observed: PyTree, x: jax.Array, y: jax.Array, sharpness: jax.Array) -> jax.Array:
        if compare == "row_spaces":
            return of_rows(variables, observed, x[:, 0], sharpness)
        return objectives.cosine(observed, _gradient(share)(variables, x, y, sharpness))

    return distance


def reach_of_row(row: str, sharpness: tuple[float, ...], found: np.ndarray) -> dict[str, Any]:
    """Compute a row's mean distances over all batches, and the reach: how much closer noisy copies are than others.

    The reach is a share of the distance of other images, at the best sharpness. It is 1 if a copy's gradient equals the
    observed one, and 0 if it is as far away as the gradient of another image.

    Args:
        row: name of the row.
        sharpness: S values > 0 of the sharpness.
        found: (batches, S, K) distances as `distances` gives them.
    """
    mean = found.mean(axis=0)
    share = found / mean[:, [CANDIDATES.index("other")]]  # in units of other images' mean distance
    others = share[:, :, CANDIDATES.index("other")]
    closer = others[:, :, None] - share
    reach, error, best = {}, {}, {}
    for j, name in enumerate(CANDIDATES[: 1 + len(NOISE)]):
        at = int(np.argmax(closer[:, :, j].mean(axis=0)))
        reach[name], best[name] = float(closer[:, at, j].mean()), sharpness[at]
        # This is the standard error of a ratio of means: a batch with distant other images adds no spread by itself.
        residual = closer[:, at, j] - reach[name] * others[:, at]
        error[name] = float(residual.std() / np.sqrt(len(found)))
    return {
        "id": row,
        "ours": reach["30 dB"],
        "unit": "share of the distance",
        "batches": len(found),
        "reach": reach,
        "standard_error": error,
        "at_sharpness": best,
        "distance": {name: mean[:, j].tolist() for j, name in enumerate(CANDIDATES)},
    }
