# SPDX-License-Identifier: BSD-3-Clause
"""Plans under limits, and the exact fronts of time and memory, from known costs: nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchalgo import _C
from torchalgo._C import Error
from torchalgo.plan import TICKS_PER_US

Amount = Callable[[_C.Candidate], float]
UNITS = 1 << 30  # of a limit that is no integer: what each candidate takes is rounded up to them


@dataclass(frozen=True)
class ParetoPoint:
    """A plan that no other one beats in time without taking more memory."""

    plan: _C.Plan
    us: float  # predicted
    bytes: int

    @property
    def is_proven(self) -> bool:
        return self.plan.status == "optimal"


def pareto(
    graph: _C.Graph,
    found: _C.Candidates,
    costs: _C.CostTable,
    *,
    memory: Literal["workspace", "weights"] = "workspace",
    bytes_of: Amount | None = None,
    workspace_limit_bytes: int | None = None,
    max_points: int = 32,
    time_limit_s: float = 10.0,
    device: _C.Device | None = None,
) -> list[ParetoPoint]:
    """The front of time and memory over all plans, the fastest first.

    Args:
        graph, found, costs: as make_plan takes them; candidates without a cost are left out.
        memory: "workspace": the peak over the plan's primitives, which share one buffer; every
            point of the front. "weights": the sum of `bytes_of` over the plan's candidates.
        bytes_of: of a candidate's packed weights; needed for, and only for, "weights".
        workspace_limit_bytes: of each primitive.
        max_points: of "weights", whose whole front may have thousands; with more, points spread
            evenly over the bytes, both ends among them.
        time_limit_s: for each point; `is_proven` says whether it was enough.
    Raises: torchalgo.Error if no plan fits.
    """
    if (memory == "weights") != (bytes_of is not None) or memory not in ("workspace", "weights"):
        raise Error(
            f"pareto: memory={memory!r} with bytes_of={bytes_of!r}, expected 'workspace' without"
            " bytes_of, or 'weights' with it"
        )
    transforms = known_transforms(graph, found, costs, device)
    options: dict[str, Any] = {
        "allow": known_candidates(costs),
        "workspace_limit_bytes": workspace_limit_bytes,
        "time_limit_s": time_limit_s,
    }
    if bytes_of is None:
        rows = _C.workspace_front(graph, found, transforms, costs, **options)
    else:
        use = [[round(bytes_of(c)) for c in list_] for list_ in found.by_anchor]
        resource = ("weight bytes", use, sum(max(list_, default=0) for list_ in use))
        rows = _C.resource_front(
            graph, found, transforms, costs, resource=resource, max_points=max_points, **options
        )
    return [ParetoPoint(plan, plan.cost / TICKS_PER_US, used) for plan, used in rows]


def plan_within(
    graph: _C.Graph,
    found: _C.Candidates,
    costs: _C.CostTable,
    amount_of: Amount,
    limit: float,
    *,
    name: str = "weight bytes",
    workspace_limit_bytes: int | None = None,
    time_limit_s: float = 10.0,
    device: _C.Device | None = None,
) -> tuple[_C.Plan, float]:
    """The cheapest plan whose sum of `amount_of` keeps to `limit`, and that sum.

    Bytes of packed weights, or an error's share: any amount that adds up over a plan's candidates.
    Without integers the sum is rounded up by at most one part in 2**30 per candidate, so that the
    limit holds.
    Raises: torchalgo.Error if no plan fits, with the nodes that need most.
    """
    exact = isinstance(limit, int)
    scale = 1.0 if exact or limit <= 0 else UNITS / limit
    amounts = [[amount_of(c) for c in list_] for list_ in found.by_anchor]
    most = UNITS * 1024  # above any limit that was scaled; keeps infinite errors in range
    use = [
        [math.ceil(a) if exact else math.ceil(min(a * scale, most)) for a in list_]
        for list_ in amounts
    ]
    plan, _, used = _C.make_limited_plan(
        graph,
        found,
        known_transforms(graph, found, costs, device),
        costs,
        allow=known_candidates(costs),
        resource=(name, use, int(limit) if exact else math.floor(limit * scale)),
        workspace_limit_bytes=workspace_limit_bytes,
        time_limit_s=time_limit_s,
    )
    return plan, used / scale


def known_candidates(costs: _C.CostTable) -> Callable[[_C.Candidate], bool]:
    """Which candidates have a cost."""
    return lambda candidate: costs.get(_key(candidate)) is not None


def known_transforms(
    graph: _C.Graph, found: _C.Candidates, costs: _C.CostTable, device: _C.Device | None
) -> Sequence[_C.Candidate]:
    is_known = known_candidates(costs)
    return [t for t in _C.transform_candidates(graph, found, device) if is_known(t)]


def _key(candidate: _C.Candidate) -> _C.CostKey:
    primitive = candidate.primitive
    return _C.CostKey(candidate.problem, primitive.name, primitive.src, primitive.dst)
