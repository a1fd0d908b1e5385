# SPDX-License-Identifier: BSD-3-Clause
"""Changes that make a plan false, and a function that tells if the checker refuses the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torchalgo
from support.plan_samples import (
    Sample,
    us,
)
from torchalgo.verify.check_plan import check_plan


def is_refused(plan: dict[str, Any]) -> bool:
    try:
        check_plan(plan)
    except torchalgo.Error:
        return True
    return False


def dearer_rows(sample: Sample, plan: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
    """Other primitives with the layouts of the chosen ones."""
    for i, node in enumerate(plan["nodes"]):
        layouts = f" {node['src']}->{node['dst']}"
        for row, ticks in sample.rows.get(node["problem"], {}).items():
            allowed = [node["name"], node["problem"], row] not in sample.refused
            if node["primitive"] and row.endswith(layouts) and ticks > node["ticks"] and allowed:
                yield i, row, ticks


def take_row(plan: dict[str, Any], node: int, row: str, ticks: int) -> None:
    """Another primitive for a node; the plan's sums follow."""
    part = plan["nodes"][node]
    plan["cost_ticks"] += ticks - part["ticks"]
    part.update(primitive=row.split()[0], ticks=ticks, predicted_us=us(ticks))
    plan["cost_us"] = us(plan["cost_ticks"])
