"""PyTorch's modules as classifiers, compared with PyTorch itself and with built-in networks of equal weights."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, _tree, attacks, audit, capture, models, protocols
from jaxleak.attacks import presets
from jaxleak.models._classifier import digest_of
from jaxleak.objectives import cross_entropy

torch = pytest.importorskip("torch")

from torch_reference import (  # noqa: E402
    CLASSES,
    IMAGE,
    Norms,
    check_against_torch,
    exported_programs,
    gradient_of,
    images,
    moved_statistics,
)

nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    """A basic block of a residual network, with an in-place operation."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv_0, self.norm_0 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv_1, self.norm_1 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.short = stride != 1
        if self.short:
            self.shortcut, self.shortcut_norm = nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)

    def forward(self, x):
        z = self.norm_1(self.conv_1(F.relu(self.norm_0(self.conv_0(x)), inplace=True)))
        z += self.shortcut_norm(self.shortcut(x)) if self.short else x
        return torch.relu(z)


class ResNet(nn.Module):
    """The built-in `resnet` with two stages of one block."""

    def __init__(self):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.stage_0_block_0, self.stage_1_block_0 = Block(4, 4, 1), Block(4, 8, 2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.stage_1_block_0(self.stage_0_block_0(F.relu(self.stem_norm(self.stem(x)))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Tutorial(nn.Module):
    """A network of two convolutions, pooling, and two dense layers, as in tutorials."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
        self.pool, self.fc1, self.fc2 = nn.MaxPool2d(2), nn.Linear(6, 7), nn.Linear(7, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.conv2(self.pool(F.relu(self.conv1(x))))))
        return self.fc2(F.leaky_relu(self.fc1(x.view(-1, 6))))


class Mixed(nn.Module):
    """A network with operators of MobileNet, DenseNet, EfficientNet, ConvNeXt and a vision transformer."""

    def __init__(self):
        super().__init__()
        self.deep = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1, groups=3), nn.BatchNorm2d(6), nn.ReLU6(inplace=True))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.SiLU(), nn.Conv2d(6, 6, 1))
        self.down = nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.GroupNorm(2, 6), nn.Hardswish(), nn.MaxPool2d(3, 2, 1))
        self.scale = nn.Parameter(torch.full((12, 1, 1), 0.3))
        self.token, self.norm = nn.Parameter(torch.randn(1, 1, 12)), nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Dropout(0.0), nn.Linear(9, CLASSES, bias=False))

    def forward(self, x):
        x = self.deep(x)
        x = self.down(x * torch.sigmoid(self.squeeze(x)))
        x = torch.cat([x, F.pad(x, (1, 1))[..., 1:-1].clamp(min=-1) - x.mean((2, 3), keepdim=True)], 1) * self.scale
        x = x.flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        z = self.norm(x)
        x = x + self.attention(z, z, z, need_weights=False)[0]
        return self.head(x[:, 0])


@pytest.fixture(scope="module")
def resnets():
    net = moved_statistics(ResNet)
    return net, *models.from_torch(net, image_shape=IMAGE, num_classes=CLASSES)


@pytest.mark.parametrize(("mode", "count"), [("train", 3), ("eval", 3), ("eval", 1)])
def test_a_residual_network_has_pytorchs_logits_gradients_and_statistics(resnets, mode, count):
    check_against_torch(*resnets, mode, count, 2e-5)


def test_a_residual_network_is_its_built_in_twin(resnets):
    """With equal weights, logits, activations, rows, kinks, statistics and second derivatives are equal."""
    _, model, variables = resnets
    twin = models.build("resnet10", IMAGE, CLASSES, blocks=(1, 1), width=4)
    shapes = jax.eval_shape(twin.init, jax.random.key(0))

    def weight(name, leaf):
        part, last = name.rsplit("/", 1)
        part = part.replace("/", ".")
        if part.endswith("norm") or "norm_" in part:
            return variables["params"][f"{part}.{'weight' if last == 'scale' else 'bias'}"]
        value = variables["params"][f"{part}.{'weight' if last == 'kernel' else last}"]
        return value.transpose(2, 3, 1, 0) if leaf.ndim == 4 else value.T

    def statistic(name, of):
        return of[name.replace("/", ".").replace(".mean", ".running_mean").replace(".var", ".running_var")]

    params, stats = (_tree.named_leaves(shapes[part]) for part in ("params", "batch_stats"))
    same = {
        "params": _tree.replaced(shapes["params"], {name: weight(name, leaf) for name, leaf in params.items()}),
        "batch_stats": _tree.replaced(
            shapes["batch_stats"], {name: statistic(name, variables["batch_stats"]) for name in stats}
        ),
    }
    _, x = images(2)

    @jax.jit
    def both(x, sharpness):
        return model.apply(variables, x, sharpness=sharpness), twin.apply(same, x, sharpness=sharpness)

    for sharpness in (None, 4.0):
        ours, built_in = both(x, sharpness)
        np.testing.assert_allclose(ours.logits, built_in.logits, atol=1e-4)
        np.testing.assert_allclose(ours.features, built_in.features, atol=1e-4)
        assert len(ours.activations) == len(built_in.activations)
        for a, b in zip(ours.activations, built_in.activations, strict=True):
            np.testing.assert_allclose(a.transpose(0, 2, 3, 1), b, atol=1e-4)
    for name, leaf in _tree.named_leaves(built_in.statistics).items():
        np.testing.assert_allclose(statistic(name, ours.statistics), leaf, atol=1e-4)
    for mine, other in zip(model.rows(variables, x).values(), twin.rows(same, x).values(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)

    def matched(model, variables, x):
        """A function of the gradient; its derivative by the image is a second derivative of the network."""
        y = jnp.arange(2)

        def loss(params):
            return cross_entropy(model.apply({**variables, "params": params}, x, sharpness=4.0).logits, y)

        gradient = jax.grad(loss)(variables["params"])
        return sum(jnp.sum(jnp.abs(leaf) ** 1.5) for leaf in jax.tree.leaves(gradient))

    slopes = [jax.jit(jax.grad(lambda x, m=m, v=v: matched(m, v, x)))(x) for m, v in ((model, variables), (twin, same))]
    np.testing.assert_allclose(*slopes, atol=2e-3 * float(jnp.abs(slopes[1]).max()))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_operators_of_other_networks_are_pytorchs(mode):
    net = moved_statistics(Mixed)
    model, variables = models.from_torch(net, image_shape=IMAGE)
    check_against_torch(net, model, variables, mode, 3, 2e-5)
    assert (model.head, model.head_names) == ("head.3", ("head.3.weight",))
    assert model.notes == ()


class UNet(nn.Module):
    """A U-Net with one stage down and up, a skip connection, and a head on the mean over the pixels."""

    def __init__(self, up, norm):
        super().__init__()
        self.first, self.norm_1, self.pool = nn.Conv2d(3, 4, 3, padding=1), norm(4), nn.MaxPool2d(2)
        self.down, self.norm_2, self.up = nn.Conv2d(4, 8, 3, padding=1), norm(8), up
        self.last, self.norm_3, self.head = nn.Conv2d(12, 6, 3, padding=1), norm(6), nn.Linear(6, CLASSES)

    def forward(self, x):
        wide = F.relu(self.norm_1(self.first(x)))
        z = self.up(F.relu(self.norm_2(self.down(self.pool(wide)))))
        z = F.pad(z, [0, wide.shape[3] - z.shape[3], 0, wide.shape[2] - z.shape[2]])
        return self.head(F.relu(self.norm_3(self.last(torch.cat([wide, z], 1)))).mean((2, 3)))


@pytest.mark.parametrize(
    ("up", "norm"),
    [
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.BatchNorm2d),
        (lambda: nn.ConvTranspose2d(8, 8, 2, 2), lambda width: nn.GroupNorm(2, width)),
        pytest.param(lambda: nn.Upsample(size=(7, 8), mode="bilinear"), nn.BatchNorm2d, marks=pytest.mark.slow),
        pytest.param(lambda: nn.Upsample(scale_factor=2), lambda width: nn.GroupNorm(2, width), marks=pytest.mark.slow),
        pytest.param(lambda: nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.BatchNorm2d, marks=pytest.mark.slow),
    ],
    ids=["bilinear", "transposed", "bilinear by size", "nearest", "overlapping"],
)
def test_a_u_net_is_taken_in_and_what_makes_images_larger_is_no_kink(up, norm):
    net = moved_statistics(lambda: UNet(up(), norm))
    model, variables = models.from_torch(net, image_shape=IMAGE)
    out = check_against_torch(net, model, variables, "train", 2, 2e-5)
    assert (model.head, model.notes, len(out.activations)) == ("head", (), 3)
    linear = [name for name, p in net.named_parameters() if p.ndim > 1]
    smooth = model.apply(variables, images(2)[1], sharpness=4.0)
    assert [a.shape for a in smooth.activations] == [a.shape for a in out.activations]
    assert sorted(model.rows(variables, images(2)[1])) == sorted(linear)


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (4, 2, 1)])
def test_what_a_transposed_convolution_reads_explains_its_gradient(size, stride, padding):
    """The gradient lies in the span of the layer's input rows, and these are fewer than their length."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ConvTranspose2d(8, 4, size, stride, padding),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )
    model, variables = models.from_torch(net, image_shape=(2, 2, 3))
    x = reference.uniform(1, 2, 2, 3)
    rows, (gradient, _) = model.rows(variables, x)["1.weight"], gradient_of(model, variables, x, "train")
    matrix = model.matrix("1.weight", gradient["1.weight"])
    assert (model.notes, model.head, rows.shape[1]) == ((), "4", len(matrix))
    assert len(rows) < rows.shape[1]
    outside = matrix - rows.T @ jnp.linalg.lstsq(rows.T, matrix)[0]
    assert float(jnp.linalg.norm(outside)) < 1e-4 * float(jnp.linalg.norm(matrix))


def test_an_exported_program_has_the_mode_it_was_exported_in():
    net = moved_statistics(ResNet)
    for program in exported_programs(net):
        model, variables = models.from_torch(program, image_shape=IMAGE)
        check_against_torch(net, model, variables, "eval", 2, 2e-5)
        with pytest.raises(ValueError, match="mode 'train' is not known"):
            model.apply(variables, images(2)[1], mode="train")


def test_an_exported_program_in_training_mode_is_trained():
    net = moved_statistics(Norms).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = ({0: torch.export.Dim("batch")},)
        exported = torch.export.export(net, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=batch)
        programs = exported, exported.run_decompositions()
    for program in programs:
        model, variables = models.from_torch(program, image_shape=IMAGE)
        check_against_torch(net, model, variables, "train", 2, 2e-5)
        assert model.by_batch == ("train",)
        with pytest.raises(ValueError, match="mode 'eval' is not known"):
            model.apply(variables, images(2)[1], mode="eval")


def test_statistics_without_momentum_are_refused_with_the_way_out():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Flatten(), nn.Linear(144, 5))
    with pytest.raises(ValueError, match=r"1 has momentum=None.* give the layer a momentum, such as 0\.1"):
        models.from_torch(net, image_shape=(8, 8, 3))
    net[1].momentum = 0.1
    model, variables = models.from_torch(net, image_shape=(8, 8, 3))
    gradient = gradient_of(model, variables, reference.uniform(2, 8, 8, 3), "train")[0]
    net[1].momentum = 0.9
    other = gradient_of(*models.from_torch(net, image_shape=(8, 8, 3)), reference.uniform(2, 8, 8, 3), "train")[0]
    assert all(jnp.array_equal(gradient[name], other[name]) for name in gradient)


class Fixed(nn.Module):
    """A network with a fixed normalisation, as in detection networks, and a choice of channels."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))
        self.register_buffer("chosen", torch.tensor([1, 0]))
        self.register_buffer("unlisted", torch.tensor([1.0]), persistent=False)
        self.norm, self.head = nn.BatchNorm2d(2), nn.Linear(2, 3)

    def forward(self, x):
        x = self.norm(x[:, self.chosen] * self.scale[:, None, None] + self.unlisted)
        return self.head(x.mean((2, 3)))


def test_buffers_that_are_no_statistics_are_constants():
    module = Fixed()
    model, _ = models.from_torch(module, image_shape=(4, 4, 2), num_classes=3)
    known = dict(model.constants)
    assert {"scale", "chosen"} <= known.keys() <= {"scale", "chosen", "unlisted"}
    assert known["scale"] == digest_of(module.scale) != digest_of(2 * module.scale)
    assert known["chosen"] == digest_of(module.chosen)


def test_changes_in_place_reach_what_they_are_a_part_of():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.last = nn.Linear(192, 6), nn.Linear(6, CLASSES)

        def forward(self, x):
            z = self.fc(torch.flatten(x, 1))
            z.t().mul_(2.0)
            return self.last(z.add_(0.5).tanh_())

    class ChangesAPart(Changes):
        def forward(self, x):
            z = self.fc(torch.flatten(x, 1))
            z[:, 1:3] *= 2
            return self.last(z)

    net = moved_statistics(Changes)
    model, variables = models.from_torch(net, image_shape=IMAGE)
    check_against_torch(net, model, variables, "train", 2, 2e-5)
    with pytest.raises(ValueError, match=r"not known here: .*aten.slice_scatter.default"):
        models.from_torch(ChangesAPart(), image_shape=IMAGE)


def test_labels_and_an_attack_need_nothing_but_pytorchs_own_gradient():
    """PyTorch's names and layouts are used unchanged; the distance falls, and the label follows from the head."""
    torch.manual_seed(1)
    net = Tutorial()
    x, _ = images(1)
    F.cross_entropy(net(x), torch.tensor([3])).backward()
    model, variables = models.from_torch(net, image_shape=IMAGE)
    payload = capture.named_arrays(net)
    attacks.check_payload(payload, variables)
    seen = Observation(jnp.zeros((), jnp.int32), params=variables, payload=payload)
    template = Batch(jnp.zeros((1, 1, *IMAGE)), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    attack = attacks.inversion(model, protocols.ClientShare(model), presets.fedleak(40), batch_size=1)
    step, state, distances = jax.jit(attack.step), attack.init(jax.random.key(0), template), []
    for i in range(40):
        state, info = step(jax.random.key(i), state, seen)
        distances.append(float(jnp.ravel(info["distance"])[0]))
    assert int(attack.reconstruct(state, seen).y[0]) == 3
    assert distances[-1] < 0.7 * distances[0]


def test_a_module_that_counts_its_images_in_python_is_taken_in_for_every_size():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.fc = nn.Parameter(torch.randn(1, 192)), nn.Linear(384, CLASSES)

        def forward(self, x):
            return self.fc(torch.cat([self.token.repeat(len(x), 1), x.reshape(len(x), -1)], 1))

    net = moved_statistics(Counts)
    model, variables = models.from_torch(net, image_shape=IMAGE)
    for count in (1, 2, 4):
        check_against_torch(net, model, variables, "train", count, 1e-5)


def test_what_cannot_be_taken_in_is_named():
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.cumprod(torch.flatten(x, 1), 1)

    class Depends(nn.Module):
        def forward(self, x):
            return torch.flatten(x, 1) if x.sum() > 0 else torch.flatten(x, 1) + 1

    for module, error, message in (
        (Sorted(), ValueError, "not known here: aten.cumprod.default. Write that part .* models.from_function$"),
        (nn.Conv2d(3, 5, 1), ValueError, r"one row of logits \(B, C\) .* got \(2, 5, 8, 8\) .* as of a segmentation"),
        (nn.Conv2d(3, 1, 1), ValueError, r"one row of logits \(B, C\) .* got \(2, 1, 8, 8\) .* mean over the pixels"),
        (Depends(), ValueError, "PyTorch cannot export this module in mode 'train'"),
        (Tutorial, TypeError, "module must be an nn.Module or an ExportedProgram, got type"),
        (Tutorial(7), ValueError, "num_classes must be that of the network, 7, got 5"),
    ):
        with pytest.raises(error, match=message):
            models.from_torch(module, image_shape=IMAGE, num_classes=CLASSES)
    with pytest.raises(ValueError, match="dropout must be one of"):
        models.from_torch(Tutorial(), image_shape=IMAGE, dropout="on")
    for shape in ((8, 8), (8, 8, 0), (8, 8, 3, 1)):
        with pytest.raises(ValueError, match="must be"):
            models.from_torch(Tutorial(), image_shape=shape)
    net = Tutorial()
    model, variables = models.from_torch(net, image_shape=IMAGE)
    other = {**variables["params"], "fc1.weight": jnp.zeros((6, 7))}
    with pytest.raises(ValueError, match=r"fc1.weight must have shape \(7, 6\), got \(6, 7\)"):
        model.apply({**variables, "params": other}, images(1)[1])


@pytest.mark.parametrize("shape", [(1, 1, 6), (1, 6, 1)])
def test_a_network_of_rows_is_told_to_flatten_its_images(shape):
    rows = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"must flatten them itself\. Wrap it as nn.Sequential\(nn.Flatten\(\), net\)"):
        models.from_torch(rows, image_shape=shape)
    models.from_torch(nn.Sequential(nn.Flatten(), rows), image_shape=shape)
    # Images of another size are a different mistake.
    for net in (rows, nn.Sequential(nn.Flatten(), rows)):
        with pytest.raises(ValueError, match="PyTorch cannot export") as refused:
            models.from_torch(net, image_shape=(1, 1, 5))
        assert "flatten" not in str(refused.value)


@pytest.mark.parametrize("exported", [False, True])
def test_a_network_that_reads_tokens_is_refused_with_the_reason(exported):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Embedding(5, 4), torch.nn.Flatten())
    if exported:
        module = torch.export.export(module, (torch.zeros(2, 1, 1, 6, dtype=torch.long),))
    with pytest.raises(ValueError, match=r"reads integer token ids.* rows of an embedding's gradient"):
        models.from_torch(module, image_shape=(1, 6, 1))


def test_layers_and_programs_without_a_rule_are_named(monkeypatch):
    flat = nn.Flatten()

    class Unpooled(nn.Module):
        def forward(self, x):
            return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2).flatten(1)

    for module, message in (
        (Unpooled(), r"aten.index_put.default\. Write that part .*\. Known operators of similar names: index$"),
        (
            nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), flat),
            "in this form: instance normalisation by running statistics. Write that part .* models.from_function",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            models.from_torch(module, image_shape=IMAGE)

    class Two(nn.Module):
        def forward(self, x, y):
            return torch.flatten(x, 1) + y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Two(), (torch.zeros(2, 3, 8, 8), torch.zeros(1)))
    with pytest.raises(ValueError, match="must take images alone, got inputs x, y"):
        models.from_torch(program, image_shape=IMAGE)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        models.from_torch(Tutorial(), image_shape=IMAGE)


class Tied(nn.Module):
    """Two layers that share their weight, as an embedding and a language model's head do, but not their bias."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.second.weight = self.first.weight
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(x, (2, 4)).flatten(1)
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_are_one_leaf_with_the_gradient_of_both(tmp_path):
    torch.manual_seed(0)
    net = Tied()
    model, variables = models.from_torch(net, image_shape=IMAGE)
    assert sorted(variables["params"]) == ["first.bias", "first.weight", "head.bias", "head.weight", "second.bias"]
    check_against_torch(net, model, variables, "train", 2, 2e-5)
    x, own = images(1)
    net.zero_grad()
    F.cross_entropy(net(x), torch.tensor([1])).backward()
    capture.save(tmp_path / "u", net, batch_size=1)
    sent = capture.gradient_of(capture.load(tmp_path / "u"), variables["params"])
    found = audit.check_client(model, variables, sent, own, np.array([1]))
    assert {finding.name: finding.status for finding in found}["known images"] == "passed"
