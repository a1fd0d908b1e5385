# SPDX-License-Identifier: BSD-3-Clause
"""Small networks with squeeze-and-excitation blocks, in the forms that known networks have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Product = Callable[[Tensor, Tensor], Tensor]  # of an image and its scale


def _imul(x: Tensor, scale: Tensor) -> Tensor:
    x *= scale
    return x


PRODUCTS: dict[str, Product] = {
    "x * s": lambda x, s: x * s,
    "s * x": lambda x, s: s * x,
    "torch.mul": torch.mul,
    "x.mul": lambda x, s: x.mul(s),
    "s.mul": lambda x, s: s.mul(x),
    "x *= s": _imul,
    "x.mul_": lambda x, s: x.mul_(s),
}


class Excite(nn.Module):
    """A squeeze-and-excitation block, whose product is written in one of several ways."""

    def __init__(
        self, c: int, hidden: int, act: nn.Module, gate: nn.Module, product: str = "s * x"
    ) -> None:
        super().__init__()
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(c, hidden, 1)
        self.expand = nn.Conv2d(hidden, c, 1)
        self.act = act
        self.gate = gate
        self.product = PRODUCTS[product]

    def forward(self, x: Tensor) -> Tensor:
        scale = self.gate(self.expand(self.act(self.reduce(self.mean(x)))))
        return self.product(x, scale)


def _normed(
    c: int, k: int, r: int, groups: int = 1, stride: int = 1, act: nn.Module | None = None
) -> nn.Sequential:
    conv = nn.Conv2d(c, k, r, stride, r // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(k), *([] if act is None else [act]))


class Block(nn.Module):
    """Layers with a residual."""

    def __init__(self, *layers: nn.Module, act: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        y += x
        return y if self.act is None else self.act(y)


def _classifier(c: int, *layers: nn.Module) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *layers, nn.Linear(c, 5)]


class LikeEfficientNet(nn.Sequential):
    """SiLU in place, a depthwise convolution, and a gate between 0 and 1."""

    def __init__(self) -> None:
        silu = nn.SiLU(inplace=True)
        block = Block(
            _normed(8, 32, 1, act=silu), _normed(32, 32, 3, 32, act=silu),
            Excite(32, 4, nn.SiLU(inplace=True), nn.Sigmoid()), _normed(32, 8, 1),
        )  # fmt: skip
        super().__init__(_normed(8, 8, 3, act=silu), block, *_classifier(8, nn.Dropout(0.2)))


class LikeMobileNetV3(nn.Sequential):
    """Hardswish and ReLU in place, and gates of hardsigmoid."""

    def __init__(self) -> None:
        swish, relu = nn.Hardswish(), nn.ReLU(inplace=True)
        first = Block(
            _normed(8, 24, 1, act=relu), _normed(24, 24, 5, 24, act=relu),
            Excite(24, 8, nn.ReLU(), nn.Hardsigmoid()), _normed(24, 8, 1),
        )  # fmt: skip
        second = [_normed(8, 24, 1, act=swish), _normed(24, 24, 3, 24, stride=2, act=swish)]
        gate = Excite(24, 8, nn.ReLU(), nn.Hardsigmoid())
        super().__init__(first, *second, gate, *_classifier(24, nn.Hardswish()))


class LikeRegNetY(nn.Sequential):
    """Grouped convolutions, a gate before the last one, and a ReLU behind the sum."""

    def __init__(self) -> None:
        relu = nn.ReLU(inplace=True)
        block = Block(
            _normed(16, 16, 1, act=relu), _normed(16, 16, 3, 2, act=relu),
            Excite(16, 4, nn.ReLU(), nn.Sigmoid()), _normed(16, 16, 1), act=relu,
        )  # fmt: skip
        super().__init__(_normed(8, 16, 3, stride=2, act=relu), block, *_classifier(16))
