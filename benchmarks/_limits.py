"""How fast a step could be: the machine's measured rates, and the arithmetic of a step by plain sums of products."""

import functools
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _quiet


class Rates(NamedTuple):
    """Rates of this machine with all of its cores."""

    matrix: float  # floating-point operations per second of a large float32 product of matrices
    copy: float  # bytes per second, read plus written, of a copy that is larger than the caches


@functools.cache
def rates(size: int = 2048, megabytes: int = 256, repeats: int = 5) -> Rates:
    """The machine's rates: the best of a few repetitions, each begun on a quiet machine."""
    source = jnp.zeros(megabytes * 2**20 // 4)
    copy = jax.jit(lambda x: x + 1)  # a plain copy could be elided
    return Rates(matrix_rate("float32", size, repeats), 2 * source.nbytes / _best(lambda: copy(source), repeats))


@functools.cache
def matrix_rate(precision: str, size: int = 2048, repeats: int = 5) -> float:
    """Operations per second of a large product of matrices with factors rounded to this precision."""
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    return 2 * size**3 / _best(lambda: product(a, a), repeats)


def _best(call, repeats: int) -> float:
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        _quiet.wait()
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Layer(NamedTuple):
    """A convolution or dense layer, counted per image."""

    inputs: int  # numbers read
    outputs: int  # numbers written
    weights: int
    products: int  # multiplications of the forward pass


def conv(side: int, window: int, c_in: int, c_out: int, stride: int = 1) -> Layer:
    """A convolution of a square image, with padding that keeps the side at stride 1."""
    out = -(-side // stride)
    weights = window**2 * c_in * c_out
    return Layer(side**2 * c_in, out**2 * c_out, weights, out**2 * weights)


def dense(c_in: int, c_out: int) -> Layer:
    """A dense layer."""
    return Layer(c_in, c_out, c_in * c_out, c_in * c_out)


def convnet(side: int, channels: Sequence[int], strides: Sequence[int], window: int, classes: int) -> list[Layer]:
    """Layers of `models.convnet` on colour images."""
    layers, c_in = [], 3
    for c_out, stride in zip(channels, strides, strict=True):
        layers.append(conv(side, window, c_in, c_out, stride))
        side, c_in = -(-side // stride), c_out
    return [*layers, dense(side**2 * c_in, classes)]


def resnet(side: int, blocks: Sequence[int], classes: int, width: int = 64) -> list[Layer]:
    """Layers of `models.resnet` with its small stem on colour images."""
    layers, c_in = [conv(side, 3, 3, width)], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            c_out, stride = width * 2**stage, 2 if stage and not block else 1
            layers.append(conv(side, 3, c_in, c_out, stride))
            if stride != 1 or c_in != c_out:
                layers.append(conv(side, 1, c_in, c_out, stride))
            side, c_in = -(-side // stride), c_out
            layers.append(conv(side, 3, c_out, c_out))
    return [*layers, dense(c_in, classes)]


class Work(NamedTuple):
    """Arithmetic and transfers that a computation by plain sums of products cannot avoid."""

    flops: float
    bytes: float

    def seconds(self) -> float:
        """The least time on this machine if arithmetic and transfers overlap."""
        machine = rates()
        return max(self.flops / machine.matrix, self.bytes / machine.copy)


def matching_step(layers: Sequence[Layer], batch: int) -> Work:
    """Work of a matching step: the gradient by the batch of a distance between gradients by the weights.

    For each layer z = W x the gradient takes three products: z, and the gradients of W and of x. Its own derivative
    takes four: two from the gradient of W, and one each from the gradient of x and from z, since the weights are
    constants there. The first layer's x is the candidate, and the inner gradient needs no derivative by it. Each
    product reads two arrays and writes the third once.
    """
    passes = [5, *[7] * (len(layers) - 1)]
    flops = sum(2 * n * batch * layer.products for n, layer in zip(passes, layers, strict=True))
    moved = sum(n * (batch * (a.inputs + a.outputs) + a.weights) for n, a in zip(passes, layers, strict=True))
    return Work(flops, 4 * moved)


def columns(work: Work) -> dict[str, float]:
    """Columns from which the report computes the fraction of the machine's rate."""
    machine = rates()
    return {"limit_seconds": work.seconds(), "matrix_rate": machine.matrix, "copy_rate": machine.copy}


def temporary_megabytes(compiled: jax.stages.Compiled) -> float:
    """Memory in MB that the program needs besides its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def xla_counts(compiled: jax.stages.Compiled, work: Work) -> dict[str, float]:
    """XLA's own counts of operations and bytes, divided by the counts by hand; the body of a loop counts once.

    XLA adds up what every fused operation reads and writes, whether or not the caches hold it.
    """
    costs = compiled.cost_analysis() or {}
    return {
        "XLA's FLOPs / by hand": float(costs.get("flops", np.nan)) / work.flops,
        "XLA's bytes / by hand": float(costs.get("bytes accessed", np.nan)) / work.bytes,
    }
