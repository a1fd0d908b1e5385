# SPDX-License-Identifier: BSD-3-Clause
"""Converts between the planner's plan (C++) and the plan that users read, store and edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchalgo import _C
from torchalgo._capture.freeze import tensors_in
from torchalgo._capture.shapes import Dims
from torchalgo._ir.costs import Key, environment, key_of
from torchalgo._ir.plan import (
    LeftAlone,
    Plan,
    PlanInput,
    PlanNode,
    PlanTransform,
    Quarantined,
    micro,
)
from torchalgo._measure.tuning import Tuning
from torchalgo._measure.tuning_notes import tied_layers
from torchalgo._plan.limits import packed_bytes
from torchalgo._plan.objective import Latency


@dataclass(frozen=True)
class Describer:
    """Converts the planner's plans to plans that users read, with the facts of one tuning."""

    about: Plan  # the facts about the model, without choices: see unplanned
    tuning: Tuning
    objective: Latency

    def __call__(self, native: _C.Plan) -> Plan:
        """Returns the plan with all facts about it. Its costs are in us or uJ."""
        tuning, nodes = self.tuning, [_node(node) for node in native.nodes]
        known = tuning.known
        method = "; ".join(part for part in (native.method, tuning.method_note()) if part)
        primitives = [n.primitive for n in native.nodes] + [t.primitive for t in native.transforms]
        plan = dataclasses.replace(
            self.about,
            structure_hash=native.structure_hash,
            structure_version=native.structure_version,
            status="optimal" if native.status == "optimal" else "feasible",
            cost_us=micro(native.cost),
            lower_bound_us=micro(native.lower_bound),
            cost_ticks=native.cost,
            lower_bound_ticks=native.lower_bound,
            method=method,
            nodes=nodes,
            transforms=[_transform(t, is_measured=_key(t) in known) for t in native.transforms],
            weight_bytes=sum(node.packed_bytes or 0 for node in nodes),
            plain_weight_bytes=sum(_C.plain_weight_bytes(n.problem) for n in nodes if n.primitive),
            workspace_bytes=max((p.workspace_bytes for p in primitives), default=0),
            ties=tied_layers(tuning.graph, native, tuning.known),
            quarantined=[
                Quarantined(*key, reason)  # type: ignore[arg-type]
                for key, reason in sorted(tuning.rules.quarantined.items())
            ],
            left_alone=self.about.left_alone[1:],
        )
        return self.objective.described(plan)


def unplanned(
    graph: _C.Graph,
    inputs: tuple[Any, ...],
    notes: list[str],
    device: _C.Device | None = None,
    dims: Dims | None = None,
) -> Plan:
    """Returns the plan of a model that has no convolutions, so that nothing can be chosen."""
    return Plan(
        structure_hash=graph.structure_hash,
        structure_version=_C.STRUCTURE_VERSION,
        inputs=with_dims([input_of(tensor) for tensor in tensors_in(inputs)], dims),
        environment=environment(device),
        status="optimal",
        cost_us=0.0,
        lower_bound_us=0.0,
        cost_ticks=0,
        lower_bound_ticks=0,
        method="nothing to choose",
        nodes=[],
        transforms=[],
        left_alone=[
            LeftAlone("", "no convolutions: left as it is"),
            *(LeftAlone(node.name, node.note) for node in graph.nodes if node.note),
        ],
        notes=notes,
    )


def input_of(tensor: torch.Tensor) -> PlanInput:
    """Returns the shape, the dtype and the layout of an input."""
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return PlanInput(
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        layout="nhwc" if last and not tensor.is_contiguous() else "nchw",
    )


def with_dims(inputs: Sequence[PlanInput], dims: Dims | None) -> list[PlanInput]:
    """Returns the inputs with the sizes for which the module is right.

    Returns the inputs unchanged if `dims` is None.
    """
    if dims is None:
        return list(inputs)
    return [
        dataclasses.replace(given, dims=list(own)) for given, own in zip(inputs, dims, strict=True)
    ]


def _node(node: _C.PlanNode) -> PlanNode:
    return PlanNode(
        name=node.name,
        problem=node.problem,
        primitive=node.primitive.name,
        src=node.primitive.src,  # type: ignore[arg-type]
        dst=node.primitive.dst,  # type: ignore[arg-type]
        absorbed_by=node.absorbed_by,
        predicted_us=micro(node.cost),
        ticks=node.cost,
        cost_source=node.cost_source,  # type: ignore[arg-type]
        runner_up=node.runner_up,
        regret_us=None if node.regret is None else micro(node.regret),
        packed_bytes=packed_bytes(node.problem, node.primitive),
    )


def _key(transform: _C.PlanTransform) -> Key:
    return key_of(transform.problem, transform.primitive)


def _transform(transform: _C.PlanTransform, *, is_measured: bool) -> PlanTransform:
    return PlanTransform(
        value=transform.value,
        producer=transform.producer,
        problem=transform.problem,
        primitive=transform.primitive.name,
        src=transform.primitive.src,  # type: ignore[arg-type]
        dst=transform.primitive.dst,  # type: ignore[arg-type]
        predicted_us=micro(transform.cost),
        ticks=transform.cost,
        cost_source="measured" if is_measured else "model",
    )
