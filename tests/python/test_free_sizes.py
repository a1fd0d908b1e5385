# SPDX-License-Identifier: BSD-3-Clause
"""Which dimensions of a model's inputs are free, and in which ranges."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

from support.small_models import FUNCTIONS, make, rand
from torchalgo._capture.free_sizes import look_at, probe_sizes
from torchalgo._ir.plan import PlanDim


def dims_of(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[list[PlanDim]]:
    seen = look_at(model, inputs)
    assert seen.dims is not None, seen.why
    return seen.dims


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_dimension_is_free_unless_python_code_reads_it(name: str) -> None:
    function, pinned = FUNCTIONS[name]
    (dims,) = dims_of(make(function), (rand(1, 3, 16, 24),))
    sizes = (1, 3, 16, 24)
    for letter, dim, size in zip("nchw", dims, sizes, strict=True):
        if letter in pinned:
            assert dim == PlanDim("", size, size), letter
        else:
            assert dim.name, letter
            assert dim.least <= 4, letter
            assert dim.most is None, letter


def test_a_comparison_with_a_bound_keeps_the_range_in_which_it_is_true() -> None:
    def bounded(y: torch.Tensor) -> torch.Tensor:
        return y + 1 if 12 <= y.shape[2] < 100 else y

    (dims,) = dims_of(make(bounded), (rand(2, 3, 16, 24),))
    assert dims[2] == PlanDim("0.2", 12, 99)
    (dims,) = dims_of(make(lambda y: y + min(y.shape[3], 50)), (rand(2, 3, 16, 24),))
    assert dims[3] == PlanDim("0.3", 1, 50)


def test_what_follows_a_branch_on_a_pinned_batch_is_seen() -> None:
    """The symbolic run has a batch of 2: the planned one takes another path, which counts."""

    def nested(y: torch.Tensor) -> torch.Tensor:
        if y.shape[0] == 1 and y.shape[2] > 10:
            return y + 1
        return y

    (dims,) = dims_of(make(nested), (rand(1, 3, 16, 24),))
    assert dims[0] == PlanDim("", 1, 1)
    assert dims[2] == PlanDim("0.2", 11, None)


def test_dimensions_that_must_be_equal_have_one_name() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, y], 1)

    first, second = dims_of(Two().eval(), (rand(2, 3, 8, 9), rand(2, 4, 8, 9)))
    assert [dim.name for dim in first] == ["0.0", "0.1", "0.2", "0.3"]
    assert [dim.name for dim in second] == ["0.0", "1.1", "0.2", "0.3"]


def test_a_symbolic_run_leaves_no_fake_tensor_in_the_model() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: torch.Tensor | None = None
            self.all: dict[str, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.all["x"] = x * 2
            return self.last

    model = Caching().eval()
    look_at(model, (rand(1, 3, 8, 8),))
    assert model.last is None
    assert not model.all


def test_a_symbolic_run_that_fails_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class PadsWhatIsPositive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            positive = x[x > 0].view(1, 1, 1, -1)
            return functional.pad(positive, (0, 1, 0, 1), mode="replicate")

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        assert look_at(PadsWhatIsPositive().eval(), (rand(1, 3, 8, 9),)).dims is None
    finally:
        logger.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_probe_has_other_sizes_where_they_are_free() -> None:
    free, pinned = PlanDim("0.0", 1, None), PlanDim("", 3, 3)
    bounded = PlanDim("0.2", 10, 11)
    assert probe_sizes([[free, pinned, bounded]], ((1, 3, 10),)) == ((2, 3, 11),)
    assert probe_sizes([[pinned]], ((3,),)) is None
