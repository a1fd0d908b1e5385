# SPDX-License-Identifier: BSD-3-Clause
"""Combines the steps for a model that is trained: trace, graph, candidates, costs, plan."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, fx, nn

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._capture.settings import Options, Settings
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._train.guard import is_slower
from torchalgo._train.module import TrainingModule
from torchalgo._train.region import PlannedRegion, RegionGraph, region_graph
from torchalgo._train.trace import trace


def optimize_training(
    model: nn.Module,
    inputs: Sequence[Tensor],
    options: Options,
    store: CostStore | None,
    call: CallContext,
) -> TrainingModule:
    """Returns the model with planned regions.

    Args:
        store: the cost database; None: costs are not stored.
    Raises: torchalgo.Error if the model is in eval mode or cannot be traced.
    """
    if not model.training:
        raise _C.Error(
            "TA1602 optimize: training=True and the model is in eval mode: call model.train()"
        )
    _check_settings(options)
    with call.timings.step("read"):
        traced = trace(model, inputs)
    regions: dict[str, PlannedRegion] = {}
    plans: dict[str, _C.Plan] = {}
    for number, (name, part) in enumerate(traced.regions.items()):
        own = region_graph(part)
        one = call.part(len(traced.regions) - number)
        wanted = _wanted(traced.whole, name, own, inputs)
        plan, native = _plan(own, wanted, options, store, one)
        plans[name] = plan
        regions[name] = PlannedRegion(part, own, wanted, native)
        setattr(traced.whole, name, regions[name])
    planned = TrainingModule(model, traced, regions, plans, len(inputs))
    if not options.run_untimed and regions:
        with call.timings.step("guard"):
            if is_slower(planned, inputs, call.deadline):
                planned.run_as_given()
    return planned


def _check_settings(options: Options) -> None:
    defaults = Settings()
    for name in ("mode", "strict", "workspace_limit_bytes", "weight_limit_bytes"):
        if (value := getattr(options, name)) != getattr(defaults, name):
            raise _C.Error(
                f"TA1003 optimize: training=True and {name}={value!r}: plans for training have no"
                " such setting. Leave it out"
            )


def _wanted(
    whole: fx.GraphModule, name: str, own: RegionGraph, examples: Sequence[Tensor]
) -> list[int]:
    """Returns the inputs of a region that may need a gradient.

    These are all but the inputs of the model whose example needs none. Each result must have a
    gradient: if one of them depends on no parameter, all inputs are wanted.
    """
    node = next(n for n in whole.graph.nodes if n.op == "call_module" and n.target == name)
    needed = [x.requires_grad for x in examples]
    of_model = [n for n in whole.graph.nodes if n.op == "placeholder"]
    without = {n for n, needs in zip(of_model, needed, strict=True) if not needs}
    graph = own.graph
    wanted = [i for arg, i in zip(node.args, graph.inputs, strict=True) if arg not in without]
    reached = set(wanted)
    for each, module in zip(graph.nodes, own.modules, strict=True):
        if module is not None or reached.intersection(each.inputs):
            reached.update(each.outputs)
    return wanted if reached.issuperset(graph.outputs) else list(graph.inputs)


def _plan(
    own: RegionGraph,
    wanted: list[int],
    options: Options,
    store: CostStore | None,
    call: CallContext,
) -> tuple[_C.Plan, _C.TrainingRegion]:
    graph = _C.training_graph(own.graph, wanted)
    found = _C.training_candidates(graph)
    costs = None if store is None else DeviceCosts.of(store, None, _C.CHANGED_WEIGHTS)
    bench = Bench.on(None, call.deadline)
    settings = TuneSettings(options.max_rel_error, cold_bytes=_C.CHANGED_WEIGHTS)
    tuning = Tuning(graph, found, {}, settings, call=call, cost_file=costs, bench=bench)
    plan = tuning.settle()
    _, places = own.parameters
    return plan, _C.TrainingRegion(own.graph, wanted, found, plan, places)
