# SPDX-License-Identifier: BSD-3-Clause
"""The limit of the memory that a plan needs as a C++ program, from the candidates to the folder."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.fake_bench import FakeBench, fake_optimize, make_tuning
from torchalgo import _C
from torchalgo._capture.freeze import freeze_model
from torchalgo._emit.arena import ALIGNMENT
from torchalgo._ir.costs import Key, key_of, native_key
from torchalgo._plan.limits import Limits
from torchalgo._plan.memory_limit import MemoryLimit
from torchalgo._plan.memory_search import within_memory
from torchalgo._refine.binding import memory_use

X = torch.rand(1, 8, 24, 24, generator=torch.Generator().manual_seed(2))


class Residual(nn.Module):
    """Convolutions that Winograd can run, a sum, a concatenation, a pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(8, 24, 3, padding=1)
        self.a, self.b = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.left, self.right = nn.Conv2d(24, 16, 1), nn.Conv2d(24, 32, 3, padding=1)
        self.last = nn.Linear(48, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.stem(x)), 2)
        x = torch.relu(x + self.b(torch.relu(self.a(x))))
        x = torch.cat([self.left(x), self.right(x)], 1)
        return self.last(x.mean((2, 3)))


def drawn(seed: int) -> FakeBench:
    """Returns a machine on which any primitive may be the fastest, in each call the same one."""
    return FakeBench(lambda problem, p: random.Random(f"{seed} {problem} {p}").uniform(1e3, 1e5))


def own_plan(imported: _C.Imported, seed: int) -> tuple[Limits, _C.Plan]:
    limits = Limits.of(make_tuning(imported, drawn(seed), own_kernels=True), own_kernels=True)
    return limits, limits.settle()


def imported_net() -> _C.Imported:
    return _C.import_graph(freeze_model(Residual().eval(), (X,))._c, (X,))


def test_no_plan_needs_less_than_its_candidates() -> None:
    imported = imported_net()
    graph = imported.graph
    names = {node.name: number for number, node in enumerate(graph.nodes)}
    tight = 0
    for seed in range(40):
        limits, native = own_plan(imported, seed)
        found = limits.tuning.found
        memory = MemoryLimit.of(limits.tuning, 1 << 30, lambda plan: memory_use(imported, plan))
        arena, constants = memory.use_of(native)
        needs, sizes = [memory.least_need], 0
        chosen = {n.name: key_of(n.problem, n.primitive) for n in native.nodes if n.primitive.name}
        needed, of_constants = _C.memory_need(graph, found), memory.constants
        for name, key in chosen.items():
            anchor = names[name]
            for i, candidate in enumerate(found.by_anchor[anchor]):
                if key_of(candidate.problem, candidate.primitive) == key:
                    needs.append(needed[anchor][i])
                    sizes += of_constants[anchor][i]
        assert len(needs) == len(chosen) + 1
        assert max(needs) <= arena
        assert sizes - ALIGNMENT < constants <= sizes
        tight += max(needs) > 0.9 * arena
    assert tight > 10  # the bound says something


def limited(limit: int, monkeypatch: pytest.MonkeyPatch, **more: object) -> torchalgo.Optimized:
    fake_optimize(monkeypatch, drawn(1).cost_ns)
    settings = torchalgo.Settings(
        own_kernels=True, memory_limit_bytes=limit, cost_db=False, progress=False, **more
    )
    return torchalgo.optimize(Residual().eval(), X, settings=settings)


def test_lower_limits_are_kept_by_what_emit_writes_and_cost_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = limited(1 << 30, monkeypatch)
    most = free.plan.memory_bytes
    assert most is not None
    assert free.plan.status == "optimal"
    assert not free.plan.unproven
    with pytest.raises(torchalgo.Error, match=r"TA2301 .*needs (\d+) bytes") as refused:
        limited(1000, monkeypatch)
    least = int(str(refused.value).split(" needs ")[1].split()[0])
    assert 1000 < least < most
    costs, y = [free.plan.cost_ticks], Residual().eval()(X)
    for share in (0.95, 0.7, 0.4, 0.1, 0.0):
        limit = least + int(share * (most - least))
        fast = limited(limit, monkeypatch)
        folder = torchalgo.emit(fast, tmp_path / f"net{limit}")
        assert folder.arena_bytes + folder.packed_bytes == fast.plan.memory_bytes <= limit
        assert fast.plan.limits["bytes of memory"] == limit
        assert "limit of memory decides" in fast.plan.unproven
        assert f"as a C++ program {fast.plan.memory_bytes} bytes" in " ".join(
            str(fast.plan).split()
        )
        assert torchalgo.Plan.from_json(fast.plan.to_json()).memory_bytes == fast.plan.memory_bytes
        assert torch.allclose(fast(X), y, rtol=1e-4, atol=1e-5)
        costs.append(fast.plan.cost_ticks)
    assert costs == sorted(costs)
    assert len(set(costs)) > 2


def calls_of(plan: _C.Plan) -> list[Key]:
    parts = [*(node for node in plan.nodes if node.primitive.name), *plan.transforms]
    return [key_of(part.problem, part.primitive) for part in parts]


def test_no_drawn_plan_within_the_limit_is_cheaper() -> None:
    imported = imported_net()
    limits, native = own_plan(imported, 1)
    whole = MemoryLimit.of(limits.tuning, 1 << 30, lambda plan: memory_use(imported, plan))
    most = sum(whole.use_of(native))
    others = []
    costs = limits.tuning.costs
    for seed in range(100, 180):
        _, other = own_plan(imported, seed)
        found = [costs.get(native_key(key)) for key in calls_of(other)]
        assert None not in found
        ticks = sum(cost[0] for cost in found if cost is not None)
        others.append((sum(whole.use_of(other)), ticks))
    compared = 0
    for share in (0.9, 0.75, 0.6):
        limit = int(share * most)
        memory = MemoryLimit.of(limits.tuning, limit, whole.use_of)
        found = within_memory(dataclasses.replace(limits, memory=memory)).settle()
        assert sum(whole.use_of(found)) <= limit
        cheapest = [ticks for use, ticks in others if use <= limit]
        compared += len(cheapest)
        assert all(found.cost <= ticks for ticks in cheapest)
    assert compared > 5


def test_overrides_keep_the_limit_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = limited(1 << 30, monkeypatch)
    need = fast.plan.memory_bytes
    assert need is not None
    fast = limited(need, monkeypatch)
    other = fast.plan.with_overrides({"a": "cpu.direct"})
    assert other.memory_bytes is not None
    assert other.memory_bytes <= need
    with pytest.raises(torchalgo.Error, match=r"TA2\d\d\d"):
        fast.plan.with_overrides({"a": "aten.conv"})


def test_a_limit_needs_own_kernels_and_no_other_limit_of_weights() -> None:
    for settings, why in (
        (torchalgo.Settings(memory_limit_bytes=5), r"TA1003 .*add own_kernels=True"),
        (
            torchalgo.Settings(memory_limit_bytes=5, own_kernels=True, weight_limit_bytes=5),
            r"TA1003 .*leave one out",
        ),
    ):
        with pytest.raises(torchalgo.Error, match=why):
            torchalgo.optimize(Residual().eval(), X, settings=settings)
