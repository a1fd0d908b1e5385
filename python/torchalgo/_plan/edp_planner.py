# SPDX-License-Identifier: BSD-3-Clause
"""Makes the plan with the least energy x time: edp.least_product with the planner as solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchalgo import _C
from torchalgo._ir.costs import Key, key_of, key_of_native, native_key
from torchalgo._plan.edp import Answer, least_product

# The most bits of the largest sum of weighted costs. The solver has 63 bits. With limits, their
# multipliers need some of these.
SUM_BITS = 61
LIMITED_SUM_BITS = 56

_PLAIN = ((1, 0), (0, 1))  # weights for time alone and for energy alone: their sums always fit


# The arguments of make_plan before the costs.
_Arguments = tuple[_C.Graph, _C.Candidates, Sequence[_C.Candidate]]


class Times(Protocol):
    """The times of candidates, in addition to their energies."""

    def time_ticks(self, key: Key) -> int:
        """Returns the time of a run in ticks of 1/1024 ns, or a lower bound if not measured."""
        ...


class _TooFineError(Exception):
    """The error that sums of weighted costs do not fit into the solver's numbers."""


@dataclass(frozen=True)
class _Row:
    native: _C.CostKey
    time: int
    energy: int
    source: str


@dataclass(frozen=True)
class _Prices:
    """The time and energy of each candidate, in units of 2**shift[0] and 2**shift[1] ticks."""

    rows: Mapping[Key, _Row]
    shift: tuple[int, int] = (0, 0)

    @staticmethod
    def of(table: _C.CostTable, times: Times) -> _Prices:
        rows = {}
        for native, energy, source in table.items():
            key = key_of_native(native)
            rows[key] = _Row(native, times.time_ticks(key), energy, source)
        return _Prices(rows)

    def rounded(self, shift: tuple[int, int]) -> _Prices:
        if shift == (0, 0):
            return self
        rows = {
            key: _Row(
                row.native, _rounded(row.time, shift[0]), _rounded(row.energy, shift[1]), row.source
            )
            for key, row in self.rows.items()
        }
        return _Prices(rows, shift)

    def weighted(self, weights: tuple[int, int], most: int | None) -> _C.CostTable:
        """Returns a table of the weighted sums of time and energy.

        Larger costs are replaced by `most`, unless it is None.
        """
        table = _C.CostTable()
        for row in self.rows.values():
            cost = weights[0] * row.time + weights[1] * row.energy
            table.set(row.native, cost if most is None else min(cost, most), row.source)
        return table

    def sums(self, plan: _C.Plan) -> tuple[int, int]:
        rows = [self.rows[key] for key in keys_of_plan(plan)]
        return sum(row.time for row in rows), sum(row.energy for row in rows)

    def bounds_in(self, plan: _C.Plan) -> list[_C.CostKey]:
        """Returns the keys in a plan that were not measured, so that their costs are bounds."""
        rows = [self.rows[key] for key in sorted(set(keys_of_plan(plan)))]
        return [row.native for row in rows if row.source == "bound"]

    def rounding(self) -> str:
        if self.shift == (0, 0):
            return ""
        time, energy = (2.0**shift / 1024 for shift in self.shift)
        return f"; costs rounded to {time:.2g} ns and {energy:.2g} nJ"


@dataclass
class _Search:
    """One search with costs in one unit. It keeps all plans that it found, and their points."""

    prices: _Prices
    arguments: _Arguments
    options: Mapping[str, Any]
    most_sum: int
    plans: list[_C.Plan] = field(default_factory=list)
    points: list[tuple[int, int]] = field(default_factory=list)
    missing: set[Key] = field(default_factory=set)

    def solve(self, time_weight: int, energy_weight: int) -> Answer[_C.Plan]:
        weights = time_weight, energy_weight
        table = self.prices.weighted(weights, self._most(weights))
        plan, wanted = _C.make_plan(*self.arguments, costs=table, **self.options)
        if wanted and not plan.nodes:
            self.missing.update(map(key_of_native, wanted))  # there is no plan without these costs
        time, energy = self.prices.sums(plan)
        self.plans.append(plan)
        self.points.append((time, energy))
        return Answer(plan, time, energy, plan.lower_bound)

    def _most(self, weights: tuple[int, int]) -> int | None:
        """Returns a limit for single costs: the least cost of the known plans, plus one.

        A candidate that costs as much cannot be part of a better plan. Returns None for plain
        weights, which need no limit.

        Raises: _TooFineError if sums of such costs do not fit.
        """
        if weights in _PLAIN:
            return None
        least = min(weights[0] * t + weights[1] * e for t, e in self.points)
        # Each value has at most eight layout changes, four for its readers and four of its own.
        graph = self.arguments[0]
        terms = len(graph.nodes) + 8 * len(graph.values)
        if (least + 1) * terms > self.most_sum:
            raise _TooFineError
        return least + 1


class ProductPlanner:
    """A planner for the least product of energy and time, called like _C.make_plan.

    Its table holds energies. The keys in the plan whose costs are only bounds are wanted. Measuring
    these again and again ends with the optimum, because no plan's product is below the product of
    its bounds.

    The plan's cost is its time. Its lower_bound / cost is the lower bound of the product divided by
    the product.
    """

    def __init__(self, times: Times) -> None:
        self.times = times

    def __call__(
        self,
        graph: _C.Graph,
        found: _C.Candidates,
        transforms: Sequence[_C.Candidate],
        table: _C.CostTable,
        **options: Any,
    ) -> tuple[_C.Plan, list[_C.CostKey]]:
        options.pop("with_regrets", None)  # regrets exist for a sum only, not for a product
        bits = LIMITED_SUM_BITS if options.get("resources") else SUM_BITS
        exact = _Prices.of(table, self.times)
        arguments = graph, found, transforms
        ends = _Search(exact, arguments, options, 1 << bits)
        for weights in _PLAIN:
            ends.solve(*weights)
        if ends.missing:
            return ends.plans[0], [native_key(key) for key in sorted(ends.missing)]
        shift = _first_shift(ends, bits)
        while True:
            search = _Search(exact.rounded(shift), arguments, options, 1 << bits)
            try:
                best = least_product(search.solve)
                break
            except _TooFineError:
                shift = shift[0] + 1, shift[1] + 1
        plan = min(search.plans + ends.plans, key=lambda p: _product(exact.sums(p)))
        time = exact.sums(plan)[0]
        share = 1 if best.is_optimal else best.least_product / best.product
        plan.cost, plan.lower_bound = time, int(time * share)
        plan.status = "optimal" if best.is_optimal else "feasible"
        plan.method = f"{best.solves} weighted solves; {plan.method}{search.prices.rounding()}"
        return plan, exact.bounds_in(plan)


def _first_shift(ends: _Search, bits: int) -> tuple[int, int]:
    """Returns the shifts of time and energy with which weighted sums are expected to fit."""
    graph = ends.arguments[0]
    terms = len(graph.nodes) + 8 * len(graph.values)
    each = (bits - 2 - terms.bit_length()) // 2
    time, energy = (max(sums) for sums in zip(*ends.points, strict=True))
    return max(0, time.bit_length() - each), max(0, energy.bit_length() - each)


def _rounded(ticks: int, shift: int) -> int:
    return ticks if shift == 0 else (ticks + (1 << (shift - 1))) >> shift


def _product(sums: tuple[int, int]) -> int:
    return sums[0] * sums[1]


def keys_of_plan(plan: _C.Plan) -> list[Key]:
    """Returns the keys of all primitives and layout changes in the plan, once per run.

    Views are left out, since they cost nothing.
    """
    runs = [(n.problem, n.primitive) for n in plan.nodes if n.primitive.name]
    runs += [(t.problem, t.primitive) for t in plan.transforms]
    keys = [key_of(problem, primitive) for problem, primitive in runs]
    return [key for key in keys if not _C.is_view(key.primitive)]
