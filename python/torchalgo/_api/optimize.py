# SPDX-License-Identifier: BSD-3-Clause
"""Combines the steps: model -> graph -> candidates -> costs -> plan -> rewritten module."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from torchalgo._api.parts import plan_parts
from torchalgo._base.call_context import CallContext
from torchalgo._base.compare_outputs import in_f64, leaves_of, output_error
from torchalgo._base.error_code import own_error, without_code
from torchalgo._base.f32_precision import EXACT_CPU
from torchalgo._base.kept_model import KeptModel, kept_model
from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline, budget_of_call
from torchalgo._base.trees import copied
from torchalgo._C import Error
from torchalgo._capture.calls import CallForm, TensorModel, as_tensor_models, signature_of
from torchalgo._capture.example_calls import CallShapes, ModelCall, example_calls
from torchalgo._capture.freeze import check_model
from torchalgo._capture.fx_model import exported_model
from torchalgo._capture.keywords import known_keywords
from torchalgo._capture.seen import NoCaptureError
from torchalgo._capture.settings import (
    IN_SETTINGS,
    Options,
    Plans,
    Settings,
    default_error,
    in_autocast,
    options_of_each,
)
from torchalgo._capture.shapes import shapes_of
from torchalgo._db import CostStore
from torchalgo._db.environment import texts_here
from torchalgo._ir.plan import Objective, Plan, shapes_text
from torchalgo._measure import process_bench
from torchalgo._measure.sampling import Bench
from torchalgo._plan.describe import Describer
from torchalgo._plan.find import has_convolutions
from torchalgo._plan.preparation import Prepared, prepare_each, quick_run_s
from torchalgo._plan.result import Result
from torchalgo._plan.start_tuning import start_tuning
from torchalgo._refine.bf16_hint import tell_bf16
from torchalgo._refine.contest import Contest, plan_of, result_of
from torchalgo._refine.end_of_call import CallBudget
from torchalgo._refine.refinement import Refinement
from torchalgo._run.apply import apply_plan, leave_as_it_is, tell_outcome
from torchalgo._run.as_given import AsGiven
from torchalgo._run.model_watch import hooks_of
from torchalgo._run.optimized import Optimized
from torchalgo._run.original import Original, Planned


@known_keywords(
    {
        **IN_SETTINGS,
        "training": "is a function of its own: torchalgo.optimize_training(model, (x,))",
    }
)
def optimize(
    model: nn.Module | ExportedProgram,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    shapes: Sequence[CallShapes] | None = None,
    overrides: Mapping[str, str] | None = None,
    plan: Plan | Plans | None = None,
    budget_s: float | None = None,
    objective: Objective = "latency",
    max_error: float | None = None,
    validation: Sequence[Any] = (),
    settings: Settings | None = None,
) -> Optimized:
    """Returns a module that computes the same as `model`, with the fastest algorithm per layer.

    A primitive is an algorithm with the memory layouts of its input and its result. A plan chooses
    a primitive for each layer. The primitives are timed on this machine, unless their times are in
    the cost database. Then the plan with the lowest sum of times is computed, checked, and timed
    against PyTorch. If PyTorch is faster, the returned module runs PyTorch.

        fast = torchalgo.optimize(model, x)  # x = torch.rand(1, 3, 224, 224)
        print(fast.plan)
        y = fast(x)

    Args:
        model: the model in eval mode, on the CPU or on a GPU; it is not modified. An nn.Module is
            traced, or scripted if it branches on tensor values. A ScriptModule is taken as it is.
            For a model in train mode, see torchalgo.optimize_training.
            A program from torch.export has its own example inputs, and runs the sizes that its
            dynamic_shapes allow.
            On a GPU, torch.backends.cudnn.deterministic and .conv.fp32_precision (or .allow_tf32)
            restrict the candidates.
        example_inputs: a tensor, or a sequence of forward's arguments. The plan is made for their
            data types and shapes. None: the plan is made at the first call. Arguments may be lists,
            dicts and the like. Arguments that are not tensors are part of the plan, see
            docs/calls.md.
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
            torchalgo.load_plans returns, all are applied, or those for `shapes` if these are given.
        budget_s: the most seconds of the whole call, except that capturing the model cannot be
            interrupted. None: 90 s for each plan. float("inf"): no limit. If the time is short,
            fewer primitives are measured, and the plan may be slower. Several plans get equal parts
            of the time. See "Time" in docs/measuring.md.
        objective: the quantity that the plan minimizes: "latency" or "energy". Energy needs a
            counter: the CPU's (RAPL) or the GPU's (NVML). See docs/energy.md.
        max_error: the largest relative L2 error of the outputs for the example inputs, compared
            with the model's, and of each layer that keeps the model's type, compared with f64. If
            the outputs of a plan exceed it, other primitives are chosen for the layers where this
            costs least. From 1e-3 on, a layer may also store its tensors in bf16, or its weights in
            bf16 or f16, where the bound allows it and it pays: see docs/precision.md. None: 1e-5,
            or 1e-2 for a model on the CPU if torch.backends.mkldnn.fp32_precision is "bf16", or in
            a call inside of torch.autocast("cpu", dtype=torch.bfloat16). Such a call plans for
            later calls inside of it, whose results have the types that autocast gives them.
        validation: a list of other inputs, each like example_inputs. The plan does not depend on
            them. The largest error of the outputs for them is in `fast.plan.validation_error`.
        settings: the rare options, see torchalgo.Settings. None: all of them have their defaults.

    Returns: an Optimized module with the same result up to rounding. `print(fast.plan)` explains
        the plan. `fast.runs` is usually "plan". It is "baseline" if PyTorch was faster or nothing
        was timed. "Faster" means at 95 % confidence. It is "parts" if
        only parts of the model can be planned, and "original" if none can, for example because its
        Python code reads values of tensors. Then `plan` is None and the rest runs as it was given,
        see "Models that cannot be captured" in docs/calls.md.
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
        budget_s=budget_s,
        objective=objective,
        max_error=max_error if max_error is not None else default_error(model),
        autocast=in_autocast(model),
    )
    if isinstance(model, ExportedProgram):
        if example_inputs is None and example_kwargs is None and shapes is None:
            example_inputs = model.example_inputs[0]
        model = exported_model(model)
    check_model(model)
    original = Original(model, functools.partial(plan_calls, options))
    if example_inputs is None and example_kwargs is None and shapes is None:
        return Optimized(original=original)
    if shapes is None and isinstance(plan, dict) and len(plan) > 1:
        shapes = [[tuple(each.shape) for each in one.inputs] for one in plan.values()]
    calls = example_calls(model, example_inputs, example_kwargs, shapes)
    inputs = [example_calls(model, each, None)[0] for each in validation]
    try:
        planned = original.plan(calls)
    except RuntimeError as problem:  # of a call of the plan, by which it was timed or compared
        own = None if isinstance(problem, Error) else own_error(problem, "optimize")
        if own is None:
            raise
        raise own from problem
    fast = _module_of(planned, planned.results, original)
    if not inputs:
        return fast
    worst = _worst_error(fast, model, inputs)
    told = [
        dataclasses.replace(one, plan=dataclasses.replace(one.plan, validation_error=worst))
        for one in planned.results
    ]
    return _module_of(planned, told, original)


def _module_of(planned: Planned, results: Sequence[Result], original: Original) -> Optimized:
    return Optimized(*results, form=planned.form, original=original, as_given=planned.as_given)


def _worst_error(fast: nn.Module, model: nn.Module, calls: Sequence[ModelCall]) -> float:
    """Returns the largest relative L2 of the outputs of `fast` to those of the model.

    Those of the model are computed without autocast, and may have other types.
    """
    with torch.no_grad(), EXACT_CPU.block(), torch.autocast("cpu", enabled=False):
        expected = [leaves_of(model(*copied(args), **kwargs)) for args, kwargs in calls]
    with torch.no_grad():
        return max(
            output_error(leaves_of(fast(*copied(args), **kwargs)), [*map(in_f64, own)])
            for (args, kwargs), own in zip(calls, expected, strict=True)
        )


def plan_calls(
    options: Options,
    model: nn.Module,
    calls: Sequence[ModelCall],
    plans: Plans | None,
    deadline: Deadline | None = None,
) -> Planned:
    """Plans calls of `model`, or applies `plans` if they are given. It is Original's planner.

    Args:
        deadline: that of a part of a call. None: the call begins now.
    """
    if plans is not None:
        options = dataclasses.replace(options, plan=plans, overrides=None, mode="tune")
    if deadline is None:
        deadline = Deadline(budget_of_call(options.budget_s, len(calls)))
    call = CallContext.start(deadline, Progress(options.progress))
    if hooks := hooks_of(model):
        call.progress.say(
            f"{hooks}, so calls run the original model; remove it and call .refresh()"
        )
    autocast_off = (
        torch.autocast("cpu", enabled=False) if options.autocast else contextlib.nullcontext()
    )
    with autocast_off, kept_model(model) as kept:
        try:
            return _plan_whole(options, model, calls, call, kept)
        except NoCaptureError as problem:
            if options.strict or options.plan is not None or options.autocast:
                raise
            why = without_code(str(problem)).removeprefix("optimize: ")
            call.progress.say(f"the model runs as it was given: {why}")
            planned = plan_parts(options, model, calls, plan_calls, call)
            return Planned((), CallForm(signature_of(model)), as_given=AsGiven(why, planned))


def _plan_whole(
    options: Options,
    model: nn.Module,
    calls: Sequence[ModelCall],
    call: CallContext,
    kept: KeptModel,
) -> Planned:
    """Plans calls of the whole model.

    Raises: NoCaptureError if no capture of the whole model is right.
    """
    with call.timings.step("values"):
        models = as_tensor_models(model, calls, kept, options.autocast)
    each = options_of_each(options, [one.inputs for one in models])
    with call.progress.watched(lambda: call.timings.now), _open_store(options, call) as store:
        results = _plan_each(models, each, store, call)
    formats = {key: known for one in models for key, known in one.formats.items()}
    timed = tuple(dataclasses.replace(one, timings=call.timings.all()) for one in results)
    return Planned(timed, models[0].form, models[0].model, formats)


def _open_store(options: Options, call: CallContext) -> CostStore:
    """Opens the cost database. Starts the worker if the database has no cost of this machine."""
    if options.plan is not None:  # it is applied as it is
        return CostStore.of_call(False, is_fresh=False)
    with call.timings.step("look up"):
        store = CostStore.of_call(options.cost_db, is_fresh=options.fresh)
        if options.fresh or not store.has_any(texts_here()):
            process_bench.start_early()
    return store


def _plan_each(
    models: Sequence[TensorModel],
    options: Sequence[Options],
    store: CostStore,
    call: CallContext,
) -> list[Result]:
    """Returns one result for each set of inputs. After Ctrl-C, returns the results so far.

    All models are prepared first, so that an error in the last one is raised before minutes of
    measuring.

    Raises: KeyboardInterrupt if there is no result yet.
    """
    say = call.progress.say
    with call.timings.step("read"):
        quick_s = quick_run_s(call.deadline.budget_s / len(models))
        prepared = prepare_each(models, say, call.timings, quick_s)
    results: list[Result] = []
    names = [shapes_text(shapes_of(p.inputs)) for p in prepared]
    for name, one, own in zip(names, prepared, options, strict=True):
        if len(names) > 1:
            say(f"plan {len(results) + 1} of {len(names)}, for inputs {name}")
        try:
            part = call.part(len(names) - len(results))
            results.append(optimize_prepared(one, own, store, part))
        except KeyboardInterrupt:
            if not results:
                raise
            results[-1] = dataclasses.replace(results[-1], is_interrupted=True)
            break
        if results[-1].is_interrupted:
            break
    if len(results) < len(names):
        say(f"interrupted: no plans for inputs {'; '.join(names[len(results) :])}")
    return results


def optimize_prepared(
    prepared: Prepared,
    options: Options,
    store: CostStore,
    call: CallContext,
    bench: Bench | None = None,
) -> Result:
    """Does the steps after the model was prepared, for one set of inputs.

    Args:
        bench: the functions that measure. None: this machine's.
    """
    if not has_convolutions(prepared.graph):
        return leave_as_it_is(prepared, options, call.progress)
    with call.timings.step("find"):
        found = prepared.find_candidates(options)
    if isinstance(options.plan, Plan):
        return apply_plan(options.plan, prepared, found, options, call.progress)
    if call.deadline.has_end:
        call.progress.set_most(call.deadline.left_s("finish"))
    operations = len(prepared.graph.nodes)
    call.progress.say(
        f"{sum(map(len, found.by_anchor))} candidates for {operations}"
        f" operation{'s' * (operations != 1)}"
    )
    budget = CallBudget(call)
    with call.timings.step("try"):
        budget.expect_end(prepared)
    has_time = budget.can_time or options.run_untimed
    tuning, objective = start_tuning(
        prepared, found, options, store, bench, call, has_time=has_time
    )
    budget.least_sample_s = objective.least_sample_s
    chosen = Refinement(prepared, tuning, objective, options, budget).choose()
    call.progress.finish("planned", is_whole=not tuning.is_stopped)
    describe = Describer(prepared.unplanned(), tuning, objective)
    plan = plan_of(chosen, prepared, describe)
    if tuning.is_interrupted:
        budget.hurry()
    plan, scripted = Contest(prepared, options, objective, budget).decide(plan, chosen.tuned)
    tell_outcome(call.progress, plan)
    result = result_of(plan, scripted, chosen, prepared, options, describe)
    if options.fresh and tuning.is_kept:
        objective.verdicts.forget_older(tuning.rules.primitives)
    if result.is_interrupted:
        return result
    try:
        tell_bf16(plan, prepared, options, describe, call)
    except KeyboardInterrupt:
        return dataclasses.replace(result, is_interrupted=True)
    return result
