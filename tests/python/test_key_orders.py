# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose keywords and dicts have the planned keys in another order."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.nets import arguments

A, B, C = torch.rand(3, 1, 3, 12, 12, generator=torch.Generator().manual_seed(2))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.eval()


class Named(Base):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.conv(a) + 2 * self.other(b) - c.mean()


class Keywords(Base):
    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(parts["a"]) + 2 * self.other(parts["b"]) - parts["c"].mean()


class Joined(Base):
    """The order decides which part is first."""

    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(torch.cat(list(parts.values())))


PARTS = {"a": A, "b": B, "c": C}
ORDERS = list(itertools.permutations("abc"))


@pytest.mark.parametrize(("kind", "originals"), [(Named, 0), (Keywords, 5), (Joined, 5)])
def test_arguments_run_the_plan_in_any_order_and_keys_of_dicts_in_the_planned_one(
    kind: type[nn.Module], originals: int
) -> None:
    model = kind()
    options: dict[str, Any] = arguments(cost_db=False, run_untimed=True)
    fast = torchalgo.optimize(model, example_kwargs=PARTS, budget_s=2.0, **options)
    for order in ORDERS:
        given = {name: PARTS[name] for name in order}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(fast(**given), model(**given), rtol=1e-3, atol=1e-4)
    assert fast.original_runs.total() == originals
    assert all("planned with parts={a: a tensor" in why for why in fast.original_runs)


def test_a_loaded_module_needs_the_planned_order(tmp_path: Path) -> None:
    options: dict[str, Any] = arguments(cost_db=False, run_untimed=True)
    fast = torchalgo.optimize(Keywords(), example_kwargs=PARTS, budget_s=2.0, **options)
    fast.save(tmp_path / "net.pt")
    again = torchalgo.load(tmp_path / "net.pt")
    assert torch.equal(again(**PARTS), fast(**PARTS))
    with pytest.raises(torchalgo.Error, match=r"TA1403 forward: parts=\{c: .*, planned with"):
        again(c=C, b=B, a=A)
