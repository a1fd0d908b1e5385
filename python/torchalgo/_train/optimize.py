# SPDX-License-Identifier: BSD-3-Clause
"""Combines the steps for a model that is trained: trace, graph, candidates, costs, plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._C import Error
from torchalgo._capture.calls import refuse_autocast
from torchalgo._capture.freeze import device_of
from torchalgo._capture.settings import Options, Settings
from torchalgo._db import CostStore
from torchalgo._plan.find import native_device
from torchalgo._train.given_plan import given_runs
from torchalgo._train.guard import compare_steps, reserve_guard
from torchalgo._train.module import TrainingModule
from torchalgo._train.overrides import check_overrides, layers_of
from torchalgo._train.part import Part, Run, Target, parts_of
from torchalgo._train.plan import TrainingPlan, guard_text
from torchalgo._train.region import PlannedRegion
from torchalgo._train.trace import trace
from torchalgo._train.tuning import RegionTuning


def plan_training(
    model: nn.Module,
    inputs: Sequence[Tensor],
    options: Options,
    store: CostStore,
    call: CallContext,
) -> TrainingModule:
    """Returns the model with planned regions.

    Args:
        options: if options.autocast, the caller is inside of torch.autocast in bf16, and the plan
            is for calls inside of it.
    Raises: torchalgo.Error if the model is in eval mode, is on neither a CPU nor a GPU, or cannot
        be traced, if an override is not possible, or if the plan was made for another model.
    """
    if not model.training:
        raise Error("TA1602 optimize_training: the model is in eval mode: call model.train()")
    where = device_of(model, tuple(inputs))
    if where.type not in ("cpu", "cuda"):
        raise Error(
            f"TA1604 optimize_training: the model is on {where}, expected a CPU or a GPU: call"
            " model.cpu() or model.cuda()"
        )
    _check_settings(options)
    if not options.autocast:
        refuse_autocast("optimize_training")
    target = Target(
        native_device(where),
        options.runtime_compiled or options.plan is not None,
        options.all_knobs,
        _named(options),
        options.autocast,
    )
    with call.timings.step("read"):
        traced = trace(model, inputs)
        parts = parts_of(traced, inputs, target)
    if options.overrides is not None:
        layers = [layer for part in parts.values() for layer in layers_of(part.own.graph)]
        check_overrides(options.overrides, layers)
    is_timed = not options.run_untimed and bool(parts)
    if is_timed:
        reserve_guard(model, inputs, call)
    if call.deadline.has_end:
        call.progress.set_most(call.deadline.left_s("finish"))
    with torch.autocast("cpu", enabled=False):
        if options.plan is not None:
            runs = given_runs(options.plan, parts, options, store, call)
        else:
            runs = _within_limit(parts, options, store, call)
    regions: dict[str, PlannedRegion] = {}
    for name, run in runs.items():
        part = run.part
        regions[name] = PlannedRegion(
            traced.regions[name], part.own, part.wanted, run.native, where
        )
        setattr(traced.whole, name, regions[name])
    saved = [each for run in runs.values() for each in run.saved]
    graphs = [run.part.graph.to_text() for run in runs.values()]
    plan = TrainingPlan(
        [run.plan for run in runs.values()], saved, traced.left_alone, graphs=graphs
    )
    shapes = [x.shape for x in inputs]
    planned = TrainingModule(model, traced, regions, plan, shapes, options.autocast)
    planned.is_interrupted = any(run.is_interrupted for run in runs.values())
    if is_timed:
        with call.timings.step("guard"):
            planned.guard_with(compare_steps(planned, inputs, call.deadline))
    if planned.plan.guard is not None:
        call.progress.say(guard_text(planned.plan.guard))
    return planned


def _check_settings(options: Options) -> None:
    defaults = Settings()
    for name in ("mode", "strict", "workspace_limit_bytes", "weight_limit_bytes", "own_kernels"):
        if (value := getattr(options, name)) != getattr(defaults, name):
            raise Error(
                f"TA1003 optimize_training: settings have {name}={value!r}: plans for training have"
                " no such setting. Leave it out"
            )


def _named(options: Options) -> tuple[str, ...]:
    """Returns the primitives that the overrides or the plan name, as far as these have their form.

    Whatever has another form is refused later.
    """
    names: list[Any] = []
    if isinstance(options.overrides, Mapping):
        each = [one for one in options.overrides.values() if isinstance(one, Mapping)]
        names += [name for one in each for name in one.values()]
    if isinstance(options.plan, TrainingPlan):
        names += [node.primitive for region in options.plan.regions for node in region.nodes]
    return tuple(name for name in names if isinstance(name, str) and name)


def _within_limit(
    parts: Mapping[str, Part], options: Options, store: CostStore, call: CallContext
) -> dict[str, Run]:
    """Returns the regions with the fastest plans that keep the limit of memory.

    If they keep too much, the largest tensors that can be recomputed are recomputed, and the
    regions are planned again.
    Raises: torchalgo.Error if the fastest plan keeps more than the limit even then.
    """
    runs: dict[str, Run] = {}
    changed = dict(parts)
    limit = options.memory_limit_bytes
    while True:
        left = sum(part.costs for part in changed.values())
        for name, part in changed.items():
            one = call.part(left / part.costs)
            left -= part.costs
            tuning = RegionTuning(part, options, store, one)
            runs[name] = Run(part, tuning.best(), tuning.is_interrupted)
            if runs[name].is_interrupted:  # the other regions have no time either
                call = call.within(0.0)
        kept = sum(each.bytes for run in runs.values() for each in run.saved)
        if limit is None or kept <= limit:
            return runs
        changed = _recompute_more(runs, kept - limit)
        if not changed:
            raise Error(
                f"TA2301 optimize_training: memory_limit_bytes={limit}: with all that can be"
                f" computed again, the fastest plan still keeps {kept} bytes for the gradients."
                " Raise the limit, or make the batch smaller"
            )


def _recompute_more(runs: Mapping[str, Run], excess: int) -> dict[str, Part]:
    """Returns the regions that change if further tensors of `excess` bytes are recomputed.

    Takes the largest ones first, since a tensor takes as long per byte as another one.
    """
    rows = []
    for name, run in runs.items():
        part, sizes = run.part, Counter[str]()
        for tensor in run.saved:
            sizes[tensor.value] += tensor.bytes
        for value in _C.recomputable_values(part.own.graph):
            if value not in part.recomputed and (count := sizes[part.value(value)]):
                rows.append((count, name, value))
    chosen: dict[str, list[int]] = {}
    for count, name, value in sorted(rows, key=lambda row: -row[0]):
        if excess <= 0:
            break
        chosen.setdefault(name, []).append(value)
        excess -= count
    changed = {}
    for name, values in chosen.items():
        part = runs[name].part
        changed[name] = part.with_recomputed([*part.recomputed, *values])
    return changed
