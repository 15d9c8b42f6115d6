"""A lower bound on the memory that an inversion needs, computed from shapes alone, before any data are read."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxleak import audit
from jaxleak.study.sources import form_of
from jaxleak.study.updates._attacker import CLOSED_FORM
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import build_model

#: Copies of the parameters in memory at one time: the weights, the observed gradient and the gradient compared with it.
PARAMETER_COPIES = 3
#: Copies of the outputs of all non-linearities in memory at one time, as a lower bound: for a gradient of a gradient,
#: XLA plans 4 on a CPU for a dense network and 10 to 20 for convolutional ones. A client alone keeps one.
ACTIVATION_COPIES, CLIENT_COPIES = 3, 1


def require_memory_of_update(case: Case, image_shape: tuple[int, ...] | None = None, num_classes: int = 10) -> None:
    """Refuse a case that cannot fit in memory; the check takes seconds and allocates, compiles and trains nothing.

    Args:
        case: the case, which says what is attacked and with which attack.
        image_shape: (H, W, channels); None takes the shape of a sample of the case's data.
        num_classes: number of the model's classes; read only if the shape is given.

    Raises:
        MemoryError: with a lower bound on the needed memory in GB, and the option that lowers it.
        ValueError, FileNotFoundError: if the data are unknown, or the model does not fit the images.
    """
    if image_shape is None:
        image_shape, num_classes = form_of(case.data)
    device = jax.local_devices()[0]
    same = replace(Case(), **{name: getattr(case, name) for name in _OF_THE_MODEL})
    parameters, per_image = _bytes_of(same, tuple(image_shape), num_classes)
    smaller = f"--width (now {case.width}) lowers it" if case.width else f"take a smaller --model than {case.model}"
    audit.require_bytes(PARAMETER_COPIES * parameters, device, smaller)
    closed = case.attack in CLOSED_FORM
    trials = case.microbatch or case.restarts
    copies = CLIENT_COPIES if closed else ACTIVATION_COPIES * trials
    named = {
        "--microbatch": trials,
        "--batch-size": case.batch_size,
        "--local-steps": case.local_steps,
        "--local-epochs": case.local_epochs,
    }
    largest = max(named, key=lambda name: named[name])
    need = PARAMETER_COPIES * parameters + copies * case.images * case.local_epochs * per_image
    audit.require_bytes(need, device, f"{largest} (now {named[largest]}) lowers it")


_OF_THE_MODEL = ("model", "activation", "width", "init", "weights", "batch_norm")


@functools.lru_cache(maxsize=64)
def _bytes_of(case: Case, image_shape: tuple[int, ...], num_classes: int) -> tuple[int, int]:
    """Compute the bytes of the model's parameters, and of the outputs of all non-linearities for one image."""
    model = build_model(case, image_shape, num_classes)
    variables = jax.eval_shape(model.init, jax.random.key(0))
    count = 2 if case.own_model else 1  # PyTorch's batch normalisation refuses a batch with one value per channel
    images = jax.ShapeDtypeStruct((count, *image_shape), jnp.float32)
    forward = functools.partial(model.apply, mode=case.batch_norm)  # type: ignore[arg-type]
    outputs = jax.eval_shape(forward, variables, images)
    sizes = [4 * sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (variables, outputs.activations)]
    return sizes[0], sizes[1] // count
