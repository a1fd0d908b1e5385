# SPDX-License-Identifier: BSD-3-Clause
"""Plans under limits and fronts, on drawn costs: the whole list of choices is the oracle."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from torchalgo import _C, Error, optimize
from torchalgo.freeze import freeze_model
from torchalgo.pareto import pareto, plan_within

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
    front = pareto(graph, found, costs)
    assert [(p.plan.cost, p.bytes) for p in front] == undominated(points)
    assert all(p.is_proven for p in front)


@pytest.mark.parametrize("seed", range(30))
def test_weight_front_equals_enumeration(seed: int) -> None:
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
    front = pareto(
        graph, found, costs,
        memory="weights", bytes_of=lambda c: size[c.covers[0], c.primitive.name],
    )  # fmt: skip
    assert [(p.plan.cost, p.bytes) for p in front] == undominated(points)


@pytest.mark.parametrize("seed", range(20))
def test_an_error_budget_is_kept_and_the_plan_is_the_cheapest_that_keeps_it(seed: int) -> None:
    graph, found, costs, ticks, _ = chain(seed)
    error = {name: random.Random(f"{seed} {name}").random() for name in NAMES}
    limit = 0.9
    best = min(
        (sum(ticks[c] for c in choice) for choice in itertools.product(NAMES, repeat=3)
         if sum(error[c] for c in choice) <= limit),
        default=None,
    )  # fmt: skip
    if best is None:
        with pytest.raises(Error, match=r"error of at most .* cannot be kept"):
            plan_within(graph, found, costs, lambda c: error[c.primitive.name], limit, name="error")
        return
    plan, used = plan_within(
        graph, found, costs, lambda c: error[c.primitive.name], limit, name="error"
    )
    assert plan.cost == best
    assert used <= limit
    assert used == pytest.approx(sum(error[node.primitive.name] for node in plan.nodes), rel=1e-6)


def test_pareto_refuses_weights_without_their_bytes() -> None:
    graph, found, costs, _, _ = chain(0)
    with pytest.raises(Error, match="expected 'workspace' without bytes_of"):
        pareto(graph, found, costs, memory="weights")


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


def test_the_front_of_a_tuned_network_starts_at_its_plan() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    x = torch.rand(1, 3, 16, 16)
    fast = optimize(network, x, budget_s=1, progress=False)
    graph = _C.import_graph(freeze_model(network, (x,))._c, (x,)).graph
    front = pareto(graph, _C.find_candidates(graph), fast.costs)
    assert 0 < front[0].us <= fast.plan.cost_us + 0.01
    assert [p.us for p in front] == sorted(p.us for p in front)
    assert [p.bytes for p in front] == sorted((p.bytes for p in front), reverse=True)
