# SPDX-License-Identifier: BSD-3-Clause
"""Limits the sums over a plan: bytes of packed weights, and errors that add up in the outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from torchalgo import _C
from torchalgo._ir.costs import Key, key_of
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.measuring import Tuning
from torchalgo._measure.steps import Planner

# A limit that is no integer is divided into this many units. The amount of each candidate is
# rounded up to whole units.
UNITS = 1 << 30
MOST = UNITS * 1024  # the largest amount of a candidate: above any limit, and sums do not overflow
# After this many plans whose outputs missed the bound, only candidates without any error are left.
MOST_SOLVES = 8


class Limits:
    """The limits of one tuning. The limit of errors shrinks when outputs miss their bound.

    Errors are one additive resource: the sum over the plan of gain * error is at most the bound.
    `error` is a candidate's own, measured against f64. The gain is the error of the outputs divided
    by the sum of the candidates' errors.

    ATen's algorithms count 0, because the outputs are compared with those of ATen's module. A
    candidate that was not checked yet counts 0, until it is chosen and checked.

    The gain is the largest of all plans whose outputs missed the bound. So each of these plans is
    excluded. By cost, the solver decides which layers change.
    """

    def __init__(
        self,
        tuning: Tuning,
        weight_limit_bytes: int | None,
        planner: Planner = _C.make_plan,
    ) -> None:
        self.tuning, self.planner = tuning, planner
        self.weight_limit_bytes = weight_limit_bytes
        self._bytes = None if weight_limit_bytes is None else _C.packed_bytes_of(tuning.found)
        self._error_budget: float | None = None  # limit of the sum of errors; None: no miss yet
        self._gain = 0.0
        self._solves = 0

    def settle(self, **options: Any) -> _C.Plan:
        """Returns the cheapest plan within the limits, after measuring and checking it.

        Raises: torchalgo.Error if no plan keeps the limits.
        """
        return self.tuning.settle(self.planner, limits=self, **options)

    def tighten(self, native: _C.Plan, error: float, bound: float) -> bool:
        """Excludes `native`, whose outputs have a relative L2 of `error`, above `bound`.

        Returns False, and changes nothing, if the errors of its candidates are all 0.
        """
        total = self.error_sum(native)
        if total == 0:
            return False
        self._solves += 1
        self._gain = max(self._gain, error / total)
        is_hopeless = self._solves > MOST_SOLVES or not math.isfinite(self._gain)
        self._error_budget = 0.0 if is_hopeless else bound / self._gain
        return True

    def error_sum(self, native: _C.Plan) -> float:
        """Returns the sum of the errors of the plan's candidates. ATen's algorithms count 0."""
        errors = self.tuning.errors
        return sum(error_of(errors, node.problem, node.primitive) for node in native.nodes)

    @property
    def are_none(self) -> bool:
        """True if nothing is limited."""
        return self._bytes is None and self._error_budget is None

    def resources(self, knowledge: Knowledge) -> list[_C.Resource]:
        """Returns the limits as resources for make_plan; empty if there are none."""
        resources = []
        if self._bytes is not None and self.weight_limit_bytes is not None:
            resources.append(_C.Resource("weight bytes", self._bytes, self.weight_limit_bytes))
        if self._error_budget is not None:
            errors = [
                [error_of(knowledge.errors, c.problem, c.primitive) for c in list_]
                for list_ in self.tuning.found.by_anchor
            ]
            resources.append(scaled_resource("sum of errors", errors, self._error_budget))
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
