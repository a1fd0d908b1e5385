# SPDX-License-Identifier: BSD-3-Clause
"""The regions of a model before they have a plan, and with one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from torchalgo import _C
from torchalgo._base.f32_precision import convolutions_use_tf32
from torchalgo._ir.native_plan import native_plan
from torchalgo._ir.plan import Plan
from torchalgo._plan.find import is_deterministic
from torchalgo._train.plan import SavedTensor
from torchalgo._train.region import RegionGraph, region_graph
from torchalgo._train.stochastic_depth import IS_NOISE
from torchalgo._train.trace import Traced


@dataclass(frozen=True)
class Target:
    """Where regions run, and what may run there."""

    device: _C.Device | None  # a GPU; None: the CPU
    runtime_compiled: bool = False  # also engines that cuDNN compiles when they first run
    all_knobs: bool = False  # also knobs that cuDNN does not propose first
    named: tuple[str, ...] = ()  # primitives that an override or a plan names
    coarse_types: bool = False  # also primitives that store images in bf16, as autocast does


@dataclass(frozen=True)
class Part:
    """A region before it has a plan: its forward pass, and the graph of a whole step."""

    own: RegionGraph
    wanted: list[int]
    recomputed: list[int]
    target: Target
    graph: _C.Graph
    found: _C.Candidates

    @staticmethod
    def of(own: RegionGraph, wanted: list[int], recomputed: list[int], target: Target) -> Part:
        graph = _C.training_graph(own.graph, wanted, recomputed)
        found = _C.training_candidates(
            graph, target.device, is_deterministic(target.device), target.runtime_compiled,
            target.all_knobs, target.named, target.coarse_types,
        )  # fmt: skip
        return Part(own, wanted, recomputed, target, graph, found)

    def with_recomputed(self, values: list[int]) -> Part:
        """Returns the same region, which computes `values` again in the backward pass."""
        return Part.of(self.own, self.wanted, values, self.target)

    def value(self, index: int) -> str:
        return self.own.graph.values[index].name

    @functools.cached_property
    def costs(self) -> int:
        """The number of different costs of its candidates, which tells how long tuning takes."""
        return len({(c.problem, repr(c.primitive)) for own in self.found.by_anchor for c in own})


class Run:
    """A region with its plan."""

    def __init__(self, part: Part, plan: Plan, is_interrupted: bool = False) -> None:
        self.part, self.plan = part, plan
        self.is_interrupted = is_interrupted  # Ctrl-C ended the tuning early
        own, (_, places) = part.own, part.own.parameters
        self.native = _C.TrainingRegion(
            own.graph, part.wanted, part.recomputed, part.found, native_plan(plan), places,
            part.target.device,
        )  # fmt: skip
        self.saved = [SavedTensor(*each) for each in self.native.saved]


def parts_of(traced: Traced, inputs: Sequence[Tensor], target: Target) -> dict[str, Part]:
    is_tf32 = target.device is not None and convolutions_use_tf32()
    parts = {}
    for name, module in traced.regions.items():
        own = region_graph(module, "tf32" if is_tf32 else "f32")
        parts[name] = Part.of(own, _wanted(traced.whole, name, own, inputs), [], target)
    return parts


def _wanted(
    whole: fx.GraphModule, name: str, own: RegionGraph, examples: Sequence[Tensor]
) -> list[int]:
    """Returns the inputs of a region that may need a gradient.

    These are all but random numbers, and the inputs of the model whose example needs none. Each
    result must have a gradient: if one of them depends on no parameter, all inputs are wanted.
    """
    node = next(n for n in whole.graph.nodes if n.op == "call_module" and n.target == name)
    needed = [x.requires_grad for x in examples]
    of_model = [n for n in whole.graph.nodes if n.op == "placeholder"]
    without = {n for n, needs in zip(of_model, needed, strict=True) if not needs}
    graph, part = own.graph, whole.get_submodule(name)
    assert isinstance(part, fx.GraphModule)
    inside = [n for n in part.graph.nodes if n.op == "placeholder"]
    wanted = [
        i for arg, given, i in zip(node.args, inside, graph.inputs, strict=True)
        if arg not in without and not given.meta.get(IS_NOISE)
    ]  # fmt: skip
    reached = set(wanted)
    for each, module in zip(graph.nodes, own.modules, strict=True):
        if module is not None or reached.intersection(each.inputs):
            reached.update(each.outputs)
    return wanted if reached.issuperset(graph.outputs) else list(graph.inputs)
