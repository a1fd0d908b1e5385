# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small residual network twice, eager and with a plan, on the same synthetic images.

    python examples/training/train.py --steps 50
    python examples/training/train.py --steps 5 --width 8 --batch 4 --budget 5  # a quick look

The images have the size of CIFAR-10. Each class has a pattern of its own, so that the loss falls.
Both runs begin with the same weights and see the same batches.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchalgo

CLASSES = 10
IMAGE = (3, 32, 32)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c != k:
            self.shortcut = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


def make_model(width: int) -> nn.Module:
    """Returns a residual network with three stages of two blocks."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        Block(width, width, 1),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 2 * width, 1),
        Block(2 * width, 4 * width, 2),
        Block(4 * width, 4 * width, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(4 * width, CLASSES),
    )


def make_batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Returns batches of noisy copies of one pattern per class, and their classes."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(CLASSES, *IMAGE, generator=generator)
    batches = []
    for _ in range(count):
        classes = torch.randint(CLASSES, (size,), generator=generator)
        noise = torch.randn(size, *IMAGE, generator=generator)
        batches.append((patterns[classes] + noise, classes))
    return batches


@dataclass(frozen=True)
class Run:
    """The losses of all steps, and the speed without the first step."""

    losses: list[float]
    images_per_s: float


def train(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Run:
    """Trains with SGD. This loop knows nothing of plans."""
    torch.manual_seed(2)  # of dropout
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    losses, images, begin = [], 0, time.perf_counter()
    for number, (x, classes) in enumerate(batches):
        if number == 1:
            images, begin = 0, time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        images += len(x)
    return Run(losses, images / (time.perf_counter() - begin))


def main(arguments: Sequence[str] | None = None) -> tuple[Run, Run]:
    parser = argparse.ArgumentParser(description="Trains with and without a plan.")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
    parser.add_argument("--budget", type=float, default=90, help="seconds for making the plan")
    args = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = make_model(args.width)
    eager = copy.deepcopy(model)
    batches = make_batches(args.steps, args.batch)

    planned = torchalgo.optimize_training(model, (batches[0][0],), budget_s=args.budget)
    runs = train(eager, batches), train(planned, batches)
    print(f"{'step':>6} {'loss eager':>12} {'planned':>12}")
    for step in range(0, args.steps, max(1, args.steps // 10)):
        print(f"{step:>6} {runs[0].losses[step]:>12.4f} {runs[1].losses[step]:>12.4f}")
    for name, run in zip(("eager", "planned"), runs, strict=True):
        print(f"{name}: {run.images_per_s:.1f} images/s")
    print(
        f"regions: {planned.planned_runs} runs of plans, {planned.original_runs.total()} of PyTorch"
    )
    return runs


if __name__ == "__main__":
    main()
