"""Steps of attacks in PyTorch, as a user would write them, with which jaxleak is compared.

Weights and data are copied from JAX. Images enter and leave as (..., H, W, C); inside they have PyTorch's layout (...,
C, H, W). Feature maps are flattened in jaxleak's order, so that dense kernels need no permutation.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from torch.nn import functional

# As many threads as XLA has.
torch.set_num_threads(os.cpu_count() or 1)

Tensors = dict[str, torch.Tensor]
Forward = Callable[[Tensors, torch.Tensor], torch.Tensor]


def tensor(array: Any) -> torch.Tensor:
    """A copy of a JAX or NumPy array."""
    return torch.from_numpy(np.array(array))


def weights(tree: Any) -> Tensors:
    """A tree of parameters or gradients by path, "conv_0/kernel"; convolutions in PyTorch's layout."""

    def layout(leaf: Any) -> torch.Tensor:
        return tensor(leaf).permute(3, 2, 0, 1).contiguous() if leaf.ndim == 4 else tensor(leaf)

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(str(key.key) for key in path): layout(leaf) for path, leaf in leaves}


def channels_last(tree: Tensors) -> Tensors:
    """The same numbers in PyTorch's other memory format."""
    return {k: v.contiguous(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in tree.items()}


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1).flatten(1)


def convnet(strides: Sequence[int], activation: Callable = torch.relu) -> Forward:
    """`models.convnet` and `models.lenet`."""

    def forward(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        for i, stride in enumerate(strides):
            kernel = p[f"conv_{i}/kernel"]
            x = activation(functional.conv2d(x, kernel, p[f"conv_{i}/bias"], stride, kernel.shape[-1] // 2))
        return _flat(x) @ p["head/kernel"] + p["head/bias"]

    return forward


def resnet(blocks: Sequence[int]) -> Forward:
    """`models.resnet` with its small stem; batch normalisation by the batch's statistics."""

    def conv(p: Tensors, name: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        kernel = p[f"{name}/kernel"]
        return functional.conv2d(x, kernel, None, stride, kernel.shape[-1] // 2)

    def norm(p: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, None, None, p[f"{name}/scale"], p[f"{name}/bias"], training=True)

    def forward(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(norm(p, "stem_norm", conv(p, "stem", x)))
        for stage, count in enumerate(blocks):
            for j in range(count):
                name, stride = f"stage_{stage}_block_{j}/", 2 if stage and not j else 1
                z = torch.relu(norm(p, name + "norm_0", conv(p, name + "conv_0", x, stride)))
                z = norm(p, name + "norm_1", conv(p, name + "conv_1", z))
                if name + "shortcut/kernel" in p:
                    x = norm(p, name + "shortcut_norm", conv(p, name + "shortcut", x, stride))
                x = torch.relu(z + x)
        return x.mean(dim=(2, 3)) @ p["head/kernel"] + p["head/bias"]

    return forward


def cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of soft labels, as a mean over the batch."""
    return -(y * torch.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


def squared_l2(observed: Tensors, simulated: Tensors) -> torch.Tensor:
    """The distance of DLG: the sum of squared differences."""
    return sum(((simulated[name] - observed[name]) ** 2).sum() for name in observed)


def cosine(observed: Tensors, simulated: Tensors) -> torch.Tensor:
    """The distance of Inverting Gradients: one minus the cosine."""
    dot = sum((observed[name] * simulated[name]).sum() for name in observed)
    norms = [sum((leaf**2).sum() for leaf in tree.values()).sqrt() for tree in (observed, simulated)]
    return 1 - dot / (norms[0] * norms[1])


def mean_total_variation(x: torch.Tensor) -> torch.Tensor:
    """Anisotropic total variation of images (B, C, H, W), as a mean over differences."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


class Problem(NamedTuple):
    """A gradient inversion."""

    forward: Forward
    params: Tensors
    observed: Tensors  # the client's gradient
    distance: Callable[[Tensors, Tensors], torch.Tensor]
    tv: float = 0.0
    labels: torch.Tensor | None = None  # (B, C); None optimises logits together with the images
    learning_rate: float = 1e-3


class Candidate(NamedTuple):
    """The variables that are optimised; with restarts both have a leading axis."""

    x: torch.Tensor  # (B, C, H, W)
    y: torch.Tensor  # logits (B, C), or () if labels are given


def candidate(x: Any, y: Any = ()) -> Candidate:
    """A candidate from images (..., B, H, W, C), and from logits or ()."""
    return Candidate(tensor(x).movedim(-1, -3).contiguous(), tensor(np.asarray(y, np.float32)))


def images(c: Candidate) -> np.ndarray:
    """The images of a candidate, (..., B, H, W, C)."""
    return c.x.detach().cpu().movedim(-3, -1).numpy()


def on_device(of: Any, device: str) -> Any:
    """A `Problem` or a `Candidate` with its tensors on a device, such as "cuda"."""

    def moved(field: Any) -> Any:
        if isinstance(field, dict):
            return {name: leaf.to(device) for name, leaf in field.items()}
        return field.to(device) if isinstance(field, torch.Tensor) else field

    return type(of)(*map(moved, of))


@contextlib.contextmanager
def precision(*, exact: bool) -> Iterator[None]:
    """Inside the block, compute products and convolutions on a GPU in float32, or with factors rounded to TF32."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = not exact
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before


Step = Callable[[Candidate], Candidate]


def eager_step(problem: Problem) -> Step:
    """One step of gradient descent, written with `torch.autograd.grad`."""
    params = {name: leaf.clone().requires_grad_() for name, leaf in problem.params.items()}

    def step(c: Candidate) -> Candidate:
        x = c.x.detach().requires_grad_()
        y = c.y.detach().requires_grad_() if problem.labels is None else c.y
        labels = torch.softmax(y, dim=-1) if problem.labels is None else problem.labels
        loss = cross_entropy(problem.forward(params, x), labels)
        gradient = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        value = problem.distance(problem.observed, dict(zip(params, gradient, strict=True)))
        if problem.tv:
            value = value + problem.tv * mean_total_variation(x)
        if problem.labels is not None:
            (dx,) = torch.autograd.grad(value, (x,))
            return Candidate(x.detach() - problem.learning_rate * dx, y)
        dx, dy = torch.autograd.grad(value, (x, y))
        return Candidate(x.detach() - problem.learning_rate * dx, y.detach() - problem.learning_rate * dy)

    return step


def functional_step(problem: Problem) -> Step:
    """The same step written with `torch.func`, which `torch.func.vmap` and `torch.compile` accept."""

    def value(c: Candidate) -> torch.Tensor:
        labels = torch.softmax(c.y, dim=-1) if problem.labels is None else problem.labels
        gradient = torch.func.grad(lambda p: cross_entropy(problem.forward(p, c.x), labels))(problem.params)
        total = problem.distance(problem.observed, gradient)
        return total + problem.tv * mean_total_variation(c.x) if problem.tv else total

    def step(c: Candidate) -> Candidate:
        direction = torch.func.grad(value)(c)
        y = c.y if problem.labels is not None else c.y - problem.learning_rate * direction.y
        return Candidate(c.x - problem.learning_rate * direction.x, y)

    return step


def eager_restarts(problem: Problem) -> Step:
    """A step of all restarts, one after the other."""
    step = eager_step(problem)

    def each(c: Candidate) -> Candidate:
        done = [step(Candidate(x, y)) for x, y in zip(c.x, c.y, strict=True)]
        return Candidate(torch.stack([d.x for d in done]), torch.stack([d.y for d in done]))

    return each


def vmapped_restarts(problem: Problem) -> Step:
    """A step of all restarts at once."""
    return torch.func.vmap(functional_step(problem))


def compiled(step: Step) -> Step:
    """A step compiled by TorchInductor, which needs a C++ compiler."""
    return torch.compile(step, fullgraph=True)


def descend(step: Step, c: Candidate, steps: int) -> Candidate:
    """The candidate after several steps."""
    for _ in range(steps):
        c = step(c)
    return c
