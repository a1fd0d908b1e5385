# SPDX-License-Identifier: BSD-3-Clause
"""Decides what runs in the end: the plan, the best single-layout plan, or a baseline."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchalgo import _C
from torchalgo._base.time_budget import OUT_OF_BUDGET
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.settings import Options
from torchalgo._ir.costs import Cost, Key
from torchalgo._ir.plan import GuardVerdict, Plan, PlanProof
from torchalgo._measure import baselines, guard
from torchalgo._measure.channels_last import why_not_in_channels_last
from torchalgo._measure.process_bench import worker
from torchalgo._plan.comparisons import compared_costs
from torchalgo._plan.describe import Describer
from torchalgo._plan.facts import facts_of_tuning
from torchalgo._plan.objective import Latency
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.prove import prover
from torchalgo._plan.resolve import front_finder, resolver
from torchalgo._plan.result import Result
from torchalgo._refine.binding import error_of, rewrite, with_dims_of, with_errors
from torchalgo._refine.end_of_call import CallBudget, GuardEffort
from torchalgo._refine.error_front import ErrorFront
from torchalgo._refine.left_ops import left_nodes
from torchalgo._refine.refinement import Chosen

INTERRUPTED = "interrupted before it was timed"
# The most time for convolutions in channels_last that were not measured, as a part of what is left.
TRIAL_SHARE = 0.25


@dataclass(frozen=True)
class Finalists:
    """The plan with its module, and the best single-layout plan, which has no module yet."""

    plan: Plan
    scripted: ScriptModule
    error: float  # relative L2 error of the module's outputs
    single: _C.Plan | None
    describe: Describer

    @staticmethod
    def of(chosen: Chosen, prepared: Prepared, describe: Describer) -> Finalists:
        """Returns the finalists with all facts that users read about the plan."""
        tuned, limits = chosen.tuned, chosen.tuned.limits
        tuning, objective = describe.tuning, describe.objective
        native = limits.settle(with_regrets=True)
        with tuning.timings.step("describe"):
            plan = describe(native)
        plan = dataclasses.replace(
            with_errors(plan, native, tuned, prepared),
            left_alone=left_nodes(prepared.imported, chosen.left_us),
            comparisons=compared_costs(chosen.weaker, objective),
            resolve=resolver(prepared.imported, limits, describe),
            prove=prover(limits),
        )
        return Finalists(plan, tuned.scripted, tuned.error, chosen.single, describe)

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
            max_error=plan.max_error,
            limits=plan.limits,
            unproven=plan.unproven,
            left_alone=plan.left_alone,  # both leave the same operations
            resolve=plan.resolve,
            prove=_refuse_proof,
        )


def _refuse_proof(_: Plan) -> PlanProof:
    raise Error(
        "TA2401 with_proof: this plan, all in one layout, runs because it was faster when timed. It"
        " is not claimed to be optimal. fast.alternatives['optimum'].with_proof() proves the"
        " optimal plan"
    )


class Contest:
    """The comparison of the finalists with the baselines, which decides what runs."""

    def __init__(
        self, prepared: Prepared, options: Options, objective: Latency, budget: CallBudget
    ) -> None:
        self._prepared, self._options = prepared, options
        self._objective, self._budget = objective, budget

    def decide(self, finalists: Finalists) -> tuple[Plan, ScriptModule]:
        """Returns a plan with its verdict, and the module that runs.

        If a baseline runs, the plan is the one that the baseline replaces. A verdict from the
        database is used without timing again. Ctrl-C ends the timing.

        Raises: KeyboardInterrupt on Ctrl-C if the plan's outputs are not exact enough.
        """
        try:
            with self._budget.call.timings.step("guard"):
                return self._decide(finalists)
        except KeyboardInterrupt:
            if finalists.error > self._prepared.output_bound(self._options):
                raise
            return self._untimed(finalists.plan, finalists.scripted)

    def _decide(self, finalists: Finalists) -> tuple[Plan, ScriptModule]:
        plan, scripted = finalists.plan, finalists.scripted
        if math.isnan(finalists.error):  # there was no time to bind the plan: `scripted` is frozen
            return self._with(plan, self._out_of_time()), self._prepared.frozen
        if finalists.error > self._prepared.output_bound(self._options):
            reason = f"outputs differ from the model's by {finalists.error:.1e} at best"
            return self._with(plan, guard.untimed_verdict(reason)), self._prepared.frozen
        if self._options.own_kernels:  # a baseline has other kernels
            reason = "not timed against PyTorch, because own_kernels=True"
            return self._with(plan, guard.untimed_verdict(reason, run_untimed=True)), scripted
        single = finalists.single_plan()
        verdict = self._stored(plan, single)
        bound, error = None, math.inf
        if verdict is None or verdict.runs == "single_layout":
            bound, error = self._bind_single(finalists)
        if verdict is not None and verdict.runs == "single_layout" and bound is None:
            verdict = None  # the plan that won cannot run now, so the other one is timed alone
        if verdict is None:
            timed = [plan] if single is None or bound is None else [plan, single]
            key = guard.verdict_key(self._prepared.model, *timed)
            effort = self._budget.guard_effort()
            verdict = self._timed(scripted, bound, effort, finalists.describe.tuning.known)
            # Later calls use what is kept instead of timing again, so it has to be the best effort.
            is_kept = (
                effort is not None and effort.is_whole and verdict.rounds >= guard.LEAST_ROUNDS
            )
            if self._objective.verdicts is not None and is_kept:
                self._objective.verdicts.keep_verdict(key, verdict)
        if verdict.runs == "single_layout" and single is not None and bound is not None:
            single = dataclasses.replace(single, rel_error=error, capture_error=plan.capture_error)
            return self._with(single, verdict), bound
        if verdict.runs != "plan":
            scripted = self._baseline(verdict)
        return self._with(plan, verdict), scripted

    def _untimed(self, plan: Plan, scripted: ScriptModule) -> tuple[Plan, ScriptModule]:
        """Returns the plan and the module that runs if Ctrl-C came before the timing ended."""
        verdict = guard.untimed_verdict(INTERRUPTED, self._options.run_untimed)
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

    def _bind_single(self, finalists: Finalists) -> tuple[ScriptModule | None, float]:
        """Builds the module of the single-layout plan. Returns it, and the error of its outputs.

        The module is None if there is no such plan, if the error is too large, or if there is no
        time to time it.
        """
        effort = self._budget.guard_effort()
        if finalists.single is None or effort is None or not effort.has_single_layout:
            return None, math.inf
        prepared, options = self._prepared, self._options
        scripted = rewrite(prepared.imported, finalists.single)
        error = error_of(scripted, prepared)
        return (scripted if error <= prepared.output_bound(options) else None), error

    def _timed(
        self,
        scripted: ScriptModule,
        single: ScriptModule | None,
        effort: GuardEffort | None,
        known: Mapping[Key, Cost],
    ) -> GuardVerdict:
        prepared = self._prepared
        if effort is None:
            return self._out_of_time()
        inputs = prepared.inputs
        why_not = self._why_not_in_channels_last(known)
        calls = baselines.baseline_calls(prepared.model, prepared.frozen, inputs, not why_not)
        calls = {name: call for name, call in calls.items() if effort.includes(name)}
        calls, failures = baselines.drop_failing(calls)
        notes = [f"{name} raised {why}" for name, why in failures.items()]
        note = "; ".join([*notes, *([f"channels_last: {why_not}"] if why_not else [])])
        if not calls:
            return guard.untimed_verdict(f"no baseline runs: {note}", run_untimed=True)
        calls[guard.PLAN] = lambda: scripted(*inputs)
        if single is not None:
            calls[guard.SINGLE_LAYOUT] = lambda: single(*inputs)
        verdict = self._objective.compare(
            calls,
            limit_s=effort.limit_s,
            warmup=effort.warmup,
            most_s=self._budget.call.deadline.left_s("finish"),
            synchronize=guard.synchronizer(prepared.where),
        )
        if verdict is None:
            return self._out_of_time()
        if not verdict.rounds:
            return guard.untimed_verdict(verdict.reason, self._options.run_untimed)
        reason = "; ".join(filter(None, [verdict.reason, note and f"not timed: {note}"]))
        return dataclasses.replace(verdict, reason=reason)

    def _why_not_in_channels_last(self, known: Mapping[Key, Cost]) -> str:
        if self._prepared.device is not None:  # a failure on a GPU raises an error
            return ""
        if self._options.mode == "predict" and not worker.is_usable():  # nothing is measured
            return why_not_in_channels_last(self._prepared.graph, known, 0.0)
        limit_s = TRIAL_SHARE * self._budget.call.deadline.left_s("finish")
        return why_not_in_channels_last(self._prepared.graph, known, limit_s)

    def _out_of_time(self) -> GuardVerdict:
        spent_s = self._options.whole_budget_s or self._budget.call.deadline.budget_s
        if spent_s == math.inf:
            return guard.untimed_verdict(INTERRUPTED, self._options.run_untimed)
        longer = math.ceil(max(self._budget.whole_s, 2 * spent_s))
        reason = (
            f"{OUT_OF_BUDGET} before it was timed: give more time, such as budget_s={longer}"
            f" (--budget {longer}), or run the plan untimed, with run_untimed=True"
            " (--run-untimed)"
        )
        return guard.untimed_verdict(reason, self._options.run_untimed)

    def _baseline(self, verdict: GuardVerdict) -> ScriptModule:
        prepared = self._prepared
        return baselines.baseline_module(
            prepared.model, prepared.frozen, prepared.inputs, verdict.baseline
        )


def result_of(
    plan: Plan, scripted: ScriptModule, chosen: Chosen, finalists: Finalists, prepared: Prepared
) -> Result:
    """Returns the result of the call: `plan` and the module that runs, and the other plans."""
    describe = finalists.describe
    tuning, sensitivities = describe.tuning, chosen.tuned.limits.sensitivities
    find_errors = ErrorFront(prepared, chosen.options, tuning.known, sensitivities)
    with tuning.timings.step("describe"):
        alternatives = {name: describe(native) for name, native in chosen.weaker.items()}
        if "optimum" in plan.comparisons:
            alternatives["optimum"] = finalists.plan
    return Result(
        scripted,
        with_dims_of(scripted, plan, prepared),
        prepared.frozen,
        tuning.costs,
        alternatives,
        str(prepared.where),
        front_finder(tuning, describe, describe.objective, find_errors),
        prepared.graph.to_text(),
        functools.partial(facts_of_tuning, tuning),
        tuning.is_interrupted or (plan.guard is not None and plan.guard.reason == INTERRUPTED),
    )
