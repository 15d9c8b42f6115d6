"""Networks of torchvision through `models.from_torch`, against PyTorch itself."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import models

torch = pytest.importorskip("torch")

#: Names in torchvision, with the options beside the number of classes.
NETWORKS = {
    "resnet18": {},
    "vgg11_bn": {},
    "mobilenet_v2": {},
    "densenet121": {},
    "efficientnet_b0": {},
    "convnext_tiny": {},
    "vit_b_16": {"image_size": 32},
}


@pytest.fixture(scope="module")
def torchvision():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about extensions that read image files
        try:
            import torchvision
        except (ImportError, RuntimeError) as error:  # a RuntimeError if it was built for another PyTorch
            pytest.skip(f"torchvision cannot be imported: {error}")
    return torchvision


def every_part_matters(net):
    """Change parameters that start at zero or one: heads, scales of layers, biases and running statistics."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim == 2:
                parameter += 0.02 * torch.randn_like(parameter)
            elif parameter.ndim != 4:
                parameter += 0.1 * torch.rand_like(parameter)
        for part in net.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.momentum = 1.0
        # Set the running statistics to those of a batch; otherwise linear bottlenecks lose the image.
        net.train()(torch.rand(8, 3, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_in_evaluation_mode_are_pytorchs(name, torchvision):
    torch.manual_seed(0)
    net = torchvision.models.get_model(name, weights=None, num_classes=10, **NETWORKS[name])
    every_part_matters(net)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = net.eval()(x).numpy()
    model, variables = models.from_torch(net, image_shape=(32, 32, 3), num_classes=10, dropout="off")
    apply = jax.jit(model.apply, static_argnames="mode")
    logits = apply(variables, jnp.asarray(x.numpy().transpose(0, 2, 3, 1)), mode="eval").logits
    largest = np.abs(expected).max()
    assert np.abs(expected[0] - expected[1]).max() > 1e-3 * largest  # the outputs depend on the image
    np.testing.assert_allclose(logits, expected, atol=1e-4 * largest)
    assert model.has_batch_norm == any(isinstance(part, torch.nn.BatchNorm2d) for part in net.modules())
