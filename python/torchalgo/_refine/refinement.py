# SPDX-License-Identifier: BSD-3-Clause
"""Finds the plan that runs: settles it, compares it with simpler ones, and times it in the net."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._capture.settings import Options
from torchalgo._ir.plan import InContext
from torchalgo._measure.knowledge import Knowledge
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.pairs import Pairs
from torchalgo._measure.steps import Phase
from torchalgo._measure.tuning import Tuning
from torchalgo._plan.comparisons import compare_planners
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.sensitivities import SENSITIVITY_SHARE, sensitivities_of
from torchalgo._refine import in_context, left_ops
from torchalgo._refine.binding import Tuned, bind_exact_plan, choices_of
from torchalgo._refine.end_of_call import CallBudget
from torchalgo._refine.in_context import Kept, Refined

# The comparisons measure more costs, which may change the plan that was timed inside the net. Then
# the plan is refined again, in all at most this often.
MOST_SEARCHES = 3
# A plan of own kernels is preferred if it costs at most this much, relative to the best plan.
MOST_FOR_OWN_KERNELS = 1.02


@dataclass(frozen=True)
class Chosen:
    """The plan that tuning has chosen, and the plans that it is compared with."""

    tuned: Tuned
    context: InContext | None  # its times in the net; None if there are none
    left_us: Mapping[str, float]  # times of nodes that are left to PyTorch, if they were timed
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
        self._limits = Limits.of(tuning, options.weight_limit_bytes, objective.planner)
        self._compared: _Compared | None = None
        self._key = in_context.context_key(tuning, options.weight_limit_bytes, options.max_error)

    def choose(self) -> Chosen:
        """Returns the plan that stays the optimum after all comparisons.

        If the comparisons change the optimum each time, it is a plan without times in the net.

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
        for _ in range(MOST_SEARCHES):
            self._settle()
            self._prefer_own_kernels()
            refined, is_new = self._refined(most_error)
            tuned = refined.tuned
            self._tuning.set_pairs(refined.pairs)
            self._budget.expect_guard()
            with self._budget.call.timings.step("compare"):
                weaker = self._compare(tuned.limits)
                single = single_layout_plan(tuned.limits, weaker, self._objective, tuned.native)
            if not tuned.is_outdated():
                if is_new:
                    self._keep(refined)
                left_us = refined.left_us
                return Chosen(tuned, refined.context, left_us, weaker, single, self._options)
        self._limits = tuned.limits
        return Chosen(self.tuned({}), None, {}, weaker, None, self._options)

    def tuned(self, pairs: Pairs) -> Tuned:
        """Returns the cheapest plan with these costs of pairs, bound to a module."""
        self._tuning.set_pairs(pairs)
        return bind_exact_plan(self._prepared, self._limits, self._options, self._budget)

    def _settle(self) -> None:
        """Measures what the cheapest plan needs, and more if much of the time is left."""
        self._tuning.set_pairs({})
        self._limits.settle()
        while self._tuning.resume():
            self._limits.settle()

    def _prefer_own_kernels(self) -> None:
        """Keeps PyTorch's threads out of the plan if the known costs say that this costs little.

        On a busy machine, each call of PyTorch waits until all its threads have run. Our own
        kernels do not: see docs/decisions/0048-threads-of-our-own-when-a-core-is-lost.md.
        """
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

    def _refined(self, most_error: float) -> tuple[Refined, bool]:
        """Returns the cheapest plan after its costs were corrected by times inside the net.

        On a GPU, with mode "predict" and for other objectives than latency, there are no times in
        the net. If the database has the corrections for the same plan, they are used again.

        Returns: the plan, and whether its corrections are new and worth storing.
        """
        options, tuning, deadline = self._options, self._tuning, self._budget.call.deadline
        is_timed = options.mode == "tune" and options.objective == "latency"
        if not is_timed or tuning.device is not None:  # calls of a GPU's ops return early
            return Refined(self.tuned({}), {}, None), False
        kept = self._read_kept()
        if kept is not None:
            tuned = self.tuned(kept.pairs)
            if kept.fits(tuned.native):
                return Refined(tuned, kept.pairs, kept.context, kept.left_us), False
        tuned = self.tuned({})
        # The comparisons measure more costs. These may change the optimum, because some lower
        # bounds rest on experience only, and may be wrong.
        with self._budget.call.timings.step("compare"):
            self._compare(tuned.limits)
        if tuned.is_outdated():
            tuned = self.tuned({})
        limit_s = in_context.limit_s(tuning.seconds, deadline)
        is_final = tuning.is_stopped or not tuned.error <= most_error
        if is_final or not in_context.has_time(tuned.native, limit_s, deadline):
            return Refined(tuned, {}, None), False
        return self._search(tuned, limit_s, most_error)

    def _search(self, first: Tuned, limit_s: float, most_error: float) -> tuple[Refined, bool]:
        """Times plans in the net. See `_refined`."""
        self._budget.call.progress.say("timing the plan inside the network")
        search = in_context.Search(
            self._tuning, self, self._prepared.inputs, limit_s=limit_s, most_error=most_error
        )
        watch = WaitWatch()
        with self._budget.call.timings.step("in the net"):
            refined = self._with_left_ops(search.run(first))
        return refined, not watch.was_disturbed()

    def _with_left_ops(self, refined: Refined) -> Refined:
        """Adds the times of the ops that are left to PyTorch, if there is time for it."""
        context, tuning, deadline = refined.context, self._tuning, self._budget.call.deadline
        limit_s = in_context.limit_s(tuning.seconds, deadline)
        if context is None or tuning.is_stopped:
            return refined
        if not left_ops.has_time(context.measured_us, limit_s, deadline):
            return refined
        inputs = self._prepared.inputs
        try:
            left = left_ops.time_left_ops(refined.tuned, tuning.graph, inputs, budget_s=limit_s / 6)
        except KeyboardInterrupt:
            tuning.interrupt()
            return refined
        if left is None:
            return refined
        context = dataclasses.replace(context, run_us=left.call_us)
        return dataclasses.replace(refined, context=context, left_us=left.ops_us)

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

    # ---- stored for the next process -------------------------------------------------------------

    def _read_kept(self) -> Kept | None:
        costs = self._objective.verdicts
        return None if costs is None else Kept.from_json(costs.read_record(self._key))

    def _keep(self, refined: Refined) -> None:
        """Stores the corrections for later runs, unless tuning has ended early."""
        costs, found = self._objective.verdicts, Kept.of(refined)
        if costs is not None and found is not None and not self._tuning.is_stopped:
            costs.keep_record(self._key, found.to_json())


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
