# SPDX-License-Identifier: BSD-3-Clause
"""Combines the steps: model -> graph -> candidates -> costs -> plan -> rewritten module."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from torchalgo import _C
from torchalgo._base.deadline import Deadline, budget_of_call
from torchalgo._base.progress import Progress
from torchalgo._base.timings import Timings
from torchalgo._C import Error
from torchalgo._capture.calls import TensorModel, as_tensor_models
from torchalgo._capture.example_calls import CallShapes, ModelCall, example_calls
from torchalgo._capture.freeze import ScriptModule, check_model
from torchalgo._capture.options import Options, Plans, Settings, options_of_each
from torchalgo._capture.shapes import shapes_of, shapes_text
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._db.environment import texts_here
from torchalgo._ir.call_overhead import CALL_TICKS
from torchalgo._ir.overrides import forced_primitives
from torchalgo._ir.plan import InContext, Objective, Plan, outcome_lines
from torchalgo._measure import guard, process_bench
from torchalgo._measure.cost_state import Guide
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.measuring import TuneSettings, Tuning
from torchalgo._measure.sampling import Bench, cold_bytes
from torchalgo._plan.comparisons import compare_planners, compared_costs
from torchalgo._plan.describe import describe_plan, native_plan, unplanned, with_dims
from torchalgo._plan.find import has_convolutions, torch_name
from torchalgo._plan.fit import fit_plan, missing_primitives, nodes_it_lacks
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency, find_objective
from torchalgo._plan.preparation import Prepared, prepare_each, quick_run_s
from torchalgo._plan.prove import prover
from torchalgo._plan.resolve import front_finder, resolver
from torchalgo._plan.result import Result
from torchalgo._predict import guide_from_store, learn_from_store
from torchalgo._predict.model import CostModel
from torchalgo._refine import in_context
from torchalgo._refine.call_budget import CallBudget
from torchalgo._refine.finalists import (
    INTERRUPTED,
    Contest,
    Finalists,
    error_of,
    rewrite,
    single_layout_plan,
)
from torchalgo._refine.in_context import Tuned
from torchalgo._run.optimized import Optimized
from torchalgo._run.original import Original, Planned

# The comparisons measure more costs, which may change the plan that was timed inside the net. Then
# the model is tuned again, in all at most this often.
MOST_SEARCHES = 3

DEFAULTS = Settings()


def optimize(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    shapes: Sequence[CallShapes] | None = None,
    overrides: Mapping[str, str] | None = None,
    plan: Plan | Plans | None = None,
    training: bool = False,
    budget_s: float | None = None,
    objective: Objective = "latency",
    settings: Settings = DEFAULTS,
) -> Optimized:
    """Returns a module in which each convolution runs the primitive of the cheapest plan.

    The candidates are measured on this machine, unless their costs are in the database. Then the
    cheapest plan is computed, checked, and timed against PyTorch.

        fast = torchalgo.optimize(model, x)  # x = torch.rand(1, 3, 224, 224)
        print(fast.plan)
        y = fast(x)

    Args:
        model: the model in eval mode, on the CPU or on a GPU; it is not modified. An nn.Module is
            traced, or scripted if it branches on tensor values. A ScriptModule is taken as it is.
            On a GPU, torch.backends.cudnn.deterministic and .allow_tf32 restrict the candidates.
        example_inputs: a tensor, or a sequence of forward's arguments. They fix data types and
            shapes. None: the first call fixes them. Arguments may be lists, dicts and the like.
            Values that are no tensors are fixed, see docs/calls.md.
        example_kwargs: a dict of forward's keyword arguments.
        shapes: a list of shapes, one for each plan, such as [(1, 3, 224, 224), (8, 3, 224, 224)].
            For a call with several tensors, each entry is a list of their shapes, in the order of
            the arguments. The tensors repeat the values of the example inputs; without these, they
            are random. None: one plan, for the shapes of the example inputs. Calls with other
            shapes run the nearest plan, see docs/shapes.md.
        overrides: a dict from globs of layer names to primitives. `*` also matches dots. Later
            entries override earlier ones. A name without variant allows all its variants. Layouts
            stay free.
        plan: a plan to apply without measuring. If it is a dict of several plans, as
            torchalgo.load_plans returns, each is applied to the inputs of its shapes.
        training: must be False in this version.
        budget_s: the most seconds of the whole call. With less time, fewer samples are taken, then
            fewer candidates are measured. None: 90 s for each plan. float("inf"): no limit. Each of
            several plans gets an equal part of the time that is left. See "Time" in
            docs/measuring.md.
        objective: the quantity that the plan minimizes: "latency", "energy", or "edp", which is
            energy x latency of the whole model. The last two need a meter: the CPU's RAPL counters,
            the GPU's, or your own (torchalgo.energy.use). See docs/energy.md.
        settings: the rare options, see torchalgo.Settings.

    Returns: an Optimized module with the same result up to rounding. `print(fast.plan)` explains
        the plan. `fast.runs` is usually "plan". It is "single_layout" if the best plan in one
        layout was faster when timed; `fast.plan` then describes that plan. It is "baseline" if
        PyTorch was faster or nothing was timed. "Faster" means at 95 % confidence.
    Raises: torchalgo.Error if `model` is in train mode, if `plan` was made for another model, or if
        an argument is invalid. Also if the objective needs a meter and there is none, or if no plan
        keeps the limits. In this case, the text has the least possible value and the layers that
        need most.
    Source: Anderson & Gregg 2018, CGO, pp. 340-351, doi:10.1145/3168805.
    """
    options = Options.of(
        settings,
        overrides=overrides,
        plan=plan,
        training=training,
        budget_s=budget_s,
        objective=objective,
    )
    check_model(model)
    original = Original(model, functools.partial(plan_calls, options))
    if example_inputs is None and example_kwargs is None and shapes is None:
        return Optimized(original=original)
    planned = original.plan(example_calls(model, example_inputs, example_kwargs, shapes))
    return Optimized(*planned.results, form=planned.form, original=original)


def plan_calls(
    options: Options, model: nn.Module, calls: Sequence[ModelCall], plans: Plans | None
) -> Planned:
    """Plans calls of `model`, or applies `plans` if they are given. It is Original's planner."""
    if plans is not None:
        options = dataclasses.replace(options, plan=plans, overrides=None, mode="tune")
    call_budget = CallBudget(Timings(), Deadline(budget_of_call(options.budget_s, len(calls))))
    with call_budget.timings.step("values"):
        models = as_tensor_models(model, calls)
    results = _optimize(models, options, call_budget)
    formats = {key: known for each in models for key, known in each.formats.items()}
    return Planned(tuple(results), models[0].form, models[0].model, formats)


def _optimize(
    models: Sequence[TensorModel], options: Options, call_budget: CallBudget
) -> list[Result]:
    """Returns one result for each set of inputs. They share weights and measured costs."""
    progress = Progress(options.progress)
    input_sets = [model.inputs for model in models]
    each = options_of_each(dataclasses.replace(options, progress=progress), input_sets)
    with progress.watched(lambda: call_budget.timings.now):
        results = _optimize_sets(models, options, each, call_budget)
    timings = call_budget.timings.all()
    return [dataclasses.replace(result, timings=timings) for result in results]


def _optimize_sets(
    models: Sequence[TensorModel],
    options: Options,
    each: Sequence[Options],
    call_budget: CallBudget,
) -> list[Result]:
    with contextlib.ExitStack() as opened:
        store = None
        if options.plan is None:
            with call_budget.timings.step("look up"):
                store = opened.enter_context(_open_store(options))
                # If the database has costs, there may be nothing to measure.
                if options.fresh or not store.has_any(texts_here()):
                    process_bench.start_early()
        # All models are prepared first, so that an error in the last one is raised before minutes
        # of measuring.
        with call_budget.timings.step("read"):
            say = Progress(each[0].progress).say
            quick_s = quick_run_s(call_budget.deadline.budget_s / len(models))
            prepared = prepare_each(models, say, call_budget.timings, quick_s)
        return _optimize_each(prepared, each, call_budget, store)


def _open_store(options: Options) -> CostStore:
    """Opens the database, or one in memory if `cost_db` is False.

    In memory, the costs that one plan has measured can be used for the next one.
    """
    if options.cost_db is False:
        return CostStore(None)
    return CostStore.open(options.cost_db, is_fresh=options.fresh)


def _optimize_each(
    prepared: Sequence[Prepared],
    options: Sequence[Options],
    call_budget: CallBudget,
    store: CostStore | None,
) -> list[Result]:
    """Returns the result for each model. After Ctrl-C, returns the results so far.

    Raises: KeyboardInterrupt if there is no result yet.
    """
    results: list[Result] = []
    names = [shapes_text(shapes_of(p.inputs)) for p in prepared]
    say = Progress(options[0].progress).say
    for name, one, own in zip(names, prepared, options, strict=True):
        if len(names) > 1:
            say(f"plan {len(results) + 1} of {len(names)}, for inputs {name}")
        try:
            part = call_budget.part(len(names) - len(results))
            results.append(optimize_prepared(one, own, store, call_budget=part))
        except KeyboardInterrupt:
            if not results:
                raise
            break
        if results[-1].is_interrupted:
            break
    if len(results) < len(names):
        say(f"interrupted: no plans for inputs {'; '.join(names[len(results) :])}")
    return results


def optimize_prepared(
    prepared: Prepared,
    options: Options,
    store: CostStore | None,
    bench: Bench | None = None,
    call_budget: CallBudget | None = None,
) -> Result:
    """Does the steps after the model was prepared, for one set of inputs.

    Args:
        store: the cost database; None: costs are not stored.
        bench: the functions that measure. None: this machine's.
        call_budget: the time of the whole call. None: a new one that begins now.
    """
    if call_budget is None:
        call_budget = CallBudget(Timings(), Deadline(budget_of_call(options.budget_s)))
    progress = Progress(options.progress)
    if not has_convolutions(prepared.graph):
        return _left_as_it_is(prepared, options, progress)
    with call_budget.timings.step("find"):
        found = prepared.find_candidates(options)
    if isinstance(options.plan, Plan):
        return _apply(options.plan, prepared, found, options, progress)
    if call_budget.deadline.has_end:
        progress.set_most(call_budget.deadline.left_s("finish"))
    graph = prepared.graph
    progress.say(f"{sum(map(len, found.by_anchor))} candidates for {len(graph.nodes)} nodes")
    costs = None
    if store is not None:
        costs = DeviceCosts.of(store, prepared.device, cold_bytes(graph))
    with call_budget.timings.step("try"):
        call_budget.expect_end(prepared)
    device = prepared.device
    is_hopeless = not (call_budget.can_time or options.run_untimed)
    if bench is None:
        bench = Bench.on(device, call_budget.deadline)
    if is_hopeless:
        bench = dataclasses.replace(bench, peaks=lambda: None)
    objective = find_objective(options.objective, device, costs, bench)
    predictor, guide = _learned(options, store, prepared, objective, progress)
    tuning = Tuning(
        graph,
        found,
        forced_primitives(graph, found, options.overrides),
        TuneSettings(options.max_rel_error, call_ticks=_call_ticks(options, device)),
        progress=progress,
        cost_file=objective.costs,
        bench=objective.bench,
        device=device,
        timings=call_budget.timings,
        deadline=call_budget.deadline,
        predictor=predictor,
        guide=guide,
    )
    if is_hopeless:
        tuning.end_now()
    result = _bound(prepared, tuning, options, objective, call_budget, progress)
    if options.fresh and objective.verdicts is not None and tuning.is_kept:
        objective.verdicts.forget_older(tuning.rules.primitives)
    return result


def _call_ticks(options: Options, device: _C.Device | None) -> int:
    """Returns the call overhead in ticks; 0 on a GPU, and for other objectives than latency."""
    return CALL_TICKS if device is None and options.objective == "latency" else 0


def _learned(
    options: Options,
    store: CostStore | None,
    prepared: Prepared,
    objective: Latency,
    progress: Progress,
) -> tuple[CostModel | None, Guide | None]:
    """Returns a model that predicts costs instead of measuring, and a guide.

    The guide makes a model if the budget leaves candidates unmeasured. The model is None with mode
    "tune", and the guide is None with mode "predict". Both are None without a database, and for
    other objectives than latency.
    """
    if store is None or options.objective != "latency":
        return None, None
    device, cold = prepared.device, cold_bytes(prepared.graph)
    if options.mode == "tune":
        return None, lambda peaks: guide_from_store(store, device, cold, peaks)
    before = None if objective.costs is None else objective.costs.read_peaks()
    peaks = objective.bench.peaks() if before is None else before
    predictor = learn_from_store(store, device, cold, peaks)
    progress.say(f"learned from {predictor.costs} costs of {predictor.problems} problems")
    return predictor, None


def _bound(
    prepared: Prepared,
    tuning: Tuning,
    options: Options,
    objective: Latency,
    call_budget: CallBudget,
    progress: Progress,
) -> Result:
    """Measures what the cheapest plan needs, binds it, and returns the result."""
    for _ in range(MOST_SEARCHES):
        tuned, context, keep = _tuned_in_context(
            prepared, tuning, objective, options, call_budget, progress
        )
        call_budget.expect_guard()
        with call_budget.timings.step("compare"):
            with_limits = not tuned.limits.are_none
            weaker = compare_planners(tuning, objective, with_limits)
            single = single_layout_plan(tuned.limits, weaker, objective, tuned.native)
        if not _is_outdated(tuned):
            keep()
            break
        tuning.set_pairs({})
    else:
        tuned, context, single = _tuned(prepared, tuned.limits, options, call_budget), None, None
    limits = tuned.limits

    def describe(native: _C.Plan) -> Plan:
        plan = describe_plan(
            native, prepared.graph, prepared.inputs, tuning, prepared.notes, prepared.dims
        )
        return objective.described(plan)

    progress.finish("planned", is_whole=not tuning.is_stopped)
    native = limits.settle(with_regrets=True)
    with call_budget.timings.step("describe"):
        plan = describe(native)
    if context is not None:
        times = f"plan {context.kept} of {context.rounds} timed in the net"
        plan = dataclasses.replace(plan, method=f"{plan.method}; {times}")
    plan = dataclasses.replace(
        plan,
        comparisons=compared_costs(weaker, objective),
        rel_error=tuned.error if tuned.error < float("inf") else None,
        capture_error=prepared.capture_error,
        limits=limits.described(),
        in_context=context,
        resolve=resolver(prepared.imported, limits, describe),
        prove=prover(limits, objective),
    )
    contest = Contest(prepared, options, objective, call_budget)
    finalists = Finalists(plan, tuned.scripted, tuned.error, single, describe)
    if tuning.is_interrupted:
        call_budget.hurry()
    try:
        with call_budget.timings.step("guard"):
            plan, scripted = contest.decide(finalists)
    except KeyboardInterrupt:
        if tuned.error > prepared.output_bound(options):
            raise
        plan, scripted = contest.untimed(plan, tuned.scripted, INTERRUPTED)
    _tell(progress, plan)
    with call_budget.timings.step("describe"):
        alternatives = {name: describe(native) for name, native in weaker.items()}
        if "optimum" in plan.comparisons:
            alternatives["optimum"] = finalists.plan
    find_front = front_finder(tuning, describe, objective)
    plan = _with_dims_of(scripted, plan, prepared)
    return Result(
        scripted, plan, prepared.frozen, tuning.costs, alternatives, str(prepared.where),
        find_front, tuning.is_interrupted,
    )  # fmt: skip


def _tuned(prepared: Prepared, limits: Limits, options: Options, call_budget: CallBudget) -> Tuned:
    """Returns the cheapest plan whose outputs keep max_rel_error, with its module and error.

    If there is no such plan, or no time to find it, returns the last plan that was tried. If there
    is no time to bind a plan, and no cost is known, the module is the frozen one, with a NaN error.
    """
    bound = prepared.output_bound(options)
    is_hopeless = not (
        call_budget.can_time or options.run_untimed or limits.tuning.knowledge.has_any_cost
    )
    while True:
        native = limits.settle()
        if is_hopeless:
            return Tuned(native, prepared.frozen, float("nan"), limits)
        started = call_budget.deadline.now_s()
        with limits.tuning.timings.step("bind"):
            scripted = rewrite(prepared.imported, native, options.strict)
        with limits.tuning.timings.step("try"):
            error = error_of(scripted, prepared)
        call_budget.learn_binding(call_budget.deadline.now_s() - started)
        is_last = error <= bound or not call_budget.can_bind()
        own = prepared.capture_error  # the plan does not cause this error
        if is_last or not limits.tighten(native, error - own, bound - own):
            return Tuned(native, scripted, error, limits)


def _tuned_in_context(
    prepared: Prepared,
    tuning: Tuning,
    objective: Latency,
    options: Options,
    call_budget: CallBudget,
    progress: Progress,
) -> tuple[Tuned, InContext | None, Callable[[], None]]:
    """Returns the cheapest plan after its costs were corrected by times inside the net.

    If the database has the corrections for the same plan, they are used again. On a GPU, with mode
    "predict" and for other objectives than latency, there are no times in the net.

    Returns: the plan; its times in the net, None if there are none; and a function that stores the
        corrections for later runs. To be called if the plan is final.
    """

    def keep_nothing() -> None:
        pass

    limits = Limits(tuning, options.weight_limit_bytes, objective.planner)
    bound, costs = prepared.output_bound(options), objective.verdicts
    limits.settle()
    while tuning.resume():
        limits.settle()
    is_timed = options.mode == "tune" and options.objective == "latency"
    if not is_timed or tuning.device is not None:  # calls of a GPU's ops return early
        return _tuned(prepared, limits, options, call_budget), None, keep_nothing
    key = in_context.context_key(tuning, options.weight_limit_bytes, options.max_rel_error)
    kept = None if costs is None else in_context.Kept.from_json(costs.read_record(key))
    if kept is not None:
        tuning.set_pairs(kept.pairs)
        tuned = _tuned(prepared, copy.copy(limits), options, call_budget)
        if kept.fits(tuned.native):
            return tuned, kept.context, keep_nothing
        tuning.set_pairs({})
    tuned = _tuned(prepared, copy.copy(limits), options, call_budget)
    # The comparisons measure more costs. These may change the optimum, because some lower bounds
    # rest on experience only, and may be wrong.
    with call_budget.timings.step("compare"):
        compare_planners(tuning, objective, not tuned.limits.are_none)
    if _is_outdated(tuned):
        tuned = _tuned(prepared, copy.copy(limits), options, call_budget)
    limit_s = in_context.limit_s(tuning.seconds, call_budget.deadline)
    is_final = tuning.is_stopped or not tuned.error <= bound
    if is_final or not in_context.has_time(tuned.native, limit_s, call_budget.deadline):
        return tuned, None, keep_nothing
    progress.say("times the plan inside the net")
    search = in_context.Search(
        tuning,
        lambda: _tuned(prepared, copy.copy(limits), options, call_budget),
        prepared.inputs,
        limit_s=limit_s,
        most_error=bound,
    )
    watch = WaitWatch()
    with call_budget.timings.step("in the net"):
        refined = search.run(tuned)
    is_disturbed = watch.was_disturbed()

    def keep() -> None:
        found = in_context.Kept.of(refined)
        is_sound = not tuning.is_stopped and not is_disturbed
        if costs is not None and found is not None and is_sound:
            costs.keep_record(key, found.to_json())

    return refined.tuned, refined.context, keep


def _is_outdated(tuned: Tuned) -> bool:
    """Returns True if costs that were measured since have changed the optimum."""
    choices_of = in_context.choices_of
    return choices_of(tuned.limits.settle()) != choices_of(tuned.native)


def _left_as_it_is(prepared: Prepared, options: Options, progress: Progress) -> Result:
    if isinstance(options.plan, Plan):
        fit_plan(options.plan, prepared.graph, prepared.inputs)
    verdict = guard.untimed_verdict("the model has no convolutions")
    plan = unplanned(
        prepared.graph, prepared.inputs, prepared.notes, prepared.device, prepared.dims
    )
    plan = dataclasses.replace(plan, guard=verdict)
    _tell(progress, plan)
    frozen = prepared.frozen
    return Result(frozen, plan, frozen, device=torch_name(prepared.device))


def _apply(
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
        progress.say(f"an older plan, PyTorch runs what it has no node for: {', '.join(left)}")
    missing = missing_primitives(plan, found)
    if missing and options.strict:
        raise Error(f"optimize: strict, and this machine does not offer {', '.join(missing)}")
    if missing:
        progress.say(f"falls back, not offered here: {', '.join(missing)}")
    frozen, where = prepared.frozen, str(prepared.where)
    verdict = plan.guard
    is_refused = verdict is not None and verdict.runs == "baseline"
    is_timed = verdict is not None and verdict.rounds > 0
    if is_refused and (is_timed or not options.run_untimed):
        return Result(frozen, _with_dims_of(frozen, plan, prepared), frozen, device=where)
    scripted = rewrite(prepared.imported, native_plan(plan), options.strict)
    error = error_of(scripted, prepared)
    bound = prepared.output_bound(options)
    if error > bound:
        raise Error(
            f"optimize: with this plan the outputs have relative L2 {error:.1e} to the model's,"
            f" expected at most {bound:.1e}: make a new plan"
        )
    return Result(scripted, _with_dims_of(scripted, plan, prepared), frozen, device=where)


def _with_dims_of(scripted: ScriptModule, plan: Plan, prepared: Prepared) -> Plan:
    """Returns the plan with the sizes for which its module is right."""
    return dataclasses.replace(plan, inputs=with_dims(plan.inputs, prepared.dims_of(scripted)))


def _tell(progress: Progress, plan: Plan) -> None:
    for line in outcome_lines(plan):
        progress.say(line)
