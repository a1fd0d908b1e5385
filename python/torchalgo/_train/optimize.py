# SPDX-License-Identifier: BSD-3-Clause
"""Combines the steps for a model that is trained: trace, graph, candidates, costs, plan."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._C import Error
from torchalgo._capture.settings import Options, Settings
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._ir.plan import TICKS_PER_US, Plan
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._plan.describe import Describer, native_plan
from torchalgo._plan.limits import Limits
from torchalgo._plan.objective import Latency
from torchalgo._plan.prove import prover
from torchalgo._predict import guide_from_store
from torchalgo._train.guard import compare_steps
from torchalgo._train.module import TrainingModule
from torchalgo._train.overrides import check_overrides, forced_directions, layers_of
from torchalgo._train.plan import STAGED, SavedTensor, TrainingPlan
from torchalgo._train.region import PlannedRegion, RegionGraph, region_graph
from torchalgo._train.trace import Traced, trace


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
    Raises: torchalgo.Error if the model is in eval mode or cannot be traced, if an override is not
        possible, or if the plan was made for another model.
    """
    if not model.training:
        raise Error(
            "TA1602 optimize: training=True and the model is in eval mode: call model.train()"
        )
    _check_settings(options)
    with call.timings.step("read"):
        traced = trace(model, inputs)
        parts = parts_of(traced, inputs)
    if options.overrides:
        layers = [layer for part in parts.values() for layer in layers_of(part.own.graph)]
        check_overrides(options.overrides, layers)
    if options.plan is not None:
        runs = _given(options.plan, parts)
    else:
        runs = _within_limit(parts, options, store, call)
    regions: dict[str, PlannedRegion] = {}
    for name, run in runs.items():
        part = run.part
        regions[name] = PlannedRegion(traced.regions[name], part.own, part.wanted, run.native)
        setattr(traced.whole, name, regions[name])
    saved = [each for run in runs.values() for each in run.saved]
    plan = TrainingPlan([run.plan for run in runs.values()], saved, traced.left_alone)
    planned = TrainingModule(model, traced, regions, plan, len(inputs))
    if not options.run_untimed and regions:
        with call.timings.step("guard"):
            planned.guard_with(compare_steps(planned, inputs, call.deadline))
    return planned


def _check_settings(options: Options) -> None:
    defaults = Settings()
    for name in ("mode", "strict", "workspace_limit_bytes", "weight_limit_bytes"):
        if (value := getattr(options, name)) != getattr(defaults, name):
            raise Error(
                f"TA1003 optimize: training=True and {name}={value!r}: plans for training have no"
                " such setting. Leave it out"
            )


@dataclass(frozen=True)
class Part:
    """A region before it has a plan: its forward pass, and the graph of a whole step."""

    own: RegionGraph
    wanted: list[int]
    recomputed: list[int]
    graph: _C.Graph
    found: _C.Candidates

    @staticmethod
    def of(own: RegionGraph, wanted: list[int], recomputed: list[int]) -> Part:
        graph = _C.training_graph(own.graph, wanted, recomputed)
        return Part(own, wanted, recomputed, graph, _C.training_candidates(graph))

    def value(self, index: int) -> str:
        return self.own.graph.values[index].name

    @functools.cached_property
    def costs(self) -> int:
        """The number of different costs of its candidates, which tells how long tuning takes."""
        return len({(c.problem, repr(c.primitive)) for own in self.found.by_anchor for c in own})


class _Run:
    """A region with its plan."""

    def __init__(self, part: Part, plan: Plan) -> None:
        self.part, self.plan = part, plan
        own, (_, places) = part.own, part.own.parameters
        self.native = _C.TrainingRegion(
            own.graph, part.wanted, part.recomputed, part.found, native_plan(plan), places
        )
        self.saved = [SavedTensor(*each) for each in self.native.saved]


def parts_of(traced: Traced, inputs: Sequence[Tensor]) -> dict[str, Part]:
    parts = {}
    for name, module in traced.regions.items():
        own = region_graph(module)
        parts[name] = Part.of(own, _wanted(traced.whole, name, own, inputs), [])
    return parts


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


def _given(plan: Any, parts: Mapping[str, Part]) -> dict[str, _Run]:
    """Returns the regions with their parts of a plan, by the structures of their graphs.

    Raises: torchalgo.Error if it is no plan of training, or if a region has none.
    """
    if not isinstance(plan, TrainingPlan):
        raise Error(
            f"TA1004 optimize: training=True and plan is {type(plan).__name__}, expected a"
            " torchalgo.TrainingPlan, such as planned.plan or TrainingPlan.load(path)"
        )
    found = {}
    for name, plain in parts.items():
        for each in plan.regions:
            again = {node.name for node in each.nodes}
            recomputed = [
                i for i in _C.recomputable_values(plain.own.graph)
                if f"{plain.value(i)}.bwd_again" in again
            ]  # fmt: skip
            part = Part.of(plain.own, plain.wanted, recomputed) if recomputed else plain
            if part.graph.structure_hash == each.structure_hash:
                found[name] = _Run(part, each)
                break
        else:
            first, *_ = layers_of(plain.own.graph)
            raise Error(
                "TA2201 optimize: the plan was made for another model, or for inputs of other"
                f" sizes: it has none for the region that begins with {first}. Leave plan= out to"
                " make a new one"
            )
    return found


def _within_limit(
    parts: Mapping[str, Part], options: Options, store: CostStore | None, call: CallContext
) -> dict[str, _Run]:
    """Returns the regions with the fastest plans that keep the limit of memory.

    If they keep too much, the largest tensors that can be recomputed are recomputed, and the
    regions are planned again.
    Raises: torchalgo.Error if the least that can be kept is more than the limit.
    """
    runs: dict[str, _Run] = {}
    changed = dict(parts)
    limit = options.memory_limit_bytes
    while True:
        left = sum(part.costs for part in changed.values())
        for name, part in changed.items():
            one = call.part(left / part.costs)
            left -= part.costs
            runs[name] = _Run(part, _tuned(part, options, store, one))
        kept = sum(each.bytes for run in runs.values() for each in run.saved)
        if limit is None or kept <= limit:
            return runs
        changed = _recompute_more(runs, kept - limit)
        if not changed:
            raise Error(
                f"TA2301 optimize: memory_limit_bytes={limit}: the forward pass must keep at least"
                f" {kept} bytes for the gradients. Raise the limit, or make the batch smaller"
            )


def _recompute_more(runs: Mapping[str, _Run], excess: int) -> dict[str, Part]:
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
        changed[name] = Part.of(part.own, part.wanted, [*part.recomputed, *values])
    return changed


def _tuned(part: Part, options: Options, store: CostStore | None, call: CallContext) -> Plan:
    """Returns the plan of a region. Measures the costs that the database lacks."""
    region = RegionTuning(part, options, store, call)
    native = region.tuning.settle()
    weaker = {}
    if not region.tuning.is_stopped:
        weaker[STAGED] = region.tuning.settle(_C.make_staged_plan, checked=False, rough=True)
    return dataclasses.replace(
        region.describe(native),
        comparisons={name: plan.cost / TICKS_PER_US for name, plan in weaker.items()},
    )


class RegionTuning:
    """The tuning of one region, and its plans as users read them."""

    def __init__(
        self, part: Part, options: Options, store: CostStore | None, call: CallContext
    ) -> None:
        graph, found = part.graph, part.found
        costs = None if store is None else DeviceCosts.of(store, None, _C.CHANGED_WEIGHTS)
        forced = forced_directions(part.own.graph, graph, found, options.overrides or {})
        bench = Bench.on(None, call.deadline)
        settings = TuneSettings(options.max_rel_error, cold_bytes=_C.CHANGED_WEIGHTS)
        guide = None
        if store is not None:
            guide = functools.partial(guide_from_store, store, None, _C.CHANGED_WEIGHTS)
        self.tuning = Tuning(
            graph, found, forced, settings, call=call, cost_file=costs, bench=bench, guide=guide
        )
        sizes = [graph.values[i].sizes for i in part.own.graph.inputs]
        inputs = tuple(torch.empty(each, device="meta") for each in sizes)
        objective = Latency(bench, costs)
        self._describe = Describer(graph, inputs, [], None, self.tuning, objective)
        self._prove = prover(Limits.of(self.tuning), objective)

    def describe(self, native: _C.Plan) -> Plan:
        return dataclasses.replace(self._describe(native), prove=self._prove)
