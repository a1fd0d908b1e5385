# SPDX-License-Identifier: BSD-3-Clause
"""Each candidate in a coarser type, in a whole model: no NaN and no overflow is lost."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.random_plans import rewrite
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._capture.freeze import freeze_model

HAS_BF16 = bool(_C.cpu_device().bf16_isa)
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "3e38": 3e38, "1e-40": 1e-40}


class Blocks(nn.Module):
    """One of each kind of layer that may have a coarser type. Returns the result of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3)
        self.a = nn.Conv2d(32, 32, 3, padding=1)
        self.b = nn.Conv2d(32, 32, 1)
        self.expand = nn.Conv2d(32, 64, 1)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.project = nn.Conv2d(64, 32, 1)
        self.norm = nn.BatchNorm2d(64)
        self.grouped = nn.Conv2d(64, 64, 3, padding=1, groups=4)
        self.squeeze = nn.Conv2d(64, 8, 1)
        self.excite = nn.Conv2d(8, 64, 1)
        self.head = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        residual = torch.relu(self.b(torch.relu(self.a(x))) + x)
        wide = functional.relu6(self.depthwise(functional.relu6(self.expand(residual))))
        mobile = residual + self.project(wide)
        joined = torch.cat([mobile, functional.avg_pool2d(mobile, 3, 1, 1)], 1)
        normed = functional.hardswish(self.grouped(torch.relu(self.norm(joined))))
        large = functional.interpolate(normed, scale_factor=2)
        gate = torch.relu(self.squeeze(normed.mean((2, 3), keepdim=True)))
        scaled = normed * torch.sigmoid(self.excite(gate))
        y = self.head(functional.adaptive_avg_pool2d(scaled, 1).flatten(1))
        return [residual, mobile, joined, normed, large, scaled, y]


def blocks() -> Blocks:
    torch.manual_seed(6)
    return Blocks().eval()


X = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(7))


def imported(model: nn.Module, x: Tensor) -> tuple[_C.Imported, _C.Candidates]:
    found = _C.import_graph(freeze_model(model, (x,))._c, (x,))
    return found, _C.find_candidates(found.graph, coarse_types=True)


def rows(candidates: _C.Candidates) -> dict[str, _C.Candidate]:
    """Returns the candidates in coarser types, one of each primitive and kind of operation."""
    found: dict[str, _C.Candidate] = {}
    for own in candidates.by_anchor:
        for c in own:
            if _C.rounds_coarsely(c.problem, c.primitive):
                kind, _, rest = c.problem.partition("_")
                groups = re.search(r"_g(4|64)", rest)
                kind += "+add" * ("+add" in rest) + (groups[0] if groups else "")
                found.setdefault(f"{c.primitive!r} of {kind}", c)
    return found


IMPORTED, FOUND = imported(blocks(), X)
ROWS = rows(FOUND)


def forced(row: _C.Candidate, model: _C.Imported, found: _C.Candidates) -> nn.Module:
    """Returns the model whose only own algorithm is `row`. The rest is PyTorch's, in nchw."""

    def allow(c: _C.Candidate) -> bool:
        if c.covers == row.covers and c.problem == row.problem:
            return repr(c.primitive) == repr(row.primitive)
        return c.primitive.name.startswith("aten.") and c.primitive.src == c.primitive.dst == "nchw"

    transforms = _C.transform_candidates(model.graph, found)
    costs = _C.CostTable()
    while True:
        plan, wanted = _C.make_plan(model.graph, found, transforms, costs, allow=allow)
        if not wanted:
            break
        for key in wanted:
            is_change = key.problem.startswith("transform_") and "aten" not in key.primitive
            is_row = key.problem == row.problem and key.primitive == row.primitive.name
            steps = 1 + key.problem.count("+")  # no fusion is worth more than the row
            costs.set(key, 1 if is_change else 10 if is_row else steps * 10**6, "measured")
    chosen = {(node.problem, repr(node.primitive)) for node in plan.nodes}
    assert (row.problem, repr(row.primitive)) in chosen
    return rewrite(model, plan)


def test_there_are_rows_to_test() -> None:
    kinds = {name.partition(" of ")[2] for name in ROWS}
    assert "linear" in kinds
    if HAS_BF16:
        assert kinds >= {
            "fwd",
            "fwd+add",
            "fwd_g4",
            "fwd_g64",
            "chain_g64",
            "add",
            "mul",
            "concat",
            "relu",
        }
        assert kinds >= {"maxpool", "avgpool", "nearest", "hardswish"}


@torch.no_grad()
@pytest.mark.parametrize("name", ROWS)
def test_no_special_value_is_lost(name: str) -> None:
    fast, exact = forced(ROWS[name], IMPORTED, FOUND), blocks()
    spreads = name.startswith("aten.prepacked")  # to results beside it: docs/precision.md
    for word, value in SPECIAL.items():
        x = X.clone()
        x[0, 0, 0, 0] = value
        for got, want in zip(fast(x), exact(x), strict=True):
            assert not torch.any(want.isnan() & ~got.isnan()), word
            assert not torch.any(~want.isfinite() & got.isfinite()), word
            is_large = want.abs() > 1e37  # its rounded value may overflow
            assert spreads or not torch.any(want.isfinite() & ~is_large & ~got.isfinite()), word
            # The other image has none of it.
            assert 0 <= output_error(got[1], want[1]) < 2e-2, word
            if value == 1e-40:
                assert output_error(got, want) < 2e-2


@torch.no_grad()
@pytest.mark.parametrize("name", ["cpu.linear.wbf16", "cpu.linear.wf16"])
def test_weights_of_16_bits_keep_large_and_small_values(name: str) -> None:
    torch.manual_seed(8)
    head = nn.Linear(16, 6, bias=False)
    for row, size in enumerate((1e30, 3e37, 1e-30, 7e4, 1e-8)):  # f16 ends at 65504 and 6e-8
        head.weight[row] *= size
    head.weight[5, 0] = 3.4e38  # above the largest number of bf16
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()
    x = torch.rand(2, 3, 9, 9)
    for weights in net.parameters():
        weights.abs_()  # sums without cancellation
    model, found = imported(net, x)
    fast = forced(next(c for word, c in rows(found).items() if f"{name} " in word), model, found)
    got, want = fast(x), net(x)
    for row in range(5):
        assert output_error(got[:, row], want[:, row]) < 5e-3, row
    assert torch.all(got[:, 5].isinf() | ((got - want)[:, 5].abs() < 5e-3 * want[:, 5].abs()))
