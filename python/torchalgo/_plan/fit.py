# SPDX-License-Identifier: BSD-3-Clause
"""Fits a plan to a model: a plan from a file, of an older version or of another machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchalgo import _C
from torchalgo._base.user_warning import warn_user
from torchalgo._C import Error
from torchalgo._capture.freeze import tensors_in
from torchalgo._ir.native_plan import native_plan
from torchalgo._ir.plan import Plan, PlanInput
from torchalgo._plan.describe import input_of
from torchalgo._plan.find import has_convolutions


def fit_plan(plan: Plan, graph: _C.Graph, inputs: tuple[Any, ...]) -> Plan:
    """Returns the plan if it was made for `graph`.

    A plan of an older version may have another structure hash, because the importer made another
    graph of the model. Then the names and problems of its nodes decide whether it fits. The result
    has the present structure hash, and no proof, since the proof is about the old graph. A warning
    tells the user.

    Raises: torchalgo.Error if the plan was made for another model or other inputs. The text names
        the first difference.
    """
    if plan.structure_hash == graph.structure_hash_of(plan.structure_version):
        return plan
    is_present = plan.structure_version == _C.STRUCTURE_VERSION
    if not is_present and not plan.nodes and not has_convolutions(graph):  # nothing is planned
        structure_hash = graph.structure_hash
    else:
        structure_hash = _C.fit_plan(graph, native_plan(plan))
    if structure_hash == plan.structure_hash:
        return plan
    made_for = [_text_of(given) for given in plan.inputs]
    given = [_text_of(input_of(tensor)) for tensor in tensors_in(inputs)]
    if made_for != given:
        raise Error(
            f"TA2201 optimize: the plan was made for inputs {', '.join(made_for)}, got"
            f" {', '.join(given)}: make a plan for these"
        )
    warn_user(
        f"the plan's structure hash has version {plan.structure_version}, this torchalgo's version"
        f" {_C.STRUCTURE_VERSION}, so torchalgo matched the plan with the model by the names and"
        " problems of the layers. Save .plan of the optimized module to update the file"
    )
    return dataclasses.replace(
        plan, structure_hash=structure_hash, structure_version=_C.STRUCTURE_VERSION, proof=None
    )


def nodes_it_lacks(plan: Plan, graph: _C.Graph) -> list[str]:
    """Returns the names of nodes of `graph` that are planned today, but are not in `plan`.

    Returns none if the plan has no nodes at all.
    """
    planned = {node.name for node in plan.nodes}
    known = [node.name for node in graph.nodes if node.problem is not None]
    return [name for name in known if name not in planned] if planned else []


def missing_primitives(plan: Plan, found: _C.Candidates) -> list[str]:
    """Returns the layers whose primitive this machine does not offer.

    At run time, their fallback runs.
    """
    offered = {
        (c.problem, c.primitive.name, c.primitive.src, c.primitive.dst)
        for candidates in found.by_anchor
        for c in candidates
    }
    return [
        f"{node.name} ({node.primitive})"
        for node in plan.nodes
        if node.primitive and (node.problem, node.primitive, node.src, node.dst) not in offered
    ]


def _text_of(given: PlanInput) -> str:
    return f"{'x'.join(map(str, given.shape))} {given.dtype} {given.layout}"
