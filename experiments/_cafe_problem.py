"""The private set, the model and the simulated parties that the CAFE studies attack."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import audit, data, metrics, models
from jaxleak._base import Batch, PyTree


class Problem(NamedTuple):
    """A vertically split private set, a model with its frozen parameters, and the truth for scoring."""

    dataset: data.Dataset
    layout: data.TileLayout | data.ColumnLayout
    model: models.SplitModel
    params: PyTree
    private: Batch  # x (N, P, *slice)

    def assemble(self, slices: np.ndarray) -> np.ndarray:
        """Slices (I, P, *slice) -> samples as the data set has them, (I, H, W, C) or (I, F)."""
        if isinstance(self.layout, data.TileLayout):
            return data.assemble_tiles(slices, self.layout)
        return data.assemble_columns(slices, self.layout)


def vertical_problem(
    spec: str, *, num_samples: int, parties: int, seed: int, key: jax.Array, network: str = "cafe"
) -> Problem:
    """Load `num_samples` samples of `spec`, split them among `parties`, and build the model.

    Args:
        spec: data specification, see `jaxleak.data.load`.
        num_samples: N.
        parties: P.
        seed: which samples.
        key: the audit's key; the model's parameters are those that `audit.start` would draw from it.
        network: "cafe", "cafe-relu" (ReLU behind each party's output, as in the authors' code), "dense", "logistic".

    Raises:
        ValueError, FileNotFoundError: on unknown data, sizes that do not fit, labels out of range.
    """
    dataset = data.load(spec, num_samples, seed)
    classes = max(2, len(dataset.classes))
    layout: data.TileLayout | data.ColumnLayout
    if dataset.x.ndim == 4:
        x, layout = data.image_tiles(dataset.x, parties)
    else:
        x, layout = data.feature_columns(dataset.x, parties)
        network = "dense" if network == "cafe" else network
    if layout.note:
        print(f"note: {layout.note}")
    shape = x.shape[2:]
    model = {
        "cafe": lambda: models.cafe_vertical(shape, parties=parties, num_classes=classes),
        "cafe-relu": lambda: models.cafe_vertical(
            shape, parties=parties, num_classes=classes, output_activation=jax.nn.relu
        ),
        "dense": lambda: models.all_dense(shape, parties=parties, num_classes=classes),
        "logistic": lambda: models.logistic(shape, parties=parties, num_classes=classes),
    }[network]()
    private = Batch(jnp.asarray(x), jnp.asarray(dataset.y), jnp.arange(len(x), dtype=jnp.int32))
    return Problem(dataset, layout, model, model.init(audit.init_key(key)), private)


def forward_features(problem: Problem, batch_size: int = 50) -> jax.Array:
    """H (N, P, d1) of the whole private set: what the simulated parties keep while parameters are frozen."""

    def one(x: jax.Array) -> jax.Array:
        return problem.model.features(problem.params, x[None])[0]

    return jax.jit(lambda x: jax.lax.map(one, x, batch_size=batch_size))(problem.private.x)


def relative_errors(truth: np.ndarray, estimate: np.ndarray, where: np.ndarray) -> np.ndarray:
    """||estimate - truth|| / ||truth|| over the last axis, for the (sample, party) pairs in `where`."""
    truth, estimate = np.asarray(truth)[where], np.asarray(estimate)[where]
    return np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


def image_psnr(problem: Problem, slices: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Truth-side PSNR (I,) of reconstructed samples `index`, peak 1."""
    truth = problem.dataset.x[index]
    estimate = problem.assemble(slices)
    return metrics.psnr(truth, estimate)
