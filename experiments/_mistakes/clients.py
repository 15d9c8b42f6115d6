"""The models and clients of the study of mistaken inputs."""

import jax
import jax.numpy as jnp

from experiments._mistakes.options import Args
from jaxleak import Batch, data, models, protocols
from jaxleak._base import BatchNormMode
from jaxleak.audit.mistakes import Client

_SIDE, _CLASSES = 16, 10
#: Number of images of the data set from which the clients' images are drawn.
IMAGES = 256
#: The random key of a draw is `seed * _KEYS_OF_A_SEED + model * MOST_DRAWS + draw`. JAX reads 32 bits of this number.
_KEYS_OF_A_SEED, MOST_DRAWS, _MODELS = 100_000, 1000, 5
#: The largest seed that shares no key with another seed.
LARGEST_SEED = (2**32 - _MODELS * MOST_DRAWS) // _KEYS_OF_A_SEED


def build_models() -> dict[str, tuple[models.Classifier, BatchNormMode]]:
    """Make the `_MODELS` models; returns each with the mode of its batch normalisation, by name."""
    shape = (_SIDE, _SIDE, 3)
    small = {"channels": (8, 16, 16), "strides": (1, 2, 2)}
    normalised = models.convnet(shape, _CLASSES, batch_norm=True, **small)  # type: ignore[arg-type]
    return {
        "convnet": (models.convnet(shape, _CLASSES, **small), "train"),  # type: ignore[arg-type]
        "convnet, batch statistics": (normalised, "train"),
        "convnet, running statistics": (normalised, "eval"),
        "lenet (sigmoid)": (models.lenet(shape, _CLASSES), "train"),
        "mlp": (models.mlp(shape, _CLASSES, widths=(64, 32)), "train"),
    }


def draw_client(share: protocols.ClientShare, args: Args, model: int, draw: int) -> Client:
    """Draw a client of one or four images; a model with running statistics has seen some batches before.

    Args:
        share: what the client computes.
        args: options of the study; the seed is at most `LARGEST_SEED`.
        model: number of the model in `build_models`.
        draw: number of the draw, less than `MOST_DRAWS`.
    """
    number = model * MOST_DRAWS + draw
    key = jax.random.key(args.seed * _KEYS_OF_A_SEED + number)
    weight_key, batch_key, own_key = jax.random.split(key, 3)
    size = (1, 4, 4)[number % 3]
    images = data.load(args.data, n=IMAGES)
    index = jax.random.choice(batch_key, len(images.x), (size,), replace=False)
    x = jax.image.resize(jnp.asarray(images.x)[index], (size, _SIDE, _SIDE, 3), "linear")
    y = jax.random.randint(batch_key, (size,), 0, _CLASSES, jnp.int32)
    variables = share.model.init(weight_key)
    if share.batch_norm == "eval":
        warm = jax.image.resize(jnp.asarray(images.x)[:32], (32, _SIDE, _SIDE, 3), "linear")
        for _ in range(10):
            variables = {**variables, "batch_stats": share.model.apply(variables, warm, mode="train").batch_stats}
    batch = Batch(x[:, None], y, jnp.arange(size))
    return Client(share, variables, jax.jit(share)(variables, batch), size, own_key, batch)
