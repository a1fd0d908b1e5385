# SPDX-License-Identifier: BSD-3-Clause
"""Networks for gpu_check, with random weights; two of them need no torchvision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchalgo._cli.demo import randomize_batch_norms

TORCHVISION = ("convnext_tiny", "efficientnet_v2_s", "densenet121")


def conv_bn(c: int, k: int, r: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, k, r, stride, r // 2, bias=False), nn.BatchNorm2d(k))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a residual, as in ResNet-50 v1.5."""

    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        k = 4 * width
        self.body = nn.Sequential(
            conv_bn(c, width, 1), nn.ReLU(True), conv_bn(width, width, 3, stride), nn.ReLU(True),
            conv_bn(width, k, 1),
        )  # fmt: skip
        self.shortcut = nn.Identity() if c == k and stride == 1 else conv_bn(c, k, 1, stride)
        self.relu = nn.ReLU(True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class ResNet50(nn.Module):
    """He et al. 2016, with the stride in the 3x3 as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        c = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                blocks.append(Bottleneck(c, 64 << stage, 2 if i == 0 and stage > 0 else 1))
                c = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(c, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.pool(self.blocks(self.stem(x))).flatten(1))
        return y


class UNet(nn.Module):
    """Ronneberger et al. 2015 with padding and batch norm, four levels from 32 channels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width << level for level in range(4)]
        self.down = nn.ModuleList(
            self.pair(c, k) for c, k in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(k, k // 2, 2, 2) for k in widths[:0:-1])
        self.join = nn.ModuleList(self.pair(k, k // 2) for k in widths[:0:-1])
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def pair(c: int, k: int) -> nn.Sequential:
        return nn.Sequential(conv_bn(c, k, 3), nn.ReLU(True), conv_bn(k, k, 3), nn.ReLU(True))

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        y: Tensor = self.head(x)
        return y


def make_net(name: str, seed: int = 0) -> nn.Module:
    """A network in eval mode on the CPU in float. Raises: ImportError without torchvision."""
    torch.manual_seed(seed)
    net: nn.Module
    if name == "resnet50":
        net = ResNet50()
    elif name == "unet":
        net = UNet()
    else:
        import torchvision

        net = torchvision.models.get_model(name, weights=None)
    randomize_batch_norms(net, seed)
    return net.eval()
