"""How many numbers of an update can depend on the images: with fewer than pixels, others have the same update."""

import functools
import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak._base import BatchNormMode, PyTree, total_steps
from jaxleak._tree import named_leaves
from jaxleak.attacks._inversion.rows import sizes_of_all_rows
from jaxleak.audit._program import program_of_logits
from jaxleak.models import Classifier
from jaxleak.protocols import ClientShare


class Independent(NamedTuple):
    """Two upper bounds on how many numbers of an update depend on the images."""

    entries: int  # entries of the update, without those that follow from others
    passed: int  # numbers that the network hands on to trained layers, plus entries of trained layers before these


def independent_numbers(share: ClientShare, told: PyTree, samples: int, *, zeros_tell: bool = True) -> Independent:
    """How many numbers of an update can depend on the images, at the most.

    The gradient of a layer that reads n rows of inputs has rank n at most: of r x c numbers, n (r + c - n) are free. A
    bias is one more input, which is always 1. Moreover, all trained layers above a place in the network depend on the
    images only through the numbers that pass this place: all layers that are trained behind a frozen layer of 128
    features tell 128 numbers of an image. Entries of trained layers below the place are added. The smallest of these
    bounds over all places holds.

    Args:
        share: what the client computes; what it does not train is a constant of its model.
        told: a tree like the payload, in which entries that say nothing of the gradient are zero.
        samples: number of samples of all local steps and clients.
        zeros_tell: whether an entry of zero belongs to the gradient; False if it may have been left out.

    Returns:
        The bounds. After several steps, the images have changed the weights below a place. Only places below all
        trained layers are then looked at.
    """
    model, mode, epochs = share.model, share.batch_norm, total_steps(share) // share.local_steps
    places = _places(model, mode, samples)
    counts = _counts(model, mode, named_leaves(told), samples * epochs, places.first if zeros_tell else frozenset())
    widths = [place for place in places.widths if total_steps(share) == 1 or not place[1]]
    passed = min(width + sum(counts.get(name, 0) for name in below) for width, below in widths)
    return Independent(sum(counts.values()), passed)


class _Places(NamedTuple):
    """What `_places` finds in a network."""

    widths: tuple[tuple[int, frozenset[str]], ...]  # numbers that pass a place, and the parameters that come before it
    first: frozenset[str]  # parameters that meet the image before any other


def _counts(
    model: Classifier, batch_norm: BatchNormMode, leaves: dict[str, jax.Array], samples: int, first: frozenset[str]
) -> dict[str, int]:
    """The free numbers of every leaf; a bias of a single layer counts among the numbers of that layer's kernel."""
    counts = {name: int(jnp.count_nonzero(leaf)) for name, leaf in leaves.items()}
    layers = {name: size for name, size in sizes_of_all_rows(model, samples, batch_norm).items() if name in leaves}
    biases = Counter(model.bias_of(name) for name in layers)
    for name, (rows, width) in layers.items():
        # Dead inputs and outputs say nothing. But a layer that reads the image itself shows that a pixel is zero.
        seen = np.asarray(model.matrix(name, leaves[name])) != 0
        outputs = int(seen.any(axis=0).sum())
        inputs = width if name in first else int(seen.any(axis=1).sum())
        bias = model.bias_of(name)
        own = bias in leaves and biases[bias] == 1
        entries = (inputs * outputs if name in first else counts[name]) + (counts.pop(bias) if own else 0)
        rank = min(rows, inputs + own, outputs)
        counts[name] = min(entries, rank * (inputs + own + outputs - rank))
    return counts


@functools.lru_cache(maxsize=8)  # tracing a deep network takes seconds, and an audit needs this for every answer
def _places(model: Classifier, batch_norm: BatchNormMode, samples: int) -> _Places:
    """How many numbers that depend on the images pass each place in the network, and which parameters come before it.

    Among places with the same parameters below them, only the narrowest is kept.
    """
    program, names = program_of_logits(model, batch_norm, samples)
    owners = {slot: frozenset({name}) for slot, name in zip(program.inputs[: len(names)], names, strict=True)}
    image, end = program.inputs[-1], len(program.steps) + 1
    born, last, met = {image: 0}, {image: 0}, dict[str, int]()
    weighed, first = set[int](), set[str]()  # slots that depend on a parameter, and parameters behind no other one
    for number, step in enumerate(program.steps, start=1):
        own = frozenset[str]().union(*(owners.get(slot, ()) for slot in step.inputs))
        if not any(slot in born for slot in step.inputs):
            owners.update(dict.fromkeys(step.outputs, own))
            continue
        last.update({slot: number for slot in step.inputs if slot in born})
        born.update(dict.fromkeys(step.outputs, number))
        behind = any(slot in weighed for slot in step.inputs)
        for name in own - met.keys():
            met[name] = number
            first.update(() if behind else (name,))
        if own or behind:
            weighed.update(step.outputs)
    last.update({slot: end for slot in program.outputs if slot in born})
    change = np.zeros(end + 1, np.int64)
    for slot, begin in born.items():
        if last.get(slot, begin) > begin:
            change[begin] += math.prod(program.shape(slot))
            change[last[slot]] -= math.prod(program.shape(slot))
    narrowest: dict[frozenset[str], int] = {}
    for place, width in enumerate(np.cumsum(change)[:end].tolist()):
        below = frozenset(name for name, number in met.items() if number <= place)
        narrowest[below] = min(width, narrowest.get(below, width))
    return _Places(tuple((width, below) for below, width in narrowest.items()), frozenset(first))
