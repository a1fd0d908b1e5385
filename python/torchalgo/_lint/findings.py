# SPDX-License-Identifier: BSD-3-Clause
"""Makes findings of operations that share a fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchalgo._lint.facts import OpCall
from torchalgo._lint.report import Finding
from torchalgo._lint.source import Lines
from torchalgo._lint.what_if import Trial


class Group(list[OpCall]):
    """Operations with a common line and layer."""

    def __init__(self, ops: Sequence[OpCall], lines: Lines, layer: str) -> None:
        super().__init__(ops)
        self.lines, self.layer = lines, layer


def finding_of(kind: str, ops: Sequence[OpCall], trial: Trial, fix: str) -> Finding:
    """Returns the finding on operations that share a fault."""
    layers = tuple(dict.fromkeys(op.layer for op in ops))
    line = next((op.line for op in ops if op.line is not None), None)
    if isinstance(ops, Group):
        layers, line = (ops.layer,), ops.lines[0] if ops.lines else None
    is_timed = trial.times.verdict == "faster" and trial.gain_us > 0
    gain_us = round(trial.gain_us, 1) if is_timed else None
    share = round(trial.share, 4) if is_timed else None
    source, others = str(line or ""), layers if len(layers) > 1 else ()
    return Finding(kind, layers[0], source, total_bytes(ops), gain_us, share, fix, others, trial)


def total_bytes(ops: Iterable[OpCall]) -> int:
    """Returns the bytes of the results of operations."""
    return sum(op.bytes for op in ops)
