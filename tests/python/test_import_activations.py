# SPDX-License-Identifier: BSD-3-Clause
"""Activations that a model writes down itself are planned under their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from support.graph_models import freeze
from support.random_plans import any_plan, assert_close, rewrite
from torchalgo import _C


class Written(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.conv(4.0 * x))


NAMED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "silu": ("silu", lambda x: x * torch.sigmoid(x)),
    "silu, turned": ("silu", lambda x: x.sigmoid() * x),
    "hardsigmoid": ("hardsigmoid", lambda x: F.relu6(x + 3.0) / 6.0 + x),
    "hardsigmoid, clamped": ("hardsigmoid", lambda x: (3 + x).clamp(0, 6) * (1 / 6) + x),
    "hardswish": ("hardswish", lambda x: x * (F.relu6(x + 3) / 6)),
    "hardswish, divided last": ("hardswish", lambda x: x * F.hardtanh(x + 3, 0.0, 6.0) / 6.0),
    "hardswish of hardsigmoid": ("hardswish", lambda x: x * F.hardsigmoid(x)),
}


def gate_twice(x: Tensor) -> Tensor:
    gate = x.sigmoid()
    return x * gate + gate


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "another sum": lambda x: F.relu6(x + 2.0) / 6.0,
    "another divisor": lambda x: F.relu6(x + 3.0) / 3.0,
    "another bound": lambda x: (x + 3.0).clamp(0, 5) / 6.0,
    "another factor": lambda x: x.abs() * x.sigmoid(),
    "two readers": gate_twice,
    "integers": lambda x: x + x.int() * x.int().sigmoid(),
    "rounded": lambda x: torch.div(F.relu6(x + 3.0), 6.0, rounding_mode="floor") + x,
}


def activations_of(function: Callable[[Tensor], Tensor]) -> set[str]:
    """The activations among the problems, without sums; checks the values for two input sizes."""
    torch.manual_seed(0)
    model, x = Written(function).eval(), torch.rand(1, 4, 6, 5)
    imported = _C.import_graph(freeze(model, (x,), "trace")._c, (x,))
    module = rewrite(imported, any_plan(imported.graph, 1))
    for shape in ((1, 4, 6, 5), (2, 4, 5, 8)):
        y = torch.rand(shape)
        with torch.no_grad():
            assert_close(module(y), model, (y,))
    problems = [node.problem for node in imported.graph.nodes if node.problem]
    return {p.split("_")[0] for p in problems if not p.startswith(("fwd", "scale", "shift", "add"))}


@pytest.mark.parametrize("name", NAMED)
def test_a_written_activation_has_its_name(name: str) -> None:
    expected, function = NAMED[name]
    assert activations_of(function) == {expected}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_one_stays(name: str) -> None:
    assert not {"silu", "hardswish", "hardsigmoid"} & activations_of(OTHERS[name])
