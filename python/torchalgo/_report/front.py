# SPDX-License-Identifier: BSD-3-Clause
"""Draws the front of time and memory, or of time and error, that a caller passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo import Front, ParetoPoint
from torchalgo._ir.plan.units import in_ms

NAMES = {
    "weights": "packed weights",
    "workspace": "largest workspace",
    "error": "relative L2 error of the outputs",
}
MOST_EXACT = 1e-8  # where an error of 0 is drawn


@dataclass(frozen=True)
class Point:
    """A plan of the front. Positions are in percent of the drawing, from its top left corner."""

    x: float
    y: float
    time: str
    amount: str  # of memory, or the measured error
    bounds: tuple[str, ...]  # on a front of error: the predicted error, and max_error
    ratio: float  # of the time to that of the fastest plan
    is_proven: bool
    layers: int  # how many layers run another primitive than in the fastest plan


@dataclass(frozen=True)
class FrontView:
    kind: str  # "memory" or "error"
    name: str  # the quantity on the horizontal axis
    points: tuple[Point, ...]
    least_time: str
    most_time: str
    least: str
    most: str


def front_view(front: Front | None) -> FrontView | None:
    """Returns the drawing, or None if there is no front."""
    if not front:
        return None
    is_error = front.over == "error"
    fastest, times = front[0], [p.us for p in front]
    # Errors differ by factors of ten, so their axis is logarithmic.
    sizes = [math.log10(p.error or MOST_EXACT) if is_error else float(p.bytes) for p in front]
    points = tuple(
        Point(
            x=_percent(size, min(sizes), max(sizes)),
            y=100 - _percent(point.us, min(times), max(times)),
            time=in_ms(point.us),
            amount=_amount(point, is_error),
            bounds=_errors(point.plan.predicted_error, point.max_error) if is_error else (),
            ratio=point.us / fastest.us if fastest.us else 1.0,
            is_proven=point.is_proven,
            layers=_changed(_choices(fastest.plan.nodes), _choices(point.plan.nodes)),
        )
        for point, size in zip(front, sizes, strict=True)
    )
    least, most = (points[sizes.index(end(sizes))].amount for end in (min, max))
    kind = "error" if is_error else "memory"
    return FrontView(
        kind, NAMES[front.over], points, in_ms(min(times)), in_ms(max(times)), least, most
    )


def _amount(point: ParetoPoint, is_error: bool) -> str:
    return _errors(point.error)[0] if is_error else f"{point.bytes:,} B"


def _errors(*errors: float | None) -> tuple[str, ...]:
    return tuple("not known" if error is None else f"{error:.1e}" for error in errors)


def _percent(value: float, least: float, most: float) -> float:
    return 50.0 if most <= least else 100 * (value - least) / (most - least)


def _choices(nodes: Sequence[object]) -> list[tuple[object, ...]]:
    names = ("name", "primitive", "src", "dst")
    return [tuple(getattr(node, name) for name in names) for node in nodes]


def _changed(one: Sequence[tuple[object, ...]], other: Sequence[tuple[object, ...]]) -> int:
    return len(set(other) - set(one))
