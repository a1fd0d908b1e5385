# SPDX-License-Identifier: BSD-3-Clause
"""benchmarks/gpu_mission.py with algorithms of a CPU in place of cuDNN's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpu_mission
import torchalgo
from gpu_mission import Ground, cuda, mission_on
from gpu_stage import Context

pytestmark = pytest.mark.slow

CHOICES: dict[str, list[tuple[int | str, str]]] = {
    "fwd": [("aten.conv", "aten.conv"), ("cpu.direct", "cpu.direct")],
    "bwd_data": [("aten.conv", "aten.conv")],
    "bwd_filter": [("aten.conv", "aten.conv"), ("cpu.direct", "cpu.direct")],
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(out=tmp_path, quick=True, seed=0, left_s=lambda: 100.0)


def ground(choices: dict[str, list[tuple[int | str, str]]] = CHOICES) -> Ground:
    return Ground("cpu", choices, dtypes=("f32",), batch=1)


def test_each_choice_is_asked_for_and_compared(context: Context) -> None:
    outcome = mission_on(ground(), context)
    rows = outcome.data["rows"]
    assert not outcome.failures, outcome.failures
    assert outcome.data["doors"].keys() == {
        "set_algorithms", "enable", "override", "saved file",
    }  # fmt: skip
    assert all("cpu.direct" in ran for ran in outcome.data["doors"].values())
    assert len(rows) == 2 * 5
    of_filter = [
        row for row in rows if (row["direction"], row["asked"]) == ("bwd_filter", "cpu.direct")
    ]
    assert {row["status"] for row in of_filter} == {"refused"}  # it computes results only
    assert all("cpu.direct" in row["why"] for row in of_filter)
    ran = [row for row in rows if row["status"] == "ran"]
    assert len(ran) == 8 and all(row["error"] < 1e-5 and row["ms"] > 0 for row in ran)


def failures_of(
    monkeypatch: pytest.MonkeyPatch, context: Context, row: dict[str, Any]
) -> list[str]:
    monkeypatch.setattr(gpu_mission, "ask", lambda *_: dict(row))
    monkeypatch.setattr(gpu_mission, "doors", lambda *_: {})
    return mission_on(ground(), context).failures


def test_a_wrong_result_and_another_algorithm_are_failures(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = failures_of(monkeypatch, context, {"status": "ran", "error": 0.5, "ms": 1.0})
    assert "aten.conv of fwd on stem f32: wrong, 0.5" in wrong
    other = failures_of(monkeypatch, context, {"status": "other", "why": "auto ran"})
    assert "aten.conv of fwd on stem f32: other, auto ran" in other
    failed = failures_of(monkeypatch, context, {"status": "failed", "why": "illegal access"})
    assert "aten.conv of fwd on stem f32: failed, illegal access" in failed
    refused = failures_of(monkeypatch, context, {"status": "refused", "why": "no"})
    assert refused == [f"nothing of {direction} ran" for direction in CHOICES]


def test_strictness_is_as_before_and_time_ends_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_mission, "doors", lambda *_: {})
    spent = Context(out=tmp_path, quick=False, seed=0, left_s=lambda: -1.0)
    outcome = mission_on(ground(), spent)
    assert outcome.data["reached"] == "stem" and outcome.data["rows"] == []
    assert torchalgo.set_strict(False) is False


def test_on_a_gpu_all_numbers_and_names_are_asked_for() -> None:
    choices = cuda().choices
    assert [len(choices[d]) for d in ("fwd", "bwd_data", "bwd_filter")] == [16, 12, 14]
    assert (6, "cudnn_legacy.fwd.6") in choices["fwd"]
    assert ("WINOGRAD", "cudnn_legacy.fwd.6") in choices["fwd"]
    assert ("ALGO_3", "cudnn_legacy.bwd_filter.3") in choices["bwd_filter"]
