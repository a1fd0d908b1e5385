# SPDX-License-Identifier: BSD-3-Clause
"""Small networks that are trained here, on the 1,797 images that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchalgo._C import Error

EPOCHS, BATCH = 12, 64
HELD_OUT = 360  # images that training does not see
SIDE = 8  # of an image
GROWTH = 16  # channels of a layer in a dense block


class Digits(NamedTuple):
    """Images with their classes, split by a fixed seed."""

    images: Tensor
    labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


class Block(nn.Module):
    """A residual block with batch norms, as in ResNet-18."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        self.down = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


class Depthwise(nn.Module):
    """An inverted residual block with batch norms, as in MobileNetV2."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        wide = 4 * c
        self.layers = nn.Sequential(
            nn.Conv2d(c, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(), nn.Conv2d(wide, k, 1, bias=False), nn.BatchNorm2d(k),
        )  # fmt: skip
        self.is_residual = stride == 1 and c == k

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.is_residual else y


def norm_relu_conv(c: int, k: int, size: int) -> nn.Sequential:
    conv = nn.Conv2d(c, k, size, padding=size // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), conv)


class Dense(nn.Module):
    """Layers that each read all results before them, and a transition, as in DenseNet."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        wide = c + 4 * GROWTH
        self.layers = nn.ModuleList(norm_relu_conv(n, GROWTH, 3) for n in range(c, wide, GROWTH))
        self.transition = nn.Sequential(norm_relu_conv(wide, k, 1), nn.AvgPool2d(stride))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        y: Tensor = self.transition(x)
        return y


# By name: the kind of block, and the channels and the stride of each.
NETWORKS: dict[str, tuple[type[nn.Module], Sequence[tuple[int, int, int]]]] = {
    "digits": (Block, ((32, 32, 1), (32, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1))),
    "digits_depthwise": (
        Depthwise, ((32, 32, 1), (32, 32, 1), (32, 48, 2), (48, 48, 1), (48, 128, 1)),
    ),
    "digits_dense": (Dense, ((32, 48, 1), (48, 64, 2), (64, 128, 1))),
}  # fmt: skip


def network(name: str) -> nn.Sequential:
    kind, sizes = NETWORKS[name]
    stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    blocks = nn.Sequential(*(kind(*size) for size in sizes))
    return nn.Sequential(stem, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def read_digits() -> Digits:
    """Reads the images. Raises: torchalgo.Error if scikit-learn is not installed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as problem:
        raise Error(
            f"TA7201 digits: {problem}: run `pip install -r requirements-bench.txt`"
        ) from None
    given = load_digits()
    images = torch.from_numpy(given.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(given.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    out, seen = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(images[seen], labels[seen], images[out], labels[out])


@torch.enable_grad()
def trained(digits: Digits, name: str = "digits", seed: int = 0) -> nn.Module:
    """Trains a network, which takes about 20 s with 2 threads."""
    torch.manual_seed(seed)
    net = network(name)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    steps = EPOCHS * (len(digits.labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(digits.labels))
        for i in range(len(order) // BATCH):
            batch = order[i * BATCH : (i + 1) * BATCH]
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(digits.images[batch]), digits.labels[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Returns the share of images whose largest output is that of their class."""
    return float((outputs.argmax(1) == labels).double().mean())
