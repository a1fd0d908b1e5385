# SPDX-License-Identifier: BSD-3-Clause
"""Writes the operations of plans for other programs: as CSV, and as a trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from torchalgo._ir.plan import unit_of
from torchalgo._ir.plan.text import layouts_text
from torchalgo._report.operations import Operation, flow_of
from torchalgo._report.subject import Subject
from torchalgo._report.times import Row, algorithm_name, rows_of

KINDS = {"planned": "planned", "transform": "layout change", "left": "left to PyTorch"}
COLUMNS = (
    "plan", "kind", "name", "stage", "algorithm", "primitive", "src", "dst", "us", "source", "uj",
    "runner_up", "regret", "packed_bytes", "fused", "problem", "note", "line",
)  # fmt: skip
IN_CALL = "measured in a call"  # the source of the time of what PyTorch runs
NOTE = (
    "These are the costs of a plan in the order of a call, laid end to end. They are no recording"
    " of a run. Times of operations that are left to PyTorch were measured in a call."
)


def csv_text(subjects: Sequence[Subject]) -> str:
    """Returns a line for each operation and layout change, as RFC 4180 says."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for subject in subjects:
        is_energy = unit_of(subject.plan) == "uJ"
        for row in _in_order(subject):
            op = row.operation
            table.writerow(
                (
                    subject.title, KINDS[op.kind], op.name, row.stage, algorithm_name(op),
                    op.primitive, op.src, op.dst, op.us, _source(op),
                    op.cost if is_energy else None, op.runner_up, op.regret, op.packed_bytes,
                    " ".join(op.fused), op.problem, op.note, op.line,
                )
            )  # fmt: skip
    return text.getvalue()


def trace_text(subjects: Sequence[Subject]) -> str:
    """Returns the times of plans as events in the format of Chrome's traces.

    Each plan is a process, and each kind of operation a thread of it. Operations without a time are
    left out.

    Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events = [
        event
        for process, subject in enumerate(subjects, start=1)
        for event in _events(subject, process)
    ]
    data = {"displayTimeUnit": "ms", "otherData": {"note": NOTE}, "traceEvents": events}
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _events(subject: Subject, process: int) -> Iterator[dict[str, Any]]:
    title = f"{subject.title}: predicted times, laid end to end"
    yield _name("process_name", title, process, 0)
    threads = {kind: 10 * process + i for i, kind in enumerate(KINDS)}
    for kind, thread in threads.items():
        yield _name("thread_name", KINDS[kind], process, thread)
    begin = 0.0
    for row in _in_order(subject):
        op = row.operation
        if op.us is None:
            continue
        facts = {
            "layout": layouts_text(op.src, op.dst), "primitive": op.primitive,
            "cost": _source(op), "problem": op.problem, "fused": " ".join(op.fused),
            "note": op.note, "line": op.line,
        }  # fmt: skip
        yield {
            "name": op.name, "cat": KINDS[op.kind], "ph": "X", "pid": process,
            "tid": threads[op.kind], "ts": round(begin, 3), "dur": op.us,
            "args": {name: value for name, value in facts.items() if value},
        }  # fmt: skip
        begin += op.us


def _name(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _in_order(subject: Subject) -> list[Row]:
    """Returns the rows in the order of a call, as far as it is known."""
    flow = flow_of(subject.plan, subject.graph_text)
    rows = rows_of(flow.operations, unit_of(subject.plan))
    return sorted(rows, key=lambda row: row.index)


def _source(operation: Operation) -> str:
    """Returns how the time is known: the source of the cost from which it was predicted."""
    if operation.kind == "left":
        return "" if operation.us is None else IN_CALL
    return operation.source
