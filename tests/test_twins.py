"""Built-in networks against twins in plain Flax and PyTorch, through `models.from_flax` and `models.from_torch`."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deep_twins import DEEP, InFlax, resnet

from examples.networks.flax_networks import PlainResNet, PlainStack, flat_variables
from jaxleak import Batch, Observation, _tree, attacks, models, protocols
from jaxleak.attacks import presets
from jaxleak.objectives import cross_entropy

IMAGE, CLASSES = (8, 8, 3), 5
Y = jnp.array([1, 3])


class PlainViT(nn.Module):
    """A vision transformer of two blocks on 4x4 patches, with Flax's own attention function."""

    @nn.compact
    def __call__(self, x):
        # The maximum with zero in the fast variance counts as a kink, and an attack would then choose the homotopy.
        norm = functools.partial(nn.LayerNorm, epsilon=1e-6, use_fast_variance=False)
        x = x.reshape(len(x), 2, 4, 2, 4, 3).swapaxes(2, 3).reshape(len(x), 4, 48)
        x = nn.Dense(6, name="embed")(x)
        token = self.param("class_token", nn.initializers.normal(), (1, 1, 6))
        x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], 1)
        x += self.param("position", nn.initializers.normal(), (1, 5, 6))
        for i in range(2):
            z = norm(name=f"norm_{i}_0")(x)
            qkv = nn.Dense(18, name=f"attention_{i}_qkv")(z).reshape(len(x), 5, 3, 2, 3)
            z = nn.dot_product_attention(*(qkv[:, :, j] for j in range(3))).reshape(len(x), 5, 6)
            x += nn.Dense(6, name=f"attention_{i}_project")(z)
            z = nn.gelu(nn.Dense(12, name=f"mlp_{i}_0")(norm(name=f"norm_{i}_1")(x)), approximate=False)
            x += nn.Dense(6, name=f"mlp_{i}_1")(z)
        return nn.Dense(CLASSES, name="head")(norm(name="last_norm")(x[:, 0]))


LENET = {"channels": (4, 4, 4), "strides": (2, 2, 1)}
CONVNET = {"channels": (4, 6), "strides": (1, 2)}
VIT = {"patch_size": 4, "width": 6, "depth": 2, "heads": 2, "mlp_ratio": 2}


def image_of(name):
    """The shape of a network's images.

    Deep networks halve the images up to three times. The pools of ConvNet would leave one pixel of 16x16 images, and
    its normalisation would make rounding errors grow within six steps of the attack.
    """
    return (32, 32, 3) if name == "convnet_ig" else (16, 16, 3) if name in DEEP else IMAGE


BUILT_IN = {
    "lenet": functools.partial(models.lenet, IMAGE, CLASSES, channels=4),
    "mlp": functools.partial(models.mlp, IMAGE, CLASSES, widths=(7, 6)),
    "convnet": functools.partial(models.convnet, IMAGE, CLASSES, **CONVNET),
    "vit": functools.partial(models.vit, IMAGE, CLASSES, **VIT),
    "resnet": functools.partial(models.resnet, IMAGE, CLASSES, blocks=(1, 1), width=4),
}
FLAX = {
    "lenet": PlainStack(**LENET, window=5, activation=nn.sigmoid, num_classes=CLASSES),
    "mlp": PlainStack(widths=(7, 6), num_classes=CLASSES),
    "convnet": PlainStack(**CONVNET, num_classes=CLASSES),
    "vit": PlainViT(),
    "resnet": PlainResNet((1, 1), 4, CLASSES),
}
for built_in, (options, network) in DEEP.items():
    BUILT_IN[built_in] = functools.partial(models.build, built_in, image_of(built_in), CLASSES, **options)
    FLAX[built_in] = InFlax(network)
#: Networks of `deep_twins` that are built in both frameworks.
SHARED = {"resnet": functools.partial(resnet, blocks=(1, 1)), **{name: network for name, (_, network) in DEEP.items()}}


def flat(name):
    """Split a built-in's leaf name into module and leaf, with nested modules joined: ("attention_0_qkv", "kernel")."""
    module, _, leaf = name.rpartition("/")
    return module.replace("/", "_"), leaf


def flax_twin(name, variables):
    """The plain module as a classifier, its variables, and a function that finds a built-in's leaf in its trees."""
    given = flat_variables({part: leaves for part, leaves in variables.items() if leaves})
    twin, theirs = models.from_flax(FLAX[name], given, image_shape=image_of(name), num_classes=CLASSES)
    return twin, theirs, lambda leaves, path: _tree.named_leaves(leaves)["/".join(filter(None, flat(path)))]


def torch_twin(name, variables):
    """The same as `flax_twin` for a module of PyTorch with the built-in's weights."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    shapes = {flat(path): leaf for path, leaf in _tree.named_leaves(variables["params"]).items()}

    def renamed(module, leaf):
        return f"{module}_{leaf}".lstrip("_").replace("_kernel", "_weight").replace("_scale", "_weight")

    class Twin(torch.nn.Module):
        """A PyTorch module with the built-in's weights by name, and with PyTorch's functions."""

        relu, relu6 = staticmethod(torch.relu), staticmethod(functional.relu6)

        def __init__(self):
            super().__init__()
            for (module, leaf), value in shapes.items():
                value = np.array(value)
                value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T if leaf == "kernel" else value
                self.register_parameter(renamed(module, leaf), torch.nn.Parameter(torch.tensor(value.copy())))
                if variables["batch_stats"] and leaf == "scale":
                    self.register_buffer(f"{module}_running_mean", torch.zeros(value.shape))
                    self.register_buffer(f"{module}_running_var", torch.ones(value.shape))

        def part(self, module, leaf="weight"):
            return getattr(self, f"{module}_{leaf}", None)

        def conv(self, module, x, stride=1):
            w = self.part(module)
            groups = x.shape[1] // w.shape[1]
            return functional.conv2d(x, w, self.part(module, "bias"), stride, w.shape[2] // 2, groups=groups)

        def dense(self, module, x):
            return functional.linear(x, self.part(module), self.part(module, "bias"))

        def norm(self, module, x):
            w = self.part(module)
            return functional.layer_norm(x, w.shape, w, self.part(module, "bias"), eps=1e-6)

        def forward(self, x):
            return SHARED[name](self, x) if name in SHARED else getattr(self, name)(x)

        def lenet(self, x):
            for i, stride in enumerate(LENET["strides"]):
                x = torch.sigmoid(self.conv(f"conv_{i}", x, stride))
            return self.dense("head", self.in_rows(x))

        def mlp(self, x):
            x = self.in_rows(x)
            return self.dense("head", torch.relu(self.dense("dense_1", torch.relu(self.dense("dense_0", x)))))

        def convnet(self, x):
            for i, stride in enumerate(CONVNET["strides"]):
                x = torch.relu(self.conv(f"conv_{i}", x, stride))
            return self.dense("head", self.in_rows(x))

        def batch_norm(self, module, x):
            seen = (self.part(module, f"running_{moment}") for moment in ("mean", "var"))
            return functional.batch_norm(x, *seen, self.part(module), self.part(module, "bias"), self.training)

        def max_pool(self, x, side):
            return functional.max_pool2d(x, side)

        def halved(self, x):
            return functional.avg_pool2d(x, 2)

        def beside(self, *maps):
            return torch.cat(maps, 1)

        def pixel_mean(self, x):
            return x.mean((2, 3))

        def in_rows(self, x):
            return x.permute(0, 2, 3, 1).flatten(1)

        def vit(self, x):
            b = x.shape[0]
            x = x.permute(0, 2, 3, 1).reshape(b, 2, 4, 2, 4, 3).transpose(2, 3).reshape(b, 4, 48)
            x = torch.cat([self.class_token.expand(b, -1, -1), self.dense("embed", x)], 1) + self.position
            for i in range(2):
                qkv = self.dense(f"attention_{i}_qkv", self.norm(f"norm_{i}_0", x)).reshape(b, 5, 3, 2, 3)
                q, k, v = qkv.permute(2, 0, 3, 1, 4)
                z = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, 5, 6)
                x = x + self.dense(f"attention_{i}_project", z)
                z = functional.gelu(self.dense(f"mlp_{i}_0", self.norm(f"norm_{i}_1", x)))
                x = x + self.dense(f"mlp_{i}_1", z)
            return self.dense("head", self.norm("last_norm", x[:, 0]))

    def leaf_of(leaves, path):
        module, leaf = flat(path)
        value = leaves[renamed(module, leaf)]
        return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T if leaf == "kernel" else value

    twin, theirs = models.from_torch(Twin(), image_shape=image_of(name), num_classes=CLASSES)
    return twin, theirs, leaf_of


def gradient_of(model, variables, x):
    def loss(params):
        return cross_entropy(model.apply({**variables, "params": params}, x).logits, Y)

    return jax.grad(loss)(variables["params"])


def slope(model, variables, x):
    """The derivative of the gradient's squared norm by the images, which uses second derivatives of every layer."""

    @jax.jit
    def by_images(x):
        return jax.grad(lambda x: sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient_of(model, variables, x))))(x)

    return np.asarray(by_images(x))


def first_losses(model, variables, x):
    """The losses of ten steps of the attack from a fixed start."""
    seen = Observation(jnp.zeros((), jnp.int32), variables, jax.jit(lambda v: gradient_of(model, v, x))(variables))
    attack = attacks.inversion(model, protocols.ClientShare(model), presets.fedleak(10), batch_size=2)
    template = Batch(jnp.zeros_like(x)[:, None], jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32))
    step, state, losses = jax.jit(attack.step), attack.init(jax.random.key(3), template), []
    for i in range(10):
        state, info = step(jax.random.key(i), state, seen)
        losses.append(np.asarray(info["loss"]))
    return np.array(losses)


@pytest.mark.slow
@pytest.mark.parametrize("twin_of", [flax_twin, torch_twin])
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_and_its_twin_are_one_network(name, twin_of):
    built_in = BUILT_IN[name]()
    variables = jax.jit(built_in.init)(jax.random.key(0))
    twin, theirs, leaf_of = twin_of(name, variables)
    x, both = jax.random.uniform(jax.random.key(1), (2, *image_of(name))), ((built_in, variables), (twin, theirs))
    logits = [jax.jit(m.apply)(v, x).logits for m, v in both]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
    gradients = [jax.jit(functools.partial(gradient_of, m))(v, x) for m, v in both]
    for path, leaf in _tree.named_leaves(gradients[0]).items():
        np.testing.assert_allclose(leaf_of(gradients[1], path), leaf, atol=1e-5, err_msg=path)
    slopes = [slope(m, v, x) for m, v in both]
    np.testing.assert_allclose(*slopes, atol=1e-3 * np.abs(slopes[0]).max())
    losses = [first_losses(m, v, x) for m, v in both]
    assert (np.diff(losses[0], axis=0) != 0).all()  # every step changes the loss, though few help a deep network
    # In the deepest networks, rounding errors grow from step to step until kinks switch differently.
    compared = 5 if name in ("resnet34", "mobilenet_v2") else 10
    np.testing.assert_allclose(losses[0][:compared], losses[1][:compared], rtol=2e-3)
