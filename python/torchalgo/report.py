# SPDX-License-Identifier: BSD-3-Clause
"""A plan for readers: one HTML file without scripts or links, plain text, or JSON."""

from __future__ import annotations

from html import escape
from pathlib import Path

from torchalgo._C import Error
from torchalgo.plan import Plan

SUFFIXES = (".html", ".txt", ".json")

_STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:75em}"
    "table{border-collapse:collapse}"
    "td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd}"
    "td.n{text-align:right}tr.t{color:#666}tr.a{color:#999}.bar{background:#8ab;height:8px}"
)


def write_report(plan: Plan, path: Path) -> None:
    """Writes `plan` to `path` as its suffix says. Raises Error for any other suffix."""
    writers = (html_report, lambda p: f"{p}\n", Plan.to_json)
    writer = dict(zip(SUFFIXES, writers, strict=True)).get(path.suffix.lower())
    if writer is None:
        raise Error(f"report: {path} ends in {path.suffix!r}, expected {', '.join(SUFFIXES)}")
    try:
        path.write_text(writer(plan), encoding="utf-8")
    except OSError as problem:
        raise Error(f"report: cannot write {path}: {problem.strerror}") from None


def html_report(plan: Plan) -> str:
    """A single page; names come from the model and are escaped."""
    summary = escape(str(plan).split("\n\n", 1)[-1])
    rows = "\n".join(_rows(plan))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>torchalgo plan</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Plan</h1>\n<pre>{summary}</pre>\n"
        "<table><tr><th>layer</th><th>problem</th><th>primitive</th><th>src</th><th>dst</th>"
        "<th>us</th><th></th><th>runner-up</th><th>regret us</th><th>packed bytes</th>"
        "<th>us in the net</th></tr>\n"
        f"{rows}\n</table></body></html>\n"
    )


def _rows(plan: Plan) -> list[str]:
    most = max(
        [n.predicted_us for n in plan.nodes] + [t.predicted_us for t in plan.transforms] + [1]
    )
    in_net = (
        {}
        if plan.in_context is None
        else {(op.name, op.problem): f"{op.measured_us:.1f}" for op in plan.in_context.ops}
    )
    rows = []
    for n in plan.nodes:
        if n.absorbed_by:
            rows.append(_row("a", n.name, n.problem, f"in {n.absorbed_by}", "", "", None, most))
        else:
            regret = "" if n.regret_us is None else f"{n.regret_us:.1f}"
            rows.append(
                _row(
                    "", n.name, n.problem, n.primitive, n.src, n.dst, n.predicted_us, most,
                    n.runner_up, regret, "" if not n.packed_bytes else f"{n.packed_bytes:,}",
                    in_net.get((n.name, n.problem), ""),
                )
            )  # fmt: skip
        rows += _transform_rows(plan, n.name, most, in_net)
    return _transform_rows(plan, "", most, in_net) + rows


def _transform_rows(
    plan: Plan, producer: str, most: float, in_net: dict[tuple[str, str], str]
) -> list[str]:
    return [
        _row(
            css="t",
            name=f"> {t.value}",
            problem=t.problem,
            primitive=t.primitive,
            src=t.src,
            dst=t.dst,
            us=t.predicted_us,
            most=most,
            in_net=in_net.get((t.value, t.problem), ""),
        )
        for t in plan.transforms
        if t.producer == producer
    ]


def _row(
    css: str,
    name: str,
    problem: str,
    primitive: str,
    src: str,
    dst: str,
    us: float | None,
    most: float,
    runner_up: str = "",
    regret: str = "",
    packed: str = "",
    in_net: str = "",
) -> str:
    texts = "".join(f"<td>{escape(text)}</td>" for text in (name, problem, primitive, src, dst))
    cost = "" if us is None else f"{us:.1f}"
    width = 0 if us is None else round(120 * us / most)
    bar = f'<td><div class="bar" style="width:{width}px"></div></td>'
    tail = f'<td>{escape(runner_up)}</td><td class="n">{regret}</td><td class="n">{packed}</td>'
    tail += f'<td class="n">{in_net}</td>'
    return f'<tr class="{css}">{texts}<td class="n">{cost}</td>{bar}{tail}</tr>'
