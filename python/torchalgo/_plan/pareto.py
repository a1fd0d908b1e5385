# SPDX-License-Identifier: BSD-3-Clause
"""Makes exact fronts of time and memory. Uses known costs, runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.plan import Plan, format_bytes, micro
from torchalgo._ir.plan.text_table import ShownAsText, text_table

Memory = Literal["workspace", "weights"]


@dataclass(frozen=True)
class ParetoPoint:
    """A plan on a front: no faster plan takes as little memory.

    Example:
        point = torchalgo.pareto(fast, memory="weights")[-1]
        lean = torchalgo.optimize(model, x, plan=point.plan)
    """

    plan: Plan  # optimize(model, x, plan=...) applies it
    us: float  # predicted time in us
    bytes: int  # of workspace or of packed weights, see Front.memory

    @property
    def is_proven(self) -> bool:
        """True if the solver has proven the plan optimal.

        If False, there may be a faster plan with as little memory.
        """
        return self.plan.status == "optimal"


class Front(ShownAsText, list[ParetoPoint]):
    """The points that `pareto` returns, the fastest first. `print` shows them as a table.

    Example:
        front = torchalgo.pareto(fast, memory="weights")
        small = [point for point in front if point.bytes <= 10_000_000]
    """

    def __init__(self, points: Sequence[ParetoPoint], memory: Memory) -> None:
        super().__init__(points)
        self.memory: Memory = memory

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("time, us", self.memory, "x fastest", "proven")]
        for point in self:
            ratio = point.us / self[0].us if self[0].us else 1.0
            proven = "yes" if point.is_proven else "no"
            rows.append((f"{point.us:.1f}", format_bytes(point.bytes), f"{ratio:.3f}", proven))
        head, *lines = text_table(rows, right=(0, 1, 2))
        return "\n".join([head, "-" * len(head), *lines])


class HasFront(Protocol):
    """An Optimized with the costs that `optimize` has measured."""

    def pareto(
        self, memory: Memory = ..., *, max_points: int = ..., time_limit_s: float = ...
    ) -> Front: ...


def pareto(
    optimized: HasFront,
    memory: Memory = "workspace",
    *,
    max_points: int = 32,
    time_limit_s: float = 10.0,
) -> Front:
    """Returns the fastest plans for each amount of memory. Measures nothing.

    The plans are computed from the costs that `optimize` has measured.

        front = torchalgo.pareto(optimized, "weights")
        print(front)
        smaller = torchalgo.optimize(model, x, plan=front[-1].plan)

    Args:
        optimized: an Optimized that `optimize` returned. A loaded file has no costs.
        memory: "workspace" is the largest workspace of the plan's primitives, since they allocate
            it for one call at a time. "weights" is the bytes of all packed weights, which are kept
            in addition to the model's own.
        max_points: the most points for "weights", 2 or more. If the front has more points, the
            result is spread evenly over the bytes and contains both ends. For "workspace", all
            points are returned.
        time_limit_s: the most seconds for each point. `is_proven` tells whether it was enough.

    Returns: a Front of points, the fastest first. `optimize(model, x, plan=point.plan)` applies a
        point's plan and checks its outputs. Only the plan of `optimized` itself has been run.
    Raises: torchalgo.Error if the costs are not in memory, if an argument is invalid, or if the
        plans are for energy.
    """
    if not hasattr(optimized, "pareto"):
        raise Error(
            f"TA2501 pareto: got {type(optimized).__name__}, expected what"
            " torchalgo.optimize(model, x) returns"
        )
    return optimized.pareto(memory, max_points=max_points, time_limit_s=time_limit_s)


@dataclass(frozen=True)
class NativePoint:
    """A point of a front with the planner's own plan."""

    plan: _C.Plan
    bytes: int

    @property
    def us(self) -> float:
        return micro(self.plan.cost)


def native_front(
    graph: _C.Graph,
    found: _C.Candidates,
    transforms: Sequence[_C.Candidate],
    costs: _C.CostTable,
    allow: Callable[[_C.Candidate], bool] | None,  # None: all
    *,
    memory: Memory = "workspace",
    bytes_of: Sequence[Sequence[int]] | None = None,
    workspace_limit_bytes: int | None = None,
    max_points: int = 32,
    time_limit_s: float = 10.0,
) -> list[NativePoint]:
    """Returns the front over the candidates that `allow` accepts, all of which need costs.

    Args:
        bytes_of: the bytes of each candidate, in the order of found.by_anchor. None: the bytes of
            its packed weights.

    Raises: torchalgo.Error if no plan keeps the limits, or an argument is invalid.
    """
    if memory not in ("workspace", "weights"):
        raise Error(f"TA2501 pareto: memory={memory!r}, expected 'workspace' or 'weights'")
    if not isinstance(max_points, int) or max_points < 2:
        raise Error(f"TA2501 pareto: max_points={max_points!r}, expected 2 or more")
    options: dict[str, Any] = {
        "allow": allow,
        "workspace_limit_bytes": workspace_limit_bytes,
        "time_limit_s": time_limit_s,
    }
    if memory == "workspace":
        rows = _C.workspace_front(graph, found, transforms, costs, **options)
    else:
        use = _C.packed_bytes_of(found) if bytes_of is None else bytes_of
        most = sum(max(list_, default=0) for list_ in use)
        resource = _C.Resource("weight bytes", use, most)
        rows = _C.resource_front(
            graph, found, transforms, costs, resources=[resource], max_points=max_points, **options
        )
    return [NativePoint(plan, used) for plan, used in rows]
