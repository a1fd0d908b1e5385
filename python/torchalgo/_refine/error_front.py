# SPDX-License-Identifier: BSD-3-Clause
"""Finds the front of time and error: one tuning, solved again under several bounds of the error."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from torchalgo._base.call_context import CallContext
from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline
from torchalgo._C import Error
from torchalgo._capture.settings import BF16_ERROR, Options
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.costs import MAX_ERROR, Cost, Key
from torchalgo._ir.plan import Plan
from torchalgo._measure.sampling import cold_bytes
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.describe import Describer
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.sensitivities import SENSITIVITY_SHARE, Sensitivity, sensitivities_of
from torchalgo._plan.start_tuning import start_tuning
from torchalgo._refine.binding import Tuned, bind_exact_plan, choices_of, limits_of, with_errors
from torchalgo._refine.end_of_call import CallBudget

MOST_BOUND = 0.5  # of the outputs' error: in practice, no bound
# The bound of a plan is this much above its error: predictions are rounded up.
SLACK = 1.06
# Between two points whose errors differ by at most this factor, no further point is searched.
NEAREST = 1.25
MOST_TRIES = 2  # bounds that are tried for each point of the front
AFTER_ENDS_SHARE = 0.25  # of the time: reserved for the points between both ends


def error_front(
    prepared: Prepared,
    options: Options,
    known: Mapping[Key, Cost],
    sensitivities: Sequence[Sensitivity],
    max_points: int,
    time_limit_s: float,
) -> list[Plan]:
    """Returns the cheapest plans for bounds from 1e-5 up to the error of the fastest plan.

    Costs that the call or the database does not have are measured, once for all points. Each
    plan runs once, and its outputs are compared with the model's.

    Args:
        known: what the call of `optimize` has measured.
        sensitivities: empty if the call has not computed them.
        time_limit_s: the most seconds for each point, on average.

    Raises: torchalgo.Error if no plan keeps its bound.
    """
    options = dataclasses.replace(options, max_error=max(options.max_error, BF16_ERROR))
    call = CallContext.start(Deadline(max_points * time_limit_s), Progress(options.progress))
    # The outputs are compared with those of the model outside of autocast.
    with (
        CostStore.of_call(options.cost_db, is_fresh=False) as store,
        torch.autocast("cpu", enabled=False),
        call.progress.watched(lambda: call.timings.now),
    ):
        if options.cost_db is False:
            costs = DeviceCosts.of(store, prepared.device, cold_bytes(prepared.graph))
            costs.append(known)
        found = prepared.find_candidates(options)
        tuning, objective = start_tuning(prepared, found, options, store, None, call)
        sensitivities = sensitivities or sensitivities_of(
            prepared.imported, prepared.inputs, SENSITIVITY_SHARE * call.deadline.budget_s
        )
        search = _Search(prepared, options, tuning, sensitivities, CallBudget(call))
        points = search.run(max_points)
        call.progress.finish("planned", is_whole=not tuning.is_stopped)
    if not points:
        raise Error(
            "TA2501 pareto: the outputs of no plan keep a bound of the error, so there is no"
            " front: use optimize(model, x, max_error=...)"
        )
    describe = Describer(prepared.unplanned(), tuning, objective)
    return [with_errors(describe(tuned.native), tuned.native, tuned, prepared) for tuned in points]


@dataclass(frozen=True)
class _Point:
    """A plan, the least bound that it keeps, and the largest bound for which it is the cheapest."""

    tuned: Tuned
    least: float
    bound: float


@dataclass(frozen=True)
class _Search:
    prepared: Prepared
    options: Options
    tuning: Tuning
    sensitivities: Sequence[Sensitivity]
    budget: CallBudget

    def run(self, max_points: int) -> list[Tuned]:
        """Returns the points of the front, the fastest first.

        It begins with both ends. Each further bound is in the middle of the widest gap of times.
        """
        deadline = self.budget.call.deadline
        deadline.keep("finish", AFTER_ENDS_SHARE * deadline.budget_s)
        ends = [self._fastest(), self._cheapest(self._least_bound())]
        deadline.keep("finish", 0.0)
        points = [point for point in ends if point is not None]
        if len(points) == 2 and _are_same(*points):
            points = points[1:]
        for _ in range(MOST_TRIES * max_points):
            gap = _widest_gap(points)
            is_over = deadline.is_over("finish") or self.tuning.is_interrupted
            if gap is None or is_over or len(points) >= max_points:
                break
            fast, slow = points[gap], points[gap + 1]
            bound = float(f"{math.sqrt(fast.least * slow.bound):.1e}")
            new = self._cheapest(bound)
            if new is None or _are_same(new, slow):
                points[gap + 1] = dataclasses.replace(slow, bound=bound)
            else:
                points.insert(gap + 1, new)
        return _without_dominated(points)

    def _least_bound(self) -> float:
        """Returns the least bound: 1e-5, or what the model's type and its capture need."""
        least = max(MAX_ERROR, 2 * self.prepared.capture_error)
        return self.prepared.output_bound(dataclasses.replace(self.options, max_error=least))

    def _fastest(self) -> _Point | None:
        """Returns the cheapest plan without a bound, with a bound that it just keeps."""
        point = self._cheapest(MOST_BOUND)
        if point is None:
            return None
        bound = max(float(f"{SLACK * point.least:.1e}"), self._least_bound())
        left = bound - self.prepared.capture_error
        limits = dataclasses.replace(point.tuned.limits, bound=left)
        return dataclasses.replace(point, tuned=point.tuned._replace(limits=limits), bound=bound)

    def _cheapest(self, bound: float) -> _Point | None:
        """Returns the cheapest plan under `bound`; None if the outputs of no plan keep it."""
        options = dataclasses.replace(self.options, max_error=bound)
        own = self.prepared.capture_error
        limits = limits_of(self.prepared, self.tuning, options)
        limits = limits.predicting(self.sensitivities, bound - own)
        tuned = bind_exact_plan(self.prepared, limits, options, self.budget)
        if not tuned.error <= bound:
            return None
        predicted = own + tuned.limits.gain * tuned.limits.predict(tuned.native).error
        return _Point(tuned, max(predicted, tuned.error), bound)


def _are_same(one: _Point, other: _Point) -> bool:
    return choices_of(one.tuned.native) == choices_of(other.tuned.native)


def _widest_gap(points: Sequence[_Point]) -> int | None:
    """Returns the number of the point before the widest gap of times in which a plan may be."""
    gaps = [
        (slow.tuned.native.cost - fast.tuned.native.cost, -i)
        for i, (fast, slow) in enumerate(itertools.pairwise(points))
        if fast.least > NEAREST * slow.bound
    ]
    return -max(gaps)[1] if gaps else None


def _without_dominated(points: Sequence[_Point]) -> list[Tuned]:
    """Drops each plan behind which there is one that is as fast, with a smaller error."""
    kept: list[Tuned] = []
    for point in points:
        while kept and point.tuned.native.cost <= kept[-1].native.cost:
            kept.pop()
        kept.append(point.tuned)
    return kept
