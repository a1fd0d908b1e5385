# SPDX-License-Identifier: BSD-3-Clause
"""Lays out the data flow: one row per operation, and a vertical lane per tensor that is in use."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo._report.operations import Flow, Operation, Tensor

ROW = 30.0  # height of a row, equal to --row in page.css
MOST_STEP, LEAST_STEP, MOST_WIDTH = 16.0, 4.0, 130.0  # of a lane, and of all lanes together
LEAST_RADIUS, MARGIN = 3.5, 10.0
NO_LANE = -1
ROWS_OF_STRIP = 26


@dataclass(frozen=True)
class Dot:
    """An operation in the drawing. Its area grows with its time."""

    index: int  # of the operation
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Line:
    """The path of a tensor from its producer to its readers, as the data of an SVG path."""

    path: str
    layout: str
    top: float  # of the path
    bottom: float


@dataclass(frozen=True)
class Strip:
    """The part of a drawing beside some rows. It fits on a printed page."""

    top: float
    height: float
    dots: tuple[Dot, ...]
    lines: tuple[Line, ...]  # all that cross the strip; they may begin above and end below


@dataclass(frozen=True)
class Drawing:
    """The drawing of a data flow, beside the rows of its operations."""

    width: float
    strips: tuple[Strip, ...]


def draw(flow: Flow) -> Drawing:
    """Returns the drawing of `flow`. Without known tensors, it has dots and no lines."""
    dots, lines, lanes, step = _parts(flow)
    strips = []
    for first in range(0, len(dots), ROWS_OF_STRIP):
        own = dots[first : first + ROWS_OF_STRIP]
        top, bottom = ROW * first, ROW * (first + len(own))
        crossing = tuple(line for line in lines if line.top < bottom and line.bottom > top)
        strips.append(Strip(top, bottom - top, own, crossing))
    return Drawing(_lane_x(lanes, step), tuple(strips))


def _parts(flow: Flow) -> tuple[tuple[Dot, ...], tuple[Line, ...], int, float]:
    """Returns the dots and lines, the number of lanes, and the width of a lane."""
    tensors = flow.tensors or ()
    lane_of_dot, lane_of_tensor = assign_lanes(len(flow.operations), tensors)
    lanes = max([*lane_of_dot, *lane_of_tensor, 0]) + 1
    step = min(MOST_STEP, max(LEAST_STEP, MOST_WIDTH / lanes))
    most = max([operation.cost or 0.0 for operation in flow.operations] + [1e-9])
    dots = tuple(
        Dot(
            index=i,
            x=_lane_x(lane, step),
            y=ROW * (i + 0.5),
            radius=_radius(operation, most, step),
        )
        for i, (lane, operation) in enumerate(zip(lane_of_dot, flow.operations, strict=True))
    )
    lines = tuple(
        Line(
            _path(tensor, dots, _lane_x(lane, step)), tensor.layout,
            dots[tensor.producer].y, dots[tensor.readers[-1]].y,
        )
        for tensor, lane in zip(tensors, lane_of_tensor, strict=True)
        if lane != NO_LANE
    )  # fmt: skip
    return dots, lines, lanes, step


def assign_lanes(count: int, tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Returns the lane of each of `count` operations, and that of each tensor.

    A tensor keeps its lane from its producer to its last reader, and no other tensor uses the lane
    in between. A tensor that nothing reads has no lane.
    """
    written: list[list[int]] = [[] for _ in range(count)]
    last_read: list[list[int]] = [[] for _ in range(count)]
    for i, tensor in enumerate(tensors):
        written[tensor.producer].append(i)
        if tensor.readers:
            last_read[tensor.readers[-1]].append(i)
    lane_of_dot, lane_of_tensor = [0] * count, [NO_LANE] * len(tensors)
    free, width = list[int](), 0
    for row in range(count):
        for i in last_read[row]:
            heapq.heappush(free, lane_of_tensor[i])
        ended = [lane_of_tensor[i] for i in last_read[row]]
        lane_of_dot[row] = min(ended) if ended else free[0] if free else width
        for i in written[row]:
            if not tensors[i].readers:
                continue
            if free:
                lane_of_tensor[i] = heapq.heappop(free)
            else:
                lane_of_tensor[i], width = width, width + 1
    return lane_of_dot, lane_of_tensor


def _lane_x(lane: int, step: float) -> float:
    return round(MARGIN + step * lane, 1)


def _radius(operation: Operation, most: float, step: float) -> float:
    room = max(step, 10.0) / 2 - LEAST_RADIUS
    return round(LEAST_RADIUS + room * math.sqrt((operation.cost or 0.0) / most), 1)


def _path(tensor: Tensor, dots: Sequence[Dot], x: float) -> str:
    """Returns the path: down the lane to the last reader, with a curve to each other dot."""
    start, last = dots[tensor.producer], dots[tensor.readers[-1]]
    parts = [f"M{start.x:g} {start.y:g}", _curve(start.x, start.y, x, start.y + ROW)]
    if len(tensor.readers) == 1 and tensor.readers[0] == tensor.producer + 1:
        return f"{parts[0]}{_curve(start.x, start.y, last.x, last.y)}"
    parts.append(f"L{x:g} {last.y - ROW:g}{_curve(x, last.y - ROW, last.x, last.y)}")
    for reader in tensor.readers[:-1]:
        dot = dots[reader]
        from_x, from_y = (start.x, start.y) if reader == tensor.producer + 1 else (x, dot.y - ROW)
        parts.append(f"M{from_x:g} {from_y:g}{_curve(from_x, from_y, dot.x, dot.y)}")
    return "".join(parts)


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    if x0 == x1:
        return f"L{x1:g} {y1:g}"
    middle = (y0 + y1) / 2
    return f"C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1:g}"
