# SPDX-License-Identifier: BSD-3-Clause
"""Says where the time of a call goes: by operation, by stage of the model, and by algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchalgo._ir.costs import algorithm_of
from torchalgo._report.operations import Operation

ENDS = ("input", "output")
MOST_TOTALS = 12  # that are listed; the rest has one line
LARGE = 0.5  # the part of the time from which a stage is divided
_KINDS = {"transform": "layout changes", "left": "left to PyTorch"}


@dataclass(frozen=True)
class Row:
    """The time of one operation. A share is in percent of all times, a bar of the longest."""

    index: int  # of the operation
    operation: Operation
    stage: str
    time: float
    share: float
    bar: float


@dataclass(frozen=True)
class Total:
    """The time of several operations, as in Row."""

    name: str
    count: int  # of operations with a time
    time: float
    share: float
    bar: float


def rows_of(operations: Sequence[Operation], unit: str) -> list[Row]:
    """Returns the rows of the table, the longest time first. Inputs and outputs have none."""
    times = [_time_of(operation, unit) for operation in operations]
    stages = stages_of([operation.name for operation in operations], times)
    whole, most = sum(times) or 1.0, max(times, default=0.0) or 1.0
    rows = [
        Row(i, op, stages[i], times[i], 100 * times[i] / whole, 100 * times[i] / most)
        for i, op in enumerate(operations)
        if op.kind not in ENDS
    ]
    return sorted(rows, key=lambda row: (-row.time, row.index))


def _time_of(operation: Operation, unit: str) -> float:
    """Returns the predicted cost; for an op that is left to PyTorch its measured time.

    Returns 0 if neither is known, or if the plan's unit is not time.
    """
    if operation.kind == "left":
        return (operation.us or 0.0) if unit == "us" else 0.0
    return operation.cost or 0.0


def stages_of(names: Sequence[str], times: Sequence[float]) -> list[str]:
    """Returns the stage of each operation: the first part of its name, such as "layer1".

    A stage with at least half of the time is divided by the next part of the names, as often as it
    can be: all names of some models begin with "features".
    """
    parts, depths = [name.split(".") for name in names], [1] * len(names)
    while True:
        stages = [".".join(own[:depth]) for own, depth in zip(parts, depths, strict=True)]
        sums: dict[str, float] = {}
        for stage, time in zip(stages, times, strict=True):
            sums[stage] = sums.get(stage, 0.0) + time
        large = LARGE * sum(times)
        deeper = [
            i
            for i, stage in enumerate(stages)
            if sums[stage] >= large and len(parts[i]) > depths[i]
        ]
        if not deeper:
            return stages
        for i in deeper:
            depths[i] += 1


def algorithm_name(operation: Operation) -> str:
    """Returns the algorithm of an operation, or its kind if none was chosen for it."""
    if operation.kind in _KINDS:
        return _KINDS[operation.kind]
    return algorithm_of(operation.primitive) or operation.primitive


def totals_of(rows: Sequence[Row], names: Sequence[str]) -> list[Total]:
    """Returns the sums of the rows of equal names, the longest first. Rows without time are out."""
    sums: dict[str, list[float]] = {}
    for row, name in zip(rows, names, strict=True):
        if row.time:
            sums.setdefault(name, []).append(row.time)
    groups = sorted(sums.items(), key=lambda item: -sum(item[1]))
    if len(groups) > MOST_TOTALS:
        rest = groups[MOST_TOTALS - 1 :]
        groups = groups[: MOST_TOTALS - 1]
        groups.append((f"{len(rest)} others", [time for _, times in rest for time in times]))
    whole = sum(row.time for row in rows) or 1.0
    most = max((sum(times) for _, times in groups), default=0.0) or 1.0
    return [
        Total(name, len(times), sum(times), 100 * sum(times) / whole, 100 * sum(times) / most)
        for name, times in groups
    ]
