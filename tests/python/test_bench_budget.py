# SPDX-License-Identifier: BSD-3-Clause
"""bench_budget.py times the plan, and says so where older records have the times of a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import bench_budget
import torchalgo
from support.nets import arguments, make_net


def test_the_plan_is_timed_also_if_a_baseline_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_net(), torch.rand(1, 3, 24, 24)
    fast = torchalgo.optimize(model, x, **arguments(budget_s=1e-3, cost_db=False))
    assert fast.runs == "baseline"
    calls: dict[str, Any] = {}

    def timed(given: Mapping[str, Any], **_: Any) -> dict[str, list[float]]:
        calls.update(given)
        return {name: [1.0] * 25 for name in given}

    monkeypatch.setattr(bench_budget.guard, "time_interleaved", timed)
    record = bench_budget.timed(model, x, fast)
    assert record["is_plan"]
    with torch.no_grad(), torch.profiler.profile(acc_events=True) as seen:
        calls["plan"]()
    names = {event.key for event in seen.key_averages()}
    assert any("nchw->nchw" in name for name in names)  # planned calls, see docs/report.md
    with torch.no_grad(), torch.profiler.profile(acc_events=True) as seen:
        fast(x)
    assert not any("nchw->nchw" in event.key for event in seen.key_averages())


def test_the_table_has_no_ratio_where_a_baseline_was_timed_instead_of_the_plan() -> None:
    line = {
        "network": "a", "ratio": 1.0, "of_baseline": [0.9, 0.8, 1.0], "taken_s": 1.0,
        "whole_s": 2.0, "steps_s": {"read": 0.5, "values": 0.5}, "runs": "plan",
    }  # fmt: skip
    assert "0.90 [0.80, 1.00]" in bench_budget.budget_table([line])[-1]
    assert "a baseline ran" in bench_budget.budget_table([{**line, "runs": "baseline"}])[-1]
    newer = {**line, "runs": "baseline", "is_plan": True}
    assert "0.90 [0.80, 1.00]" in bench_budget.budget_table([newer])[-1]
