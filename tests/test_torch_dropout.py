"""Dropout and stochastic depth of PyTorch's modules: refused unless the client trained without them."""

import numpy as np
import pytest

from jaxleak import models

torch = pytest.importorskip("torch")

from torch_reference import CLASSES, IMAGE, check_against_torch, images, moved_statistics  # noqa: E402

nn, F = torch.nn, torch.nn.functional


def test_dropout_is_refused_or_off():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.drop = nn.Linear(192, CLASSES), nn.Dropout(0.25)

        def forward(self, x):
            return self.fc(self.drop(torch.flatten(x, 1)))

    net = Dropped()
    with pytest.raises(ValueError, match=r'dropout with p = 0.25, in drop: .* say dropout="off"'):
        models.from_torch(net, image_shape=IMAGE)
    model, variables = models.from_torch(net, image_shape=IMAGE, dropout="off")
    x, ours = images(2)
    np.testing.assert_allclose(model.apply(variables, ours).logits, net.eval()(x).detach(), atol=1e-6)


def test_a_network_without_dropout_is_the_one_in_evaluation_mode():
    class Dropouts(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
            self.drops = nn.Sequential(nn.Dropout(0.2), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.1))
            self.conv, self.planes, self.fc = nn.Conv2d(3, 8, 3, 2), nn.Dropout2d(0.4), nn.Linear(72, CLASSES)

        def forward(self, x):
            z = self.planes(self.conv(x)).flatten(2).permute(0, 2, 1)
            z = self.drops(self.attention(z, z, z, need_weights=False)[0])
            if self.training:  # stochastic depth
                z = z * torch.bernoulli(torch.full_like(z[:, :1, :1], 0.8)) / 0.8
            return self.fc(z.flatten(1))

    net = moved_statistics(Dropouts)
    with pytest.raises(ValueError, match=r"dropout with p = 0.4, in planes"):
        models.from_torch(net, image_shape=IMAGE)
    model, variables = models.from_torch(net, image_shape=IMAGE, dropout="off")
    x, ours = images(2)
    for mode in ("train", "eval"):
        np.testing.assert_allclose(
            model.apply(variables, ours, mode=mode).logits, net.eval()(x).detach(), rtol=1e-4, atol=1e-5
        )


class Sometimes(nn.Module):
    """A block that is left out at random by rounded uniform numbers, as in code of EfficientNets."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x):
        z = F.relu(self.norm(self.conv(x)))
        if self.training:
            z = z / 0.8 * torch.floor(0.8 + torch.rand(len(x), 1, 1, 1))
        return x + z


class Always(Sometimes):
    """The same block but never left out: its own code stays in evaluation mode, its layers may be in either."""

    def train(self, mode=True):
        super().train(mode)
        self.training = False
        return self


class Deep(nn.Module):
    def __init__(self, block=Sometimes):
        super().__init__()
        self.block, self.fc = block(), nn.Linear(192, CLASSES)

    def forward(self, x):
        return self.fc(self.block(x).flatten(1))


def test_stochastic_depth_is_off_and_what_it_contains_normalises_by_the_batch():
    net = moved_statistics(Deep)
    with pytest.raises(
        ValueError, match=r'random numbers, as of stochastic depth or of noise, in block: .* say dropout="off"'
    ):
        models.from_torch(net, image_shape=IMAGE)
    model, variables = models.from_torch(net, image_shape=IMAGE, dropout="off")
    assert model.by_batch == ("train",)
    assert model.notes == ("the own code of block is that of evaluation mode, without random numbers",)
    never_left_out = moved_statistics(lambda: Deep(Always))
    for mode in ("train", "eval"):
        check_against_torch(never_left_out, model, variables, mode, 2, 2e-5)


class Noisy(nn.Module):
    """A module that adds noise; unlike a mask, added noise cannot be replaced by its mean of one."""

    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


class TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = self.second = Sometimes()

    def forward(self, x):
        return self.second(x)


def test_a_part_with_two_names_is_found_by_either():
    assert models.from_torch(Deep(TwoNames), image_shape=IMAGE, dropout="off")[0].by_batch == ("train",)


class AlwaysDraws(nn.Module):
    def forward(self, x):
        return x * torch.rand(len(x), 1, 1, 1)


class NormalisesItself(nn.Module):
    def forward(self, x):
        x = F.batch_norm(x, None, None, training=True)
        return x * torch.floor(0.8 + torch.rand(len(x), 1, 1, 1)) if self.training else x


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (AlwaysDraws, "block draws random numbers in evaluation mode, too"),
        (Noisy, "block: nobody outside of the client knows its random masks"),
        (NormalisesItself, "the code of block draws random numbers and calls a function that normalises by the batch"),
    ],
)
def test_random_numbers_that_cannot_be_left_out_are_refused(block, message):
    with pytest.raises(ValueError, match=message):
        models.from_torch(Deep(block), image_shape=IMAGE, dropout="off")


def test_a_program_that_was_exported_with_its_random_numbers_is_refused():
    program = torch.export.export(Deep().train(), (torch.zeros(2, 3, 8, 8),))
    with pytest.raises(ValueError, match=r"random numbers.*export it in evaluation mode"):
        models.from_torch(program, image_shape=IMAGE, dropout="off")
