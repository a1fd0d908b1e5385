# SPDX-License-Identifier: BSD-3-Clause
"""Draws the front of time and memory that a caller passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo._ir.plan.units import in_ms
from torchalgo._plan.pareto import Front


@dataclass(frozen=True)
class Point:
    """A plan of the front. Positions are in percent of the drawing, from its top left corner."""

    x: float
    y: float
    time: str
    memory: str
    ratio: float  # of the time to that of the fastest plan
    is_proven: bool
    layers: int  # how many layers run another primitive than in the fastest plan


@dataclass(frozen=True)
class FrontView:
    memory: str  # the kind of memory
    points: tuple[Point, ...]
    least_time: str
    most_time: str
    least_memory: str
    most_memory: str


def front_view(front: Front | None) -> FrontView | None:
    """Returns the drawing, or None if there is no front."""
    if not front:
        return None
    fastest, sizes, times = front[0], [p.bytes for p in front], [p.us for p in front]
    points = tuple(
        Point(
            x=_percent(point.bytes, min(sizes), max(sizes)),
            y=100 - _percent(point.us, min(times), max(times)),
            time=in_ms(point.us),
            memory=f"{point.bytes:,} B",
            ratio=point.us / fastest.us if fastest.us else 1.0,
            is_proven=point.is_proven,
            layers=_changed(_choices(fastest.plan.nodes), _choices(point.plan.nodes)),
        )
        for point in front
    )
    name = {"weights": "packed weights", "workspace": "largest workspace"}[front.memory]
    ends = in_ms(min(times)), in_ms(max(times)), f"{min(sizes):,} B", f"{max(sizes):,} B"
    return FrontView(name, points, *ends)


def _percent(value: float, least: float, most: float) -> float:
    return 50.0 if most <= least else 100 * (value - least) / (most - least)


def _choices(nodes: Sequence[object]) -> list[tuple[object, ...]]:
    names = ("name", "primitive", "src", "dst")
    return [tuple(getattr(node, name) for name in names) for node in nodes]


def _changed(one: Sequence[tuple[object, ...]], other: Sequence[tuple[object, ...]]) -> int:
    return len(set(other) - set(one))
