"""Modules of PyTorch and their outputs, as references for tests; importing this needs PyTorch."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from jaxleak import capture
from jaxleak.objectives import cross_entropy

F = nn.functional

IMAGE, CLASSES = (8, 8, 3), 5


def images(count, seed=1):
    x = torch.rand(count, IMAGE[2], *IMAGE[:2], generator=torch.Generator().manual_seed(seed))
    return x, jnp.asarray(x.numpy().transpose(0, 2, 3, 1))


def gradient_of(model, variables, x, mode):
    y = jnp.arange(len(x)) % CLASSES

    def loss(params):
        out = model.apply({**variables, "params": params}, x, mode=mode)
        return cross_entropy(out.logits, y), out

    return jax.jit(jax.grad(loss, has_aux=True))(variables["params"])


def moved_statistics(net):
    """Make a network with random batch-normalisation statistics and scales in place of the initial ones."""
    torch.manual_seed(0)
    net = net()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            if module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
    return net


def check_against_torch(net, model, variables, mode, count, atol):
    x, ours = images(count)
    net.train(mode == "train")
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    net.zero_grad()
    logits = net(x)
    F.cross_entropy(logits, torch.arange(count) % CLASSES).backward()
    expected = capture.named_arrays(net)
    gradient, out = gradient_of(model, variables, ours, mode)
    np.testing.assert_allclose(out.logits, logits.detach(), atol=atol)
    assert gradient.keys() == expected.keys()
    for name, leaf in gradient.items():
        np.testing.assert_allclose(leaf, expected[name], atol=atol, err_msg=name)
    after = net.state_dict()
    for name, leaf in out.batch_stats.items():
        np.testing.assert_allclose(leaf, after[name], atol=atol, err_msg=name)
    net.load_state_dict(before)
    return out


class Norms(nn.Module):
    """Batch normalisations with non-default constants, over pixels without weights and over numbers with weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 2, bias=False), nn.BatchNorm2d(4, eps=0.1, momentum=0.3, affine=False)
        self.first, self.last = nn.Linear(36, 6), nn.Linear(6, CLASSES)
        self.flat = nn.BatchNorm1d(6, eps=0.02, momentum=0.4)

    def forward(self, x):
        return self.last(torch.tanh(self.flat(self.first(self.norm(self.conv(x)).flatten(1)))))


def exported_programs(net):
    """A network in evaluation mode as PyTorch exports it, and the same program in core operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of PyTorch about its own code
        batch = ({0: torch.export.Dim("batch")},)
        exported = torch.export.export(net.eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=batch)
        return exported, exported.run_decompositions()
