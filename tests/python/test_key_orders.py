# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose keywords and dicts have the planned keys in another order."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from support.nets import arguments
from torchalgo._base.trees import flatten
from torchalgo._run.key_orders import planned_order

A, B, C = torch.rand(3, 1, 3, 12, 12, generator=torch.Generator().manual_seed(2))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.convs = nn.ModuleDict({"a": self.conv, "b": self.other, "c": self.conv})
        self.eval()


class Named(Base):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.conv(a) + 2 * self.other(b) - c.mean()


class Keywords(Base):
    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(parts["a"]) + 2 * self.other(parts["b"]) - parts["c"].mean()


class Nested(Base):
    def forward(self, *, batch: dict[str, Any], **parts: Any) -> dict[str, Tensor]:
        inner = batch["inner"]
        return {"x": self.conv(inner["a"]) + self.other(inner["b"]), "y": parts["c"] + batch["n"]}


class Joined(Base):
    """The order decides which part is first."""

    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(torch.cat(list(parts.values())))


class OwnLayers(Base):
    """The order decides only which layer runs for which part."""

    def forward(self, **parts: Tensor) -> Tensor:
        names = list(parts)
        return self.convs[names[0]](parts["a"]) + self.convs[names[1]](parts["b"])


class OwnResult(Base):
    """The order decides only the order of the result's keys."""

    def forward(self, **parts: Tensor) -> dict[str, Tensor]:
        made = {"a": self.conv(parts["a"]), "b": self.other(parts["b"]), "c": parts["c"] * 2}
        return {name: made[name] for name in parts}


class Middle(Base):
    """Reversed orders give the same result, others do not."""

    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(parts["a"]) * (2.0 if list(parts)[1] == "b" else 3.0)


class Constants(Base):
    """A constant of the code is another tensor in each call."""

    def forward(self, **parts: Tensor) -> Tensor:
        return self.conv(parts["a"]) * torch.tensor(2.0 if next(iter(parts)) == "a" else 3.0)


PARTS = {"a": A, "b": B, "c": C}
ORDERS = list(itertools.permutations("abc"))


def planned(model: nn.Module, **kwargs: Any) -> torchalgo.Optimized:
    return torchalgo.optimize(
        model, example_kwargs=kwargs, budget_s=2.0, **arguments(cost_db=False, run_untimed=True)
    )


def check(fast: torchalgo.Optimized, **kwargs: Any) -> None:
    """A call returns what the original returns, with the keys in the same order."""
    assert fast.original_model is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = fast(**kwargs), fast.original_model(**kwargs)
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = (
            torch.cat([*map(torch.ravel, got.values())]),
            torch.cat([*map(torch.ravel, want.values())]),
        )
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [Named, Keywords])
def test_keywords_in_any_order_run_the_plan(kind: type[nn.Module]) -> None:
    fast = planned(kind(), **PARTS)
    for _, order in itertools.product(range(2), ORDERS):
        check(fast, **{name: PARTS[name] for name in order})
    assert not fast.original_runs


@pytest.mark.parametrize("kind", [Joined, OwnLayers, OwnResult, Middle, Constants])
def test_a_model_that_depends_on_the_order_runs_in_the_orders_that_differ(
    kind: type[nn.Module],
) -> None:
    fast = planned(kind(), **PARTS)
    for order in ORDERS:
        check(fast, **{name: PARTS[name] for name in order})
    same = {OwnLayers: 1, Middle: 1, Constants: 1}.get(kind, 0)  # such as c, b, a
    assert fast.original_runs.total() == 5 - same


def test_keys_of_nested_dicts_may_be_in_any_order() -> None:
    inner = OrderedDict(a=A, b=B)
    fast = planned(Nested(), batch={"inner": inner, "n": 2.0}, c=C)
    check(fast, c=C, batch={"n": 2.0, "inner": OrderedDict(b=B, a=A)})
    assert not fast.original_runs
    check(fast, c=C, batch={"n": 3.0, "inner": OrderedDict(b=B, a=A)})  # another number
    check(fast, c=C, batch={"n": 2.0, "inner": {"b": B, "a": A}})  # another type
    assert fast.original_runs.total() == 2


def test_each_size_and_each_refresh_is_looked_at_again() -> None:
    fast = planned(Keywords(), **PARTS)
    other = {"c": C, "b": B, "a": A}
    check(fast, **other)
    larger = {name: torch.rand(1, 3, 14, 14) for name in other}
    check(fast, **larger)
    assert len(fast._orders) == 2 and not fast.original_runs
    with torch.no_grad():
        fast.conv.weight.mul_(2)
    check(fast.refresh(), **other)
    assert len(fast._orders) == 1 and not fast.original_runs


def test_a_loaded_module_needs_the_planned_order(tmp_path: Path) -> None:
    fast = planned(Keywords(), **PARTS)
    fast.save(tmp_path / "net.pt")
    again = torchalgo.load(tmp_path / "net.pt")
    assert torch.equal(again(**PARTS), fast(**PARTS))
    with pytest.raises(torchalgo.Error, match=r"TA1403 forward: parts=\{c: .*, planned with"):
        again(c=C, b=B, a=A)


def test_only_the_order_of_keys_may_differ() -> None:
    def ordered(planned: Any, given: Any) -> list[Any] | None:
        tensors: list[Tensor] = []
        tree = flatten(given, "", tensors, [])
        return planned_order(flatten(planned, "", [], []), tree, iter(tensors))

    assert ordered({"a": A, "b": [B, 1]}, {"b": [B, 1], "a": A}) == [A, B]
    for other in (
        {"b": [B, 2], "a": A}, {"b": [B], "a": A}, {"b": (B, 1), "a": A}, {"a": A},
        {"b": [B, 1], "a": A, "c": C}, {"b": [B, 1], "c": A}, {"b": [B, 1], "a": 1}, [A, [B, 1]],
    ):  # fmt: skip
        assert ordered({"a": A, "b": [B, 1]}, other) is None
