# SPDX-License-Identifier: BSD-3-Clause
"""Small models around one layer whose primitive is fixed, by name; and networks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from board_networks import board, build, build_input
from networks import network_name, random_input, random_network


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.factors = nn.Conv2d(480, 20, 1), nn.Conv2d(20, 480, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.factors(y))


class Halves(nn.Module):
    """Cheap convolutions of the halves of the channels and of both."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(nn.Conv2d(32, 32, 1) for _ in range(2))
        self.last = nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.relu(x).chunk(2, 1)
        joined = torch.cat([half(part) for half, part in zip(self.halves, parts, strict=True)], 1)
        result: Tensor = self.last(joined)
        return result


class Layer(NamedTuple):
    """A model around a layer, the sizes of an image, and the primitive that is fixed."""

    make: Callable[[], nn.Module]
    sizes: tuple[int, ...]
    overrides: dict[str, str]
    layout: str = ""  # of the whole model; "": as the plan has it


LAYERS = {
    "linear": Layer(
        lambda: nn.Sequential(nn.Conv2d(16, 16, 1), nn.Flatten(), nn.Linear(1024, 1000)),
        (16, 8, 8), {"2": "cpu.linear"},
    ),
    "squeeze_excite": Layer(SqueezeExcite, (480, 14, 14), {"mean*": "cpu.squeeze_excite"}),
    "view_slice": Layer(Halves, (64, 28, 28), {"narrow*": "view.slice"}),
    "view_concat": Layer(Halves, (64, 28, 28), {"cat*": "view.concat"}),
    **{
        f"{name}_{layout}": Layer(Halves, (64, 28, 28), {pattern: f"cpu.{name}"}, layout)
        for name, pattern in {"slice": "narrow*", "concat": "cat*"}.items()
        for layout in ("nchw", "nhwc")
    },
}  # fmt: skip


def case_name(text: str) -> str:
    """The type of an argument: a layer, or a network of the board or of torchvision."""
    return text if text in LAYERS or text in board() else network_name(text)


def model_of(name: str) -> nn.Module:
    """Returns a layer's model or a network, in eval mode. Downloads nothing."""
    if name not in LAYERS:
        return build(name) if name in board() else random_network(name)
    torch.manual_seed(0)
    return LAYERS[name].make().eval()


def input_of(name: str, batch: int = 1) -> Tensor:
    if name not in LAYERS:
        return (
            build_input(name, batch=batch) if name in board() else random_input(name, None, batch)
        )
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, *LAYERS[name].sizes, generator=generator) * 2 - 1
