# SPDX-License-Identifier: BSD-3-Clause
"""Gives results without tuning: applies a plan as it is, or leaves the model as it is."""

from __future__ import annotations

import dataclasses
import functools

from torchalgo import _C
from torchalgo._base.progress import Progress
from torchalgo._C import Error
from torchalgo._capture.freeze import ScriptModule
from torchalgo._capture.settings import Options
from torchalgo._ir.native_plan import native_plan
from torchalgo._ir.plan import Plan, outcome_lines
from torchalgo._ir.plan_threads import other_threads
from torchalgo._measure import guard
from torchalgo._plan.facts import facts_of_offers
from torchalgo._plan.fit import fit_plan, missing_primitives, nodes_it_lacks
from torchalgo._plan.preparation import Prepared
from torchalgo._plan.result import Result
from torchalgo._refine.binding import rewrite, with_dims_of


def leave_as_it_is(prepared: Prepared, options: Options, progress: Progress) -> Result:
    """Returns the frozen model as the result, because it has no convolutions."""
    if isinstance(options.plan, Plan):
        fit_plan(options.plan, prepared.graph, prepared.inputs)
    verdict = guard.untimed_verdict("the model has no convolutions")
    plan = dataclasses.replace(prepared.unplanned(), guard=verdict)
    tell_outcome(progress, plan)
    frozen, where = prepared.frozen, str(prepared.where)
    return Result(frozen, plan, frozen, device=where, graph=prepared.graph.to_text())


def apply_plan(
    plan: Plan,
    prepared: Prepared,
    found: _C.Candidates,
    options: Options,
    progress: Progress,
) -> Result:
    """Applies `plan` without measuring. If its verdict is for the baseline, the frozen model runs.

    Raises: torchalgo.Error if the plan was made for another model, or if its outputs are not exact
        enough. With `strict`, also if this machine does not offer a primitive.
    """
    plan = fit_plan(plan, prepared.graph, prepared.inputs)
    left = nodes_it_lacks(plan, prepared.graph)
    if left:
        progress.say(
            f"the plan is older, so PyTorch runs the operations that it lacks: {', '.join(left)}"
        )
    missing = missing_primitives(plan, found)
    if missing and options.strict:
        raise Error(
            "TA2203 optimize: strict=True forbids fallbacks, and this machine does not offer"
            f" {', '.join(missing)}: make a plan here"
        )
    if missing:
        progress.say(f"PyTorch runs what this machine does not offer: {', '.join(missing)}")
    if text := other_threads(plan):
        progress.say(text)
    frozen, where = prepared.frozen, str(prepared.where)
    facts = functools.partial(facts_of_offers, prepared.graph, found)

    def running(module: ScriptModule) -> Result:
        planned = with_dims_of(module, plan, prepared)
        graph = prepared.graph.to_text()
        return Result(module, planned, frozen, device=where, graph=graph, find_facts=facts)

    verdict = plan.guard
    is_refused = verdict is not None and verdict.runs == "baseline"
    is_timed = verdict is not None and verdict.rounds > 0
    if is_refused and (is_timed or not options.run_untimed):
        return running(frozen)
    scripted = rewrite(prepared.imported, native_plan(plan))
    error = prepared.reference.error_of(scripted)
    # A plan with layers in coarser types was made under a bound of its own.
    own_bound = prepared.capture_error + (plan.max_error or 0.0)
    bound = max(prepared.output_bound(options), own_bound)
    if error > bound and is_refused:  # as optimize found: it ran the baseline for this reason
        return running(frozen)
    if error > bound:
        raise Error(
            f"TA2204 optimize: with this plan the outputs have relative L2 {error:.1e} to the"
            f" model's, expected at most {bound:.1e}: make a new plan"
        )
    return running(scripted)


def tell_outcome(progress: Progress, plan: Plan) -> None:
    """Shows what runs, and what was left alone."""
    for line in outcome_lines(plan):
        progress.say(line)
