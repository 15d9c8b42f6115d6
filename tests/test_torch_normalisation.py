"""Normalisation in PyTorch's modules: constants, modes, and layers that mix the images of a batch."""

import numpy as np
import pytest

from jaxleak import defenses, models, protocols
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion import engine

torch = pytest.importorskip("torch")

from torch_reference import CLASSES, IMAGE, Norms, check_against_torch, exported_programs, images, moved_statistics  # noqa: E402

nn, F = torch.nn, torch.nn.functional


@pytest.mark.parametrize(("mode", "count"), [("train", 2), ("train", 4), ("eval", 1)])
def test_batch_normalisation_has_the_constants_of_its_owner(mode, count):
    net = moved_statistics(Norms)
    model, variables = models.from_torch(net, image_shape=IMAGE)
    out = check_against_torch(net, model, variables, mode, count, 5e-5)
    z = net.conv(images(count)[0]).detach().numpy()
    np.testing.assert_allclose(out.statistics["norm.running_mean"], z.mean((0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(out.statistics["norm.running_var"], z.var((0, 2, 3)), atol=1e-5)
    assert (model.by_batch, model.has_batch_norm) == (("train",), True)
    assert list(model.order) == list(net.state_dict())


class PartlyTrained(Norms):
    """The network of a client that keeps the first normalisation in evaluation mode."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


@pytest.mark.parametrize("name", ["norm", "module.norm"])
def test_layers_in_evaluation_mode_stay_so_while_the_others_train(name):
    net, plain = moved_statistics(PartlyTrained), Norms()
    plain.load_state_dict(net.state_dict())
    model, variables = models.from_torch(plain, image_shape=IMAGE, eval_layers=[name])
    check_against_torch(net, model, variables, "train", 3, 5e-5)
    assert (model.eval_layers, model.by_batch) == ((name,), ("train",))
    with pytest.raises(ValueError, match=r"eval_layers must name parts of the module \(conv, .*\), got 'backbone'"):
        models.from_torch(plain, image_shape=IMAGE, eval_layers=["backbone"])


class BatchStatistics(nn.Module):
    """A network with a normalisation that stores no statistics, or that uses those of each single image."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3, padding=1), norm, nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).flatten(1))


def test_batch_normalisation_without_running_statistics_is_attacked_as_such():
    """The attack depends on what the layer computes in either mode, not on what it stores."""
    net = BatchStatistics(nn.BatchNorm2d(4, track_running_stats=False))
    x, ours = images(3)
    for module in (net, *exported_programs(net)):
        model, variables = models.from_torch(module, image_shape=IMAGE)
        assert model.has_batch_norm
        assert not model.has_running_statistics
        for mode in ("train", "eval"):
            assert model.mixes_images(mode)
            logits = model.apply(variables, ours, mode=mode).logits
            np.testing.assert_allclose(logits, net(x).detach(), atol=1e-5)
    share = protocols.ClientShare(model, batch_norm="eval")
    parts = engine.assemble(model, share, presets.fedleak(9), batch_size=1)
    assert parts.smoothing == client_updates.recommended_smoothing(batch_norm=True, batch_size=1)
    with pytest.raises(ValueError, match="mixes"):
        protocols.client(share, num_samples=3, batch_size=3, defense=defenses.client_defense("dp_sgd", 1.0))
    with pytest.raises(ValueError, match="keeps none"):
        engine.assemble(model, share, presets.gradinversion(9, granted_statistics=True), batch_size=1)


def test_instance_normalisation_is_no_batch_normalisation():
    net = BatchStatistics(nn.InstanceNorm2d(4))
    x, ours = images(3)
    for module in (net, *exported_programs(net)):
        model, variables = models.from_torch(module, image_shape=IMAGE)
        assert not model.has_batch_norm
        assert not model.has_running_statistics
        assert not model.mixes_images("train")
        np.testing.assert_allclose(model.apply(variables, ours).logits, net(x).detach(), atol=1e-5)
