# SPDX-License-Identifier: BSD-3-Clause
"""Makes findings of operations: groups them by line, and decides whether a fix is worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torchalgo._lint.facts import OpCall
from torchalgo._lint.report import Finding, source_text
from torchalgo._lint.source import Lines
from torchalgo._lint.what_if import LEAST_BYTES, Trial


def by_line(ops: Iterable[OpCall]) -> list[list[OpCall]]:
    """Groups operations that one line of code runs; those without a line by their layer."""
    groups: dict[object, list[OpCall]] = {}
    for op in ops:
        groups.setdefault(op.line or op.layer, []).append(op)
    return list(groups.values())


def is_worth(trial: Trial, needs_time: bool = False) -> bool:
    """Returns True if the fix gains 2 % of the call, or removes bytes and costs no time.

    Args:
        needs_time: True does not accept a fix that only removes bytes.
    """
    if trial.is_faster:
        return True
    return not needs_time and trial.saved_bytes >= LEAST_BYTES and not trial.is_slower


def is_worth_removing(trial: Trial, size: int) -> bool:
    """Returns True if it is worth it to remove an operation, which makes `size` bytes.

    This cannot make the call slower, so a small loss of time is noise.
    """
    return trial.is_faster or max(size, trial.saved_bytes) >= LEAST_BYTES


class Group(list[OpCall]):
    """Operations with a common line and layer."""

    def __init__(self, ops: Sequence[OpCall], lines: Lines, layer: str) -> None:
        super().__init__(ops)
        self.lines, self.layer = lines, layer


def finding_of(
    kind: str, ops: Sequence[OpCall], trial: Trial | None, size: int, fix: str
) -> Finding:
    """Returns the finding on operations that share a fault."""
    layers = tuple(dict.fromkeys(op.layer for op in ops))
    line = next((op.line for op in ops if op.line is not None), None)
    is_timed = trial is not None and trial.times.verdict == "faster" and trial.gain_us > 0
    if isinstance(ops, Group):
        layers, line = (ops.layer,), ops.lines[0] if ops.lines else None
    return Finding(
        kind,
        layers[0],
        source_text(line),
        size,
        round(trial.gain_us, 1) if trial is not None and is_timed else None,
        round(trial.share, 4) if trial is not None and is_timed else None,
        fix,
        layers if len(layers) > 1 else (),
        trial,
    )


def total_bytes(ops: Iterable[OpCall], of: Callable[[OpCall], int] = lambda op: op.bytes) -> int:
    return sum(map(of, ops))
