# SPDX-License-Identifier: BSD-3-Clause
"""The small network of the tests, a plan for it, and what it computes in f64."""

from __future__ import annotations

import copy
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from campaign import FindingError

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "python"))
PLAN = TESTS / "golden/small_0.1.0.plan.json"
SIZES = (24, 24), (16, 20), (9, 33)


@functools.cache
def model() -> nn.Module:
    from support.nets import make_net

    return make_net()


@functools.cache
def inputs_and_outputs() -> list[tuple[Tensor, Tensor]]:
    """Pairs of an input and its output in f64; the first input has the planned sizes."""
    torch.manual_seed(1)
    exact = copy.deepcopy(model()).double()
    inputs = [torch.randn(1 + i, 3, *size) for i, size in enumerate(SIZES)]
    with torch.no_grad():
        return [(x, exact(x.double())) for x in inputs]


def check_outputs(fast: Any, errors: tuple[type[Exception], ...]) -> None:
    """Raises FindingError if an output is wrong; errors of the given types are allowed."""
    for x, expected in inputs_and_outputs():
        try:
            with torch.no_grad():
                y = fast(x)
        except errors:
            continue
        if not isinstance(y, Tensor) or y.shape != expected.shape:
            raise FindingError(f"the output for {tuple(x.shape)} has another type or shape")
        error = ((y.double() - expected).norm() / expected.norm()).item()
        if not error <= 1e-4:
            raise FindingError(f"the output for {tuple(x.shape)} has an error of {error:.2g}")
