# SPDX-License-Identifier: BSD-3-Clause
"""Activations that a model writes down itself are planned under their names."""

from __future__ import annotations

import math
import re
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
    "mish": ("mish", lambda x: x * torch.tanh(F.softplus(x))),
    "mish, turned": ("mish", lambda x: F.softplus(x).tanh() * x),
    "gelu": ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu, turned": ("gelu", lambda x: (torch.erf(x * math.sqrt(0.5)) + 1.0) * 0.5 * x),
    "gelu, halved last": ("gelu", lambda x: x * (1 + torch.erf(x * 0.70710677)) * 0.5),
}


def erf_twice(x: Tensor) -> Tensor:
    gate = torch.erf(x / math.sqrt(2))
    return 0.5 * x * (1 + gate) + gate


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
    "another softplus": lambda x: x * torch.tanh(F.softplus(x, beta=2.0)),
    "another half": lambda x: 0.4 * x * (1 + torch.erf(x / math.sqrt(2))),
    "another root": lambda x: 0.5 * x * (1 + torch.erf(x / 1.4)),
    "erf of another tensor": lambda x: 0.5 * x * (1 + torch.erf(x.abs() / math.sqrt(2))),
    "another erf": lambda x: 0.5 * x * (2 + torch.erf(x / math.sqrt(2))),
    "erf with two readers": erf_twice,
    "softplus of another tensor": lambda x: x * torch.tanh(F.softplus(x + 1)),
}

# The ops of torch, and the activations that plan them.
KNOWN: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "leaky_relu, default": ("leaky_relu0.01", F.leaky_relu),
    "leaky_relu, module": ("leaky_relu0.2", nn.LeakyReLU(0.2)),
    "leaky_relu, in place": ("leaky_relu0.1", nn.LeakyReLU(0.1, inplace=True)),
    "leaky_relu, negative slope": ("leaky_relu-0.5", lambda x: F.leaky_relu(x, -0.5)),
    "gelu, in place": ("gelu", lambda x: torch.ops.aten.gelu_(x)),
    "mish": ("mish", nn.Mish()),
    "mish, in place": ("mish", lambda x: F.mish(x, inplace=True)),
    "elu": ("elu1", F.elu),
    "elu, in place": ("elu0.5", nn.ELU(0.5, inplace=True)),
    "tanh": ("tanh", torch.tanh),
    "tanh, in place": ("tanh", lambda x: x.tanh_()),
    "hardtanh": ("clamp-1x1", nn.Hardtanh()),
    "clamp": ("clamp-0.5x20", lambda x: x.clamp(-0.5, 20)),
    "clamp from 0": ("relu", lambda x: x.clamp(min=0)),
    "clamp to 6": ("relu6", lambda x: x.clamp(0, 6)),
}

LEFT: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp above 0": lambda x: x.clamp(0.5, 2),  # pad lanes would not stay zero
    "clamp on one side": lambda x: x.clamp(max=2),
    "selu": F.selu,
    "large slope": lambda x: F.leaky_relu(x, 1e7),
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
    others = ("fwd", "scale", "shift", "add")
    return {p.split("_f32")[0] for p in problems if not p.startswith(others)}


@pytest.mark.parametrize("name", NAMED)
def test_a_written_activation_has_its_name(name: str) -> None:
    expected, function = NAMED[name]
    assert activations_of(function) == {expected}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_one_stays(name: str) -> None:
    assert not {"silu", "hardswish", "hardsigmoid", "mish", "gelu"} & activations_of(OTHERS[name])


@pytest.mark.parametrize("name", KNOWN)
def test_an_activation_of_torch_is_planned(name: str) -> None:
    expected, function = KNOWN[name]
    assert activations_of(function) == {expected}


@pytest.mark.parametrize("end", ["", "_"])
@pytest.mark.parametrize("name", _C.activation_names())
def test_each_activation_of_the_table_is_planned_also_in_place(name: str, end: str) -> None:
    operator = getattr(torch.ops.aten, name.removesuffix("_tanh") + end)
    arguments = {"clamp": {"min": -1, "max": 2}, "gelu_tanh": {"approximate": "tanh"}}.get(name, {})
    (found,) = activations_of(lambda x: operator(x, **arguments))
    assert re.fullmatch(rf"{name}[-\d.x]*", found)


@pytest.mark.parametrize("name", LEFT)
def test_what_no_kernel_computes_is_left_to_torch(name: str) -> None:
    assert activations_of(LEFT[name]) == set()


class Modules(nn.Module):
    """A network whose activations are modules, so that it can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.LeakyReLU(0.1), nn.Conv2d(6, 6, 3), nn.Mish(),
            nn.Conv2d(6, 6, 1), nn.ELU(), nn.Conv2d(6, 6, 1), nn.Tanh(),
            nn.Conv2d(6, 6, 1), nn.Hardtanh(-2.0, 2.0),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("capture", ["trace", "script"])
def test_random_plans_with_these_activations_equal_the_model(capture: str) -> None:
    torch.manual_seed(0)
    model, x = Modules().eval(), torch.randn(1, 3, 9, 8)
    imported = _C.import_graph(freeze(model, (x,), capture)._c, (x,))
    expected = {"leaky_relu0.1", "mish", "elu1", "tanh", "clamp-2x2"}
    problems = [node.problem for node in imported.graph.nodes if node.problem]
    assert {p.split("_f32")[0] for p in problems} == {"fwd", *expected}
    for seed in range(4):
        module = rewrite(imported, any_plan(imported.graph, seed))
        for shape in ((1, 3, 9, 8), (2, 3, 12, 7)):
            y = torch.randn(shape)
            with torch.no_grad():
                assert_close(module(y), model, (y,))
