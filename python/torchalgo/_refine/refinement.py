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
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.steps import Phase
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.comparisons import compare_planners
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.sensitivities import SENSITIVITY_SHARE, sensitivities_of
from torchalgo._refine import left_ops
from torchalgo._refine.binding import Tuned, bind_exact_plan, choices_of
from torchalgo._refine.end_of_call import CallBudget

# The comparisons measure more costs, which may change the plan, since some lower bounds rest on
# experience only. Then the plan is settled again, in all at most this often.
MOST_ROUNDS = 3
# A plan of own kernels is preferred if it costs at most this much, relative to the best plan.
MOST_FOR_OWN_KERNELS = 1.02


@dataclass(frozen=True)
class Chosen:
    """The plan that tuning has chosen, and the plans that it is compared with."""

    tuned: Tuned
    left_us: Mapping[str, float] | None  # of nodes that are left to PyTorch; None if not timed
    weaker: Mapping[str, _C.Plan]  # plans of simpler choices, by name
    single: _C.Plan | None  # the best single-layout plan that differs
    options: Options  # of the call


@dataclass(frozen=True)
class _Compared:
    """Plans of simpler choices, and what they were made from."""

    plans: dict[str, _C.Plan]
    knowledge: Knowledge
    phase: Phase
    is_limited: bool

    def fits(self, tuning: Tuning, is_limited: bool) -> bool:
        """Returns True if the plans would be the same if they were made again."""
        is_same = self.knowledge is tuning.knowledge and self.phase is tuning.phase
        return is_same and self.is_limited == is_limited


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
        self._limits = Limits.of(tuning, options.weight_limit_bytes, options.own_kernels)
        self._compared: _Compared | None = None

    def choose(self) -> Chosen:
        """Returns the plan that stays the optimum after all comparisons.

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
        for _ in range(MOST_ROUNDS):
            self._settle()
            self._prefer_own_kernels()
            tuned = self._bind()
            self._budget.expect_guard()
            with self._budget.call.timings.step("compare"):
                weaker = self._compare(tuned.limits)
                single = single_layout_plan(tuned.limits, weaker, self._objective, tuned.native)
            if not tuned.is_outdated():
                left_us = self._left_us(tuned) if tuned.error <= most_error else None
                return Chosen(tuned, left_us, weaker, single, self._options)
        self._limits = tuned.limits
        return Chosen(self._bind(), None, weaker, None, self._options)

    def _bind(self) -> Tuned:
        """Returns the cheapest plan, bound to a module."""
        return bind_exact_plan(self._prepared, self._limits, self._options, self._budget)

    def _settle(self) -> None:
        """Measures what the cheapest plan needs, and more if much of the time is left."""
        try:
            self._limits.settle()
        except Error as error:
            if not self._options.own_kernels:
                raise
            why = str(error).partition(" ")[2]
            raise Error(
                f"TA2301 {why}; own_kernels=True allows kernels of torchalgo only"
            ) from None
        while self._tuning.resume():
            self._limits.settle()

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
        kept = left_ops.times_in_record(None if costs is None else costs.read_record(key))
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
        if costs is not None and left_us is not None and not watch.was_disturbed():
            costs.keep_record(key, json.dumps(left_us))
        return left_us

    def _compare(self, limits: Limits) -> dict[str, _C.Plan]:
        """Returns the plans of simpler choices, after measuring what they need.

        Nothing is solved again while the knowledge is the same.
        """
        tuning, is_limited = self._tuning, not limits.are_none
        if self._compared is None or not self._compared.fits(tuning, is_limited):
            before = tuning.knowledge, tuning.phase  # each plan's measurements may change others
            plans = compare_planners(tuning, self._objective, is_limited)
            self._compared = _Compared(plans, *before, is_limited)
        return self._compared.plans


def _has_own_kernels(plan: _C.Plan) -> bool:
    """Returns False if a library or PyTorch runs a planned call, as an override may demand."""
    calls = [node.primitive.name for node in plan.nodes if node.primitive.name]
    return all(map(_C.has_own_kernel, [*calls, *(t.primitive.name for t in plan.transforms)]))


def single_layout_plan(
    limits: Limits, weaker: Mapping[str, _C.Plan], objective: Latency, plan: _C.Plan
) -> _C.Plan | None:
    """Returns the cheapest single-layout plan, with all its candidates checked.

    Returns None if there is none, or if `plan` makes the same choices.
    """
    names = [name for name in weaker if name.startswith("single_layout_")]
    if not names or objective.name != "latency":
        return None
    best = min(names, key=lambda name: (objective.value(weaker[name]), name))
    try:
        single = limits.settle(layouts=[best.removeprefix("single_layout_")], rough=True)
    except Error:  # it exceeds a limit, or a check failed
        return None
    return None if choices_of(single) == choices_of(plan) else single
