# SPDX-License-Identifier: BSD-3-Clause
"""Small models, and what tests do with them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn

import torchalgo
from torchalgo._base.compare_outputs import output_error
from torchalgo._cli.demo import randomize_batch_norms


class Block(nn.Module):
    """A residual block as in ResNet."""

    def __init__(self, c: int, k: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or c != k:
            self.down = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return self.relu(y)


class Net(nn.Module):
    """A ResNet in small: channels that are no multiple of 16 included."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.layer1 = nn.Sequential(Block(16, 16), Block(16, 20))
        self.layer2 = nn.Sequential(Block(20, 32, 2))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean((2, 3)))


def make_net() -> Net:
    torch.manual_seed(0)
    net = Net()
    randomize_batch_norms(net)
    return net.eval()


def net_factory() -> Net:
    """For `torchalgo optimize nets:net_factory`."""
    return make_net()


def fp64_error(model: nn.Module, fast: nn.Module, *inputs: Any) -> float:
    """Relative L2 of `fast` to `model` in fp64."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*[x.double() for x in inputs])
        return output_error(fast(*inputs), exact)


def arguments(**options: Any) -> dict[str, Any]:
    """Returns arguments of optimize: its own ones, and Settings of all others, without progress."""
    names = {field.name for field in dataclasses.fields(torchalgo.Settings)}
    rare = {name: value for name, value in options.items() if name in names}
    own = {name: value for name, value in options.items() if name not in names}
    return {**own, "settings": torchalgo.Settings(**{"progress": False, **rare})}


def run_plan(model: nn.Module, *inputs: Any, **options: Any) -> torchalgo.Optimized:
    """optimize without the guard: tunes, then applies the optimal plan with no verdict in it."""
    tuned = torchalgo.optimize(model, inputs, **arguments(**options))
    plan = dataclasses.replace(tuned.plan, guard=None)
    return torchalgo.optimize(model, inputs, plan=plan, settings=torchalgo.Settings(progress=False))
