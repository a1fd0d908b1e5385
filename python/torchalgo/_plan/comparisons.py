# SPDX-License-Identifier: BSD-3-Clause
"""Makes the plans that a plan is compared with: those of simpler choices, from the same costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.names import is_pytorchs
from torchalgo._ir.overrides import is_convolution
from torchalgo._measure.steps import Planner
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency


def compare_planners(
    tuning: Tuning, objective: Latency, is_limited: bool = False
) -> dict[str, _C.Plan]:
    """Returns, by name, the plans that simpler choices make with the same costs.

    These are "aten_only", "single_layout_..." for each layout, and "local_optimum", the fastest
    primitive of each convolution. For an objective other than latency, there are also the optima of
    other objectives. If `is_limited`, "without_limits" is the best plan without limits. None of
    these plans has to keep the limits.

    There is no plan for a layout that most convolutions lack. Single nodes that lack a layout keep
    their own. If measuring was ended early, plans for which there are too few costs are missing.
    """
    plans: dict[str, _C.Plan] = {}

    def add(name: str, planner: Planner = _C.make_plan, **options: Any) -> None:
        try:
            plans[name] = tuning.settle(planner, checked=False, rough=True, **options)
        except Error:
            if not tuning.is_stopped:
                raise

    add("aten_only", limits=Limits(tuning, may_run=is_pytorchs))
    for layout in usual_layouts(tuning.graph, tuning.found):
        add(f"single_layout_{layout}", layouts=[layout])
    add("local_optimum", _C.make_local_plan, fastest_alone=True)
    for name, planner in objective.other_planners().items():
        add(name, planner)
    if is_limited:
        add("without_limits")
    return plans


def usual_layouts(graph: _C.Graph, found: _C.Candidates) -> list[str]:
    """Returns the layouts that more than half of the convolutions can both read and write."""
    counts: dict[str, int] = {}
    convolutions = 0
    for node, offered in zip(graph.nodes, found.by_anchor, strict=True):
        if is_convolution(node):
            convolutions += 1
            primitives = [c.primitive for c in offered]
            for layout in {p.src for p in primitives if p.src == p.dst}:
                counts[layout] = counts.get(layout, 0) + 1
    return sorted(layout for layout, count in counts.items() if 2 * count > convolutions)


def compared_costs(plans: Mapping[str, _C.Plan], objective: Latency) -> dict[str, float]:
    """Returns each plan's predicted value of the objective, and that of the best single layout.

    "best_single_layout" is missing if there is no plan with a single layout.
    """
    costs = {name: objective.value(plan) for name, plan in plans.items()}
    single = [cost for name, cost in costs.items() if name.startswith("single_layout_")]
    return {**costs, "best_single_layout": min(single)} if single else costs
