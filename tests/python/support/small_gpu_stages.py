# SPDX-License-Identifier: BSD-3-Clause
"""The stages of gpu_check.py with small layers and networks, which a CPU can compute."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

import gpu_mission
import gpu_nets
import gpu_problems


def small(layer: tuple[int, ...]) -> tuple[int, ...]:
    c, h, k, r, stride, pad, groups = layer
    c, h, k = min(c, 15 if c % 2 else 16), min(h, 9), min(k, 17 if k % 2 else 16)
    return c, h, k, r, stride, pad, min(groups, c if groups == layer[0] else 4)


def small_net(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(8, 16, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).eval()  # fmt: skip


gpu_problems.LAYERS.update({key: small(layer) for key, layer in gpu_problems.LAYERS.items()})  # type: ignore[misc]
gpu_nets.make_net = small_net
gpu_mission.CHANNELS, gpu_mission.SIDE = 8, 7

from gpu_stages import STAGES as ALL  # noqa: E402

# Two stages run until their budgets end. The others get time for a slow machine.
BUDGETS_S = {"plans": 20, "layers": 20}
STAGES = [
    dataclasses.replace(stage, budget_s=BUDGETS_S.get(stage.name, 4 * stage.budget_s))
    for stage in ALL
]
