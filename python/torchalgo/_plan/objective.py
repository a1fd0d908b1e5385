# SPDX-License-Identifier: BSD-3-Clause
"""The objectives of plans: least time, or least energy.

Tuning has one cost per candidate: the time in ticks of 1/1024 ns, or the energy in ticks of 1/1024
nJ. The plan that users read has their meaning: us and uJ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._db import DeviceCosts
from torchalgo._ir.costs import Key, key_of, key_of_native
from torchalgo._ir.plan import GuardVerdict, Plan, PlanEnergy, PlanNode, PlanTransform, micro
from torchalgo._measure import guard, meters
from torchalgo._measure.baselines import Call
from torchalgo._measure.energy_bench import EnergyBench, EnergyCosts
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.sampling import Bench
from torchalgo._measure.steps import Planner

Calls = Mapping[str, Call]
Part = TypeVar("Part", PlanNode, PlanTransform)
UNKNOWN_TICKS = 1 << 40  # a second: the fastest plan avoids what was not measured


class Latency:
    """The objective of the least time, and the base of the other objective."""

    name = "latency"
    least_sample_s = 0.0  # seconds that the guard repeats a call which takes less

    def __init__(self, bench: Bench, costs: DeviceCosts) -> None:
        self.bench, self.costs = bench, costs
        self.verdicts = costs
        self.other_planners: dict[str, Planner] = {}  # for objectives that are compared, by name

    def described(self, plan: Plan) -> Plan:
        """Returns `plan` with its costs in us and uJ. Its ticks are those of this objective."""
        return plan

    def compare(
        self, calls: Calls, *, limit_s: float, warmup: int, most_s: float, synchronize: Call
    ) -> GuardVerdict | None:
        """Times the plan and the baselines, and returns the verdict. See guard.time_interleaved.

        Returns None if `most_s` is too short for a verdict.
        """
        watch = WaitWatch()
        times = guard.time_interleaved(
            calls, budget_s=limit_s, warmup=warmup, most_s=most_s, synchronize=synchronize
        )
        if not guard.has_verdict(times):
            return None
        return dataclasses.replace(guard.guard_verdict(times), waited=round(watch.share(), 3))


class Energy(Latency):
    """The objective of the least energy."""

    name = "energy"

    def __init__(self, bench: Bench, costs: DeviceCosts, meter: meters.Meter) -> None:
        self.meter, self.least_sample_s = meter, meters.LOOP_STEPS * meter.interval_s
        energies = EnergyBench(bench, meter)
        self.bench = energies.as_bench()
        self.costs = self.both = EnergyCosts(energies, costs)
        self.verdicts = self.both.energies
        self.other_planners = {"fastest": self._plan_fastest}

    def described(self, plan: Plan) -> Plan:
        # The planner took ticks of energy for ticks of time.
        nodes = [self._part(n, regret_us=None, regret_uj=n.regret_us) for n in plan.nodes]
        transforms = [self._part(transform) for transform in plan.transforms]
        parts: list[PlanNode | PlanTransform] = [*nodes, *transforms]
        ticks = sum(part.ticks for part in parts)
        return dataclasses.replace(
            plan,
            objective="energy",
            cost_us=micro(sum(self.both.time_ticks(_key(part)) for part in parts)),
            lower_bound_us=0.0,
            cost_ticks=ticks,
            nodes=nodes,
            transforms=transforms,
            energy=PlanEnergy(self.meter.name, micro(ticks), micro(plan.lower_bound_ticks)),
        )

    def compare(
        self, calls: Calls, *, limit_s: float, warmup: int, most_s: float, synchronize: Call
    ) -> GuardVerdict | None:
        try:
            times, energies = guard.meter_interleaved(
                calls, self.meter, budget_s=limit_s, synchronize=synchronize, most_s=most_s
            )
        except (Error, OSError) as problem:
            return guard.untimed_verdict(f"no energies to compare: {problem}")
        return guard.energy_verdict(times, energies) if guard.has_verdict(energies) else None

    # ---- plans ---------------------------------------------------------------------------------

    def _plan_fastest(
        self, graph: Any, found: Any, transforms: Any, table: _C.CostTable, **options: Any
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        """Makes the plan of the least time, whose cost is its energy. Called like _C.make_plan."""
        times = _C.CostTable()
        for native, _, source in table.items():
            ticks = self.both.time_ticks(key_of_native(native))
            times.set(native, ticks or UNKNOWN_TICKS, source)
        plan, wanted = _C.make_plan(graph, found, transforms, times, **options)
        plan.status, plan.lower_bound, plan.method = "feasible", 0, "least time"
        parts: list[Any] = [*plan.nodes, *plan.transforms]
        plan.cost = sum(self.both.energy_ticks(key_of(p.problem, p.primitive)) for p in parts)
        return plan, wanted

    # ---- the plan that users read --------------------------------------------------------------

    def _part(self, part: Part, **fields: Any) -> Part:
        key = _key(part)
        return dataclasses.replace(
            part,
            predicted_us=micro(self.both.time_ticks(key)),
            predicted_uj=micro(self.both.energy_ticks(key)),
            ticks=self.both.energy_ticks(key),
            **fields,
        )


def _key(part: PlanNode | PlanTransform) -> Key:
    return Key(part.problem, part.primitive, part.src, part.dst)
