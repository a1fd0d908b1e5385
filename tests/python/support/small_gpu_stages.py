# SPDX-License-Identifier: BSD-3-Clause
"""The stages of gpu_check.py with small layers and networks, which a CPU can compute."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gpu_gaps
import gpu_mission
import gpu_nets
import gpu_problems
import gpu_tables
import gpu_time
from torchalgo._ir.bounds import family_of


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


class CountingMeter:
    """A meter that counts a joule in each reading."""

    name, covers, interval_s, step_uj = "counting", "nothing", 0.001, 1.0
    uj = 0

    def read_uj(self) -> int:
        self.uj += 1_000_000
        return self.uj


gpu_gaps.meter_here = CountingMeter
gpu_gaps.ROTATED = 1
gpu_time.HOST_OPS, gpu_time.HOST_CALLS = 2, 2
gpu_gaps.FUSED = ("+bias+relu", "+bias+add+relu")

if flag := os.environ.get("SMALL_GPU_STAGES_KILL"):
    measure = gpu_tables.Costs.measure

    def measure_and_die(self: gpu_tables.Costs, primitives: Any) -> None:
        """Kills the process once, when it has measured two operations."""
        measure(self, primitives)
        if not Path(flag).exists() and len({family_of(key) for key in self.known}) == 2:
            Path(flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    gpu_tables.Costs.measure = measure_and_die  # type: ignore[method-assign]

from gpu_stages import STAGES as ALL  # noqa: E402

# A stage runs until its budget ends. The others get time for a slow machine. The stage cpu is left
# out: it would measure this machine for a minute.
BUDGETS_S = {"plans": 20}
STAGES = [
    dataclasses.replace(stage, budget_s=BUDGETS_S.get(stage.name, 4 * stage.budget_s), quiet_s=600)
    for stage in ALL
    if stage.name != "cpu"
]
