"""Parameters with a row for every class, in networks without a readable last dense layer.

A client that adapts a frozen head trains other parameters, such as B in the logits `W f + B (A f)` of LoRA, or a bias
alone. Move the axis of length C of such a leaf to the front. Row c then enters the logit of class c and no other, with
the same z(x) for every class: `d logit_c / d leaf = e_c z(x)`. For one sample under the cross-entropy the gradient is

    `dL/dleaf = delta z(x)^T` with `delta = softmax(logits) - onehot(y)`.

This has the form of a dense layer's gradient, with z in the place of the features. The entries of delta sum to zero,
and only the label's entry is negative. The label's row is therefore as long as all others together and opposite to each
of them. z may have any shape; for a bias it is a constant.

Leaves of this kind are found by products of the Jacobian with random vectors, not by their names.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import BatchNormMode, PyTree
from jaxleak._jitted import jitted_for_few
from jaxleak._tree import named_leaves, replaced
from jaxleak.models import Classifier
from jaxleak.models._classifier import HeadLayer

#: Relative error of the products up to which a leaf has a row for every class; float32 leaves 1e-6.
_SAME_BELOW = 1e-4
#: Number of random images at which the products are taken.
_IMAGES = 2


class ClassLeaf(NamedTuple):
    """One leaf with a row for every class."""

    name: str
    axis: int  # number of the leaf's axis over classes
    slope: float = 0.0  # d logit_c / d leaf_c if it is one number for all images, as for a bias; else 0


def class_leaves(model: Classifier, variables: PyTree, payload: PyTree, mode: BatchNormMode) -> tuple[ClassLeaf, ...]:
    """The leaves of an update that have a row for every class, in the order of the parameters.

    Args:
        model: the network.
        variables: the weights.
        payload: a tree like the parameters; only the leaves that it holds are tested.
        mode: the mode of batch normalisation.
    """
    trained, classes = named_leaves(payload), model.num_classes
    shapes = {name: jnp.shape(leaf) for name, leaf in named_leaves(variables["params"]).items() if name in trained}
    names = tuple(name for name, shape in shapes.items() if classes in shape)
    if not names:
        return ()
    keys = jax.random.split(jax.random.key(0), (_IMAGES, 2))
    found = []
    for by_image in keys:
        x = jax.random.uniform(by_image[0], (1, *model.image_shape))
        v = jax.random.normal(by_image[1], (2, classes))
        # Entries sum to zero, as delta's do. What moves all logits alike changes no softmax, and may have any form.
        v -= v.mean(axis=1, keepdims=True)
        products = _products(model, mode, names, variables, x, v)
        found.append((np.asarray(v, np.float64), {n: np.asarray(p, np.float64) for n, p in products.items()}))
    leaves = []
    for name in names:
        for axis in (i for i, length in enumerate(shapes[name]) if length == classes):
            factors = [_same_of_all(v, np.moveaxis(products[name], 1 + axis, 1)) for v, products in found]
            if any(z is None for z in factors):
                continue
            z = np.stack([z for z in factors if z is not None])
            constant = z[0].size == 1 and np.ptp(z) <= _SAME_BELOW * np.abs(z).max()
            leaves.append(ClassLeaf(name, axis, float(z.mean()) if constant else 0.0))
            break
    return tuple(leaves)


@jitted_for_few(0, 1, 2)
def _products(
    model: Classifier, mode: BatchNormMode, names: tuple[str, ...], variables: PyTree, x: jax.Array, v: jax.Array
) -> dict[str, jax.Array]:
    """Products (2, ...) of two vectors v (2, C) with the Jacobian of one image's logits by every leaf."""

    def logits(leaves: dict[str, jax.Array]) -> jax.Array:
        params = replaced(variables["params"], leaves)
        return model.apply({**variables, "params": params}, x, mode=mode).logits[0]

    own = named_leaves(variables["params"])
    out, back = jax.vjp(logits, {name: own[name] for name in names})
    first, second = (back(one.astype(out.dtype))[0] for one in v)
    return jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)


def _same_of_all(v: np.ndarray, products: np.ndarray) -> np.ndarray | None:
    """z if the products (2, C, ...) are v_c z with the same z for all classes and both vectors; else None."""
    z = np.tensordot(v, products, axes=2) / np.sum(v**2)
    size = np.linalg.norm(products)
    rest = np.linalg.norm(products - np.multiply.outer(v, z))
    return z if size > 0 and rest <= _SAME_BELOW * size else None


def class_rows(leaves: Sequence[ClassLeaf], tree: PyTree) -> HeadLayer:
    """The rows of all these leaves side by side, in the form of a dense layer: a kernel (F, C) and a bias (C,) or None.

    For one sample's gradient the kernel is `z delta^T`, and the bias is delta.

    Args:
        leaves: from `class_leaves`, at least one.
        tree: a gradient, or the parameters.
    """
    found = named_leaves(tree)
    classes = found[leaves[0].name].shape[leaves[0].axis]
    first = next((leaf for leaf in leaves if leaf.slope), None)
    bias = None if first is None else found[first.name].reshape(classes) / first.slope
    rows = [jnp.moveaxis(found[leaf.name], leaf.axis, -1).reshape(-1, classes) for leaf in leaves if leaf is not first]
    return HeadLayer(jnp.concatenate([jnp.zeros((0, classes)), *rows]), bias)
