# SPDX-License-Identifier: BSD-3-Clause
"""Converts plans to the form of the C++ code."""

from __future__ import annotations

from torchalgo import _C
from torchalgo._ir.plan import Plan, PlanNode, PlanTransform


def native_plan(plan: Plan) -> _C.Plan:
    """Converts a plan to the planner's form, with the fields that rewrite_graph needs.

    Sizes of workspaces are left out: they are queried from the algorithms when a module loads.
    """
    native = _C.Plan()
    native.structure_hash, native.status = plan.structure_hash, plan.status
    native.structure_version = plan.structure_version
    native.method = plan.method
    native.cost, native.lower_bound = plan.cost_ticks, plan.lower_bound_ticks
    native.nodes = [_native_node(node) for node in plan.nodes]
    native.transforms = [_native_transform(transform) for transform in plan.transforms]
    return native


def _native_node(node: PlanNode) -> _C.PlanNode:
    native = _C.PlanNode()
    native.name, native.problem = node.name, node.problem
    native.primitive = _C.Primitive(node.primitive, node.src, node.dst)
    native.absorbed_by, native.runner_up = node.absorbed_by, node.runner_up
    native.cost, native.cost_source = node.ticks, node.cost_source
    return native


def _native_transform(transform: PlanTransform) -> _C.PlanTransform:
    native = _C.PlanTransform()
    native.value, native.producer = transform.value, transform.producer
    native.problem, native.cost = transform.problem, transform.ticks
    native.primitive = _C.Primitive(transform.primitive, transform.src, transform.dst)
    return native
