# SPDX-License-Identifier: BSD-3-Clause
"""Writes reports to files: text, JSON, or a page of HTML with all that it needs inside."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchalgo import Error, __version__
from torchalgo._base.write_file import write_file
from torchalgo._ir.plan import plans_to_json, unit_of
from torchalgo._report.bars import bars_of
from torchalgo._report.details import SOURCES, details_of
from torchalgo._report.difference import Comparison
from torchalgo._report.export import csv_text, trace_text
from torchalgo._report.lanes import draw
from torchalgo._report.operations import flow_of
from torchalgo._report.subject import Subject, is_of_training
from torchalgo._report.summary import errors_lines, facts_lines, proof_of, speed_of
from torchalgo._report.texts import text_report
from torchalgo._report.times import algorithm_name, rows_of, totals_of
from torchalgo_cli.files import REPORT_SUFFIXES

FOLDER = Path(__file__).parent


def write_report(subjects: Sequence[Subject], path: Path, title: str = "") -> None:
    """Writes a report to `path`, in the format of its suffix: one of REPORT_SUFFIXES.

    Args:
        title: the name of the model or of its file, for the page's title. Empty: not known.

    Raises: torchalgo.Error for any other suffix, or if the file cannot be written.
    """
    plans, name = [subject.plan for subject in subjects], path.name.lower()
    if not name.endswith(REPORT_SUFFIXES):
        known = ", ".join(REPORT_SUFFIXES)
        raise Error(f"TA2010 report: {path} ends in {path.suffix!r}, expected one of {known}")
    if name.endswith(".html"):
        text = html_page(subjects, title)
    elif name.endswith(".csv"):
        text = csv_text(subjects)
    elif name.endswith(".trace.json"):
        text = trace_text(subjects)
    else:
        text = text_report(plans) if name.endswith(".txt") else plans_to_json(plans)
    write_file(path, text, "report")


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
    pages.filters["source"] = lambda source: SOURCES.get(source, source)
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


def section_of(subject: Subject, name: str) -> dict[str, Any]:
    """Returns all that the page shows of a plan. `name` begins the ids of its elements."""
    plan, unit = subject.plan, unit_of(subject.plan)
    facts = None if subject.find_facts is None else subject.find_facts()
    flow = flow_of(plan, subject.graph_text)
    rows = rows_of(flow.operations, unit)
    planned = [row.operation for row in rows if row.operation.kind == "planned"]
    used = {layout for op in flow.operations for layout in (op.src, op.dst) if layout}
    return {
        "id": name,
        "plan": plan,
        "title": subject.title,
        "shapes": subject.shapes,
        "unit": unit,
        "speed": speed_of(plan),
        "proof": proof_of(plan),
        "errors": errors_lines(plan),
        "facts": facts_lines(plan),
        "bars": bars_of(plan, facts, subject.measured),
        "flow": flow,
        "drawing": draw(flow),
        "rows": rows,
        "totals": {
            "stage": totals_of(rows, [row.stage for row in rows]),
            "algorithm": totals_of(rows, [algorithm_name(row.operation) for row in rows]),
        },
        "details": [details_of(operation, facts, unit) for operation in flow.operations],
        "left": sorted(plan.left_alone, key=lambda item: -(item.measured_us or 0.0)),
        "front": subject.front,
        "layouts": sorted(used),
        "problem": planned[0].problem if planned else "",
        "is_training": is_of_training(plan),
    }
