# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of two models side by side."""

from __future__ import annotations

import torch
from torch import nn


def losses(model: nn.Module, steps: int, image: int = 32) -> list[float]:
    """The losses of a few steps of training on fixed data."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(4, 3, image, image, generator=generator)
    labels = torch.tensor([1, 2, 3, 4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
