# SPDX-License-Identifier: BSD-3-Clause
"""Lower bounds of costs that were not measured.

A candidate takes at least the time of its arithmetic at the machine's highest rate. It also takes
at least the time of its bytes at the highest bandwidth for that many bytes. The planner uses these
bounds in place of missing costs. The costs of the best plan are then measured, until the best plan
contains only measured costs. This gives the same plan as measuring every cost.

One bound is a rule of experience, not physics: a primitive is compared with itself with more or
fewer fused steps (FUSED_FLOOR, UNFUSED_FLOOR). benchmarks/bench_replay.py checks this rule against
every measured table.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchalgo import _C
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key, native_key
from torchalgo._ir.problems import dtype_of

# Factor on the probed rates: the clock may be higher later than during the probe.
CLOCK_MARGIN = 1.1

# A primitive with more fused steps takes at least this part of its time with fewer...
FUSED_FLOOR = 0.35
# ...and with fewer fused steps at least this part of its time with more.
UNFUSED_FLOOR = 0.2

# The call overhead inside a net, which timing a kernel does not include: the interpreter, the
# dispatcher, the result's memory, and code that other ops have pushed out of the caches. It was 3
# to 8 us inside MobileNets on an AMD EPYC: docs/decisions/0012. It is equal for all calls, but
# plans differ in their number of calls. Without it, noise would decide whether two ops run as one.
CALL_TICKS = 5000 * TICKS_PER_NS

# Types whose arithmetic runs on the units that were probed, or on slower ones.
PROBED_TYPES = ("f32", "f64")
# Error bounds of types that round so coarsely that no algorithm can meet max_rel_error.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}


@dataclass(frozen=True)
class Peaks:
    """The highest rates of the CPU: flops per ns, and bytes per ns.

    `bytes_per_ns` lists pairs of a working set's size in bytes and its bandwidth, smallest first.
    """

    flops_per_ns: float
    bytes_per_ns: tuple[tuple[int, float], ...]

    @staticmethod
    def probed(probes: tuple[float, Sequence[tuple[int, float]]]) -> Peaks:
        """Makes the rates from the result of _C.probe_peaks, or from a recorded table."""
        return Peaks(probes[0], tuple((int(size), rate) for size, rate in probes[1]))

    @staticmethod
    def from_json(text: str) -> Peaks | None:
        """Reads the text of `to_json`. Returns None for any other text."""
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
        """Returns the higher of each pair of rates.

        Keeps its own bandwidths if the sizes differ.
        """
        flops = max(self.flops_per_ns, other.flops_per_ns)
        sizes = [[size for size, _ in peaks.bytes_per_ns] for peaks in (self, other)]
        if sizes[0] != sizes[1]:
            return Peaks(flops, self.bytes_per_ns)
        pairs = zip(self.bytes_per_ns, other.bytes_per_ns, strict=True)
        return Peaks(flops, tuple((size, max(a, b)) for (size, a), (_, b) in pairs))

    def bandwidth(self, size: float) -> float:
        """Returns the highest bandwidth, in bytes per ns, at which `size` bytes may be passed.

        Let s be the largest probed size that is at most `size`, or 0 if there is none. The result
        is the highest rate of all probed sizes from s up.
        """
        at_least = self.bytes_per_ns[-1][1]
        below = max((s for s, _ in self.bytes_per_ns if s <= size), default=0)
        return max([at_least, *(rate for s, rate in self.bytes_per_ns if s >= below)])

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        """Returns the least time of a run of `primitive`, in ticks of 1/1024 ns.

        The arithmetic counts only for PROBED_TYPES with torch's float32 matmul precision "highest".
        """
        flops, size = _C.least_work(problem, primitive)
        ns = size / self.bandwidth(size) if size else 0.0
        if dtype_of(problem) in PROBED_TYPES and torch.get_float32_matmul_precision() == "highest":
            ns = max(ns, flops / self.flops_per_ns)
        return int(ns * TICKS_PER_NS / CLOCK_MARGIN)


def probe_cpu() -> Peaks:
    """Returns the rates of this CPU with torch's number of threads.

    Each number of threads is probed once per process.
    """
    return _probed_with(torch.get_num_threads())


@functools.cache
def _probed_with(_threads: int) -> Peaks:
    return Peaks.probed(_C.probe_peaks())


def family_of(key: Key) -> str:
    """Returns the problem without its fused steps.

    Candidates of one family can replace each other.
    """
    before, k, last = key.problem.rpartition("_k")
    return before + k + last.partition("+")[0]


def sibling_floor(known: Key, other: Key) -> float:
    """Returns the factor f for which the cost of `other` is at least f times the cost of `known`.

    Both keys must be of one primitive with more or fewer fused steps.
    """
    fused, rival = (set(k.problem.rpartition("_k")[2].split("+")[1:]) for k in (known, other))
    return FUSED_FLOOR if fused <= rival else UNFUSED_FLOOR


class KnownCosts:
    """The known cost of each key, and the cost table of the planner.

    A key's cost is its measured cost, or else its guessed cost, or else the largest of its lower
    bounds. A bound comes from the work of the primitive or from a lost race. It also comes from the
    cost of the same primitive with more or fewer fused steps. Every cost in the table is
    `call_ticks` higher: a plan is a number of calls.
    """

    def __init__(self, bounds: Mapping[Key, int], call_ticks: int = 0) -> None:
        self._call_ticks = call_ticks
        self.costs: dict[Key, Cost] = {}  # measured costs
        self.rough: dict[Key, Cost] = {}  # lower bounds of candidates that lost a race
        self._guessed: dict[Key, int] = {}
        self.table = _C.CostTable()
        self._pairs: list[tuple[str, _C.CostKey | None, str, _C.CostKey, int]] = []
        self._bounds = dict(bounds)
        self._native = {key: native_key(key) for key in bounds}
        self._siblings: dict[tuple[str, str, str, str], list[Key]] = {}
        for key, ticks in bounds.items():
            self._siblings.setdefault(_sibling_group(key), []).append(key)
            if _C.is_view(key.primitive):  # a view costs nothing; the planner knows that
                self.costs[key] = Cost(0)
            else:
                self._set(self.table, key, ticks, "bound")

    def _set(self, table: _C.CostTable, key: Key, ticks: int, source: str) -> None:
        table.set(self._native[key], ticks + self._call_ticks, source)

    def with_bounds(self, bounds: Mapping[Key, int]) -> KnownCosts:
        """Returns the same costs with other lower bounds."""
        changed = KnownCosts(bounds, self._call_ticks)
        known = {**self.rough, **self.costs}
        changed.learn({k: cost for k, cost in known.items() if k not in changed.costs})
        changed.set_pairs(self._pairs)
        changed.guess(self._guessed)
        return changed

    def is_known(self, key: Key) -> bool:
        """Returns whether a plan may use the cost of `key`: it is measured or guessed."""
        return key in self.costs or key in self._guessed

    def lower(self, key: Key) -> int:
        """Returns the cost of `key` in ticks: the measured or guessed one, or else its bound."""
        if key in self.costs:
            return self.costs[key].ticks
        return self._guessed.get(key, self._bounds[key])

    def guess(self, predicted: Mapping[Key, int]) -> None:
        """Sets guessed costs, in ticks, for keys that were not measured.

        A higher bound replaces a guess.
        """
        for key, ticks in predicted.items():
            if key not in self.costs:
                self._guessed[key] = max(ticks, self._bounds[key])
                self._set(self.table, key, self._guessed[key], "model")

    def forget_guesses(self) -> None:
        """Removes all guesses. Their keys have their lower bounds again."""
        for key in self._guessed:
            if key not in self.costs:
                self._set(self.table, key, self._bounds[key], "bound")
        self._guessed.clear()

    def is_touched(self, key: Key) -> bool:
        """Returns whether the candidate of `key` ran at all."""
        return key in self.costs or key in self.rough

    def learn(self, measured: Mapping[Key, Cost]) -> None:
        """Adds measured costs. A rough cost only raises the lower bound of its key."""
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
        """Replaces the costs of pairs. Each item holds the arguments of CostTable.set_pair."""
        self._pairs = list(pairs)
        self.table.clear_pairs()
        for pair in self._pairs:
            self.table.set_pair(*pair)

    def estimates(self) -> _C.CostTable:
        """Returns a table with the most likely costs.

        Keys that lost a race have their estimates. Keys that never ran have their guesses or
        bounds.
        """
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
        """Returns a table without lower bounds, for plans that may use only known costs.

        Keys in `assumed` that never ran are an exception: they cost as much as their bound.
        """
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
        """Returns a new table that holds only the costs of pairs."""
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
