# SPDX-License-Identifier: BSD-3-Clause
"""Makes the page of a report: one HTML file with all that it needs inside."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchalgo import Error, __version__
from torchalgo._ir.plan import LeftAlone, Plan, unit_of
from torchalgo._report.bars import Bars, bars_of
from torchalgo._report.details import Details, details_of
from torchalgo._report.difference import Comparison
from torchalgo._report.front import FrontView, front_view
from torchalgo._report.lanes import Drawing, draw
from torchalgo._report.operations import Flow, Operation, flow_of
from torchalgo._report.spread import Spread, spread_of
from torchalgo._report.subject import Subject
from torchalgo._report.summary import Proof, Speed, facts_lines, proof_of, speed_of
from torchalgo._report.timeline import Timeline, time_of, timeline_of

FOLDER = Path(__file__).parent
ENDS = ("input", "output")


@dataclass(frozen=True)
class Row:
    """A row of the table of times."""

    index: int  # of the operation
    operation: Operation
    time: float
    share: float  # in percent of all times
    bar: float  # in percent of the longest time


@dataclass(frozen=True)
class Section:
    """All that the page shows of one plan."""

    id: str
    plan: Plan
    title: str
    shapes: str
    unit: str
    speed: Speed
    proof: Proof
    facts: Sequence[tuple[str, str]]
    bars: Bars
    spread: Spread | None
    flow: Flow
    drawing: Drawing
    timeline: Timeline | None
    rows: Sequence[Row]
    details: Sequence[Details]
    left: Sequence[LeftAlone]
    front: FrontView | None
    layouts: Sequence[str]
    problem: str  # of the slowest planned operation; empty if there is none


def html_page(
    subjects: Sequence[Subject], title: str, comparisons: Sequence[Comparison] = ()
) -> str:
    """Returns the page. Names come from the model, so that all texts are escaped.

    Args:
        comparisons: of plans among the subjects; they come first.
    Raises: torchalgo.Error if Jinja2 is missing.
    """
    script = (FOLDER / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return str(
        _template().render(
            title=title,
            sections=[section_of(subject, f"p{i}") for i, subject in enumerate(subjects)],
            comparisons=comparisons,
            style=(FOLDER / "page.css").read_text(),
            script=script,
            script_digest=f"sha256-{digest}",
            version=__version__,
        )
    )


@functools.cache
def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError:
        raise Error(
            "TA2011 report: an HTML report needs the package jinja2, which is missing: pip install"
            " jinja2, or name a file that ends in .txt or .json"
        ) from None
    pages = Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.filters |= {"number": number, "breakable": breakable, "head_and_tail": head_and_tail}
    return pages.get_template("page.html.j2")


def breakable(name: str) -> Any:
    """Returns the HTML of a name that may break behind its dots."""
    from markupsafe import Markup, escape  # Jinja2 depends on it

    return escape(name).replace(".", Markup(".<wbr>"))


def head_and_tail(name: str) -> tuple[str, str]:
    """Splits a name before its last two parts. A narrow row shortens the head only."""
    parts = name.split(".")
    tail = ".".join(parts[-2:])
    return name[: len(name) - len(tail)], tail


def number(value: float | None, digits: int = 1) -> str:
    """Formats a number with a comma between thousands; "" for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def section_of(subject: Subject, name: str) -> Section:
    """Returns all that the page shows of a plan. `name` begins the ids of its elements."""
    plan, facts, unit = subject.plan, subject.facts(), unit_of(subject.plan)
    flow = flow_of(plan, subject.graph_text)
    rows = rows_of(flow.operations, unit)
    planned = [row.operation.problem for row in rows if row.operation.kind == "planned"]
    used = {layout for op in flow.operations for layout in (op.src, op.dst) if layout}
    return Section(
        id=name,
        plan=plan,
        title=subject.title,
        shapes=subject.shapes,
        unit=unit,
        speed=speed_of(plan),
        proof=proof_of(plan),
        facts=facts_lines(plan),
        bars=bars_of(plan, facts, subject.measured),
        spread=spread_of(plan, facts),
        flow=flow,
        drawing=draw(flow),
        timeline=timeline_of(flow.operations, unit),
        rows=rows,
        details=[details_of(operation, facts, unit) for operation in flow.operations],
        left=sorted(plan.left_alone, key=lambda item: -(item.measured_us or 0.0)),
        front=front_view(subject.front),
        layouts=sorted(used),
        problem=planned[0] if planned else "",
    )


def rows_of(operations: Sequence[Operation], unit: str) -> list[Row]:
    """Returns the rows of the table, the longest time first. Inputs and outputs have none."""
    timed = [
        (time_of(operation, unit), i, operation)
        for i, operation in enumerate(operations)
        if operation.kind not in ENDS
    ]
    timed.sort(key=lambda item: (-item[0], item[1]))
    whole, most = sum(time for time, *_ in timed) or 1.0, timed[0][0] or 1.0 if timed else 1.0
    return [
        Row(i, operation, time, 100 * time / whole, 100 * time / most)
        for time, i, operation in timed
    ]
