# SPDX-License-Identifier: BSD-3-Clause
"""Makes the functions that plan again with the costs in memory: with_overrides and pareto."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from torchalgo import _C
from torchalgo._ir.overrides import forced_primitives
from torchalgo._ir.plan import Plan
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.pareto import Front, Memory, ParetoPoint, native_front


def resolver(
    imported: _C.Imported, limits: Limits, describe: Callable[[_C.Plan], Plan]
) -> Callable[[Mapping[str, str]], Plan]:
    """Returns the function behind plan.with_overrides."""

    def resolve(overrides: Mapping[str, str]) -> Plan:
        forced = forced_primitives(imported.graph, limits.tuning.found, overrides)
        is_own = all(map(_C.has_own_kernel, forced.values()))
        kept = limits if is_own else limits.without_filter()
        native = limits.tuning.solve_known(forced, limits.planner, kept)
        return dataclasses.replace(describe(native), resolve=resolve, **kept.described(native))

    return resolve


def front_finder(
    tuning: Tuning, describe: Callable[[_C.Plan], Plan], objective: Latency
) -> Callable[[Memory, int, float], Front]:
    """Returns the function behind Optimized.pareto."""

    def find_front(memory: Memory, max_points: int, time_limit_s: float) -> Front:
        objective.refuse("pareto")
        points = native_front(
            *tuning.known_input(), memory=memory, max_points=max_points, time_limit_s=time_limit_s
        )
        return Front([ParetoPoint(describe(p.plan), p.us, p.bytes) for p in points], memory)

    return find_front
