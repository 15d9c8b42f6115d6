"""One CAFE iteration (Algorithm 4 without thresholds) in eager PyTorch, with the parties one after the other.

State and formulas are those of `jaxleak.attacks.cafe` with its default optimisers: SGD for V, Adam with moments and a
step count per row for H, the data and the label logits.
"""

from typing import Any, NamedTuple

import torch
from torch.nn import functional

from benchmarks.peers import Tensors, cross_entropy, tensor, weights


class Rows(NamedTuple):
    """A table with Adam's state per row; updated in place."""

    table: torch.Tensor  # (N, ...)
    mu: torch.Tensor
    nu: torch.Tensor
    count: torch.Tensor  # (N,)

    def adam(self, gradient: torch.Tensor, index: torch.Tensor, learning_rate: float) -> None:
        """Update the rows of a batch, with Adam's usual constants."""
        shape = (-1, *[1] * (gradient.ndim - 1))
        t = (self.count[index] + 1).reshape(shape)
        mu = 0.9 * self.mu[index] + 0.1 * gradient
        nu = 0.999 * self.nu[index] + 0.001 * gradient**2
        step = mu / (1 - 0.9**t) / ((nu / (1 - 0.999**t)).sqrt() + 1e-8)
        self.mu[index], self.nu[index], self.count[index] = mu, nu, t.flatten()
        self.table[index] -= learning_rate * step


def rows(table: Any) -> Rows:
    """A fresh table, which is copied."""
    table = tensor(table)
    return Rows(table, torch.zeros_like(table), torch.zeros_like(table), torch.zeros(len(table)))


class State(NamedTuple):
    """The attack's state, as in `attacks.aggregated.CafeState`."""

    V: torch.Tensor  # (N, P, d2)
    H: Rows  # (N, P, d1)
    x: Rows  # (N, P, h, w, 1)
    y: Rows  # (N, C)


def party_weights(params: Any, parties: int) -> Tensors:
    """Weights of `models.cafe_vertical`, where every leaf with a party axis becomes one leaf per party."""
    shared = weights({"out": params["rest"]["Dense_0"]})
    for p in range(parties):
        one = {
            "extractor": {name: leaf[p] for name, leaf in params["extractor"].items()},
            "first": {name: leaf[p] for name, leaf in params["first"].items()},
            "tower": {
                layer: {name: leaf[p] for name, leaf in tree.items()}
                for layer, tree in params["rest"]["VmapDenseTower_0"].items()
            },
        }
        shared |= {f"{p}/{name}": leaf for name, leaf in weights(one).items()}
    return shared


def forward(params: Tensors, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (B, C) and features H (B, P, d1) of tiles (B, P, h, w, 1)."""
    features, outputs = [], []
    for p in range(x.shape[1]):
        z = x[:, p].movedim(-1, 1)
        for i in range(2):
            kernel, bias = params[f"{p}/extractor/kernel_{i}"], params[f"{p}/extractor/bias_{i}"]
            # Windows are cut off at the edge, as in jaxleak's pooling.
            z = torch.relu(functional.max_pool2d(functional.conv2d(z, kernel, bias, padding=2), 2, ceil_mode=True))
        h = z.permute(0, 2, 3, 1).flatten(1)
        u = torch.relu(h @ params[f"{p}/first/kernel"] + params[f"{p}/first/bias"])
        u = torch.relu(u @ params[f"{p}/tower/Dense_0/kernel"] + params[f"{p}/tower/Dense_0/bias"])
        outputs.append(u @ params[f"{p}/tower/Dense_1/kernel"] + params[f"{p}/tower/Dense_1/bias"])
        features.append(h)
    return torch.cat(outputs, dim=1) @ params["out/kernel"] + params["out/bias"], torch.stack(features, dim=1)


def truncated_tv(x: torch.Tensor, xi: float) -> torch.Tensor:
    """The mean total variation of a batch (B, P, h, w, 1), or 0 while the mean of a tile is below xi."""
    vertical, horizontal = x.diff(dim=-3).abs().sum(), x.diff(dim=-2).abs().sum()
    mean = (vertical + horizontal) / len(x)
    return mean if float(mean.detach()) / x.shape[1] >= xi else torch.zeros(())


def iteration(
    params: Tensors, state: State, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, settings: Any
) -> None:
    """The clients' gradient on a batch, then Steps I, II and III on its rows; `state` is updated in place.

    Args:
        params: see `party_weights`; every leaf requires gradients.
        state: the attack's state.
        x: (N, P, h, w, 1), the private tiles.
        y: (N, C), one-hot.
        index: (K,), the batch's positions in the private set.
        settings: a row of NeurIPS 2021, Table 9: `attacks.aggregated.published_hyperparameters`.
    """
    names, leaves, parties = list(params), list(params.values()), x.shape[1]
    gradient = torch.autograd.grad(cross_entropy(forward(params, x[index])[0], y[index]), leaves)
    observed = dict(zip(names, gradient, strict=True))
    with torch.no_grad():
        residual = state.V[index].sum(dim=0) - torch.stack([observed[f"{p}/first/bias"] for p in range(parties)])
        state.V[index] -= settings.output_learning_rate * 2 * residual
        v, h = state.V[index], state.H.table[index]
        kernels = torch.stack([observed[f"{p}/first/kernel"] for p in range(parties)])
        residual = torch.einsum("bpd,bpe->pde", h, v) - kernels
        state.H.adam(2 * torch.einsum("pde,bpe->bpd", residual, v), index, settings.feature_learning_rate)
    fake, logits = (table.table[index].requires_grad_() for table in (state.x, state.y))
    out, h = forward(params, fake)
    simulated = torch.autograd.grad(cross_entropy(out, torch.softmax(logits, dim=-1)), leaves, create_graph=True)
    loss = settings.alpha * sum(((a - b) ** 2).sum() for a, b in zip(gradient, simulated, strict=True))
    loss = loss + settings.beta * truncated_tv(fake, settings.xi)
    loss = loss + settings.gamma * ((state.H.table[index] - h) ** 2).sum()
    dx, dy = torch.autograd.grad(loss, (fake, logits))
    state.x.adam(dx, index, settings.data_learning_rate)
    state.x.table[index] = state.x.table[index].clamp(0, 1)
    state.y.adam(dy, index, settings.data_learning_rate)
