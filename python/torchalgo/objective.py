# SPDX-License-Identifier: BSD-3-Clause
"""What a plan shall have least of: time, energy, or their product (EDP).

Tuning has one cost per candidate: ticks of 1/1024 ns, or, where energy counts, of 1/1024 nJ. The
planners here make plans of these, and what they mean is written into the plan that users read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C, guard
from torchalgo._C import Error
from torchalgo.costs import CostFile, Key
from torchalgo.db import DeviceCosts
from torchalgo.edp import Answer, least_product
from torchalgo.energy import Meter, find_meter
from torchalgo.energy_bench import EnergyBench, EnergyCosts
from torchalgo.plan import TICKS_PER_US, GuardVerdict, Plan, PlanEnergy, PlanNode, PlanTransform
from torchalgo.sampling import Bench

Planner = Callable[..., tuple[_C.Plan, list[_C.CostKey]]]
Calls = Mapping[str, guard.Call]

# Of the largest sums of times and of energies: weighted with each other they fit 63 bits.
SUM_BITS = 30
LIMITED_SUM_BITS = 22  # multipliers of limits need room as well


class Latency:
    """The least time."""

    planner: Planner = staticmethod(_C.make_plan)
    local_planner: Planner | None = staticmethod(_C.make_local_plan)

    def __init__(self, bench: Bench, costs: DeviceCosts | None) -> None:
        self.bench = bench
        self.costs: CostFile | None = costs
        self.verdicts = costs

    def other_planners(self) -> dict[str, Planner]:
        """Of plans to compare with, beside those for the same objective."""
        return {}

    def value(self, native: _C.Plan) -> float:
        """Of what a plan shall have least: us."""
        return round(native.cost / TICKS_PER_US, 3)

    def described(self, plan: Plan) -> Plan:
        """`plan`, whose costs are this objective's ticks, with what they mean."""
        return plan

    def refuse(self, what: str) -> None:
        """Raises Error where `what` is not there for this objective."""

    def compare(self, calls: Calls, limit_s: float, synchronize: guard.Call) -> GuardVerdict:
        """The plan beside the baselines."""
        return guard.guard_verdict(
            guard.time_interleaved(calls, budget_s=limit_s, synchronize=synchronize)
        )


class Energy(Latency):
    """The least energy."""

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
        """uJ."""
        return _micro(self._sums(native)[1])

    def described(self, plan: Plan) -> Plan:
        nodes = [self._node(node) for node in plan.nodes]
        transforms = [self._transform(transform) for transform in plan.transforms]
        parts: list[PlanNode | PlanTransform] = [*nodes, *transforms]
        ticks, bound = sum(part.ticks for part in parts), plan.lower_bound_ticks
        energies = [self.both.energy_ticks(_key(part)) for part in parts]
        energy = PlanEnergy(self.meter.name, _micro(sum(energies)), 0.0)
        described = dataclasses.replace(
            plan,
            objective=self.name,  # type: ignore[arg-type]
            cost_us=_micro(sum(self.both.time_ticks(_key(part)) for part in parts)),
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
                f"pareto: fronts are of time and memory, and this plan is for {self.name}; use"
                " optimize(model, x, objective='latency').pareto()"
            )

    def compare(self, calls: Calls, limit_s: float, synchronize: guard.Call) -> GuardVerdict:
        try:
            times, energies = guard.meter_interleaved(
                calls, self.meter, budget_s=limit_s, synchronize=synchronize
            )
        except (Error, OSError) as problem:
            return guard.untimed_verdict("plan", f"no energies to compare: {problem}")
        return guard.energy_verdict(times, energies, self.name)

    # ---- plans ---------------------------------------------------------------------------------

    def _plan_fastest(
        self, graph: Any, found: Any, transforms: Any, table: _C.CostTable, **options: Any
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        """The plan of the least time."""
        times = _C.CostTable()
        for native, _, source in table.items():
            times.set(native, self.both.time_ticks(_of(native)), source)
        plan, wanted = _C.make_plan(graph, found, transforms, times, **options)
        plan.status, plan.lower_bound, plan.method = "feasible", 0, "least time"
        return plan, wanted

    def _sums(self, native: _C.Plan) -> tuple[int, int]:
        keys = _keys(native)
        return sum(map(self.both.time_ticks, keys)), sum(map(self.both.energy_ticks, keys))

    # ---- the plan for readers ------------------------------------------------------------------

    def _ticks(self, key: Key) -> int:
        """In a plan's file: what its sum and bound are of."""
        return self.both.energy_ticks(key)

    def _least(self, plan: Plan) -> float:
        """What no plan is below: uJ."""
        return _micro(plan.lower_bound_ticks)

    def _node(self, node: PlanNode) -> PlanNode:
        key = _key(node)
        regret = node.regret_us  # ticks of energy, taken for time
        return dataclasses.replace(
            node,
            predicted_us=_micro(self.both.time_ticks(key)),
            predicted_uj=_micro(self.both.energy_ticks(key)),
            ticks=self._ticks(key),
            regret_us=None,
            regret_uj=regret,
        )

    def _transform(self, transform: PlanTransform) -> PlanTransform:
        key = _key(transform)
        return dataclasses.replace(
            transform,
            predicted_us=_micro(self.both.time_ticks(key)),
            predicted_uj=_micro(self.both.energy_ticks(key)),
            ticks=self._ticks(key),
        )


class Edp(Energy):
    """The least product of energy and time of the whole plan. Ticks in its plans are of time, and
    the bound is what the time would be with this energy if the product were at its own bound."""

    name = "edp"
    local_planner = None  # the product is of sums: no layer has one of its own

    def __init__(self, bench: Bench, costs: DeviceCosts | None, meter: Meter) -> None:
        super().__init__(bench, costs, meter)
        self.planner = self._plan_product

    def other_planners(self) -> dict[str, Planner]:
        return {**super().other_planners(), "least_energy": self._plan_energy}

    def value(self, native: _C.Plan) -> float:
        """uJ x us."""
        time, energy = self._sums(native)
        return _micro(time) * _micro(energy)

    def refuse(self, what: str) -> None:
        if what == "with_proof":
            raise Error(
                "with_proof: a certificate is of a sum, and this plan has the least product of two:"
                " that nothing is below its bound is the solver's word"
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

    def _plan_product(
        self, graph: Any, found: Any, transforms: Any, table: _C.CostTable, **options: Any
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        """As _C.make_plan: a plan that rests on bounds has no greater product than any other, so
        that measuring what it rests on, again and again, ends with the optimum."""
        options.pop("with_regrets", None)
        bits = LIMITED_SUM_BITS if options.get("resources") else SUM_BITS
        prices = _Prices.of(graph, found, transforms, table, self.both.time_ticks, bits)
        wanted: list[_C.CostKey] = []

        def solve(time_weight: int, energy_weight: int) -> Answer[_C.Plan]:
            weighted = prices.weighted(time_weight, energy_weight)
            plan, missing = _C.make_plan(graph, found, transforms, weighted, **options)
            if missing and not plan.nodes:
                wanted.extend(missing)  # no plan at all without these costs
            return Answer(plan, *prices.sums(plan), plan.lower_bound)

        best = least_product(solve)
        plan = best.plan
        if wanted:
            return plan, sorted(set(wanted), key=_of)
        time = self._sums(plan)[0]
        plan.cost, plan.status = time, "optimal" if best.is_optimal else "feasible"
        plan.lower_bound = (
            time if best.is_optimal else int(time * best.least_product / best.product)
        )
        plan.method = f"{best.solves} weighted solves; {plan.method}{prices.rounding()}"
        return plan, prices.bounds_in(plan)


@dataclass(frozen=True)
class _Row:
    native: _C.CostKey
    time: int
    energy: int
    source: str


@dataclass(frozen=True)
class _Prices:
    """Times and energies of all candidates, rounded so far that their weighted sums fit."""

    rows: Mapping[Key, _Row]
    time_shift: int
    energy_shift: int

    @staticmethod
    def of(
        graph: _C.Graph,
        found: _C.Candidates,
        transforms: Sequence[_C.Candidate],
        table: _C.CostTable,
        time_ticks: Callable[[Key], int],
        bits: int,
    ) -> _Prices:
        exact = {
            _of(native): _Row(native, time_ticks(_of(native)), energy, source)
            for native, energy, source in table.items()
        }

        def largest(amount: Callable[[_Row], int]) -> int:
            """No plan has a larger sum: each value changes its layout at most four times."""

            def most(candidates: Sequence[_C.Candidate]) -> int:
                known = (exact.get(_key_of(c)) for c in candidates)
                return max((amount(row) for row in known if row is not None), default=0)

            return sum(map(most, found.by_anchor)) + 4 * len(graph.values) * most(transforms)

        time_shift = max(0, largest(lambda row: row.time).bit_length() - bits)
        energy_shift = max(0, largest(lambda row: row.energy).bit_length() - bits)
        rows = {
            key: _Row(
                row.native,
                _rounded(row.time, time_shift),
                _rounded(row.energy, energy_shift),
                row.source,
            )
            for key, row in exact.items()
        }
        return _Prices(rows, time_shift, energy_shift)

    def weighted(self, time_weight: int, energy_weight: int) -> _C.CostTable:
        table = _C.CostTable()
        for row in self.rows.values():
            cost = time_weight * row.time + energy_weight * row.energy
            table.set(row.native, cost, row.source)
        return table

    def sums(self, plan: _C.Plan) -> tuple[int, int]:
        rows = [self.rows[key] for key in _keys(plan) if key in self.rows]
        return sum(row.time for row in rows), sum(row.energy for row in rows)

    def bounds_in(self, plan: _C.Plan) -> list[_C.CostKey]:
        """What a plan rests on and was not measured."""
        rows = [self.rows[key] for key in sorted(set(_keys(plan))) if key in self.rows]
        return [row.native for row in rows if row.source == "bound"]

    def rounding(self) -> str:
        if not self.time_shift and not self.energy_shift:
            return ""
        time, energy = 2.0**self.time_shift / 1024, 2.0**self.energy_shift / 1024
        return f"; costs rounded to {time:.2g} ns and {energy:.2g} nJ"


def _rounded(ticks: int, shift: int) -> int:
    return ticks if shift == 0 else (ticks + (1 << (shift - 1))) >> shift


def _keys(plan: _C.Plan) -> list[Key]:
    """What the plan runs, once per run."""
    runs = [(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    runs += [(t.problem, t.primitive) for t in plan.transforms]
    keys = [Key(problem, p.name, p.src, p.dst) for problem, p in runs]
    return [key for key in keys if not _C.is_view(key.primitive)]


def _key(part: PlanNode | PlanTransform) -> Key:
    return Key(part.problem, part.primitive, part.src, part.dst)


def _key_of(candidate: _C.Candidate) -> Key:
    p = candidate.primitive
    return Key(candidate.problem, p.name, p.src, p.dst)


def _of(native: _C.CostKey) -> Key:
    return Key(native.problem, native.primitive, native.src, native.dst)


def _micro(ticks: int) -> float:
    """us of 1/1024 ns, and uJ of 1/1024 nJ."""
    return round(ticks / TICKS_PER_US, 3)


def find_objective(
    name: str, device: _C.Device | None, costs: DeviceCosts | None, bench: Bench
) -> Latency:
    """Raises: torchalgo.Error if `name` needs a meter and there is none."""
    if name == "latency":
        return Latency(bench, costs)
    kind = Energy if name == "energy" else Edp
    return kind(bench, costs, find_meter(device))
