# SPDX-License-Identifier: BSD-3-Clause
"""A small model that ends in any function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Function = Callable[..., Any]


class Small(nn.Module):
    """A convolution and a batch norm, whose result a function takes on."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.norm(self.conv(x)))


def make(function: Function) -> Small:
    torch.manual_seed(0)
    return Small(function).eval()


def rand(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


TABLE = torch.rand(1, 1, 1, 64)

# A function of the convolution's result, and the dimensions of the image that it pins. The planned
# sizes are 1x3x16x24.
FUNCTIONS: dict[str, tuple[Function, str]] = {
    "plain": (lambda y: y.relu(), "c"),
    "length": (lambda y: y / len(y), "nc"),
    "loop": (lambda y: sum(y * i for i in range(y.shape[0] + 1)), "nc"),
    "iteration": (lambda y: sum(row for row in y), "nc"),
    "unbind": (lambda y: torch.stack(y.unbind(2)), "ch"),
    "table": (lambda y: y + {16: 1.0, 20: 2.0}.get(int(y.shape[2]), 3.0), "ch"),
    "int": (lambda y: y * int(y.shape[3] * 0.5), "cw"),
    "floor": (lambda y: y * math.floor(y.shape[3] * 0.5), "cw"),
    "square root": (lambda y: y / math.sqrt(y.shape[3]), "cw"),
    "number": (lambda y: y * torch.tensor(y.shape[3]), "cw"),
    "text": (lambda y: y * len(f"{int(y.shape[2])}"), "ch"),
    "stride": (lambda y: y * y.stride(2), "cw"),
    "even": (lambda y: y + 1 if y.shape[2] % 2 == 0 else y, "ch"),
    "square": (lambda y: y + 1 if y.shape[2] == y.shape[3] else y, "chw"),
    "squeeze": (lambda y: y.squeeze(), "nc"),
    "group norm": (lambda y: functional.group_norm(y, 4), "c"),
    "view": (lambda y: y.view(y.size(0), -1), "c"),
    "adaptive pool": (lambda y: functional.adaptive_avg_pool2d(y, 3), "c"),
    "resize": (lambda y: functional.interpolate(y[:, :, ::2, ::2], size=y.shape[2:]), "c"),
    "position": (lambda y: y + TABLE[:, :, :, : y.shape[3]], "c"),
    "pad": (lambda y: functional.pad(y, (0, -y.shape[3] % 32)), "c"),
    "scale": (lambda y: y * y.shape[3] ** 0.5, "c"),
    "count": (lambda y: y / y.numel(), "c"),
    "split": (lambda y: y.chunk(2, 1)[1] + y[:, :4], "c"),
}
