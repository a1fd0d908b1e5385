# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own checks of our ops: schemas, gradients, fake tensors and AOTAutograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import schema_check_mode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import torchalgo
from support.nets import arguments, make_net
from torchalgo._run.exported import plan_object

pytestmark = pytest.mark.slow

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
# AOTAutograd does not take ops of others whose results are memory of their arguments.
ALL_CHECKS = (*CHECKS, "test_aot_dispatch_dynamic")


@pytest.fixture(autouse=True)
def objects_are_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's check of schemas takes an object of a C++ class for a list, and asks its length."""
    inner = schema_check_mode.is_iterable_of_tensors
    monkeypatch.setattr(
        schema_check_mode,
        "is_iterable_of_tensors",
        lambda value: not isinstance(value, torch.ScriptObject) and inner(value),
    )


class _Recorded(TorchDispatchMode):
    """Keeps the arguments of the first call of each of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "torchalgo":
            self.calls.setdefault(func, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class Net(torch.nn.Module):
    """Has parts for each planned op: joined and cut channels, resized images, additions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.left, self.right = torch.nn.Conv2d(32, 16, 1), torch.nn.Conv2d(32, 32, 3, padding=1)
        self.last = torch.nn.Conv2d(48, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y = torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], 1)
        y = torch.nn.functional.max_pool2d(self.last(y) + x, 2)
        a, b = y.chunk(2, 1)
        return torch.nn.functional.interpolate(a * torch.sigmoid(b), scale_factor=2.0)


def calls() -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    torch.manual_seed(0)
    recorded = _Recorded()
    with torch.no_grad():
        for net in (Net().eval(), make_net().eval()):
            x = torch.rand(1, 3, 24, 24)
            fast = torchalgo.optimize(net, x, **arguments(run_untimed=True))
            with recorded:
                fast.scripted(x)
    yield from ((op, *given) for op, given in recorded.calls.items())


@torch.no_grad()
def test_planned_ops() -> None:
    found = set()
    for op, args, kwargs in calls():
        is_alias = any(argument.alias_info is not None for argument in op._schema.arguments)
        opcheck(op, args, kwargs, test_utils=CHECKS if is_alias else ALL_CHECKS)
        found.add(op._schema.name)
    assert "torchalgo::run_conv" in found or "torchalgo::run_conv_out" in found
    assert len(found) >= 3


@torch.no_grad()
def test_ops_that_run_a_plan() -> None:
    x = torch.rand(1, 3, 24, 24)
    fast = torchalgo.optimize(make_net().eval(), x, **arguments(run_untimed=True))
    plan = plan_object(fast._results)
    for given in (x, torch.rand(2, 3, 20, 24)):
        opcheck(torch.ops.torchalgo.run_plan.default, ([given], plan), test_utils=ALL_CHECKS)
        opcheck(torch.ops.torchalgo.run_held_plan.default, ([given], plan.handle()))
    other = plan_object(fast._results)
    handle = other.handle()
    assert handle == other.handle() != plan.handle()
    assert torch.equal(torch.ops.torchalgo.run_held_plan([x], handle)[0], fast(x))
    del other
    with pytest.raises(RuntimeError, match=r"TA4303 .*compile again"):
        torch.ops.torchalgo.run_held_plan([x], handle)


def test_gradients_are_refused() -> None:
    x = torch.rand(1, 3, 24, 24)
    fast = torchalgo.optimize(make_net().eval(), x, **arguments(run_untimed=True))
    plan = plan_object(fast._results)
    with pytest.raises(RuntimeError, match=r"TA4306 .*no gradient"):
        torch.ops.torchalgo.run_plan([x.requires_grad_()], plan)
