"""A federation of four PyTorch clients in Flower's simulation, one of whose updates is then audited.

    pip install "jaxleak[flower]" torch
    python examples/flower/federation.py recorded
    jaxleak audit --model examples/flower/federation.py:Net --image 8 8 1 --out recorded/audit \\
        --weights recorded/1-NODE-received.safetensors --update recorded/1-NODE-sent.safetensors

The clients know nothing of the recording but the one line with `flower_mod`. Every client takes one step on two digits
of its own; NODE is one of the numbers in the names of the recorded files.
"""

import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from jaxleak import capture

CLIENTS, BATCH_SIZE, RATE = 4, 2, 0.1
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "recorded").absolute()


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


client = ClientApp(
    mods=[capture.flower_mod(FOLDER, local_steps=1, learning_rate=RATE, batch_size=BATCH_SIZE, loss="cross_entropy")]
)


@client.train()
def train(message: Message, context: Context) -> Message:
    """One step of gradient descent on the client's own digits."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    first = BATCH_SIZE * int(context.node_config["partition-id"])
    digits = load_digits()
    x = torch.tensor(digits.images[first : first + BATCH_SIZE, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[first : first + BATCH_SIZE])
    torch.nn.functional.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.parameters(), RATE).step()
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": BATCH_SIZE})}
    )
    return Message(content=content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """One round of federated averaging."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=1)


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS)
    print(f"recorded in {FOLDER}:", *sorted(path.name for path in FOLDER.glob("*-sent.safetensors")))
