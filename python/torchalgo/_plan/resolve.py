# SPDX-License-Identifier: BSD-3-Clause
"""Makes the functions that plan again after `optimize`: with_overrides and pareto."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from torchalgo import _C
from torchalgo._base.error_code import without_code
from torchalgo._C import Error
from torchalgo._ir.overrides import forced_primitives
from torchalgo._ir.plan import Plan, micro
from torchalgo._measure.steps import known_input
from torchalgo._plan.describe import Describer
from torchalgo._plan.limits import Limits
from torchalgo._plan.pareto import Front, ParetoPoint, Quantity, check_points, native_front


def resolver(
    limits: Limits, describe: Callable[[_C.Plan], Plan]
) -> Callable[[Mapping[str, str]], Plan]:
    """Returns the function behind plan.with_overrides."""
    tuning = limits.tuning

    def resolve(overrides: Mapping[str, str]) -> Plan:
        forced = forced_primitives(tuning.graph, tuning.found, overrides)
        is_own = all(map(_C.has_own_kernel, forced.values()))
        kept = limits if is_own else limits.without_filter()
        native = tuning.solve_known(forced, kept)
        limits.check_memory(native)
        return dataclasses.replace(describe(native), resolve=resolve, **kept.described(native))

    return resolve


def front_finder(
    describe: Describer, find_errors: Callable[[int, float], list[Plan]]
) -> Callable[[Quantity, int, float], Front]:
    """Returns the function behind Optimized.pareto.

    Args:
        find_errors: returns the plans of a front of error, for at most so many points with so many
            seconds for each.
    """

    def find_front(over: Quantity, max_points: int, time_limit_s: float) -> Front:
        if (objective := describe.objective).name != "latency":
            raise Error(
                "TA2501 pareto: fronts show time and memory, and this plan was made for"
                f" {objective.name}: use optimize(model, x, objective='latency').pareto()"
            )
        if over == "error":
            check_points(max_points)
            plans = find_errors(max_points, time_limit_s)
            return Front([ParetoPoint(p, p.cost_us, p.weight_bytes or 0) for p in plans], over)
        try:
            points = native_front(
                *known_input(describe.tuning.knowledge),
                over=over,
                max_points=max_points,
                time_limit_s=time_limit_s,
            )
        except Error as problem:
            if not describe.tuning.is_stopped:
                raise
            raise Error(
                "TA2301 pareto: tuning ended before the costs of each layer were measured: optimize"
                f" with more time, such as budget_s=90. {without_code(str(problem))}"
            ) from problem
        found = [ParetoPoint(describe(native), micro(native.cost), used) for native, used in points]
        return Front(found, over)

    return find_front
