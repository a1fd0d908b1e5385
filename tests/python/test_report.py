# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from support.plans import make_node, make_plan
from torchalgo._ir.plan import GuardVerdict, InContext, LeftAlone, OpInContext
from torchalgo._run.report import html_report, short_report, speed_line


def test_names_of_the_model_are_escaped() -> None:
    evil = "<script>alert('x')</script>"
    plan = make_plan(nodes=[make_node(evil)], left_alone=[LeftAlone(evil, evil)])
    html = html_report(dataclasses.replace(plan, method=evil))
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_every_node_and_transform_has_a_row() -> None:
    html = html_report(make_plan())
    assert html.count("<tr") == 1 + 2 + 1
    assert "in conv1" in html
    assert "layout.tiled" in html


def test_a_row_has_the_numbers_of_its_layer_and_a_bar() -> None:
    node = make_node("conv1", packed_bytes=1234567)
    op = OpInContext("conv1", node.problem, 12.5, 13.0, 14.26)
    context = InContext(0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, 1, 1, "", [op])
    html = html_report(make_plan(nodes=[node], in_context=context)).replace("\n", "")
    rows = re.findall(r"<tr class.*?</tr>", html)
    cells = [re.findall(r"<td.*?>(.*?)</td>", row) for row in rows]
    assert [row[0] for row in cells] == ["&gt; x", "conv1"]
    bar = '<div class="bar" style="width:120px"></div>'
    assert cells[1][2:] == [
        "cpu.winograd_f4x4_3x3.t14", "nChw16c", "nChw16c", "12.5", bar,
        "aten.prepacked nhwc-&gt;nhwc", "3.2", "1,234,567", "14.3",
    ]  # fmt: skip
    assert 'style="width:77px"' in rows[0]


def verdict(**changes: Any) -> GuardVerdict:
    timed = GuardVerdict(
        "faster", "plan", "channels_last", 5000.0, 10_000.0, 0.5, 0.45, 0.52, 25, ""
    )
    return dataclasses.replace(timed, **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "2.00x as fast as channels_last, the fastest baseline: 5.00 ms against 10.00 ms"),
        ({}, "[95 %: 1.92x to 2.22x]"),
        ({"runs": "single_layout"}, "; the best plan in one layout runs"),
        ({"verdict": "unclear", "ratio": 1.0}, "no clear difference from channels_last"),
        ({"verdict": "slower", "runs": "baseline"}, "PyTorch's channels_last runs, since the plan"),
        ({"rounds": 0, "runs": "baseline", "reason": "out of budget"}, "out of budget; "),
    ],
)
def test_the_result_comes_first_in_five_lines(changes: dict[str, Any], text: str) -> None:
    plan = dataclasses.replace(
        make_plan(), guard=verdict(**changes), rel_error=3e-7, weight_bytes=12_000_000
    )
    lines = short_report([plan], Path("out.pt")).splitlines()
    assert [line.split()[0] for line in lines] == ["speed", "error", "memory", "file", "next"]
    assert text in lines[0]
    assert "relative L2 3.0e-07" in lines[1] and "12 MB of packed weights" in lines[2]
    assert lines[3].endswith("out.pt") and lines[4].endswith("torchalgo explain out.pt")


def test_several_plans_have_a_line_for_each_of_the_first() -> None:
    plans = [dataclasses.replace(make_plan(), guard=verdict()) for _ in range(5)]
    lines = short_report(plans, Path("out.pt")).splitlines()
    assert sum(line.startswith("speed ") for line in lines) == 3
    assert "and 2 more plans" in lines[3]
    assert speed_line(None) == "not compared with PyTorch"
