# SPDX-License-Identifier: BSD-3-Clause
"""The findings of `torchalgo.lint`, as values, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo._ir.plan.text_table import ShownAsText
from torchalgo._lint.facts import OpCall
from torchalgo._lint.source import Lines
from torchalgo._lint.what_if import Trial

WIDTH = 100
MODEL = "(model)"  # the layer of a finding on the whole model


@dataclass(frozen=True)
class Finding:
    """One fault of a model, what it costs, and how to fix it.

    Example:
        for finding in torchalgo.lint(model, x):
            print(finding.kind, finding.source, finding.fix)
    """

    kind: str  # a stable name, such as "hidden-copy"; docs/lint.md lists them
    layer: str  # the module that runs it, such as "layer1.0.conv2"; "" is the model itself
    source: str  # the line that runs it, such as "net.py:12"; "" if it is not known
    bytes: int  # that the fault moves or keeps in each call, or keeps in the model
    gain_us: float | None  # the time of a call that the fix gains; None if it is not clear
    gain_share: float | None  # the same, as a part of the call's time
    fix: str  # one sentence
    layers: tuple[str, ...] = ()  # all layers with the same fault, if there are several
    trial: Any = dataclasses.field(default=None, repr=False, compare=False)  # how it was tried

    def to_dict(self) -> dict[str, Any]:
        """Returns the finding as JSON values."""
        facts = {name: value for name, value in vars(self).items() if name != "trial"}
        return {**facts, "layers": list(self.layers)}


@dataclass(frozen=True)
class LintReport(ShownAsText):
    """The result of `torchalgo.lint`: a sequence of findings, the most expensive first.

    `print(report)` shows a table, and `report.to_json()` returns the same for programs.

    Example:
        report = torchalgo.lint(model, x)
        print(report, len(report))
    """

    findings: tuple[Finding, ...]
    call_us: float  # one call of the model
    notes: tuple[str, ...] = ()  # what could not be seen

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        record = {
            "call_us": round(self.call_us, 1),
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }
        return json.dumps(record, indent=1)

    def __str__(self) -> str:
        lines = []
        for number, finding in enumerate(self.findings, start=1):
            lines += _lines_of(number, finding)
        count = len(self.findings)
        found = "no fault" if not count else "1 fault" if count == 1 else f"{count} faults"
        lines.append(f"{found} found; one call takes {self.call_us / 1000:.2f} ms")
        for note in self.notes:
            lines += textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")
        return "\n".join(lines)


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


def _lines_of(number: int, finding: Finding) -> list[str]:
    costs = [_bytes_text(finding.bytes)] if finding.bytes else []
    if finding.gain_us is not None:
        gain = _time_text(finding.gain_us)
        costs.append(f"the fix gains {gain} of a call ({finding.gain_share or 0:.1%})")
    more = len(finding.layers) - 1
    layer = finding.layer or MODEL
    where = f"{layer} and {more} more" if more > 0 else layer
    head = "  ".join(part for part in (finding.kind, where, finding.source) if part)
    lines = [f"{number}. {head}"]
    if costs:
        lines.append(f"   cost: {', '.join(costs)}")
    lines += textwrap.wrap(
        f"fix: {finding.fix}", WIDTH, initial_indent="   ", subsequent_indent="        "
    )
    return lines


def _time_text(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.0f} us"


def _bytes_text(count: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
