# SPDX-License-Identifier: BSD-3-Clause
"""A model is captured by a trace or by a script. The one with more planned ops is taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from support.nets import run_plan
from torchalgo import Optimized
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.calls import as_tensor_model, bind_call
from torchalgo._plan.preparation import prepare_each


def problems(fast: Optimized) -> list[str]:
    return [node.problem for node in fast.plan.nodes if node.problem]


def is_right(fast: Optimized, model: nn.Module, *sizes: int) -> bool:
    x = torch.randn(*sizes)
    return output_error(fast(x), model(x)) <= 1e-5


class Looped(nn.Module):
    """Checks sizes, and has a loop, which the planner leaves alone in a script."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.wide = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[1] == 3, "expected three channels")
        y = self.stem(x)
        for _ in range(x.shape[1] - 1):
            y = self.wide(y)
        return self.out(y)


def test_a_trace_is_taken_if_more_of_it_is_planned() -> None:
    model, x = Looped().eval(), torch.randn(1, 3, 12, 12)
    fast = run_plan(model, x)
    assert sum(text.startswith("fwd") for text in problems(fast)) == 4
    assert len(problems(run_plan(torch.jit.script(model), x))) == 2
    for sizes in ((1, 3, 12, 12), (3, 3, 12, 12), (2, 3, 7, 21)):
        assert is_right(fast, model, *sizes)
    assert not fast.original_runs  # the symbolic run proves that all these sizes are free


class Sized(nn.Module):
    """Takes more steps for wide images."""

    def __init__(self, reads_values: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.reads_values = reads_values

    def forward(self, given: Tensor) -> Tensor:
        x = self.first(given)
        for _ in range(x.shape[3] // 8):
            x = self.second(x).relu()
        if self.reads_values and bool(given.mean() > 0):
            x = x + 1
        return x


def test_a_trace_is_not_used_at_sizes_that_take_another_path() -> None:
    model = Sized(reads_values=False).eval()
    fast = run_plan(model, torch.randn(1, 3, 12, 12))
    assert sum(text.startswith("fwd") for text in problems(fast)) == 2
    assert is_right(fast, model, 2, 3, 5, 15)
    assert not fast.original_runs
    with pytest.warns(UserWarning, match="the original model ran"):
        assert is_right(fast, model, 1, 3, 12, 16)
    assert sum(fast.original_runs.values()) == 1


def test_a_trace_of_a_model_that_reads_values_is_not_taken() -> None:
    model = Sized(reads_values=True).eval()
    fast = run_plan(model, torch.randn(1, 3, 12, 12))
    assert len(problems(fast)) == 1  # the first convolution: the others are in a loop
    for sizes in ((1, 3, 12, 12), (1, 3, 12, 20)):
        for sign in (-1, 1):
            x = sign * torch.rand(sizes)
            assert output_error(fast(x), model(x)) <= 1e-5
    assert not fast.original_runs


class WideReadsValues(nn.Module):
    """Reads a value, but only of wide images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, given: Tensor) -> Tensor:
        x = given
        for _ in range(given.shape[1] - 1):
            x = self.conv(x)
        if given.shape[3] > 16 and bool(given.mean() > 0):
            x = x + 1
        return x


def test_at_other_sizes_a_trace_is_not_used_without_the_proof() -> None:
    model = WideReadsValues().eval()
    fast = run_plan(model, torch.randn(1, 3, 12, 12))
    assert len(problems(fast)) == 2
    with pytest.warns(UserWarning, match="the original model ran"):
        for sign in (-1, 1):  # the first call has the outputs of the plan's trace
            x = sign * torch.rand(1, 3, 12, 20)
            assert output_error(fast(x), model(x)) <= 1e-5


class MoreOfWide(nn.Module):
    """A loop for wide images only: the trace of narrow ones has no more ops than the script."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, given: Tensor) -> Tensor:
        x = self.first(given)
        if given.shape[3] > 16:
            for _ in range(given.shape[1] - 1):
                x = self.second(x)
        return x


def test_a_trace_has_sizes_of_its_own_beside_a_script() -> None:
    model = MoreOfWide().eval()
    models = [
        as_tensor_model(bind_call(model, (torch.rand(1, 3, 8, width),), {})) for width in (12, 20)
    ]
    prepared = prepare_each(models, lambda text: None)
    assert [each.is_traced for each in prepared] == [False, True]
    assert prepared[1].dims[0][3].least == 17


@pytest.mark.parametrize("size", [5, 12, 30])
def test_a_script_is_kept_if_as_much_of_it_is_planned(size: int) -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[2] < 4:
                raise ValueError("expected four rows or more")
            return self.conv(x).relu()

    model = Checked().eval()
    fast = run_plan(model, torch.randn(1, 3, 12, 12))
    assert is_right(fast, model, 1, 3, size, size)
    assert not fast.original_runs
