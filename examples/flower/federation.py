"""A federation of four PyTorch clients in Flower's simulation, and what the update of one of them leaks.

    pip install ".[flower]" torch    # in a clone of jaxleak
    python examples/flower/federation.py recorded --minutes 2

The clients know nothing of the recording but the line with `flower_mod`, and the server but the line with
`flower_strategy`; one of them is enough. Every client takes one step on two digits of its own in each of two rounds.
The script records them all, audits one, and ends with the verdict and the path of its report.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from jaxleak import capture
from jaxleak.__main__ import main as jaxleak

CLIENTS, ROUNDS, BATCH_SIZE, RATE = 4, 2, 2, 0.1
FACTS = {"local_steps": 1, "learning_rate": RATE, "batch_size": BATCH_SIZE, "loss": "cross_entropy"}


class Net(torch.nn.Module):
    """Two convolutions and two dense layers, as in many a tutorial."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.fc1 = torch.nn.Linear(512, 64)
        self.fc2 = torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 1, 8, 8) to logits (B, 10)."""
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc2(torch.relu(self.fc1(torch.flatten(x, 1))))


def client_app(folder: Path) -> ClientApp:
    """The clients, which write to `folder` what they receive and send."""
    app = ClientApp(mods=[capture.flower_mod(folder, **FACTS)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One step of gradient descent on the client's own digits."""
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = digits(int(context.node_config["partition-id"]))
        torch.nn.functional.cross_entropy(net(x), y).backward()
        torch.optim.SGD(net.parameters(), RATE).step()
        content = RecordDict(
            {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": BATCH_SIZE})}
        )
        return Message(content=content, reply_to=message)

    return app


def digits(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a client holds: images (B, 1, 8, 8) in [0, 1] and labels (B,)."""
    own, found = slice(BATCH_SIZE * client, BATCH_SIZE * (client + 1)), load_digits()
    return torch.tensor(found.images[own, None] / 16, dtype=torch.float32), torch.tensor(found.target[own])


def server_app(folder: Path) -> ServerApp:
    """Federated averaging, which writes to `folder` what the server sends and receives."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        recorded = capture.flower_strategy(strategy, folder, **FACTS)
        recorded.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=ROUNDS)

    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the federation and audit one client's update; returns the exit status of `jaxleak audit`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of what is recorded, and of the audit")
    parser.add_argument("--minutes", default="2", help="time to spend on the audit (default 2)")
    options = parser.parse_args(arguments)
    folder = options.folder.absolute()
    server, client = server_app(folder / "server"), client_app(folder / "clients")
    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS)
    sent = sorted((folder / "clients").glob("*-sent.safetensors"))
    print(f"{len(sent)} updates of {CLIENTS} clients are recorded in {folder / 'clients'}. {sent[0].name} is audited.")
    received = sent[0].with_name(sent[0].name.replace("-sent", "-received"))
    files = {"--weights": received, "--update": sent[0], "--out": folder / "audit"}
    named = [str(word) for option in files.items() for word in option]
    model = ["--model", f"{__file__}:Net", "--image", "8", "8", "1", "--classes", "10"]
    return jaxleak(["audit", *model, *named, "--minutes", options.minutes])


if __name__ == "__main__":
    sys.exit(main())
