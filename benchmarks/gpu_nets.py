# SPDX-License-Identifier: BSD-3-Clause
"""Networks for gpu_check, with random weights: torchvision's and a U-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchalgo._cli.demo import randomize_batch_norms


def conv_bn(c: int, k: int, r: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(c, k, r, stride, r // 2, bias=False), nn.BatchNorm2d(k))


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
    """Returns a network in eval mode on the CPU, in float."""
    if name != "unet":
        from networks import random_network  # needs torchvision, other stages do not

        return random_network(name, seed)
    torch.manual_seed(seed)
    net = UNet()
    randomize_batch_norms(net, seed)
    return net.eval()
