# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/check_training.py and benchmarks/loss_curves.py, on invented curves and a network."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from check_training import compare_gradients, noise, smooth
from loss_curves import EAGER, PLANNED, judge

STEPS = 60


def curves(shift: float) -> dict[str, list[float]]:
    """Falling losses that differ by noise, and planned runs that are shifted."""
    losses = {}
    for seed, run in enumerate((*PLANNED, *EAGER)):
        rng = random.Random(seed)
        own = shift if run in PLANNED else 0.0
        losses[run] = [5 / (1 + step) + 0.5 + own + rng.gauss(0, 0.05) for step in range(STEPS)]
    return losses


def test_a_planned_run_like_the_eager_ones_meets_both_goals() -> None:
    assert judge(curves(0.0))["met"] == {"distance": True, "final": True}


def test_a_shifted_curve_meets_no_goal_and_is_outside() -> None:
    found = judge(curves(0.3))
    assert found["met"] == {"distance": False, "final": False}
    assert found["inside"]["planned"] == 0
    assert 0.6 < sum(found["inside"][run] for run in EAGER) / len(EAGER) < 0.9


def test_differences_below_a_thousandth_are_allowed() -> None:
    losses = {run: [1.0 + 1e-9 * number] * STEPS for number, run in enumerate(EAGER)}
    losses |= {run: [1.0005] * STEPS for run in PLANNED}
    assert judge(losses)["met"] == {"distance": True, "final": True}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(8), nn.MaxPool2d(2)
        self.last = nn.Linear(8, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.pool(self.norm(self.conv(x))))
        return self.last(functional.max_pool2d(y, 2, stride=1).mean((2, 3)))


def test_the_smooth_variant_has_no_decisions() -> None:
    network = smooth(Small())
    assert isinstance(network.pool, nn.AvgPool2d)
    assert "relu(" not in network.code and ".max_pool2d(" not in network.code
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 1000)


@torch.no_grad()
def test_noise_has_the_size_that_is_asked_for_and_ends() -> None:
    conv, x = nn.Conv2d(3, 8, 3), torch.randn(2, 3, 16, 16)
    plain = conv(x)
    with noise(conv, 1e-2):
        off = conv(x) - plain
    assert 0.9e-2 < float(off.norm() / plain.norm()) < 1.1e-2
    assert torch.equal(conv(x), plain)


@pytest.mark.slow
def test_gradients_of_a_small_network_meet_the_goal() -> None:
    options = {"batch": 2, "size": 16, "batches": 2, "tune_s": 4.0, "max_rel_error": 1e-5}
    found = compare_gradients(smooth(Small().train()), options)
    assert (found["parameters"], found["missed"]["planned"]) == (5, 0)
    assert found["runs"] == {"planned": 2, "other": 0}
    assert 1e-7 < found["gradients"]["f64+1e-6"]["worst"] < 1e-4
    assert found["gradients"]["planned"]["worst"] < 1e-5
