"""Deep networks with jaxleak's names of layers, written once for layers of plain Flax or of PyTorch.

A network is a function of a framework's layers and of images. Layers take their sizes from the shapes of given
weights.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp


def resnet(net, x, blocks):
    """A ResNet of basic blocks with the stem for small images."""
    x = net.relu(net.batch_norm("stem_norm", net.conv("stem", x)))
    for i, many in enumerate(blocks):
        for j in range(many):
            block, stride = f"stage_{i}_block_{j}", 2 if i > 0 and j == 0 else 1
            z = net.relu(net.batch_norm(f"{block}_norm_0", net.conv(f"{block}_conv_0", x, stride)))
            z = net.batch_norm(f"{block}_norm_1", net.conv(f"{block}_conv_1", z))
            if stride > 1:
                x = net.batch_norm(f"{block}_shortcut_norm", net.conv(f"{block}_shortcut", x, stride))
            x = net.relu(z + x)
    return net.dense("head", net.pixel_mean(x))


def densenet(net, x, blocks):
    """A DenseNet, whose layers append channels, with the stem for small images."""

    def unit(name, x):
        return net.conv(f"{name}_conv", net.relu(net.batch_norm(f"{name}_norm", x)))

    x = net.conv("stem", x)
    for i, layers in enumerate(blocks):
        if i > 0:
            x = net.halved(unit(f"transition_{i - 1}", x))
        for j in range(layers):
            x = net.beside(x, unit(f"block_{i}_grow_{j}", unit(f"block_{i}_reduce_{j}", x)))
    return net.dense("head", net.pixel_mean(net.relu(net.batch_norm("last_norm", x))))


def mobilenet_v2(net, x):
    """A MobileNetV2 of inverted residuals for small images, with repetitions and strides from the paper's table 2."""

    def unit(name, x, stride=1):
        return net.batch_norm(f"{name}_norm", net.conv(f"{name}_conv", x, stride))

    x = net.relu6(unit("stem", x))
    for i, (many, first_stride) in enumerate(((1, 1), (2, 1), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1))):
        for j in range(many):
            block = f"stage_{i}_block_{j}"
            z = net.relu6(unit(f"{block}_expand", x)) if i > 0 else x
            z = unit(f"{block}_project", net.relu6(unit(f"{block}_depthwise", z, 1 if j > 0 else first_stride)))
            x = x + z if j > 0 else z
    return net.dense("head", net.pixel_mean(net.relu6(unit("last", x))))


def convnet_ig(net, x):
    """A network of eight convolutions, with pooling after the sixth and the eighth."""
    for i in range(8):
        x = net.relu(net.batch_norm(f"norm_{i}", net.conv(f"conv_{i}", x)))
        x = net.max_pool(x, 3) if i in (5, 7) else x
    return net.dense("head", net.in_rows(x))


#: Name of a built-in network to its options and to the function that builds the same network here.
DEEP = {
    "resnet34": ({"width": 4}, functools.partial(resnet, blocks=(3, 4, 6, 3))),
    "densenet121": ({"blocks": (2, 3, 2), "growth": 4}, functools.partial(densenet, blocks=(2, 3, 2))),
    "mobilenet_v2": ({}, mobilenet_v2),
    "convnet_ig": ({"width": 4}, convnet_ig),
}


class InFlax(nn.Module):
    """A network in plain Flax Linen, images (B, H, W, c)."""

    forward: Callable

    @nn.compact
    def __call__(self, x, train: bool):
        return self.forward(_FlaxLayers(self, train), x)


class _FlaxLayers:
    """Flax layers for use inside a module's call."""

    relu, relu6 = staticmethod(nn.relu), staticmethod(nn.relu6)

    def __init__(self, module, train):
        self.given, self.train = module.variables["params"], train

    def conv(self, name, x, stride=1):
        *window, read, channels = self.given[name]["kernel"].shape
        groups, biased = x.shape[-1] // read, "bias" in self.given[name]
        layer = nn.Conv(
            channels, window, stride, window[0] // 2, feature_group_count=groups, use_bias=biased, name=name
        )
        return layer(x)

    def dense(self, name, x):
        return nn.Dense(self.given[name]["kernel"].shape[-1], name=name)(x)

    def batch_norm(self, name, x):
        # The fast variance takes a maximum with zero, and this would count as a kink of the network.
        return nn.BatchNorm(not self.train, momentum=0.9, use_fast_variance=False, name=name)(x)

    def max_pool(self, x, side):
        return nn.max_pool(x, (side, side), (side, side))

    def halved(self, x):
        return nn.avg_pool(x, (2, 2), (2, 2))

    def beside(self, *maps):
        return jnp.concatenate(maps, -1)

    def pixel_mean(self, x):
        return x.mean((1, 2))

    def in_rows(self, x):
        return x.reshape(len(x), -1)
