# SPDX-License-Identifier: BSD-3-Clause
"""Plans under limits and fronts, on drawn costs: the whole list of choices is the oracle."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from torch import nn

from support.limited_plans import known_candidates, known_transforms, plan_within
from torchalgo import _C, Error, pareto
from torchalgo._plan.pareto import native_front

CONV = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"
CHAIN = f"""torchalgo graph 1
value\tv0\t1,8,4,4\tf32
value\tv1\t1,8,4,4\tf32
value\tv2\t1,8,4,4\tf32
value\tv3\t1,8,4,4\tf32
node\tn0\tconv\t0\t1\t{CONV}\t
node\tn1\tconv\t1\t2\t{CONV}\t
node\tn2\tconv\t2\t3\t{CONV}\t
input\t0\tnchw
output\t3
"""
NAMES = [f"test.c{i}" for i in range(4)]


def chain(seed: int) -> tuple[_C.Graph, _C.Candidates, _C.CostTable, dict[str, int], list[int]]:
    """Three convolutions of four choices, all nchw; bytes by name and node, workspaces by name."""
    pick = random.Random(seed)
    graph = _C.parse_graph(CHAIN)
    workspaces = [pick.randrange(4) * 64 for _ in NAMES]
    primitives = [
        _C.Primitive(n, "nchw", "nchw", w) for n, w in zip(NAMES, workspaces, strict=True)
    ]
    found = _C.single_candidates(graph, [primitives] * 3)
    ticks = {name: pick.randrange(1, 50) for name in NAMES}
    costs = _C.CostTable()
    for name, cost in ticks.items():
        costs.set(_C.CostKey(CONV, name, "nchw", "nchw"), cost, "measured")
    return graph, found, costs, ticks, workspaces


def front_of(
    graph: _C.Graph, found: _C.Candidates, costs: _C.CostTable, **given: Any
) -> list[tuple[_C.Plan, int]]:
    transforms = known_transforms(graph, found, costs)
    options = {"over": "workspace", "max_points": 32, "time_limit_s": 10.0, **given}
    return native_front(graph, found, transforms, costs, known_candidates(costs), **options)


def undominated(points: set[tuple[int, int]]) -> list[tuple[int, int]]:
    front: list[tuple[int, int]] = []
    for cost, use in sorted(points):
        if not front or use < front[-1][1]:
            front.append((cost, use))
    return front


@pytest.mark.parametrize("seed", range(30))
def test_workspace_front_equals_enumeration(seed: int) -> None:
    graph, found, costs, ticks, workspaces = chain(seed)
    points = {
        (sum(ticks[NAMES[i]] for i in choice), max(workspaces[i] for i in choice))
        for choice in itertools.product(range(4), repeat=3)
    }
    front = front_of(graph, found, costs)
    assert [(plan.cost, used) for plan, used in front] == undominated(points)
    assert all(plan.status == "optimal" for plan, _ in front)


@pytest.mark.parametrize("seed", range(30))
def test_weight_front_equals_enumeration(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, found, costs, ticks, _ = chain(seed)
    size = {
        (n, name): random.Random(f"{seed} {n} {name}").randrange(9)
        for n in range(3)
        for name in NAMES
    }
    points = {
        (sum(ticks[c] for c in choice), sum(size[n, c] for n, c in enumerate(choice)))
        for choice in itertools.product(NAMES, repeat=3)
    }
    bytes_of = [[size[n, name] for name in NAMES] for n in range(3)]
    monkeypatch.setattr(_C, "packed_bytes_of", lambda _: bytes_of)
    front = front_of(graph, found, costs, over="weights")
    assert [(plan.cost, used) for plan, used in front] == undominated(points)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kinds", ["bytes", "error", "both"])
def test_limits_are_kept_and_the_plan_is_the_cheapest_that_keeps_them(
    seed: int, kinds: str
) -> None:
    graph, found, costs, ticks, _ = chain(seed)
    error = {name: random.Random(f"{seed} {name}").random() for name in NAMES}
    size = {name: random.Random(f"{seed} b {name}").randrange(100) for name in NAMES}
    limits: list[tuple[str, Any, float]] = []
    if kinds != "error":
        limits.append(("weight bytes", lambda c: size[c.primitive.name], 120))
    if kinds != "bytes":
        limits.append(("error", lambda c: error[c.primitive.name], 0.9))
    best = min(
        (
            sum(ticks[c] for c in choice)
            for choice in itertools.product(NAMES, repeat=3)
            if (kinds == "error" or sum(size[c] for c in choice) <= 120)
            and (kinds == "bytes" or sum(error[c] for c in choice) <= 0.9)
        ),
        default=None,
    )
    if best is None:
        with pytest.raises(Error, match=r"of at most .* cannot be kept.* needs? at least"):
            plan_within(graph, found, costs, limits)
        return
    plan, used = plan_within(graph, found, costs, limits)
    assert plan.cost == plan.lower_bound == best
    for (_, amount_of, limit), use in zip(limits, used, strict=True):
        amounts = {c.primitive.name: amount_of(c) for c in found.by_anchor[0]}
        assert use <= limit
        assert use == pytest.approx(sum(amounts[n.primitive.name] for n in plan.nodes), rel=1e-6)


def test_limits_that_exclude_each_other_say_what_the_other_one_leaves() -> None:
    graph, found, costs, _, _ = chain(0)
    size = dict(zip(NAMES, (0, 10, 10, 10), strict=True))
    error = dict(zip(NAMES, (1.0, 0.25, 0.25, 0.25), strict=True))
    limits: list[tuple[str, Any, float]] = [
        ("weight bytes", lambda c: size[c.primitive.name], 10),
        ("error", lambda c: error[c.primitive.name], 1.0),
    ]
    with pytest.raises(Error, match=r"error of at most 1 cannot be kept together with weight bytes"
                       r" of at most 10: .* at least 2\.25 \(n"):  # fmt: skip
        plan_within(graph, found, costs, limits)


def test_fronts_refuse_what_they_cannot_do() -> None:
    graph, found, costs, _, _ = chain(0)
    with pytest.raises(Error, match="expected 'workspace', 'weights' or 'error'"):
        front_of(graph, found, costs, over="disk")
    with pytest.raises(Error, match="max_points=1, expected 2 or more"):
        front_of(graph, found, costs, max_points=1)
    with pytest.raises(Error, match=r"got Linear, expected what torchalgo\.optimize"):
        pareto(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_training_graph_is_planned_like_any_other() -> None:
    graph = _C.training_graph(_C.parse_graph(CHAIN))
    names = [node.name for node in graph.nodes]
    assert names[3:] == [
        "n2.bwd_filter", "n2.bwd_data", "n1.bwd_filter", "n1.bwd_data", "n0.bwd_filter",
    ]  # fmt: skip
    nhwc = [_C.Primitive("test.fast", "nhwc", "nhwc"), _C.Primitive("test.slow", "nchw", "nchw")]
    found = _C.single_candidates(graph, [nhwc] * len(names))
    costs = _C.CostTable()
    transforms = _C.transform_candidates(graph, found)
    for list_ in [*found.by_anchor, transforms]:
        for c in list_:
            ticks = {"test.fast": 10, "test.slow": 30}.get(c.primitive.name, 5)
            key = _C.CostKey(c.problem, c.primitive.name, c.primitive.src, c.primitive.dst)
            costs.set(key, ticks, "measured")
    plan, wanted = _C.make_plan(graph, found, transforms, costs)
    assert not wanted
    assert {node.primitive.name for node in plan.nodes} == {"test.fast"}
    # x, once for both that read it; the result; its gradient.
    assert [t.value for t in plan.transforms] == ["v0", "v3.grad", "v3"]
    assert plan.cost == 8 * 10 + 3 * 5
