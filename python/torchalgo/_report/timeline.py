# SPDX-License-Identifier: BSD-3-Clause
"""Lays out one call as a strip of time: a segment per operation, below those of its modules."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo._report.operations import Operation

# Sizes in pixels of the strip on a wide screen: all of it, a character, the margin of a label.
STRIP, CHARACTER, MARGIN = 1100, 6.6, 4
LARGE, MOST_DEPTH = 60.0, 3  # a module of more percent is shown by its parts


@dataclass(frozen=True)
class Segment:
    """A part of a call. Positions are in percent of the call."""

    name: str
    label: str  # what is written into it; empty if there is no room
    start: float
    width: float
    cost: float
    operation: int | None = None  # its index; None for a module


@dataclass(frozen=True)
class Tick:
    """A mark on the axis of time."""

    text: str
    at: float  # in percent


@dataclass(frozen=True)
class Timeline:
    """The predicted course of one call."""

    total: float  # in the unit of the costs
    modules: tuple[Segment, ...]
    operations: tuple[Segment, ...]
    ticks: tuple[Tick, ...]


def timeline_of(operations: Sequence[Operation], unit: str) -> Timeline | None:
    """Returns the timeline, or None if no operation has a cost."""
    timed = [(i, operation, time_of(operation, unit)) for i, operation in enumerate(operations)]
    costly = [(i, operation, cost) for i, operation, cost in timed if cost]
    total = sum(cost for _, _, cost in costly)
    if not total:
        return None
    ends = list(itertools.accumulate(cost for _, _, cost in costly))
    segments = [
        Segment(operation.name, "", 100 * (end - cost) / total, 100 * cost / total, cost, i)
        for (i, operation, cost), end in zip(costly, ends, strict=True)
    ]
    every = [_modules(segments, depth) for depth in range(1, MOST_DEPTH + 1)]
    small = (parts for parts in every if max(part.width for part in parts) <= LARGE)
    modules = next(small, every[-1])
    labelled = [_labelled(segment, modules) for segment in segments]
    return Timeline(total, tuple(modules), tuple(labelled), tuple(_ticks(total, unit)))


def _labelled(segment: Segment, modules: Sequence[Segment]) -> Segment:
    """Returns the segment with a label. The label lacks the module, which is above it."""
    above = next(part.name for part in reversed(modules) if part.start <= segment.start)
    label = segment.name.removeprefix(above).lstrip(".") or segment.name
    return dataclasses.replace(segment, label=_fitting(label, segment.width))


def _module(name: str, depth: int) -> str:
    """Returns the first `depth` parts of a name, without the number of the call."""
    return ".".join(name.partition("#")[0].split(".")[:depth])


def _fitting(label: str, width: float) -> str:
    """Returns `label`, or "" if it is wider than `width` percent of the strip."""
    return label if len(label) * CHARACTER + 2 * MARGIN <= width * STRIP / 100 else ""


def time_of(operation: Operation, unit: str) -> float:
    """Returns the predicted cost; for an op that is left to PyTorch its measured time.

    Returns 0 if neither is known, or if the plan's unit is not time.
    """
    if operation.kind == "left" and unit == "us":
        return operation.measured_us or 0.0
    return operation.cost or 0.0


def _modules(segments: Sequence[Segment], depth: int) -> list[Segment]:
    """Joins neighbours whose names begin with the same `depth` parts."""
    found = []
    for name, group in itertools.groupby(segments, lambda segment: _module(segment.name, depth)):
        own = list(group)
        width, cost = sum(s.width for s in own), sum(s.cost for s in own)
        found.append(Segment(name, _fitting(name, width), own[0].start, width, cost))
    return found


def _ticks(total: float, unit: str) -> list[Tick]:
    """Returns four to ten marks at round numbers."""
    step = 10 ** math.floor(math.log10(total / 4))
    step = next(step * factor for factor in (5, 2, 1) if total / (step * factor) >= 4)
    is_large, large = total >= 1000, "ms" if unit == "us" else "mJ"
    marks = [i * step for i in range(int(total / step) + 1)]
    texts = [f"{mark / 1000:g} {large}" if is_large else f"{mark:g} {unit}" for mark in marks]
    return [Tick(text, 100 * mark / total) for text, mark in zip(texts, marks, strict=True)]
