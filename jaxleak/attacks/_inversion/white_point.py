"""Restore the scale of the images, which batch normalisation in training mode hides from every gradient.

Normalisation right after the first convolution makes the loss the same for images x and a x: zero padding scales too, a
bias cancels, and the epsilon in the denominator is small. All gradients are then the same too. Matching cannot
determine the factor a, and priors such as the total variation pull the images towards black. The attacker instead uses
what is known about images in general: their brightest pixels are about white. Batches that are normalised separately,
those of local steps and of clients, each hide their own factor; one factor is used for all of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxleak._base import PyTree
from jaxleak.objectives import squared_l2

_DIMMED = 0.9

#: If dimming the images changes the gradient by less than this relative amount, the gradient hides their scale. Dimming
#: by a tenth changes it by about a tenth where the scale shows, and by less than 1e-3 where only the normalisation's
#: epsilon sees it.
_SAME = 0.01

#: The sharpness of kinks at which this is tested. In deep networks the epsilon flips a few ReLUs, which changes the
#: gradient as much as a visible scale would (ResNet10 on CIFAR-10: 0.01 to 0.07 against 0.01 to 0.03 in evaluation
#: mode); without kinks the two are 1e-4 and 0.1.
SOFT = 0.5


def hides_scale(simulate: Callable[[jax.Array], PyTree], x: jax.Array) -> jax.Array:
    """Whether `simulate` returns the same payload for dimmed images, () bool.

    Args:
        simulate: images to payload, of a model whose kinks are smoothed at `SOFT`.
        x: (B, H, W, C).
    """
    shared = jax.lax.map(simulate, jnp.stack([x, _DIMMED * x]))
    own, dimmed = (jax.tree.map(lambda leaf, i=i: leaf[i], shared) for i in range(2))
    return squared_l2(own, dimmed) < _SAME**2 * squared_l2(own, jax.tree.map(jnp.zeros_like, own))


def stretch(x: jax.Array, quantile: float) -> jax.Array:
    """Scale all images by one factor, so that `quantile` of all their pixels are at most 1, and clip them to [0, 1].

    Args:
        x: (B, H, W, C).
        quantile: in (0, 1].
    """
    white = jnp.quantile(x, quantile)
    return jnp.where(white > 0, jnp.clip(x / jnp.where(white > 0, white, 1.0), 0, 1), x)
