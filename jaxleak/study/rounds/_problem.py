"""The private set and the model that the CAFE studies attack."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _validate, audit, data, metrics, models
from jaxleak._base import Batch, PyTree
from jaxleak.metrics._images import MOST_DB
from jaxleak.study.sources import Arrays, arrays_of, drawn_name

#: Channels of the horizontal network's two convolutions, by the network's name.
_HORIZONTAL_CHANNELS = {"cafe": (64, 128), "cafe-small": (16, 32)}


class Problem(NamedTuple):
    """A vertically split private set, a model with its frozen parameters, and the truth for scoring."""

    dataset: data.Dataset
    layout: data.TileLayout | data.ColumnLayout
    model: models.SplitModel
    params: PyTree
    private: Batch  # x (N, P, *slice)
    held_out: Batch  # samples outside the private set, for the model's accuracy; empty unless asked for

    def assemble(self, slices: np.ndarray) -> np.ndarray:
        """Slices (I, P, *slice) -> samples as the data set has them, (I, H, W, C) or (I, F)."""
        if isinstance(self.layout, data.TileLayout):
            return data.assemble_tiles(slices, self.layout)
        return data.assemble_columns(slices, self.layout)


def vertical_problem(
    spec: str,
    *,
    num_samples: int,
    parties: int,
    seed: int,
    key: jax.Array,
    network: str = "cafe",
    held_out: int = 0,
) -> Problem:
    """Load `num_samples` samples of `spec`, split their features among `parties`, and build the model.

    Args:
        spec: data specification, see `jaxleak.data.load`.
        num_samples: size N of the private set.
        parties: number P of parties.
        seed: random seed of the draw of samples.
        key: random key of the audit; the model has the parameters that `audit.start` draws from it.
        network: "cafe", "cafe-relu" (ReLU behind each party's output, as in the authors' code), "cafe-small" (a
            quarter of the channels), "dense" or "logistic". Tables with "cafe" get "dense".
        held_out: number of further samples, on which the model is tested.

    Raises:
        ValueError: on unknown data, sizes that do not fit, or labels out of range.
        FileNotFoundError: if the data are missing.
        KeyError: on an unknown network.
    """
    dataset = data.load(spec, num_samples + held_out, seed)
    layout: data.TileLayout | data.ColumnLayout
    if dataset.x.ndim == 4:
        x, layout = data.image_tiles(dataset.x, parties)
    else:
        x, layout = data.feature_columns(dataset.x, parties)
        network = "dense" if network == "cafe" else network
    if layout.note:
        print(f"note: {layout.note}")
    shape = x.shape[2:]
    shared: dict[str, Any] = {"parties": parties, "num_classes": max(2, len(dataset.classes))}
    model = {
        "cafe": lambda: models.cafe_vertical(shape, **shared),
        "cafe-relu": lambda: models.cafe_vertical(shape, output_activation=jax.nn.relu, **shared),
        "cafe-small": lambda: models.cafe_vertical(shape, channels=(16, 32), **shared),
        "dense": lambda: models.all_dense(shape, **shared),
        "logistic": lambda: models.logistic(shape, **shared),
    }[network]()
    return _problem(dataset, layout, model, x, num_samples, key)


def horizontal_problem(spec: str, *, num_samples: int, seed: int, key: jax.Array, network: str = "cafe") -> Problem:
    """Load whole images and build the horizontal network of the ICLR submission.

    With M workers, the sample n of N belongs to worker n // (N / M).

    Args:
        spec: data specification, see `jaxleak.data.load`.
        num_samples: size N of the private set.
        seed: random seed of the draw of samples.
        key: random key of the audit; the model has the parameters that `audit.start` draws from it.
        network: "cafe", or "cafe-small" with a quarter of the channels.

    Raises:
        ValueError: on unknown data or networks, on tables, or on labels out of range.
        FileNotFoundError: if the data are missing.
    """
    _validate.one_of(_HORIZONTAL_CHANNELS, network=network)
    dataset = data.load(spec, num_samples, seed)
    x, layout = data.image_tiles(dataset.x, 1)
    channels = _HORIZONTAL_CHANNELS[network]
    model = models.cafe_horizontal(x.shape[2:], num_classes=max(2, len(dataset.classes)), channels=channels)
    return _problem(dataset, layout, model, x, num_samples, key)


def _problem(
    dataset: data.Dataset,
    layout: data.TileLayout | data.ColumnLayout,
    model: models.SplitModel,
    x: np.ndarray,
    num_samples: int,
    key: jax.Array,
) -> Problem:
    _validate.labels_in_range(dataset.y, model.num_classes)
    index = jnp.arange(len(x), dtype=jnp.int32)
    everything = Batch(jnp.asarray(x), jnp.asarray(dataset.y), index)
    private = jax.tree.map(lambda leaf: leaf[:num_samples], everything)
    held_out = jax.tree.map(lambda leaf: leaf[num_samples:], everything)
    dataset = dataset._replace(x=dataset.x[:num_samples], y=dataset.y[:num_samples])
    return Problem(dataset, layout, model, model.init(audit.init_key(key)), private, held_out)


def sources_of_rounds(problem: Problem, spec: str, seed: int) -> Arrays:
    """The private set, drawn from `spec` with `seed`; the model's parameters follow from the key alone.

    Args:
        problem: the problem with the private set.
        spec: data specification from which the private set was drawn.
        seed: random seed with which the private set was drawn.
    """
    return {drawn_name(spec, len(problem.dataset.y), seed): lambda: arrays_of(problem.dataset)}


def forward_features(problem: Problem, batch_size: int = 50) -> jax.Array:
    """Inputs H (N, P, d1) of the first dense layer for the whole private set, in the unit of the model.

    Frozen parameters keep them the same from round to round.
    """

    def one(x: jax.Array) -> jax.Array:
        return problem.model.features(problem.params, x[None])[0]

    return jax.jit(lambda x: jax.lax.map(one, x, batch_size=batch_size))(problem.private.x)


def relative_errors(truth: Any, estimate: Any, where: np.ndarray) -> np.ndarray:
    """Relative errors (n,) ||estimate - truth|| / ||truth|| over the last axis.

    Args:
        truth: (N, P, d), true values.
        estimate: (N, P, d), recovered values.
        where: (N, P), booleans that select n pairs of sample and party.
    """
    truth, estimate = np.asarray(truth)[where], np.asarray(estimate)[where]
    return np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1)


def channel_peak_psnr(problem: Problem, images: np.ndarray, index: np.ndarray) -> float:
    """Mean PSNR of reconstructed images by the paper's formula, with the largest true value of every channel as peak.

    Images with a channel that is black throughout are left out, since the formula is undefined for them. Values above
    200 dB, such as infinity, count as 200 dB.

    Args:
        problem: the problem with the truth.
        images: (I, H, W, C), reconstructions, in [0, 1] as a rule.
        index: (I,), numbers of the images in the private set.

    Returns:
        Mean PSNR in dB; NaN if no image is left.
    """
    with np.errstate(divide="ignore"):
        values = np.minimum(metrics.psnr_channel_peak(problem.dataset.x[index], images), MOST_DB)
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def image_psnr(problem: Problem, slices: Any, index: np.ndarray) -> np.ndarray:
    """PSNR (I,) in dB of reconstructed samples against the truth, with a peak of 1.

    Args:
        problem: the problem with the truth.
        slices: (I, P, *slice), reconstructions.
        index: (I,), numbers of the samples in the private set.
    """
    truth = problem.dataset.x[index]
    estimate = problem.assemble(slices)
    return metrics.psnr(truth, estimate)
