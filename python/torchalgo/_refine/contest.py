# SPDX-License-Identifier: BSD-3-Clause
"""Decides what runs in the end: the plan, or a baseline."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.settings import Options
from torchalgo._ir.costs import Cost, Key
from torchalgo._ir.plan import GuardVerdict, Plan
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
from torchalgo._refine.binding import Tuned, with_dims_of, with_errors
from torchalgo._refine.end_of_call import CallBudget, GuardEffort
from torchalgo._refine.error_front import error_front
from torchalgo._refine.left_ops import left_nodes
from torchalgo._refine.refinement import Chosen

# The most time for convolutions in channels_last that were not measured, as a part of what is left.
TRIAL_SHARE = 0.25


def plan_of(chosen: Chosen, prepared: Prepared, describe: Describer) -> Plan:
    """Returns the chosen plan, with all facts that users read about it."""
    limits = chosen.tuned.limits
    native = limits.settle(with_regrets=True)
    with describe.tuning.timings.step("describe"):
        plan = describe(native)
    return dataclasses.replace(
        with_errors(plan, native, chosen.tuned, prepared),
        left_alone=left_nodes(prepared.imported, chosen.left_us),
        comparisons=compared_costs(chosen.weaker),
        resolve=resolver(limits, describe),
        prove=prover(limits),
    )


class Contest:
    """The comparison of the plan with the baselines, which decides what runs."""

    def __init__(
        self, prepared: Prepared, options: Options, objective: Latency, budget: CallBudget
    ) -> None:
        self._prepared, self._options = prepared, options
        self._objective, self._budget = objective, budget

    def decide(self, plan: Plan, tuned: Tuned) -> tuple[Plan, ScriptModule]:
        """Returns the plan with its verdict, and the module that runs.

        A verdict from the database is used without timing again. Ctrl-C ends the timing.

        Raises: KeyboardInterrupt on Ctrl-C if the plan's outputs are not exact enough.
        """
        try:
            with self._budget.call.timings.step("guard"):
                verdict = self._verdict(plan, tuned)
        except KeyboardInterrupt:
            if tuned.error > self._prepared.output_bound(self._options):
                raise
            verdict = self._untimed(guard.INTERRUPTED)
        scripted, prepared = tuned.scripted, self._prepared
        if verdict.runs != "plan":
            scripted = baselines.baseline_module(
                prepared.model, prepared.frozen, prepared.inputs, verdict.baseline
            )
        return dataclasses.replace(plan, guard=verdict), scripted

    def _verdict(self, plan: Plan, tuned: Tuned) -> GuardVerdict:
        if math.isnan(tuned.error):  # there was no time to bind the plan
            return self._out_of_time(tuned)
        if tuned.error > self._prepared.output_bound(self._options):
            return guard.untimed_verdict(
                f"outputs differ from the model's by {tuned.error:.1e} at best"
            )
        if self._options.own_kernels:  # a baseline has other kernels
            reason = "not timed against PyTorch, because own_kernels=True"
            return guard.untimed_verdict(reason, run_untimed=True)
        verdicts = self._objective.verdicts
        key = guard.verdict_key(self._prepared.model, plan)
        if (stored := verdicts.read_verdict(key)) is not None:
            return stored
        effort = self._budget.guard_effort()
        if effort is None:
            return self._out_of_time(tuned)
        verdict = self._timed(tuned, effort)
        # Later calls use what is kept instead of timing again, so it has to be the best effort.
        if effort.is_whole and verdict.rounds >= guard.LEAST_ROUNDS:
            verdicts.keep_verdict(key, verdict)
        return verdict

    def _timed(self, tuned: Tuned, effort: GuardEffort) -> GuardVerdict:
        prepared, scripted = self._prepared, tuned.scripted
        inputs = prepared.inputs
        why_not = self._why_not_in_channels_last(tuned.limits.tuning.known)
        calls = baselines.baseline_calls(prepared.model, prepared.frozen, inputs, not why_not)
        calls = {name: call for name, call in calls.items() if effort.includes(name)}
        calls, failures = baselines.drop_failing(calls)
        notes = [f"{name} raised {why}" for name, why in failures.items()]
        note = "; ".join([*notes, *([f"channels_last: {why_not}"] if why_not else [])])
        if not calls:
            return guard.untimed_verdict(f"no baseline runs: {note}", run_untimed=True)
        calls[guard.PLAN] = lambda: scripted(*inputs)
        verdict = self._objective.compare(
            calls,
            limit_s=effort.limit_s,
            warmup=effort.warmup,
            most_s=self._budget.call.deadline.left_s("finish"),
            synchronize=guard.synchronizer(prepared.where),
        )
        if verdict is None:
            return self._out_of_time(tuned)
        if not verdict.rounds:
            return self._untimed(verdict.reason)
        reason = "; ".join(filter(None, [verdict.reason, note and f"not timed: {note}"]))
        return dataclasses.replace(verdict, reason=reason)

    def _why_not_in_channels_last(self, known: Mapping[Key, Cost]) -> str:
        if self._prepared.device is not None:  # a failure on a GPU raises an error
            return ""
        limit_s = TRIAL_SHARE * self._budget.call.deadline.left_s("finish")
        if self._options.mode == "predict" and not worker.is_usable():  # nothing is measured
            limit_s = 0.0
        return why_not_in_channels_last(self._prepared.graph, known, limit_s)

    def _out_of_time(self, tuned: Tuned) -> GuardVerdict:
        deadline, least_s = self._budget.call.deadline, self._budget.least_call_s
        tuning = tuned.limits.tuning
        is_measured = any(cost.samples.n for cost in tuning.known.values())
        may_run = is_measured and not self._options.run_untimed
        reason = guard.out_of_time(
            deadline,
            "before the plan was timed",
            least_s,
            is_busy=tuning.is_disturbed,
            may_run=may_run,
        )
        return self._untimed(reason)

    def _untimed(self, reason: str) -> GuardVerdict:
        return guard.untimed_verdict(reason, self._options.run_untimed)


def result_of(
    plan: Plan,
    scripted: ScriptModule,
    chosen: Chosen,
    prepared: Prepared,
    options: Options,
    describe: Describer,
) -> Result:
    """Returns the result of the call: `plan` and the module that runs, and the weaker plans."""
    tuning, sensitivities = describe.tuning, chosen.tuned.limits.sensitivities
    find_errors = functools.partial(error_front, prepared, options, tuning.known, sensitivities)
    with tuning.timings.step("describe"):
        alternatives = {name: describe(native) for name, native in chosen.weaker.items()}
    is_interrupted = plan.guard is not None and plan.guard.reason == guard.INTERRUPTED
    return Result(
        scripted,
        with_dims_of(scripted, plan, prepared),
        prepared.frozen,
        tuning.costs,
        alternatives,
        str(prepared.where),
        front_finder(describe, find_errors),
        prepared.graph.to_text(),
        functools.partial(facts_of_tuning, tuning),
        tuning.is_interrupted or is_interrupted,
    )
