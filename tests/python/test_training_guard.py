# SPDX-License-Identifier: BSD-3-Clause
"""A plan for training that is slower than the model does not run."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.training_models import Chain, images
from torchalgo._base.call_context import CallContext
from torchalgo._base.progress import Event
from torchalgo._base.stats import Faster
from torchalgo._base.time_budget import Deadline
from torchalgo._capture.settings import Options
from torchalgo._measure.guard import PLAN
from torchalgo._train import guard
from torchalgo._train import optimize as optimize_
from torchalgo._train.plan import guard_text


def optimize(model: nn.Module, tmp_path: Path, progress: Any = False) -> torchalgo.TrainingModule:
    settings = torchalgo.Settings(cost_db=tmp_path / "costs.sqlite3", progress=progress)
    return torchalgo.optimize_training(model, (images(),), budget_s=20.0, settings=settings)


def test_the_faster_side_runs_and_timing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []

    def compare(plan: list[float], model: list[float], **_: Any) -> Faster:
        given.append((len(model), len(plan)))
        if len(given) == 1:
            return Faster("slower", 1.1, 1.05, 1.2)
        return Faster("unclear", 1.1, 0.9, 1.2)

    monkeypatch.setattr("torchalgo._measure.guard.is_faster", compare)
    model = Chain().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    told: list[Event] = []
    slower = optimize(model, tmp_path, told.append)
    assert str(slower.plan).endswith(told[-1].text) and "the baseline runs" in told[-1].text
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert slower.runs == "baseline" and "the baseline runs" in str(slower.plan)
    slower(images()).sum().backward()
    assert slower.planned_runs == 0 and slower.original_runs.total() > 0
    assert copy.deepcopy(slower).runs == "baseline"
    unclear = optimize(Chain().train(), tmp_path)
    assert unclear.runs == "plan" and "no clear difference; the plan runs" in str(unclear.plan)
    unclear(images()).sum().backward()
    assert unclear.planned_runs > 0 and unclear.original_runs.total() == 0
    assert given == [(guard.ROUNDS, guard.ROUNDS)] * 2


@pytest.mark.parametrize(
    ("plan_ms", "model_ms", "runs"),
    [
        ([1.0, 1.1, 1.0, 1.2, 1.0, 1.1], [2.0] * 6, "plan"),
        ([2.0, 2.1, 2.0, 2.2, 2.0, 2.1], [1.0] * 6, "baseline"),
        ([1.0, 2.1, 1.0, 2.2, 1.0, 2.1], [1.5] * 6, "plan"),  # no clear difference
        ([1.6, 2.1, 1.4, 2.2, 1.6, 2.1], [1.5] * 6, "plan"),  # a worse median is no proof
        ([1.0] * 3, [1.1] * 3, "plan"),  # each step of the plan is faster than each of the model
        ([1.0] * 2, [1.1] * 2, "baseline"),
        ([1.0, 1.0, 1.2], [1.1] * 3, "baseline"),
    ],
)
def test_the_plan_loses_as_in_inference(
    plan_ms: list[float], model_ms: list[float], runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {PLAN: plan_ms, guard.AS_GIVEN: model_ms}
    monkeypatch.setattr(guard, "time_steps", lambda *_: {k: [*v] for k, v in times.items()})
    planned: Any = Chain().train()
    planned.given = nn.Identity()
    verdict = guard.compare_steps(planned, (images(),), Deadline(90.0))
    assert verdict is not None and verdict.runs == runs
    is_short = len(plan_ms) < guard.ROUNDS and runs == "baseline"
    assert ("such as budget_s=180" in verdict.reason) == is_short
    text = guard_text(verdict)
    assert ("too few to be sure" in text) == (len(plan_ms) < 4 and plan_ms[-1] < model_ms[-1])


def test_a_budget_that_ended_is_the_reason_and_not_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {PLAN: [1e6] * 2, guard.AS_GIVEN: [4e6] * 2}
    monkeypatch.setattr(guard, "time_steps", lambda sides, *_: {k: times[k] for k in sides})
    monkeypatch.setattr(optimize_, "reserve_guard", lambda *_: None)
    planned = optimize(Chain().train(), tmp_path)
    with pytest.warns(UserWarning, match="there was no time to see whether the plan is faster"):
        planned(images()).sum().backward()
    assert [*planned.original_runs] == ["there was no time to see whether the plan is faster"]
    assert "4.00 times as fast" in str(planned.plan) and "no clear diff" not in str(planned.plan)


@pytest.mark.parametrize(("step_s", "left_s"), [(2.0, 90.0 - 28.3), (9.0, 90.0 - 72.3)])
def test_tuning_leaves_the_time_for_a_comparison_that_gives_a_verdict(
    step_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {guard.AS_GIVEN: [step_s * 1e9]}
    monkeypatch.setattr(guard, "time_steps", lambda *_: steps)
    call = CallContext.start(Deadline(90.0))
    guard.reserve_guard(Chain().train(), (images(),), call)
    assert call.deadline.left_s("check") == pytest.approx(left_s, abs=1.0)
    assert call.part(1).deadline.budget_s == pytest.approx(left_s, abs=1.0)
    assert call.deadline.left_s("finish") > left_s + 20.0


def test_ctrl_c_in_one_region_leaves_no_time_to_others_and_all_to_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def tuning(part: Any, options: Any, store: Any, call: CallContext) -> Any:
        given.append(call.deadline.left_s("finish"))
        return SimpleNamespace(best=lambda: None, is_interrupted=True)

    monkeypatch.setattr(optimize_, "RegionTuning", tuning)
    monkeypatch.setattr(optimize_, "Run", lambda *_: SimpleNamespace(is_interrupted=True, saved=[]))
    parts: Any = {name: SimpleNamespace(costs=10) for name in ("first", "second")}
    for budget_s in (90.0, math.inf):
        call = CallContext.start(Deadline(budget_s, lambda: 0.0))
        optimize_._within_limit(parts, Options.of(torchalgo.Settings()), None, call)
        assert given == [budget_s / 2, 0.0]
        assert call.deadline.left_s("finish") == budget_s
        given.clear()


def test_a_model_with_hooks_is_not_timed(tmp_path: Path) -> None:
    model, calls = Chain().train(), []
    next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d)).register_forward_hook(
        lambda *_: calls.append(1)
    )
    optimize(model, tmp_path)
    assert len(calls) <= 1  # the run that notes the sizes
