# SPDX-License-Identifier: BSD-3-Clause
"""Models that tests train, and steps of them beside eager ones in f32 and f64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchalgo

SHAPE = (2, 8, 16, 16)
Loss = Callable[[Any], Tensor]


class Residual(nn.Module):
    """Convolutions with and without bias, batch norms, and a sum that may be in place."""

    def __init__(self, c: int = 8, *, inplace: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=inplace)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.relu(y)


class Mixed(nn.Module):
    """One of each: strides, pools, a concatenation, a residual block, dropout and a classifier."""

    def __init__(self, *, inplace: bool = True) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=inplace)
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.block = Residual(8, inplace=inplace)
        self.left = nn.Conv2d(8, 12, 1)
        self.right = nn.Conv2d(8, 4, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.ReLU6()
        self.average = nn.AvgPool2d(2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.pool(self.stem(x)))
        x = self.act(self.norm(torch.cat([self.left(x), self.right(x)], 1)))
        x = self.mean(self.average(x)).flatten(1)
        return self.fc(self.dropout(x))


class Chain(nn.Sequential):
    """The smallest net with a batch norm: one region."""

    def __init__(self, c: int = 8) -> None:
        super().__init__(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())


def images(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or SHAPE, generator=generator)


def weighted(y: Any) -> Tensor:
    """Returns a loss to which each number of the result contributes with another weight."""
    results = [y] if isinstance(y, Tensor) else list(y.values() if isinstance(y, dict) else y)
    parts = []
    for number, each in enumerate(results):
        generator = torch.Generator().manual_seed(number)
        parts.append((each * torch.randn(each.shape, generator=generator).to(each)).sum())
    return torch.stack(parts).sum()


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Returns arguments of optimize_training that make a plan soon, which always runs."""
    settings = torchalgo.Settings(
        cost_db=tmp_path / "costs.sqlite3", progress=False, run_untimed=True
    )
    return {"budget_s": 2.0, "settings": settings, **more}


def error(found: Tensor, exact: Tensor, least: float = 0.0) -> float:
    """Returns the relative L2 error; numbers below `least` count as `least`."""
    found, exact = found.detach().double(), exact.detach()
    norm = exact.norm().clamp_min(max(1e-12, least * exact.numel() ** 0.5))
    return float((found - exact).norm() / norm)


@dataclass
class Trio:
    """A model with a plan, and copies of it: eager in f32, and eager in f64."""

    planned: torchalgo.TrainingModule
    eager: nn.Module
    exact: nn.Module

    def each(self) -> list[tuple[nn.Module, torch.dtype]]:
        double = torch.float64
        return [(self.planned, torch.float32), (self.eager, torch.float32), (self.exact, double)]

    def step(self, *xs: Tensor, loss: Loss = weighted, seed: int = 3) -> list[Tensor]:
        """Runs forward and backward of all three. Returns the losses."""
        losses = []
        for model, dtype in self.each():
            torch.manual_seed(seed)
            losses.append(loss(model(*(x.to(dtype) for x in xs))))
            losses[-1].backward()
        return losses

    def check_gradients(self, bound: float = 1e-4) -> None:
        named = [dict(model.named_parameters()) for model, _ in self.each()]
        for name in named[0]:
            found, eager, exact = (each[name].grad for each in named)
            assert (found is None) == (exact is None), name
            if found is not None:
                assert found.shape == exact.shape
                if exact.norm() < 1e-9 * max(1.0, float(named[2][name].detach().norm())):
                    assert found.norm() < 1e-3, name  # zero but for rounding: a bias before a norm
                else:
                    assert error(found, exact) <= max(bound, 3 * error(eager, exact)), name

    def errors(self) -> tuple[list[float], list[float]]:
        """Returns the errors of all gradients, by the plan and by eager PyTorch."""
        named = [dict(model.named_parameters()) for model, _ in self.each()]
        grads = [[each[name].grad for each in named] for name in named[0]]
        present = [(found, eager, exact) for found, eager, exact in grads if found is not None]
        return [error(a, c) for a, _, c in present], [error(b, c) for _, b, c in present]

    def check_buffers(self) -> None:
        named = [dict(model.named_buffers()) for model, _ in self.each()]
        for name in named[0]:
            found, eager, exact = (each[name] for each in named)
            if found.dtype is torch.int64:
                assert torch.equal(found, exact), name
            else:  # a mean may be zero but for rounding of numbers around 1
                ours, eagers = (error(each, exact, least=0.1) for each in (found, eager))
                assert ours <= max(1e-5, 3 * eagers), name

    def check_step(self, *xs: Tensor, loss: Loss = weighted) -> None:
        """Compares a step: the losses, all gradients and all statistics."""
        found, eager, exact = (each.detach() for each in self.step(*xs, loss=loss))
        allowed = max(1e-4 * max(1.0, float(exact.abs())), 3 * abs(float(eager - exact)))
        assert abs(float(found - exact)) <= allowed
        self.check_gradients()
        self.check_buffers()


def trio(model: nn.Module, x: Tensor, tmp_path: Path, **more: Any) -> Trio:
    """Plans a model in train mode. The eager copies are made before."""
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    return Trio(torchalgo.optimize_training(model, (x,), **options(tmp_path, **more)), eager, exact)


def check_one_region(both: Trio, x: Tensor, steps: int = 1) -> list[str]:
    """Compares steps of a model that is one region. Returns the problems of its plan."""
    for _ in range(steps):
        both.check_step(x)
    (plan,) = both.planned.plan.regions
    assert both.planned.planned_runs == steps and both.planned.original_runs.total() == 0
    return [node.problem for node in plan.nodes]
