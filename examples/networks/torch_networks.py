"""Networks in PyTorch as tutorials write them, which know nothing of jaxleak."""

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10


class Cnn(nn.Module):
    """Two convolutions, a pool, two dense layers; with batch normalisation where `norm` is given."""

    def __init__(self, norm: type[nn.Module] = nn.Identity, hidden: int = 32 * 16 * 16) -> None:
        """Draw the weights; `hidden` numbers reach the first dense layer."""
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), norm(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), norm(32)
        self.fc1, self.fc2 = nn.Linear(hidden, 64), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, 32, 32) to logits (B, 10)."""
        x = self.between(functional.relu(self.norm1(self.conv1(x))))
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        return self.fc2(functional.relu(self.fc1(torch.flatten(x, 1))))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        """What stands between the convolutions: nothing."""
        return x


class TwoPoolsCnn(Cnn):
    """`Cnn` with a pool behind each convolution, which leaves fewer features than the image has pixels."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__(hidden=32 * 8 * 8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        """A pool."""
        return functional.max_pool2d(x, 2)


class NormCnn(Cnn):
    """`Cnn` with batch normalisation behind both convolutions."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__(nn.BatchNorm2d)


class ConvNet(nn.Module):
    """A VGG for small images as torchvision writes it: features, a pool of any size's maps, a classifier."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((4, 4))
        self.classifier = nn.Sequential(nn.Linear(32 * 4 * 4, 128), nn.ReLU(inplace=True), nn.Linear(128, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, 32, 32) to logits (B, 10)."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Vit(nn.Module):
    """A small vision transformer: patches of 4x4, width 64, two blocks, a class token."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.patch = nn.Conv2d(3, 64, 4, 4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, 64))
        self.position = nn.Parameter(0.02 * torch.randn(1, 65, 64))
        self.blocks = nn.Sequential(*(Block(64, 4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, 32, 32) to logits (B, 10)."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Block(nn.Module):
    """Attention and two dense layers, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (B, N, width) to tokens."""
        z = self.norm1(x)
        x = x + self.attention(z, z, z, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ResNet18(nn.Module):
    """ResNet18 with a 3x3 stem for small images, a quarter as wide as the published one."""

    def __init__(self, width: int = 16) -> None:
        """Draw the weights."""
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        stages = []
        for stage in range(4):
            before, after = width * 2 ** max(stage - 1, 0), width * 2**stage
            stages += [Residual(before, after, 1 if stage == 0 else 2), Residual(after, after, 1)]
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(8 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 3, 32, 32) to logits (B, 10)."""
        x = self.stages(functional.relu(self.norm(self.stem(x))))
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (B, before, H, W) to (B, after, H / stride, W / stride)."""
        z = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(z + self.shortcut(x))
