# SPDX-License-Identifier: BSD-3-Clause
"""A network whose concatenations may be views."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def conv(c: int, k: int, size: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c, k, size, padding=size // 2)


class Inception(nn.Module):
    """Branches of 32, 48, 32 and `last` channels, and a convolution behind."""

    def __init__(self, c: int = 32, last: int = 32) -> None:
        super().__init__()
        self.one, self.three = conv(c, 32), conv(c, 48, 3)
        self.pool, self.last = conv(c, 32), conv(c, last, 3)
        self.join = conv(112 + last, 32)

    def branches(self, x: Tensor) -> list[Tensor]:
        pooled = self.pool(F.max_pool2d(x, 3, 1, 1))
        return [F.relu(self.one(x)), self.three(x), pooled, F.relu(self.last(x))]

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat(self.branches(x), 1))
