"""Audits by `jaxleak audit` of updates from PyTorch clients: order of lists, frozen layers, other heads."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import audit, capture, models
from jaxleak.__main__ import main
from jaxleak.attacks._inversion.peeling import misfit_of_one_sample
from jaxleak.audit._verdict import stages, stated

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

RATE = 0.1
#: Networks on 8 x 8 x 3 images with state dicts that are not in the order of their sorted names.
NETWORKS = """
import torch
from torch import nn
from torch.nn import functional as F


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.second, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.first = nn.Linear(256, 10)

    def forward(self, x):
        return self.first(F.relu(self.norm(self.second(x))).flatten(1))


class Alike(nn.Module):
    def __init__(self):
        super().__init__()
        self.b, self.a = nn.Linear(192, 192, bias=False), nn.Linear(192, 192, bias=False)
        self.head = nn.Linear(192, 10)

    def forward(self, x):
        return self.head(F.relu(self.a(F.relu(self.b(x.flatten(1))))))


class Dropped(Alike):
    def forward(self, x):
        return self.head(F.dropout(F.relu(self.a(F.relu(self.b(x.flatten(1))))), 0.5, self.training))


class OneLogit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(192, 200), nn.Linear(200, 1)

    def forward(self, x):
        return self.head(F.relu(self.body(x.flatten(1)))).squeeze(1)


class AllConvolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 10, 1)

    def forward(self, x):
        return self.last(F.relu(self.conv(x))).mean((2, 3))
"""


class Client:
    """A client with one image and one of the `NETWORKS`."""

    def __init__(self, folder, name):
        self.folder = folder
        (folder / "nets.py").write_text(NETWORKS)
        scope = {}
        exec(NETWORKS, scope)
        torch.manual_seed(0)
        self.name, self.net = name, scope[name]()
        self.x, self.y = torch.rand(1, 3, 8, 8), torch.tensor([3])
        np.savez(folder / "truth.npz", x=self.x.numpy(), y=self.y.numpy())

    def backward(self):
        """Compute the gradient of the one image, after saving the weights to a file."""
        torch.save(self.net.state_dict(), self.folder / "w.pt")
        F.cross_entropy(self.net(self.x), self.y).backward()

    def step(self):
        """The state dict before and after a step, as the lists that a `NumPyClient` of Flower receives and sends."""
        before = self._listed()
        self.backward()
        torch.optim.SGD(self.net.parameters(), RATE).step()
        return before, self._listed()

    def _listed(self):
        return [value.detach().numpy().copy() for value in self.net.state_dict().values()]

    def audit(self, update="u.safetensors", weights="w.pt", *options):
        """Run an audit with the truth; returns the content of results.json."""
        files = {"--weights": weights, "--update": update, "--truth": "truth.npz"}
        words = [word for option, file in files.items() for word in (option, str(self.folder / file))]
        model = ["--model", f"{self.folder / 'nets.py'}:{self.name}", "--image", "8", "8", "3"]
        out = self.folder / "out"
        main(["audit", *model, *words, "--out", str(out), "--minutes", "0.05", "--fresh", *options])
        return json.loads((out / "results.json").read_text())


def known_images(results):
    return next(finding["status"] for finding in results["findings"] if finding["name"] == "known images")


@pytest.mark.parametrize("name", ["Normed", "Alike"])
def test_a_list_in_the_order_of_the_state_dict_is_the_clients_update(tmp_path, name):
    client = Client(tmp_path, name)
    before, after = client.step()
    capture.save(tmp_path / "u.safetensors", after, kind="weights", learning_rate=RATE, local_steps=1, batch_size=1)
    capture.save(tmp_path / "w.safetensors", before, kind="weights")
    for weights in ("w.pt", "w.safetensors"):
        assert known_images(client.audit("u.safetensors", weights)) == "passed"
    gradients = [p.grad.numpy() for p in client.net.parameters()]
    capture.save(tmp_path / "g.safetensors", gradients, batch_size=1)
    assert known_images(client.audit("g.safetensors")) == "passed"


def test_leaves_of_one_shape_are_not_exchanged():
    net = nn.Sequential()
    net.b, net.a = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
    net = nn.Sequential(nn.Flatten(), net)
    model, variables = models.from_torch(net, image_shape=(2, 2, 3))
    assert model.listed == ("1.b.weight", "1.a.weight")
    sent = capture.as_update([p.detach().numpy() for p in net.parameters()])
    tree = capture.gradient_of(sent, variables["params"], names=model.listed)
    np.testing.assert_array_equal(tree["1.a.weight"], net[1].a.weight.detach())
    with pytest.raises(ValueError, match="whose order is not known"):
        capture.gradient_of(sent, variables["params"])


class _Array:
    def __init__(self, values):
        self.values = values

    def numpy(self):
        return self.values


class _Message:
    """A message with weights as a list without names, as far as the mod reads it."""

    def __init__(self, record, values):
        records = {record: {str(i): _Array(value) for i, value in enumerate(values)}}
        self.content = type("Content", (), {"array_records": records, "config_records": {"c": {"server-round": 1}}})
        self.metadata = type("Metadata", (), {"group_id": "1", "src_node_id": 7})

    def has_content(self):
        return True


@pytest.mark.parametrize("name", ["Normed", "Alike"])
def test_a_numpy_client_of_flower_is_recorded_and_audited(tmp_path, name):
    client = Client(tmp_path, name)
    before, after = client.step()
    mod = capture.flower_mod(tmp_path, learning_rate=RATE, local_steps=1, batch_size=1)
    context = type("Context", (), {"node_id": 7})
    mod(_Message("fitins.parameters", before), context, lambda *_: _Message("fitres.parameters", after))
    assert known_images(client.audit("1-7-sent.safetensors", "1-7-received.safetensors")) == "passed"


def test_layers_that_are_not_trained_are_constants_through_the_command(tmp_path):
    client = Client(tmp_path, "Normed")
    client.net.second.requires_grad_(False)
    client.backward()
    capture.save(tmp_path / "u.safetensors", client.net, batch_size=1)
    results = client.audit()
    assert known_images(results) == "passed"
    assert results["metrics"]["label_count"] == 1
    gradients = {name: p.grad for name, p in client.net.named_parameters() if p.grad is not None}
    capture.save(tmp_path / "g.safetensors", gradients, batch_size=1)
    assert client.audit("g.safetensors")["metrics"]["verdict"] == "inputs inconsistent"
    assert known_images(client.audit("g.safetensors", "w.pt", "--frozen", "second")) == "passed"


def test_dropout_is_taken_off_where_the_client_says_so(tmp_path, capsys):
    client = Client(tmp_path, "Dropped")
    client.net.eval()
    client.backward()
    capture.save(tmp_path / "u.safetensors", client.net, batch_size=1)
    with pytest.raises(FileNotFoundError):
        client.audit()
    error = capsys.readouterr().err
    assert "--dropout off" in error
    assert "--classes" not in error
    assert known_images(client.audit("u.safetensors", "w.pt", "--dropout", "off")) == "passed"


def test_a_network_that_ends_in_a_convolution_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "_FIRST", 20)
    client = Client(tmp_path, "AllConvolutions")
    client.backward()
    model, variables = models.from_torch(client.net, image_shape=(8, 8, 3))
    verdict = audit.update(model, variables, client.net, batch_size=1, truth=(client.x, client.y), minutes=5)
    status = {finding.name: finding.status for finding in verdict.findings}
    assert status["equations of the head"] == "not applicable"
    assert status["known images"] == "passed"
    assert verdict.answers[0].attack == "fedleak_20"
    assert "label_accuracy" in verdict.metrics


@pytest.mark.parametrize("label", [0, 1])
def test_one_logit_under_a_binary_loss_gives_its_label_and_image(tmp_path, label):
    client = Client(tmp_path, "OneLogit")
    torch.save(client.net.state_dict(), tmp_path / "w.pt")
    np.savez(tmp_path / "truth.npz", x=client.x.numpy(), y=np.array([label]))
    nn.BCEWithLogitsLoss()(client.net(client.x), torch.tensor([float(label)])).backward()
    capture.save(tmp_path / "u.safetensors", client.net, batch_size=1)
    two_classes = ("--classes", "2", "--minutes", "5")
    results = client.audit("u.safetensors", "w.pt", *two_classes)
    assert (results["metrics"]["verdict"], known_images(results)) == ("leaks", "passed")
    assert results["metrics"]["psnr"] > 40
    assert results["metrics"]["label_count"] == results["metrics"]["label_accuracy"] == 1
    assert f"1 of class {label}" in results["reasons"][0]
    sums = next(finding for finding in results["findings"] if finding["name"] == "sums over classes")
    assert sums["status"] == "not applicable"
    torch.optim.SGD(client.net.parameters(), RATE).step()
    torch.save(client.net.state_dict(), tmp_path / "after.pt")
    late = client.audit("u.safetensors", "after.pt", *two_classes)
    assert late["metrics"]["verdict"] == "inputs inconsistent"


def test_a_probability_in_the_place_of_the_logit_is_refused():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 1), nn.Sigmoid())
    with pytest.raises(ValueError, match="ends in a sigmoid"):
        models.from_torch(net, image_shape=(8, 8, 3))


def test_the_bias_of_one_logit_may_be_a_number():
    x, key = np.random.default_rng(0).uniform(size=(1, 4, 4, 1)).astype("float32"), jax.random.key(0)
    params = {"w": 0.1 * jax.random.normal(key, (16, 40)), "b": jnp.zeros(40), "v": jnp.linspace(-0.3, 0.3, 40)}

    def network(v, x):
        p = v["params"]
        return (x.reshape(len(x), -1) @ p["w"] + p["b"]) @ p["v"] + p["shift"]

    model, variables = models.from_function(
        network, {"params": params | {"shift": jnp.zeros(())}}, image_shape=(4, 4, 1)
    )
    gradient = jax.grad(lambda p: jax.nn.softplus(-network({"params": p}, x)).mean())(variables["params"])
    for layer in ("w", "v"):
        assert misfit_of_one_sample(model, gradient, layer) < 1e-5


def test_layers_in_evaluation_mode_are_those_of_the_model(tmp_path):
    """The command makes the model with the layers that the update names; in Python, the model must already match."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    net.append(nn.Linear(64, 10)).train()
    net[1].eval()
    x = torch.rand(2, 3, 8, 8)
    F.cross_entropy(net(x), torch.tensor([3, 5])).backward()
    update = capture.as_update(net, batch_size=2)
    truth = x.permute(0, 2, 3, 1).numpy(), np.array([3, 5])
    model, variables = models.from_torch(net, image_shape=(8, 8, 3))
    with pytest.raises(ValueError, match=r"the client had 1 in evaluation mode .* eval_layers=\['1'\]\)"):
        audit.update(model, variables, update, truth=truth, minutes=0.01)
    assert stated._within("module.backbone.1.norm", ("backbone.1",))
    assert not stated._within("backbone.10", ("backbone.1",))
    model, variables = models.from_torch(net, image_shape=(8, 8, 3), eval_layers=["1"])
    verdict = audit.update(model, variables, update, truth=truth, minutes=0.01)
    assert verdict.verdict != "inputs inconsistent"
