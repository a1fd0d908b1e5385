# SPDX-License-Identifier: BSD-3-Clause
"""Plans under limits, from recorded costs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchalgo import _C
from torchalgo._ir.costs import key_of, native_key
from torchalgo._plan.limits import scaled_resource

Amount = Callable[[_C.Candidate], float]


def plan_within(
    graph: _C.Graph,
    found: _C.Candidates,
    costs: _C.CostTable,
    limits: Sequence[tuple[str, Amount, float]],
    *,
    workspace_limit_bytes: int | None = None,
    time_limit_s: float = 10.0,
    device: _C.Device | None = None,
) -> tuple[_C.Plan, list[float]]:
    """Returns the cheapest plan whose sums keep `limits`, and these sums.

    Args:
        graph, found, costs: the arguments of make_plan; candidates without a cost are left out.
        limits: at most two tuples of a name, the amount that a candidate takes, and the limit of
            the sum. Any amount that adds up over a plan's candidates is possible, for example bytes
            of packed weights. If the limit is no integer, each amount is rounded up, so that the
            limit holds. The rounding is at most one part in 2**30 of the limit.

    Raises: torchalgo.Error if no plan keeps the limits, with the nodes that need most.
    """
    resources = [_resource(found, name, amount_of, limit) for name, amount_of, limit in limits]
    plan, _ = _C.make_plan(
        graph,
        found,
        known_transforms(graph, found, costs, device),
        costs,
        allow=known_candidates(costs),
        resources=resources,
        workspace_limit_bytes=workspace_limit_bytes,
        time_limit_s=time_limit_s,
    )
    used = _C.resource_use(graph, found, resources, plan)
    return plan, [u * r.unit for u, r in zip(used, resources, strict=True)]


def _resource(found: _C.Candidates, name: str, amount_of: Amount, limit: float) -> _C.Resource:
    amounts = [[amount_of(c) for c in list_] for list_ in found.by_anchor]
    if isinstance(limit, int):
        return _C.Resource(name, [[math.ceil(a) for a in list_] for list_ in amounts], limit)
    return scaled_resource(name, amounts, limit)


def known_candidates(costs: _C.CostTable) -> Callable[[_C.Candidate], bool]:
    """Returns a function that tells whether a candidate has a cost in `costs`."""
    return lambda candidate: (
        costs.get(native_key(key_of(candidate.problem, candidate.primitive))) is not None
    )


def known_transforms(
    graph: _C.Graph, found: _C.Candidates, costs: _C.CostTable, device: _C.Device | None = None
) -> Sequence[_C.Candidate]:
    is_known = known_candidates(costs)
    return [t for t in _C.transform_candidates(graph, found, device) if is_known(t)]
