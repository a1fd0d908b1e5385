# SPDX-License-Identifier: BSD-3-Clause
"""The objectives of plans: least time, least energy, or least product of both (EDP).

Tuning has one cost per candidate: the time in ticks of 1/1024 ns, or for the other objectives the
energy in ticks of 1/1024 nJ. The planners here make plans from these ticks. The plan that users
read has their meaning: us and uJ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._db import DeviceCosts
from torchalgo._ir.costs import CostFile, Key, key_of_native
from torchalgo._ir.plan import GuardVerdict, Plan, PlanEnergy, PlanNode, PlanTransform, micro
from torchalgo._measure import guard
from torchalgo._measure.baselines import Call
from torchalgo._measure.energy_bench import EnergyBench, EnergyCosts
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.sampling import Bench
from torchalgo._plan.edp_planner import ProductPlanner, keys_of_plan
from torchalgo.energy import Meter, find_meter

Planner = Callable[..., tuple[_C.Plan, list[_C.CostKey]]]
Calls = Mapping[str, Call]


class Latency:
    """The objective of the least time, and the base of the other objectives."""

    name = "latency"
    planner: Planner = staticmethod(_C.make_plan)
    local_planner: Planner | None = staticmethod(_C.make_local_plan)

    def __init__(self, bench: Bench, costs: DeviceCosts | None) -> None:
        self.bench = bench
        self.costs: CostFile | None = costs
        self.verdicts = costs

    def other_planners(self) -> dict[str, Planner]:
        """Returns, by name, planners for other objectives, whose plans are compared."""
        return {}

    def value(self, native: _C.Plan) -> float:
        """Returns the plan's value of the objective: its time in us."""
        return micro(native.cost)

    def described(self, plan: Plan) -> Plan:
        """Returns `plan` with its costs in us and uJ. Its ticks are those of this objective."""
        return plan

    def refuse(self, what: str) -> None:
        """Raises torchalgo.Error if this objective does not support `what`, a function's name."""

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
        if len(times["plan"]) < guard.LEAST_ROUNDS and not guard.is_clear(times):
            return None
        return dataclasses.replace(guard.guard_verdict(times), waited=round(watch.share(), 3))


class Energy(Latency):
    """The objective of the least energy."""

    name = "energy"

    def __init__(self, bench: Bench, costs: DeviceCosts | None, meter: Meter) -> None:
        self.meter = meter
        energies = EnergyBench(bench, meter)
        self.bench = energies.as_bench()
        self.verdicts = None if costs is None else costs.for_energy(meter.name)
        self.both = EnergyCosts(energies, costs, self.verdicts)
        self.costs = self.both

    def other_planners(self) -> dict[str, Planner]:
        return {"fastest": self._plan_fastest}

    def value(self, native: _C.Plan) -> float:
        """Returns the plan's energy in uJ."""
        return micro(self._sums(native)[1])

    def described(self, plan: Plan) -> Plan:
        nodes = [self._node(node) for node in plan.nodes]
        transforms = [self._transform(transform) for transform in plan.transforms]
        parts: list[PlanNode | PlanTransform] = [*nodes, *transforms]
        ticks, bound = sum(part.ticks for part in parts), plan.lower_bound_ticks
        energies = [self.both.energy_ticks(_key(part)) for part in parts]
        energy = PlanEnergy(self.meter.name, micro(sum(energies)), 0.0)
        described = dataclasses.replace(
            plan,
            objective=self.name,  # type: ignore[arg-type]
            cost_us=micro(sum(self.both.time_ticks(_key(part)) for part in parts)),
            lower_bound_us=0.0,
            cost_ticks=ticks,
            lower_bound_ticks=bound,
            nodes=nodes,
            transforms=transforms,
            energy=energy,
        )
        least = self._least(described)
        return dataclasses.replace(described, energy=dataclasses.replace(energy, lower_bound=least))

    def refuse(self, what: str) -> None:
        if what == "pareto":
            raise Error(
                "TA2501 pareto: fronts show time and memory, and this plan was made for"
                f" {self.name}: use optimize(model, x, objective='latency').pareto()"
            )

    def compare(
        self, calls: Calls, *, limit_s: float, warmup: int, most_s: float, synchronize: Call
    ) -> GuardVerdict | None:
        try:
            times, energies = guard.meter_interleaved(
                calls, self.meter, budget_s=limit_s, synchronize=synchronize
            )
        except (Error, OSError) as problem:
            return guard.untimed_verdict(f"no energies to compare: {problem}")
        return guard.energy_verdict(times, energies, self.name)

    # ---- plans ---------------------------------------------------------------------------------

    def _plan_fastest(
        self, graph: Any, found: Any, transforms: Any, table: _C.CostTable, **options: Any
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        """Makes the plan of the least time. Called like _C.make_plan."""
        times = _C.CostTable()
        for native, _, source in table.items():
            times.set(native, self.both.time_ticks(key_of_native(native)), source)
        plan, wanted = _C.make_plan(graph, found, transforms, times, **options)
        plan.status, plan.lower_bound, plan.method = "feasible", 0, "least time"
        return plan, wanted

    def _sums(self, native: _C.Plan) -> tuple[int, int]:
        keys = keys_of_plan(native)
        return sum(map(self.both.time_ticks, keys)), sum(map(self.both.energy_ticks, keys))

    # ---- the plan that users read --------------------------------------------------------------

    def _ticks(self, key: Key) -> int:
        """Returns the ticks that a plan's file has for `key`: the plan's cost is their sum."""
        return self.both.energy_ticks(key)

    def _least(self, plan: Plan) -> float:
        """Returns the lower bound of the objective for all plans, in uJ."""
        return micro(plan.lower_bound_ticks)

    def _node(self, node: PlanNode) -> PlanNode:
        key = _key(node)
        regret = node.regret_us  # the planner took ticks of energy for ticks of time
        return dataclasses.replace(
            node,
            predicted_us=micro(self.both.time_ticks(key)),
            predicted_uj=micro(self.both.energy_ticks(key)),
            ticks=self._ticks(key),
            regret_us=None,
            regret_uj=regret,
        )

    def _transform(self, transform: PlanTransform) -> PlanTransform:
        key = _key(transform)
        return dataclasses.replace(
            transform,
            predicted_us=micro(self.both.time_ticks(key)),
            predicted_uj=micro(self.both.energy_ticks(key)),
            ticks=self._ticks(key),
        )


class Edp(Energy):
    """The objective of the least product of the whole plan's energy and time.

    Ticks in its plans are of time. The plan's lower bound is a time: with the plan's energy, this
    time would give the lower bound of the product.
    """

    name = "edp"
    local_planner = None  # a product of two sums has no share of a single layer

    def __init__(self, bench: Bench, costs: DeviceCosts | None, meter: Meter) -> None:
        super().__init__(bench, costs, meter)
        self.planner = ProductPlanner(self.both)

    def other_planners(self) -> dict[str, Planner]:
        return {**super().other_planners(), "least_energy": self._plan_energy}

    def value(self, native: _C.Plan) -> float:
        """Returns the plan's energy times its time, in uJ x us."""
        time, energy = self._sums(native)
        return micro(time) * micro(energy)

    def refuse(self, what: str) -> None:
        if what == "with_proof":
            raise Error(
                "TA2401 with_proof: a certificate proves a sum of costs, and this plan has the"
                " least product of two sums: for a plan with a proof, use objective='latency' or"
                " 'energy'"
            )
        super().refuse(what)

    def _ticks(self, key: Key) -> int:
        return self.both.time_ticks(key)

    def _least(self, plan: Plan) -> float:
        share = plan.lower_bound_ticks / plan.cost_ticks if plan.cost_ticks else 1.0
        energy = 0.0 if plan.energy is None else plan.energy.cost_uj
        return plan.cost_us * energy * share

    def _plan_energy(
        self, graph: Any, found: Any, transforms: Any, table: _C.CostTable, **options: Any
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        plan, wanted = _C.make_plan(graph, found, transforms, table, **options)
        plan.status, plan.lower_bound, plan.method = "feasible", 0, "least energy"
        return plan, wanted


def _key(part: PlanNode | PlanTransform) -> Key:
    return Key(part.problem, part.primitive, part.src, part.dst)


def find_objective(
    name: str, device: _C.Device | None, costs: DeviceCosts | None, bench: Bench
) -> Latency:
    """Returns the objective "latency", "energy" or "edp".

    Raises: torchalgo.Error if the objective needs a meter and there is none.
    """
    if name == "latency":
        return Latency(bench, costs)
    kind = Energy if name == "energy" else Edp
    return kind(bench, costs, find_meter(device))
