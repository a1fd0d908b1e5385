# SPDX-License-Identifier: BSD-3-Clause
"""Limits the sums over a plan: bytes of packed weights, and errors that add up in the outputs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C
from torchalgo._ir.costs import Key, key_of
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.steps import Planner
from torchalgo._measure.tuning import Tuning

# A limit that is no integer is divided into this many units. The amount of each candidate is
# rounded up to whole units.
UNITS = 1 << 30
MOST = UNITS * 1024  # the largest amount of a candidate: above any limit, and sums do not overflow
# After this many plans whose outputs missed the bound, only candidates without errors are allowed.
MOST_SOLVES = 8


@dataclass(frozen=True)
class Limits:
    """The limits of a tuning's plans. A tighter limit of errors is another value.

    Errors are one additive resource: the sum over the plan of gain * error is at most the bound.
    `error` is a candidate's own, measured against f64. The gain is the error of the outputs divided
    by the sum of the candidates' errors.

    ATen's algorithms count 0, because the outputs are compared with those of ATen's module. A
    candidate that was not checked yet counts 0, until it is chosen and checked.

    The gain is the largest of all plans whose outputs missed the bound. So each of these plans is
    excluded. By cost, the solver decides which layers change.
    """

    tuning: Tuning
    planner: Planner = _C.make_plan
    weight_limit_bytes: int | None = None
    # Bytes of packed weights of each candidate, in the order of found.by_anchor; empty: no limit.
    packed_bytes: Sequence[Sequence[int]] = ()
    error_budget: float | None = None  # limit of the sum of errors; None: no output missed yet
    gain: float = 0.0
    misses: int = 0  # the number of plans whose outputs missed the bound

    @staticmethod
    def of(
        tuning: Tuning, weight_limit_bytes: int | None = None, planner: Planner = _C.make_plan
    ) -> Limits:
        """Returns the limits before any plan's outputs have missed their bound."""
        packed = [] if weight_limit_bytes is None else _C.packed_bytes_of(tuning.found)
        return Limits(tuning, planner, weight_limit_bytes, packed)

    def settle(self, **options: Any) -> _C.Plan:
        """Returns the cheapest plan within the limits, after measuring and checking it.

        Raises: torchalgo.Error if no plan keeps the limits.
        """
        return self.tuning.settle(self.planner, limits=self, **options)

    def tightened(self, native: _C.Plan, error: float, bound: float) -> Limits | None:
        """Returns limits that exclude `native`, whose outputs have a relative L2 above `bound`.

        Returns None if the errors of its candidates are all 0, so that no limit helps.

        Args:
            error: the relative L2 of its outputs.
        """
        total = self.error_sum(native)
        if total == 0:
            return None
        misses, gain = self.misses + 1, max(self.gain, error / total)
        is_hopeless = misses > MOST_SOLVES or not math.isfinite(gain)
        budget = 0.0 if is_hopeless else bound / gain
        return dataclasses.replace(self, error_budget=budget, gain=gain, misses=misses)

    def error_sum(self, native: _C.Plan) -> float:
        """Returns the sum of the errors of the plan's candidates. ATen's algorithms count 0."""
        errors = self.tuning.errors
        return sum(error_of(errors, node.problem, node.primitive) for node in native.nodes)

    @property
    def are_none(self) -> bool:
        """True if nothing is limited."""
        return self.weight_limit_bytes is None and self.error_budget is None

    def resources(self, knowledge: Knowledge) -> list[_C.Resource]:
        """Returns the limits as resources for make_plan; empty if there are none."""
        resources = []
        if self.weight_limit_bytes is not None:
            resources.append(
                _C.Resource("weight bytes", self.packed_bytes, self.weight_limit_bytes)
            )
        if self.error_budget is not None:
            errors = [
                [error_of(knowledge.errors, c.problem, c.primitive) for c in list_]
                for list_ in self.tuning.found.by_anchor
            ]
            resources.append(scaled_resource("sum of errors", errors, self.error_budget))
        return resources

    def described(self) -> dict[str, float]:
        """Returns the limits by name, for the plan's `limits`."""
        return {r.name: r.limit * r.unit for r in self.resources(self.tuning.knowledge)}


def error_of(errors: Mapping[Key, float], problem: str, primitive: _C.Primitive) -> float:
    """Returns a candidate's error, as far as it counts. It is 0 for ATen's, and if unchecked."""
    if not primitive.name or primitive.name.startswith("aten."):
        return 0.0
    return errors.get(key_of(problem, primitive), 0.0)


def scaled_resource(name: str, amounts: list[list[float]], limit: float) -> _C.Resource:
    """Returns a resource whose amounts and limit are no integers.

    Each amount is rounded up by at most one part in 2**30 of the limit, so that the limit holds.
    With a limit of 0, only candidates with an amount of 0 may be chosen.
    """
    if limit <= 0:
        use = [[0 if amount == 0 else 1 for amount in list_] for list_ in amounts]
        return _C.Resource(name, use, 0)
    scale = UNITS / limit
    use = [
        [math.ceil(min(a * scale, MOST)) if a == a else MOST for a in list_] for list_ in amounts
    ]
    return _C.Resource(name, use, UNITS, limit / UNITS)


@functools.lru_cache(maxsize=1 << 16)
def _packed_bytes(problem: str, name: str, src: str, dst: str) -> int:
    return _C.packed_bytes(problem, _C.Primitive(name, src, dst))


def packed_bytes(problem: str, primitive: _C.Primitive) -> int:
    """Returns the bytes that `primitive` allocates for the packed weights of `problem`.

    For oneDNN's primitives, this packs weights once. Returns 0 for an empty primitive.
    """
    if not primitive.name:
        return 0
    return _packed_bytes(problem, primitive.name, primitive.src, primitive.dst)
