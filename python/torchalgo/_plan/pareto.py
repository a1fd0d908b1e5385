# SPDX-License-Identifier: BSD-3-Clause
"""Holds fronts of time and memory, or of time and error. Makes those of memory of known costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchalgo import _C
from torchalgo._C import Error
from torchalgo._ir.plan import Plan, format_bytes
from torchalgo._ir.plan.text_table import ShownAsText, text_table

Quantity = Literal["workspace", "weights", "error"]  # what a front trades time for


@dataclass(frozen=True)
class ParetoPoint:
    """A plan on a front: no faster plan takes as little memory, or has as small an error.

    Example:
        point = torchalgo.pareto(fast, over="weights")[-1]
        lean = torchalgo.optimize(model, x, plan=point.plan)
    """

    plan: Plan  # optimize(model, x, plan=...) applies it
    us: float  # predicted time in us
    bytes: int  # of workspace if Front.over is "workspace", else of packed weights

    @property
    def is_proven(self) -> bool:
        """True if the solver has proven the plan optimal.

        If False, there may be a faster plan with as little memory, or as small an error. It is also
        False if a bound of the error decides, because such a plan has no certificate.
        """
        return self.plan.status == "optimal" and not self.plan.unproven

    @property
    def error(self) -> float | None:
        """The measured relative L2 error of the plan's outputs; None if the plan has not run."""
        return self.plan.rel_error

    @property
    def max_error(self) -> float | None:
        """The max_error of `optimize` under which this is the fastest plan.

        None on a front of memory.
        """
        of_plan = self.plan.max_error
        return None if of_plan is None else of_plan + (self.plan.capture_error or 0.0)


class Front(ShownAsText, list[ParetoPoint]):
    """The points that `pareto` returns, the fastest first. `print` shows them as a table.

    Example:
        front = torchalgo.pareto(fast, over="weights")
        small = [point for point in front if point.bytes <= 10_000_000]
    """

    def __init__(self, points: Sequence[ParetoPoint], over: Quantity) -> None:
        super().__init__(points)
        self.over: Quantity = over

    def __str__(self) -> str:
        own = ("error", "predicted", "max_error") if self.over == "error" else (self.over,)
        rows: list[tuple[str, ...]] = [("time, us", *own, "x fastest", "proven")]
        for point in self:
            ratio = point.us / self[0].us if self[0].us else 1.0
            proven = "yes" if point.is_proven else "no"
            amounts = self._errors(point) or (format_bytes(point.bytes),)
            rows.append((f"{point.us:.1f}", *amounts, f"{ratio:.3f}", proven))
        head, *lines = text_table(rows, right=range(len(own) + 2))
        return "\n".join([head, "-" * len(head), *lines])

    def _errors(self, point: ParetoPoint) -> tuple[str, ...]:
        """Returns the texts of the point's errors, or none on a front of memory."""
        errors = (point.error, point.plan.predicted_error, point.max_error)
        return tuple(f"{e or 0:.1e}" for e in errors) if self.over == "error" else ()


def pareto(
    optimized: Any,
    over: Quantity = "workspace",
    *,
    max_points: int = 32,
    time_limit_s: float = 10.0,
) -> Front:
    """Returns the fastest plans for each amount of memory, or for each error of the outputs.

    Fronts of memory measure nothing: they use the costs that `optimize` has measured. A front of
    error also has layers in bf16 or with weights of 16 bits, whatever max_error the call had. Costs
    that are not known yet are measured once for all points.

        front = torchalgo.pareto(optimized, "weights")
        print(front)
        smaller = torchalgo.optimize(model, x, plan=front[-1].plan)
        print(torchalgo.pareto(optimized, "error", max_points=8))

    Args:
        optimized: an Optimized that `optimize` returned. A loaded file has no costs.
        over: what time is traded for. "workspace" is the largest workspace of the plan's
            primitives, since they allocate it for one call at a time. "weights" is the bytes of all
            packed weights, which are kept in addition to the model's own. "error" is the relative
            L2 error of the outputs for the example inputs, compared with the model's, from 1e-5 (or
            what the model's type needs) up to that of the fastest plan in any types. See
            docs/precision.md.
        max_points: the most points for "weights" and "error", 2 or more. If the front of weights
            has more points, the result is spread evenly over the bytes and contains both ends. For
            "error", the points are spread over the times. For "workspace", all points are returned.
        time_limit_s: the most seconds for each point. `is_proven` tells whether it was enough. For
            "error" it is an average, which includes measuring.

    Returns: a Front of points, the fastest first. `optimize(model, x, plan=point.plan)` applies a
        point's plan and checks its outputs. The plans of a front of error have run once:
        `point.error` is measured, and `point.plan.predicted_error` is the prediction. Other plans
        than that of `optimized` have not been run for fronts of memory.
    Raises: torchalgo.Error if the costs are not in memory, if an argument is invalid, if no plan
        keeps a bound of the error, or if the plans are for energy.
    """
    if not hasattr(optimized, "pareto"):
        raise Error(
            f"TA2501 pareto: got {type(optimized).__name__}, expected what"
            " torchalgo.optimize(model, x) returns"
        )
    front: Front = optimized.pareto(over, max_points=max_points, time_limit_s=time_limit_s)
    return front


def check_points(max_points: int) -> None:
    """Raises: torchalgo.Error if a front cannot have so few points."""
    if not isinstance(max_points, int) or max_points < 2:
        raise Error(f"TA2501 pareto: max_points={max_points!r}, expected 2 or more")


def native_front(
    graph: _C.Graph,
    found: _C.Candidates,
    transforms: Sequence[_C.Candidate],
    costs: _C.CostTable,
    allow: Callable[[_C.Candidate], bool] | None,  # None: all
    *,
    over: Quantity,
    max_points: int,
    time_limit_s: float,
) -> list[tuple[_C.Plan, int]]:
    """Returns the plans of a front of memory over the allowed candidates, with their bytes.

    All candidates that `allow` accepts need costs.

    Raises: torchalgo.Error if an argument is invalid.
    """
    if over not in ("workspace", "weights"):
        raise Error(f"TA2501 pareto: over={over!r}, expected 'workspace', 'weights' or 'error'")
    check_points(max_points)
    options: dict[str, Any] = {"allow": allow, "time_limit_s": time_limit_s}
    if over == "workspace":
        return _C.workspace_front(graph, found, transforms, costs, **options)
    use = _C.packed_bytes_of(found)
    resource = _C.Resource("weight bytes", use, sum(max(list_, default=0) for list_ in use))
    return _C.resource_front(
        graph, found, transforms, costs, resources=[resource], max_points=max_points, **options
    )
