# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import dataclasses

from test_plan import make_node, make_plan
from torchalgo.plan import LeftAlone
from torchalgo.report import html_report


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
