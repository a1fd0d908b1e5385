# SPDX-License-Identifier: BSD-3-Clause
"""A network that is planned for several shapes."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import torch
from torch import nn

import torchalgo
from support.nets import arguments
from torchalgo._capture.shapes import Shapes

SHAPES = ((1, 3, 40, 40), (2, 3, 24, 64), (1, 3, 96, 32))


def tensor(*sizes: int) -> torch.Tensor:
    return torch.rand(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def optimize_for(model: nn.Module, *shapes: Any, **options: Any) -> torchalgo.Optimized:
    """Tuned, then applied with no verdict of the guard, so that every plan runs."""
    tuned = torchalgo.optimize(model, shapes=shapes, **arguments(**options))
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    return torchalgo.optimize(model, shapes=shapes, plan=plans, **arguments())


def nearest_by_brute_force(shapes: Shapes, planned: list[Shapes]) -> int:
    """By exact ratios: the sum of |log(a / b)| orders as the product of max(a, b) / min(a, b)."""

    def distance(other: Shapes) -> Fraction | float:
        if [len(sizes) for sizes in shapes] != [len(sizes) for sizes in other]:
            return math.inf
        pairs = [
            pair for a, b in zip(shapes, other, strict=True) for pair in zip(a, b, strict=True)
        ]
        filled = [(max(a, 1), max(b, 1)) for a, b in pairs]
        return math.prod((Fraction(max(p), min(p)) for p in filled), start=Fraction(1))

    return min(range(len(planned)), key=lambda i: distance(planned[i]))
