# SPDX-License-Identifier: BSD-3-Clause
"""The steps, composed: model -> graph -> candidates -> costs -> plan -> rewritten module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from torchalgo import _C, guard, planning, process_bench
from torchalgo._C import Error
from torchalgo.db import CostStore, DeviceCosts
from torchalgo.freeze import ScriptModule, as_inputs, check_model, quiet_jit
from torchalgo.limits import Limits
from torchalgo.measuring import TuneSettings, Tuning
from torchalgo.optimized import Optimized, Result
from torchalgo.options import Options, check_options
from torchalgo.overrides import forced_primitives
from torchalgo.plan import GuardVerdict, Plan
from torchalgo.prediction import guide_from_store, learn_from_store
from torchalgo.preparation import Prepared, prepare
from torchalgo.progress import Event, Progress
from torchalgo.sampling import Bench, cold_bytes


def optimize(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    overrides: Mapping[str, str] | None = None,
    plan: Plan | None = None,
    strict: bool = False,
    training: bool = False,
    objective: str = "latency",
    mode: str = "tune",
    budget_s: float | None = None,
    cost_db: str | Path | Literal[False] | None = None,
    workspace_limit_bytes: int = 1 << 30,
    weight_limit_bytes: int | None = None,
    max_rel_error: float = 1e-5,
    progress: bool | Callable[[Event], None] = True,
) -> Optimized:
    """Bind every convolution of `model` to the primitive that the cheapest plan gives it.

    Args:
        model: in eval mode, on the CPU or on a GPU; not modified. An nn.Module is traced (scripted
            where it branches on tensor values); a ScriptModule is taken as it is. On a GPU,
            torch.backends.cudnn.deterministic and .allow_tf32 decide what is a candidate.
        example_inputs: a tensor, or a sequence of forward's arguments: they fix dtype and shapes;
            None: the first call does.
        overrides: {glob of layer names: primitive}; `*` crosses dots, later entries win, a name
            without variant allows all its variants, layouts stay free.
        plan: applied as it is; nothing is measured.
        strict: raise where the plan's primitive cannot run here, instead of falling back.
        training, objective: one value each in this version.
        mode: "tune": what the plan rests on is measured. "predict": no candidate is; costs that the
            database does not have are predicted from those that it has (docs/predicting.md). What
            still runs: the probe of the CPU's highest rates (half a second), the check of each
            chosen primitive against fp64, the outputs, and the guard, which times the model.
        budget_s: soft limit of tuning's seconds: fewer samples, then fewer candidates.
        cost_db: the database of costs to read and to append to; None: the user's own, in
            `$TORCHALGO_CACHE_DIR` or the XDG cache; False: none. See docs/database.md.
        workspace_limit_bytes: of each primitive, which allocates it for its own call only, so that
            the peak is the largest of them; primitives above it are no candidates.
        weight_limit_bytes: of all packed weights, which lie beside the model's own (those stay).
            The plan is the cheapest that keeps it; None: no limit.
        max_rel_error: relative L2 of each convolution to fp64, of the outputs to the frozen model;
            f16, bf16 and tf32, which round more coarsely, have bounds of their own. Where the
            outputs miss it, the layers give way for which that costs least.
        progress: True: on stderr; False: silent; a function: called with each progress Event.

    Returns: a module with the same result up to rounding; `.plan` (`print` explains it), `.costs`,
        `.scripted`, `.runs` ("baseline" where PyTorch was faster, with 95 % confidence).
    Raises: torchalgo.Error if `model` is in train mode, if `plan` was made for another model, or if
        no plan keeps the limits, with the least possible and the layers that need most.
    Source: Anderson & Gregg 2018, CGO, pp. 340-351, doi:10.1145/3168805.
    """
    options = Options(
        overrides, plan, strict, training, objective, mode, budget_s, cost_db,
        workspace_limit_bytes, weight_limit_bytes, max_rel_error, progress,
    )  # fmt: skip
    check_options(options)
    check_model(model)
    if example_inputs is None:
        return Optimized(plan_for=lambda inputs: _optimize(model, inputs, options))
    return Optimized(_optimize(model, as_inputs(example_inputs), options))


def _optimize(model: nn.Module, inputs: tuple[Any, ...], options: Options) -> Result:
    if options.plan is not None or options.cost_db is False:
        return _optimize_with(model, inputs, options, None)
    with CostStore.open(options.cost_db) as store:
        return _optimize_with(model, inputs, options, store)


def _optimize_with(
    model: nn.Module, inputs: tuple[Any, ...], options: Options, store: CostStore | None
) -> Result:
    progress = Progress(options.progress)
    if options.plan is None:
        process_bench.start_early()
    prepared = prepare(model, inputs, progress.say)
    if not planning.has_convolutions(prepared.graph):
        return _left_as_it_is(prepared, options, progress)
    found = prepared.find_candidates(options)
    if options.plan is not None:
        return _apply(options.plan, prepared, found, options, progress)
    graph = prepared.graph
    progress.say(f"{sum(map(len, found.by_anchor))} candidates for {len(graph.nodes)} nodes")
    costs = None
    if store is not None:
        costs = DeviceCosts.of(store, prepared.device, cold_bytes(graph))
    bench = Bench.on(prepared.device)
    predictor = guide = None
    if options.mode == "tune" and store is not None:
        guide = functools.partial(
            guide_from_store, store, prepared.device, cold_bytes(graph), bench.peaks()
        )
    if options.mode == "predict" and store is not None:
        predictor = learn_from_store(store, prepared.device, cold_bytes(graph), bench.peaks())
        progress.say(f"learned from {predictor.costs} costs of {predictor.problems} problems")
    tuning = Tuning(
        graph,
        found,
        forced_primitives(graph, found, options.overrides),
        TuneSettings(options.max_rel_error, options.budget_s),
        progress=progress,
        cost_file=costs,
        bench=bench,
        device=prepared.device,
        predictor=predictor,
        guide=guide,
    )
    return _bound(prepared, tuning, options, costs, progress)


def _bound(
    prepared: Prepared,
    tuning: Tuning,
    options: Options,
    costs: DeviceCosts | None,
    progress: Progress,
) -> Result:
    """The module that the cheapest plan gives, measured as far as that needs."""
    limits = Limits(tuning, options.weight_limit_bytes)
    scripted, error = _tuned(prepared, limits, options)

    def describe(native: _C.Plan) -> Plan:
        return planning.describe_plan(
            native, prepared.graph, prepared.inputs, tuning, prepared.notes
        )

    weaker = planning.compare_planners(tuning, bool(limits.resources()))
    progress.finish("planned")
    plan = dataclasses.replace(
        describe(limits.settle(with_regrets=True)),
        comparisons=planning.compared_costs(weaker),
        rel_error=error if error < float("inf") else None,
        limits=limits.described(),
        resolve=planning.resolver(prepared.imported, limits, describe),
        prove=planning.prover(limits),
    )
    try:
        if tuning.is_interrupted:
            raise KeyboardInterrupt
        plan, scripted = _guarded(prepared, plan, scripted, error, options, costs)
    except KeyboardInterrupt:
        if error > prepared.output_bound(options):
            raise
        verdict = guard.untimed_verdict("plan", "interrupted before it was timed")
        plan = dataclasses.replace(plan, guard=verdict)
    _tell(progress, plan)
    alternatives = {name: describe(native) for name, native in weaker.items()}
    find_front = planning.front_finder(tuning, describe)
    return Result(
        scripted, plan, prepared.frozen, tuning.costs, alternatives, str(prepared.where), find_front
    )


def _tuned(prepared: Prepared, limits: Limits, options: Options) -> tuple[ScriptModule, float]:
    """The rewritten module of the cheapest plan whose outputs keep max_rel_error, or, where none
    does, of the last one; and its outputs' error."""
    bound = prepared.output_bound(options)
    while True:
        native = limits.settle()
        scripted = _rewrite(prepared.imported, native, options.strict)
        error = _error_of(scripted, prepared)
        if error <= bound or not limits.tighten(native, error, bound):
            return scripted, error


def _left_as_it_is(prepared: Prepared, options: Options, progress: Progress) -> Result:
    if options.plan is not None:
        planning.check_plan_fits(options.plan, prepared.graph)
    verdict = guard.untimed_verdict("baseline", "the model has no convolutions")
    plan = planning.unplanned(prepared.graph, prepared.inputs, prepared.notes, prepared.device)
    plan = dataclasses.replace(plan, guard=verdict)
    _tell(progress, plan)
    frozen = prepared.frozen
    return Result(frozen, plan, frozen, device=planning.torch_name(prepared.device))


def _apply(
    plan: Plan,
    prepared: Prepared,
    found: _C.Candidates,
    options: Options,
    progress: Progress,
) -> Result:
    """Runs `plan` as it is; a verdict in it for the baseline is obeyed."""
    planning.check_plan_fits(plan, prepared.graph)
    missing = planning.missing_primitives(plan, found)
    if missing and options.strict:
        raise Error(f"optimize: strict, and this machine does not offer {', '.join(missing)}")
    if missing:
        progress.say(f"falls back, not offered here: {', '.join(missing)}")
    frozen, where = prepared.frozen, str(prepared.where)
    if plan.guard is not None and plan.guard.runs == "baseline":
        return Result(frozen, plan, frozen, device=where)
    scripted = _rewrite(prepared.imported, planning.native_plan(plan), options.strict)
    error = _error_of(scripted, prepared)
    bound = prepared.output_bound(options)
    if error > bound:
        raise Error(
            f"optimize: with this plan the outputs have relative L2 {error:.1e} to the frozen"
            f" module, expected at most {bound:.1e}: make a new plan"
        )
    return Result(scripted, plan, frozen, device=where)


def _rewrite(imported: _C.Imported, native: _C.Plan, strict: bool) -> ScriptModule:
    was_strict = _C.set_strict(strict) if strict else None
    try:
        with quiet_jit():
            rewritten = _C.rewrite_graph(imported, native)
            scripted: ScriptModule = torch.jit._recursive.wrap_cpp_module(rewritten)
            return scripted
    finally:
        if was_strict is not None:
            _C.set_strict(was_strict)


def _error_of(scripted: ScriptModule, prepared: Prepared) -> float:
    with torch.no_grad():
        return guard.output_error(scripted(*prepared.inputs), prepared.frozen(*prepared.inputs))


def _guarded(
    prepared: Prepared,
    plan: Plan,
    scripted: ScriptModule,
    error: float,
    options: Options,
    costs: DeviceCosts | None,
) -> tuple[Plan, ScriptModule]:
    """The plan with its verdict, which is timed unless it is known, and the module that runs."""
    model, frozen, inputs = prepared.model, prepared.frozen, prepared.inputs
    if error > prepared.output_bound(options):
        reason = f"outputs differ from the frozen module's by {error:.1e} at best"
        verdict = guard.untimed_verdict("baseline", reason)
        return dataclasses.replace(plan, guard=verdict), frozen
    key = guard.verdict_key(model, plan)
    verdict_before = None if costs is None else costs.read_verdict(key)
    verdict = verdict_before or _timed(prepared, scripted, options)
    if costs is not None and verdict_before is None:
        costs.keep_verdict(key, verdict)
    if verdict.runs == "baseline":
        scripted = guard.baseline_module(model, frozen, inputs, verdict.baseline)
    return dataclasses.replace(plan, guard=verdict), scripted


def _timed(prepared: Prepared, scripted: ScriptModule, options: Options) -> GuardVerdict:
    calls = guard.baseline_calls(prepared.model, prepared.frozen, prepared.inputs)
    calls["plan"] = lambda: scripted(*prepared.inputs)
    limit_s = 6.0 if options.budget_s is None else min(6.0, max(0.5, 0.1 * options.budget_s))
    synchronize = guard.synchronizer(prepared.where)
    return guard.guard_verdict(
        guard.time_interleaved(calls, budget_s=limit_s, synchronize=synchronize)
    )


def _tell(progress: Progress, plan: Plan) -> None:
    for line in planning.outcome(plan):
        progress.say(line)
