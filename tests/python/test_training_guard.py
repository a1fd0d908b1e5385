# SPDX-License-Identifier: BSD-3-Clause
"""A plan for training that is slower than the model does not run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.training_models import Chain, images
from torchalgo._base.stats import Faster
from torchalgo._train import guard


def optimize(model: nn.Module, tmp_path: Path) -> torchalgo.TrainingModule:
    settings = torchalgo.Settings(cost_db=tmp_path / "costs.sqlite3", progress=False)
    return torchalgo.optimize(model, (images(),), training=True, budget_s=2.0, settings=settings)


def test_the_faster_side_runs_and_timing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []

    def compare(plan: list[float], model: list[float], **_: Any) -> Faster:
        given.append((len(model), len(plan)))
        ratio = 1.1 if len(given) == 1 else 0.9  # of the plan: slower at first
        return Faster("unclear", ratio, ratio, ratio)

    monkeypatch.setattr(guard, "is_faster", compare)
    model = Chain().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    slower = optimize(model, tmp_path)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert slower.runs == "baseline" and "the baseline runs" in str(slower.plan)
    slower(images()).sum().backward()
    assert slower.planned_runs == 0 and slower.other_runs > 0
    assert copy.deepcopy(slower).runs == "baseline"
    faster = optimize(Chain().train(), tmp_path)
    assert faster.runs == "plan"
    faster(images()).sum().backward()
    assert faster.planned_runs > 0 and faster.other_runs == 0
    assert len(given) == 2 and all(a == b >= 1 for a, b in given)


def test_a_model_with_hooks_is_not_timed(tmp_path: Path) -> None:
    model, calls = Chain().train(), []
    next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d)).register_forward_hook(
        lambda *_: calls.append(1)
    )
    optimize(model, tmp_path)
    assert len(calls) <= 1  # the run that notes the sizes
