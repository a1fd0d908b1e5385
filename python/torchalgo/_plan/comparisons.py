# SPDX-License-Identifier: BSD-3-Clause
"""Makes the plans that a plan is compared with: of simpler choices, and of other objectives.

Nothing is measured for them. They may need layout changes that the plan does not need. Their costs
are predicted from those of similar ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchalgo import _C
from torchalgo._ir.names import is_pytorchs
from torchalgo._ir.overrides import is_convolution
from torchalgo._ir.plan import micro
from torchalgo._measure.steps import Question
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency


def compared_plans(tuning: Tuning, objective: Latency, *, is_limited: bool) -> dict[str, _C.Plan]:
    """Returns, by name, the plans that simpler choices make with the same costs.

    These are "aten_only", "single_layout_..." for each layout, and "local_optimum", the fastest
    primitive of each convolution. If `is_limited`, "without_limits" is the best plan without
    limits. The optima of other objectives follow. None of these plans has to keep the limits.

    There is no plan for a layout that most convolutions lack. Single nodes that lack a layout keep
    their own. Plans for which there are too few costs are missing.
    """
    questions = {"aten_only": Question(limits=Limits(tuning, may_run=is_pytorchs))}
    for layout in usual_layouts(tuning.graph, tuning.found):
        questions[f"single_layout_{layout}"] = Question(options={"layouts": [layout]})
    questions["local_optimum"] = Question(_C.make_local_plan)
    if is_limited:
        questions["without_limits"] = Question()
    questions |= {name: Question(planner) for name, planner in objective.other_planners.items()}
    return tuning.estimates(questions)


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


def compared_costs(plans: Mapping[str, _C.Plan]) -> dict[str, float]:
    """Returns each plan's predicted value of the objective, and that of the best single layout.

    "best_single_layout" is missing if there is no plan with a single layout.
    """
    costs = {name: micro(plan.cost) for name, plan in plans.items()}
    single = [cost for name, cost in costs.items() if name.startswith("single_layout_")]
    return {**costs, "best_single_layout": min(single)} if single else costs
