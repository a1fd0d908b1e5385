# SPDX-License-Identifier: BSD-3-Clause
"""Decides what runs in the end: the plan, the best single-layout plan, or a baseline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from torchalgo import _C
from torchalgo._base.deadline import OUT_OF_BUDGET
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule, quiet_jit
from torchalgo._capture.options import Options
from torchalgo._ir.plan import GuardVerdict, Plan, PlanProof
from torchalgo._measure import baselines, guard
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.preparation import Prepared
from torchalgo._refine.call_budget import CallBudget
from torchalgo._refine.in_context import choices_of

INTERRUPTED = "interrupted before it was timed"


def rewrite(imported: _C.Imported, native: _C.Plan, strict: bool) -> ScriptModule:
    """Returns the module that runs `native`."""
    was_strict = _C.set_strict(strict) if strict else None
    try:
        with quiet_jit():
            rewritten = _C.rewrite_graph(imported, native)
            scripted: ScriptModule = torch.jit._recursive.wrap_cpp_module(rewritten)
            return scripted
    finally:
        if was_strict is not None:
            _C.set_strict(was_strict)


def error_of(scripted: ScriptModule, prepared: Prepared) -> float:
    """Runs the module once. Returns the relative L2 error of its outputs against the model's."""
    return prepared.reference.error_of(scripted)


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


@dataclass(frozen=True)
class Finalists:
    """The plan with its module, and the best single-layout plan, which has no module yet."""

    plan: Plan
    scripted: ScriptModule
    error: float  # relative L2 error of the module's outputs
    single: _C.Plan | None
    describe: Callable[[_C.Plan], Plan]

    def single_plan(self) -> Plan | None:
        """Returns the single-layout plan as users read it, which does not claim to be optimal.

        Returns None if there is no single-layout plan.
        """
        if self.single is None:
            return None
        single, plan = self.describe(self.single), self.plan
        bound = min(plan.lower_bound_ticks, single.cost_ticks)
        return dataclasses.replace(
            single,
            status="feasible",
            lower_bound_ticks=bound,
            lower_bound_us=min(plan.lower_bound_us, single.cost_us),
            method=f"one layout, faster when timed than the optimum of the costs; {plan.method}",
            comparisons={**plan.comparisons, "optimum": plan.cost_us},
            limits=plan.limits,
            resolve=plan.resolve,
            prove=_refuse_proof,
        )


def _refuse_proof(_: Plan) -> PlanProof:
    raise Error(
        "with_proof: this single-layout plan runs because it was faster when timed. It is not"
        " claimed to be optimal. fast.alternatives['optimum'].with_proof() proves the optimal plan"
    )


class Contest:
    """The comparison of the finalists with the baselines, which decides what runs."""

    def __init__(
        self, prepared: Prepared, options: Options, objective: Latency, call_budget: CallBudget
    ) -> None:
        self._prepared, self._options = prepared, options
        self._objective, self._course = objective, call_budget

    def decide(self, finalists: Finalists) -> tuple[Plan, ScriptModule]:
        """Returns a plan with its verdict, and the module that runs.

        If a baseline runs, the plan is the one that the baseline replaces. A verdict from the
        database is used without timing again.
        """
        plan, scripted = finalists.plan, finalists.scripted
        if finalists.error > self._prepared.output_bound(self._options):
            reason = f"outputs differ from the model's by {finalists.error:.1e} at best"
            return self._with(plan, guard.untimed_verdict(reason)), self._prepared.frozen
        single = finalists.single_plan()
        verdict = self._stored(plan, single)
        bound, error = None, math.inf
        if verdict is None or verdict.runs == "single_layout":
            bound, error = self._bound(finalists)
        if verdict is None:
            timed = [plan] if single is None or bound is None else [plan, single]
            key = guard.verdict_key(self._prepared.model, *timed)
            verdict = self._timed(scripted, bound)
            if self._objective.verdicts is not None and verdict.rounds:
                self._objective.verdicts.keep_verdict(key, verdict)
        if verdict.runs == "single_layout" and single is not None and bound is not None:
            single = dataclasses.replace(single, rel_error=error, capture_error=plan.capture_error)
            return self._with(single, verdict), bound
        if verdict.runs != "plan":
            scripted = self._baseline(verdict)
        return self._with(plan, verdict), scripted

    def untimed(self, plan: Plan, scripted: ScriptModule, reason: str) -> tuple[Plan, ScriptModule]:
        """Returns the plan and the module that runs if nothing was timed."""
        verdict = guard.untimed_verdict(reason, self._options.run_untimed)
        runs = scripted if verdict.runs == "plan" else self._prepared.frozen
        return self._with(plan, verdict), runs

    def _with(self, plan: Plan, verdict: GuardVerdict) -> Plan:
        return dataclasses.replace(plan, guard=verdict)

    def _stored(self, plan: Plan, single: Plan | None) -> GuardVerdict | None:
        """Returns the database's verdict on both plans, or on the plan alone, or None."""
        verdicts = self._objective.verdicts
        if verdicts is None:
            return None
        model, found = self._prepared.model, None
        if single is not None:
            found = verdicts.read_verdict(guard.verdict_key(model, plan, single))
        return found or verdicts.read_verdict(guard.verdict_key(model, plan))

    def _bound(self, finalists: Finalists) -> tuple[ScriptModule | None, float]:
        """Builds the module of the single-layout plan. Returns it, and the error of its outputs.

        The module is None if there is no such plan, if the error is too large, or if there is no
        time to time it.
        """
        effort = self._course.guard_effort()
        if finalists.single is None or effort is None or not effort.has_single_layout:
            return None, math.inf
        prepared, options = self._prepared, self._options
        scripted = rewrite(prepared.imported, finalists.single, options.strict)
        error = error_of(scripted, prepared)
        return (scripted if error <= prepared.output_bound(options) else None), error

    def _timed(self, scripted: ScriptModule, single: ScriptModule | None) -> GuardVerdict:
        prepared, call_budget = self._prepared, self._course
        effort = self._course.guard_effort()
        if effort is None:
            return self._out_of_time()
        inputs = prepared.inputs
        calls = baselines.baseline_calls(prepared.model, prepared.frozen, inputs)
        calls = {name: call for name, call in calls.items() if effort.includes(name)}
        calls, note = baselines.drop_failing(calls)
        if not calls:
            return guard.untimed_verdict(f"no baseline runs: {note}", run_untimed=True)
        calls[guard.PLAN] = lambda: scripted(*inputs)
        if single is not None:
            calls[guard.SINGLE_LAYOUT] = lambda: single(*inputs)
        verdict = self._objective.compare(
            calls,
            limit_s=effort.limit_s,
            warmup=effort.warmup,
            most_s=call_budget.deadline.left_s("finish"),
            synchronize=guard.synchronizer(prepared.where),
        )
        if verdict is None:
            return self._out_of_time()
        if not verdict.rounds:
            return guard.untimed_verdict(verdict.reason, self._options.run_untimed)
        reason = "; ".join(filter(None, [verdict.reason, note and f"not timed: {note}"]))
        return dataclasses.replace(verdict, reason=reason)

    def _out_of_time(self) -> GuardVerdict:
        reason = (
            f"{OUT_OF_BUDGET} before it was timed, which needs a budget_s of about"
            f" {self._course.whole_s:.0f}; run_untimed=True runs the plan untimed"
        )
        return guard.untimed_verdict(reason, self._options.run_untimed)

    def _baseline(self, verdict: GuardVerdict) -> ScriptModule:
        prepared = self._prepared
        return baselines.baseline_module(
            prepared.model, prepared.frozen, prepared.inputs, verdict.baseline
        )
