# SPDX-License-Identifier: BSD-3-Clause
"""What a plan may take in all: bytes of packed weights, and errors that add up in the outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from torchalgo import _C
from torchalgo._ir.costs import key_of
from torchalgo._measure.measuring import Tuning

UNITS = 1 << 30  # of a limit that is no integer: what each candidate takes is rounded up to them
MOST = UNITS * 1024  # of one candidate: above any limit, and sums stay in range
MOST_SOLVES = 8  # for plans whose outputs miss the bound; then nothing inexact is left


class Limits:
    """The limits of one tuning, and how they change when outputs miss their bound.

    Errors are one additive resource: sum over the plan of gain * error <= bound, where `error` is a
    candidate's own, measured against fp64, and the gain says how errors arrive at the outputs. ATen
    counts 0, for the outputs are compared with its module; a candidate that was not checked yet
    counts 0 until it is chosen and then checked. The gain comes from plans whose outputs missed the
    bound: the most that any of them made of its sum. It excludes each of them, and which layers
    give way the solver decides by cost.
    """

    def __init__(
        self,
        tuning: Tuning,
        weight_limit_bytes: int | None,
        planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]] = _C.make_plan,
    ) -> None:
        self.tuning, self.planner = tuning, planner
        self.weight_limit_bytes = weight_limit_bytes
        self._bytes = None if weight_limit_bytes is None else _C.packed_bytes_of(tuning.found)
        self._error_budget: float | None = None  # of the sum of errors; None: none missed so far
        self._gain = 0.0
        self._solves = 0

    def settle(self, **options: Any) -> _C.Plan:
        """The cheapest plan within the limits, measured and checked."""
        while True:
            native, wanted = self.tuning.plan_with(
                self.planner, resources=self.resources(), **options
            )
            if not wanted:
                return native
            self.tuning.measure(wanted)

    def tighten(self, native: _C.Plan, error: float, bound: float) -> bool:
        """Excludes `native`, whose outputs have `error` > `bound`; False if its errors are 0."""
        total = self.error_sum(native)
        if total == 0:
            return False
        self._solves += 1
        self._gain = max(self._gain, error / total)
        is_hopeless = self._solves > MOST_SOLVES or not math.isfinite(self._gain)
        self._error_budget = 0.0 if is_hopeless else bound / self._gain
        return True

    def error_sum(self, native: _C.Plan) -> float:
        """Of the plan's candidates, without ATen's."""
        return sum(self._error_of(node.problem, node.primitive) for node in native.nodes)

    def resources(self) -> list[_C.Resource]:
        """As make_plan takes them."""
        resources = []
        if self._bytes is not None and self.weight_limit_bytes is not None:
            resources.append(_C.Resource("weight bytes", self._bytes, self.weight_limit_bytes))
        if self._error_budget is not None:
            errors = [
                [self._error_of(c.problem, c.primitive) for c in list_]
                for list_ in self.tuning.found.by_anchor
            ]
            resources.append(scaled_resource("sum of errors", errors, self._error_budget))
        return resources

    def described(self) -> dict[str, float]:
        """For the plan: name of each limit and its value."""
        return {r.name: r.limit * r.unit for r in self.resources()}

    def _error_of(self, problem: str, primitive: _C.Primitive) -> float:
        if not primitive.name or primitive.name.startswith("aten."):
            return 0.0
        return self.tuning.errors.get(key_of(problem, primitive), 0.0)


def scaled_resource(name: str, amounts: list[list[float]], limit: float) -> _C.Resource:
    """Amounts that are no integers, rounded up by one part in 2**30 of the limit, so that it holds;
    with a limit of 0 nothing that takes any is left."""
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
    """What `primitive` allocates for the weights of `problem`; oneDNN is asked by packing once."""
    if not primitive.name:
        return 0
    return _packed_bytes(problem, primitive.name, primitive.src, primitive.dst)
