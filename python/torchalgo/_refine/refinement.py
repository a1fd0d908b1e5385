# SPDX-License-Identifier: BSD-3-Clause
"""Finds the plan that runs: settles it, and compares it with simpler ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.settings import Options
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.comparisons import compared_plans
from torchalgo._plan.memory_search import within_memory
from torchalgo._plan.objective import Latency
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.sensitivities import SENSITIVITY_SHARE, sensitivities_of
from torchalgo._refine import left_ops
from torchalgo._refine.binding import Tuned, bind_exact_plan, limits_of
from torchalgo._refine.end_of_call import CallBudget

# A plan of own kernels is preferred if it costs at most this much, relative to the best plan.
MOST_FOR_OWN_KERNELS = 1.02


@dataclass(frozen=True)
class Chosen:
    """The plan that tuning has chosen, and the plans that it is compared with."""

    tuned: Tuned
    left_us: Mapping[str, float] | None  # of nodes that are left to PyTorch; None if not timed
    weaker: Mapping[str, _C.Plan]  # plans of simpler choices, by name


class Refinement:
    """The steps of one call between the start of tuning and the guard."""

    def __init__(
        self,
        prepared: Prepared,
        tuning: Tuning,
        objective: Latency,
        options: Options,
        budget: CallBudget,
    ) -> None:
        self._prepared, self._tuning, self._objective = prepared, tuning, objective
        self._options, self._budget = options, budget
        self._limits = limits_of(prepared, tuning, options)

    def choose(self) -> Chosen:
        """Returns the cheapest plan, bound to a module, and simpler plans.

        Raises: torchalgo.Error, before anything is measured, if no plan's outputs can be exact
            enough. Also if no plan keeps the limits.
        """
        most_error = self._prepared.output_bound(self._options)
        if self._options.has_coarse_types or self._options.names_types:
            with self._budget.call.timings.step("values"):
                limit_s = SENSITIVITY_SHARE * self._budget.call.deadline.budget_s
                found = sensitivities_of(self._prepared.imported, self._prepared.inputs, limit_s)
            left = most_error - self._prepared.capture_error
            self._limits = self._limits.predicting(found, left)
        self._settle()
        self._prefer_own_kernels()
        tuned = bind_exact_plan(self._prepared, self._limits, self._options, self._budget)
        self._budget.expect_guard()
        with self._budget.call.timings.step("compare"):
            is_limited = not tuned.limits.are_none
            weaker = compared_plans(self._tuning, self._objective, is_limited=is_limited)
        left_us = self._left_us(tuned) if tuned.error <= most_error else None
        return Chosen(tuned, left_us, weaker)

    def _settle(self) -> None:
        """Measures what the cheapest plan needs."""
        try:
            self._limits = within_memory(self._limits)
            self._limits.settle()
        except Error as error:
            if not self._options.own_kernels:
                raise
            why = str(error).partition(" ")[2]
            raise Error(
                f"TA2301 {why}; own_kernels=True allows kernels of torchalgo only"
            ) from None

    def _prefer_own_kernels(self) -> None:
        """Keeps PyTorch's threads out of the plan if the known costs say that this costs little.

        On a busy machine, each call of PyTorch waits until all its threads have run. Our own
        kernels do not: see docs/decisions/0048-threads-of-our-own-when-a-core-is-lost.md.
        """
        if self._options.own_kernels:
            return
        free = self._limits = self._limits.without_filter()
        is_on_gpu, is_latency = self._tuning.device is not None, self._objective.name == "latency"
        if is_on_gpu or not is_latency or torch.get_num_threads() == 1:
            return
        best, own = free.settle(), free.with_own_kernels()
        most = MOST_FOR_OWN_KERNELS * best.cost
        known = None if _has_own_kernels(best) else self._tuning.known_plan(own)
        if known is None or known.cost > most or not _has_own_kernels(known):
            return
        try:
            plan = own.settle()  # without what fails its check
        except Error:
            return
        if plan.cost <= most:
            self._limits = own

    def _left_us(self, tuned: Tuned) -> Mapping[str, float] | None:
        """Returns the times in us of the nodes that are left to PyTorch. The database keeps them.

        Returns None with mode "predict", if no such node does work, if they cannot be timed, or if
        there is no time for it.
        """
        prepared, tuning, costs = self._prepared, self._tuning, self._objective.verdicts
        if self._options.mode != "tune" or not left_ops.left_nodes(prepared.imported, None):
            return None
        key = left_ops.record_key(tuning.graph, tuned.native)
        kept = left_ops.times_in_record(costs.read_record(key))
        if kept is not None:
            return kept
        if tuning.is_stopped or not self._budget.can_run(2 * left_ops.PASSES):
            return None
        watch = WaitWatch()
        try:
            with self._budget.call.timings.step("try"):
                left_us = left_ops.time_left_ops(tuned, tuning.graph, prepared.inputs)
        except KeyboardInterrupt:
            tuning.interrupt()
            return None
        if left_us is not None and not watch.was_disturbed():
            costs.keep_record(key, json.dumps(left_us))
        return left_us


def _has_own_kernels(plan: _C.Plan) -> bool:
    """Returns False if a library or PyTorch runs a planned call, as an override may demand."""
    calls = [node.primitive.name for node in plan.nodes if node.primitive.name]
    return all(map(_C.has_own_kernel, [*calls, *(t.primitive.name for t in plan.transforms)]))
