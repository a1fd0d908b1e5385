# SPDX-License-Identifier: BSD-3-Clause
"""Lower bounds of costs that were not measured.

A candidate that was never run costs at least its arithmetic over the machine's highest rate, and
its bytes over the highest rate at which that many are passed. Planning with such bounds in place of
missing costs, and measuring what the best plan rests on until it rests on measured costs only,
gives the plan that all costs would give.

One bound is no physics but a rule of experience, which benchmarks/bench_lazy.py checks against
every measured table: a primitive beside itself with more or less fused to it (FUSED_FLOOR,
UNFUSED_FLOOR).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchalgo import _C
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key

# The clock, and with it every rate, may be higher later than while the machine was probed.
CLOCK_MARGIN = 1.1

# A primitive with more fused to it takes at least this part of what it takes with less...
FUSED_FLOOR = 0.35
# ...and with less at least this part of what it takes with more.
UNFUSED_FLOOR = 0.2

# What a call takes in a net beside its kernel, which is what is timed: the interpreter, the
# dispatcher, the result's memory, and code that other ops have pushed out of the caches. Inside
# MobileNets on an AMD EPYC it was 3 to 8 us: docs/decisions/0012. All calls take it alike, but
# plans differ in how many calls they make: without it, noise decides whether two ops run as one.
CALL_TICKS = 5000 * TICKS_PER_NS

# Types whose arithmetic runs on the units that were probed, or on slower ones.
PROBED_TYPES = ("f32", "f64")
# No algorithm can hold max_rel_error in a type that rounds more coarsely.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}


@dataclass(frozen=True)
class Peaks:
    """The highest rates of the CPU: flops per ns, and bytes per ns by the size of what is passed
    again and again, ascending."""

    flops_per_ns: float
    bytes_per_ns: tuple[tuple[int, float], ...]

    @staticmethod
    def probed(probes: tuple[float, Sequence[tuple[int, float]]]) -> Peaks:
        """From _C.probe_peaks or a recorded table."""
        return Peaks(probes[0], tuple((int(size), rate) for size, rate in probes[1]))

    @staticmethod
    def from_json(text: str) -> Peaks | None:
        """What to_json wrote; None if it is anything else."""
        try:
            flops, rates = json.loads(text)
            found = Peaks.probed((float(flops), [(int(size), float(r)) for size, r in rates]))
        except (ValueError, TypeError, RecursionError):
            return None
        every = [found.flops_per_ns, *(rate for _, rate in found.bytes_per_ns)]
        is_sane = found.bytes_per_ns and all(0 < rate < math.inf for rate in every)
        return found if is_sane else None

    def to_json(self) -> str:
        return json.dumps([self.flops_per_ns, self.bytes_per_ns])

    def raised_by(self, other: Peaks) -> Peaks:
        """The higher of each rate; of other sizes, only the rate of arithmetic can be compared."""
        flops = max(self.flops_per_ns, other.flops_per_ns)
        sizes = [[size for size, _ in peaks.bytes_per_ns] for peaks in (self, other)]
        if sizes[0] != sizes[1]:
            return Peaks(flops, self.bytes_per_ns)
        pairs = zip(self.bytes_per_ns, other.bytes_per_ns, strict=True)
        return Peaks(flops, tuple((size, max(a, b)) for (size, a), (_, b) in pairs))

    def bandwidth(self, size: float) -> float:
        """The highest rate that was seen with `size` bytes or more, or with any if none were as
        many: what fits a cache may come from it."""
        at_least = self.bytes_per_ns[-1][1]
        below = max((s for s, _ in self.bytes_per_ns if s <= size), default=0)
        return max([at_least, *(rate for s, rate in self.bytes_per_ns if s >= below)])

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        """What a run of `primitive` takes at least, whatever it does."""
        flops, size = _C.least_work(problem, primitive)
        ns = size / self.bandwidth(size) if size else 0.0
        if dtype_of(problem) in PROBED_TYPES and torch.get_float32_matmul_precision() == "highest":
            ns = max(ns, flops / self.flops_per_ns)
        return int(ns * TICKS_PER_NS / CLOCK_MARGIN)


def probe_cpu() -> Peaks:
    """The rates of this CPU with torch's number of threads; probed once per process and number."""
    return _probed_with(torch.get_num_threads())


@functools.cache
def _probed_with(_threads: int) -> Peaks:
    return Peaks.probed(_C.probe_peaks())


def dtype_of(problem: str) -> str:
    """The compute type in a problem's spelling: "f32" of "fwd_f32_n1..."."""
    types = {"f64", "f32", "tf32", "f16", "bf16"}
    return next((part for part in problem.split("_") if part in types), "f32")


def family_of(key: Key) -> str:
    """The operation without what is fused to it: its candidates compete for one place."""
    before, k, last = key.problem.rpartition("_k")
    return before + k + last.partition("+")[0]


def sibling_floor(known: Key, other: Key) -> float:
    """Which part of the cost of `known` the cost of `other` is at least, where both are one
    primitive with more or less fused to it."""
    fused, rival = (set(k.problem.rpartition("_k")[2].split("+")[1:]) for k in (known, other))
    return FUSED_FLOOR if fused <= rival else UNFUSED_FLOOR


class KnownCosts:
    """What is known of the cost of each key, and the table that the planner sees.

    Measured: that cost. Else what is guessed of it. Else the largest of its bounds: of its work, of
    what is known of the same primitive with more or less fused to it, and of the race that it lost.
    In the table each costs `call_ticks` more: a plan is a number of calls.
    """

    def __init__(self, bounds: Mapping[Key, int], call_ticks: int = 0) -> None:
        self._call_ticks = call_ticks
        self.costs: dict[Key, Cost] = {}  # of what was measured
        self.rough: dict[Key, Cost] = {}  # of what lost a race
        self._guessed: dict[Key, int] = {}
        self.table = _C.CostTable()
        self._pairs: list[tuple[str, _C.CostKey | None, str, _C.CostKey, int]] = []
        self._bounds = dict(bounds)
        self._native = {key: _C.CostKey(*key) for key in bounds}
        self._siblings: dict[tuple[str, str, str, str], list[Key]] = {}
        for key, ticks in bounds.items():
            self._siblings.setdefault(_sibling_group(key), []).append(key)
            if _C.is_view(key.primitive):  # the planner knows that it costs nothing
                self.costs[key] = Cost(0)
            else:
                self._set(self.table, key, ticks, "bound")

    def _set(self, table: _C.CostTable, key: Key, ticks: int, source: str) -> None:
        table.set(self._native[key], ticks + self._call_ticks, source)

    def with_bounds(self, bounds: Mapping[Key, int]) -> KnownCosts:
        """The same costs above other bounds."""
        changed = KnownCosts(bounds, self._call_ticks)
        known = {**self.rough, **self.costs}
        changed.learn({k: cost for k, cost in known.items() if k not in changed.costs})
        changed.set_pairs(self._pairs)
        changed.guess(self._guessed)
        return changed

    def is_known(self, key: Key) -> bool:
        """Whether a plan may rest on it: it was measured, or is guessed."""
        return key in self.costs or key in self._guessed

    def lower(self, key: Key) -> int:
        """The cost of `key`, measured or guessed, or its lower bound."""
        if key in self.costs:
            return self.costs[key].ticks
        return self._guessed.get(key, self._bounds[key])

    def guess(self, predicted: Mapping[Key, int]) -> None:
        """Costs, in ticks, to plan with where none was measured; a bound that is higher counts."""
        for key, ticks in predicted.items():
            if key not in self.costs:
                self._guessed[key] = max(ticks, self._bounds[key])
                self._set(self.table, key, self._guessed[key], "model")

    def forget_guesses(self) -> None:
        """Takes the lower bounds again in place of what was guessed."""
        for key in self._guessed:
            if key not in self.costs:
                self._set(self.table, key, self._bounds[key], "bound")
        self._guessed.clear()

    def is_touched(self, key: Key) -> bool:
        """Whether it ran at all."""
        return key in self.costs or key in self.rough

    def learn(self, measured: Mapping[Key, Cost]) -> None:
        """Costs that a plan may rest on, and rough ones, which are bounds."""
        for key, cost in measured.items():
            if cost.is_rough:
                self.rough[key] = cost
            else:
                self.costs[key] = cost
                self.rough.pop(key, None)
                self._set(self.table, key, cost.ticks, "measured")
            self._raise_bounds(key, cost.ticks)

    def set_pairs(
        self, pairs: Iterable[tuple[str, _C.CostKey | None, str, _C.CostKey, int]]
    ) -> None:
        """Costs of pairs, as CostTable.set_pair takes them, in place of those there were."""
        self._pairs = list(pairs)
        self.table.clear_pairs()
        for pair in self._pairs:
            self.table.set_pair(*pair)

    def estimates(self) -> _C.CostTable:
        """With the most likely cost of what lost a race, and bounds of what never ran."""
        table = self._table_of_pairs()
        for key, bound in self._bounds.items():
            if self.is_touched(key):
                cost = self.costs.get(key) or self.rough[key]
                if not _C.is_view(key.primitive):
                    self._set(table, key, cost.estimate_ticks, "measured")
            elif key in self._guessed:
                self._set(table, key, self._guessed[key], "model")
            else:
                self._set(table, key, bound, "bound")
        return table

    def measured(self, assumed: Iterable[Key] = ()) -> _C.CostTable:
        """Without the bounds: for plans that must be made of what is known, or `assumed` to cost
        what its bound says."""
        table = self._table_of_pairs()
        for key, cost in [*self.rough.items(), *self.costs.items()]:
            if not _C.is_view(key.primitive):
                self._set(table, key, cost.estimate_ticks, "measured")
        guesses = {**{key: self._bounds[key] for key in assumed}, **self._guessed}
        for key, ticks in guesses.items():
            if not self.is_touched(key):
                self._set(table, key, ticks, "model")
        return table

    def _table_of_pairs(self) -> _C.CostTable:
        """With nothing else in it."""
        table = _C.CostTable()
        for pair in self._pairs:
            table.set_pair(*pair)
        return table

    def _raise_bounds(self, key: Key, ticks: int) -> None:
        for other in self._siblings[_sibling_group(key)]:
            floor = ticks if other == key else int(ticks * sibling_floor(key, other))
            if not self.is_known(other) and floor > self._bounds[other]:
                self._bounds[other] = floor
                self._set(self.table, other, floor, "bound")


def _sibling_group(key: Key) -> tuple[str, str, str, str]:
    return family_of(key), key.primitive, key.src, key.dst
