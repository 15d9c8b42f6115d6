# %% [markdown]
# # Does my PyTorch model leak the images that it is trained on?
#
# A client of federated learning sends the gradient of its private images. In this notebook a PyTorch client does so,
# and an auditor who plays the server tries to get the images back. It takes about a minute on two cores.
#
# ## The client
#
# The network is an ordinary PyTorch module. Nothing about it is made for jaxleak.

# %%
from pathlib import Path

import torch
from torch import nn

from jaxleak import audit, capture, data, models
from jaxleak.study import sheets

Path("pictures").mkdir(exist_ok=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 8 * 8, 10)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(torch.flatten(x, 1))


torch.manual_seed(0)
net = Net()

# %% [markdown]
# The client computes one gradient of one private image of a digit, and writes it to a file with the facts that an
# auditor needs. `capture.save` is the only line that a real client has to add.

# %%
secret = data.load("digits", n=1)  # (1, 8, 8, 1) in [0, 1]
x, y = torch.tensor(secret.x).permute(0, 3, 1, 2), torch.tensor(secret.y).long()
nn.functional.cross_entropy(net(x), y).backward()
capture.save("update.safetensors", net, batch_size=1, loss="cross_entropy", reduction="mean")

# %% [markdown]
# ## The auditor
#
# The auditor takes the module as it is, with its weights, and the file. The truth is handed over for the scores
# alone: no attack sees it, and the verdict is the same without it.

# %%
model, variables = models.from_torch(net, image_shape=(8, 8, 1), num_classes=10)
verdict = audit.update(model, variables, "update.safetensors", minutes=5, truth=(secret.x, secret.y))
print(verdict.verdict)
print(*verdict.reasons, sep="\n")
print(f"PSNR {verdict.metrics['psnr']:.1f} dB")

# %% [markdown]
# The picture shows the private digit above what the server found. Values above 30 dB show every detail.

# %%
sheets.contact_sheet(Path("pictures/audit.png"), secret.x, verdict.best.x, title="One gradient of a client", zoom=16)

# %% [markdown]
# ![The private digit above its reconstruction](pictures/audit.png)
#
# ## A mistake is noticed
#
# An auditor who describes the client wrongly could mistake a failed attack for safety. So the update is checked first.
# Here the auditor believes that the client averages its loss over four images, while the client adds it up.

# %%
four = data.load("digits", n=4)
net.zero_grad()
x, y = torch.tensor(four.x).permute(0, 3, 1, 2), torch.tensor(four.y).long()
nn.functional.cross_entropy(net(x), y, reduction="sum").backward()
mistaken = audit.update(model, variables, net, batch_size=4, reduction="mean", minutes=1)
print(mistaken.verdict)
print(*mistaken.reasons, sep="\n")
