# SPDX-License-Identifier: BSD-3-Clause
"""A plan for a training loop inside of torch.autocast in bf16."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torchalgo
from support.training_models import Chain, Mixed, Residual, error, images, options, weighted
from torchalgo._base.time_budget import Deadline
from torchalgo._train.guard import compare_steps


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


def planned(model: nn.Module, tmp_path: Path, *xs: Tensor, **more: Any) -> torchalgo.TrainingModule:
    with autocast():
        return torchalgo.optimize_training(model, xs or (images(),), **options(tmp_path, **more))


class TwoRegions(nn.Module):
    """Two regions, since nobody plans the resize between them, and results of both types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Residual(inplace=False), Chain()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.first(x)
        z = self.second(functional.interpolate(y, scale_factor=0.5))
        return y + x, z, self.head(z.mean((2, 3)))


def step(model: nn.Module, x: Tensor, *, inside: bool = True) -> list[Tensor]:
    """Runs a step, forward inside of autocast. Returns the results."""
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        result = model(x)
    results = [result] if isinstance(result, Tensor) else list(result)
    weighted([y.float() if inside else y for y in results]).backward()
    return results


@pytest.mark.parametrize("kind", [Mixed, Residual, TwoRegions])
def test_results_and_gradients_are_at_least_as_exact_as_in_eager_autocast(
    tmp_path: Path, kind: type[nn.Module]
) -> None:
    model = kind()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = planned(model, tmp_path)
    found, wanted = step(fast, images()), step(eager, images())
    truth = step(exact, images().double(), inside=False)
    assert fast.planned_runs == len(fast.plan.regions) and fast.original_runs.total() == 0
    for a, b, c in zip(found, wanted, truth, strict=True):
        assert a.dtype == b.dtype
        assert error(a, c) <= 1.5 * error(b, c) + 1e-3
    named = zip(fast.named_parameters(), eager.parameters(), exact.parameters(), strict=True)
    for (name, p), q, r in named:
        assert p.grad is not None and q.grad is not None and r.grad is not None
        assert p.grad.dtype == torch.float32
        if r.grad.norm() > 1e-9:  # else it is zero but for rounding: a bias before a norm
            assert error(p.grad, r.grad) <= 1.5 * error(q.grad, r.grad) + 1e-3, name
    for (name, p), q in zip(fast.named_buffers(), exact.buffers(), strict=True):
        assert error(p.float(), q.double(), least=0.1) < 1e-2, name


def test_outside_of_autocast_the_model_runs_as_it_was_given_and_both_are_counted(
    tmp_path: Path,
) -> None:
    model = Chain()
    eager = copy.deepcopy(model)
    fast = planned(model, tmp_path)
    with pytest.warns(UserWarning, match="autocast in bf16 is off, and it was on"):
        y = fast(images())
    assert torch.equal(y, eager(images())) and fast.original_runs.total() == 1
    with warnings.catch_warnings(), autocast():
        warnings.simplefilter("error")
        fast(images())
    assert fast.planned_runs == 1
    with autocast(torch.float16):
        fast(images())
    assert (fast.planned_runs, fast.original_runs.total()) == (1, 2)


def test_a_plan_made_outside_says_where_to_make_it(tmp_path: Path) -> None:
    fast = torchalgo.optimize_training(Chain(), (images(),), **options(tmp_path))
    with autocast(), pytest.warns(UserWarning, match="call optimize_training inside"):
        assert fast(images()).dtype == torch.bfloat16
    assert fast.planned_runs == 0


def test_a_plan_from_a_file_runs_inside_and_outside(tmp_path: Path) -> None:
    outside = torchalgo.optimize_training(Chain(), (images(),), **options(tmp_path))
    outside.plan.save(tmp_path / "plan.json")
    plan = torchalgo.TrainingPlan.load(tmp_path / "plan.json")
    fast = planned(Chain(), tmp_path, plan=plan, budget_s=None)
    assert step(fast, images())[0].dtype == torch.bfloat16 and fast.planned_runs == 1


def test_the_backward_pass_may_be_inside_too(tmp_path: Path) -> None:
    fast = planned(Mixed(), tmp_path)
    step(fast, images())
    grads = [p.grad for p in fast.parameters()]
    fast.zero_grad(set_to_none=True)
    with autocast():
        torch.manual_seed(3)
        weighted(fast(images()).float()).backward()
    for p, grad in zip(fast.parameters(), grads, strict=True):
        assert grad is not None and p.grad is not None
        # The linear layer of PyTorch itself may differ by what autocast rounds.
        assert torch.allclose(p.grad, grad, rtol=1e-2, atol=1e-2 * float(grad.abs().max()))
    assert fast.planned_runs == 2 * len(fast.plan.regions)


def test_inputs_may_be_in_bf16_as_in_the_example(tmp_path: Path) -> None:
    x = images().bfloat16().requires_grad_()
    model = Chain()
    eager = copy.deepcopy(model)
    fast = planned(model, tmp_path, x)
    (found,) = step(fast, x)
    assert x.grad is not None and x.grad.dtype == torch.bfloat16
    ours, x.grad = x.grad, None
    (wanted,) = step(eager, x)
    assert x.grad is not None
    assert found.dtype == wanted.dtype and error(found, wanted.double()) < 2e-2
    assert error(ours, x.grad.double()) < 5e-2 and fast.planned_runs == 1
    with autocast(), pytest.warns(UserWarning, match="type"):
        fast(images())
    assert fast.original_runs.total() == 1


def test_scalers_accumulation_checkpoints_and_changes_in_place(tmp_path: Path) -> None:
    model = Mixed()
    fast = planned(model, tmp_path, images().requires_grad_())
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    weights = (model.stem[0].weight, model.fc.weight)
    before = [p.detach().clone() for p in weights]
    x = images().requires_grad_()
    for use in (fast, lambda x: checkpoint(fast, x, use_reentrant=False)):
        with autocast():
            y = use(x)
        scaler.scale(weighted(y.mul_(2).float())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert x.grad is not None and x.grad.isfinite().all()
    assert not any(map(torch.equal, weights, before))
    assert fast.planned_runs == 3 * len(fast.plan.regions) and fast.original_runs.total() == 0


def test_nans_are_where_eager_autocast_has_them(tmp_path: Path) -> None:
    model = Chain()
    eager = copy.deepcopy(model)
    fast = planned(model, tmp_path)
    x = images()
    x[0, 3, 5, 5] = torch.nan
    (found,), (wanted,) = step(fast, x), step(eager, x)
    assert found.isnan().all() and wanted.isnan().all()
    for p, q in zip(fast.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert torch.equal(p.grad.isnan(), q.grad.isnan())


def test_weights_that_the_loop_changes_are_seen_inside_of_one_block(tmp_path: Path) -> None:
    model = Chain()
    fast = planned(model, tmp_path)
    with autocast():
        first = fast(images())
        with torch.no_grad():
            model[0].weight.mul_(-1.0)  # type: ignore[operator, union-attr]
        assert not torch.equal(first, fast(images()))


def test_planning_inside_leaves_no_weights_without_gradient_in_the_cache(tmp_path: Path) -> None:
    model = nn.Sequential(Chain(), nn.Flatten(), nn.Linear(8 * 256, 3))
    with autocast():
        fast = torchalgo.optimize_training(model, (images(),), **options(tmp_path))
        y = fast(images())
    y.float().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model[2].parameters())


def test_the_guard_times_channels_last_too(tmp_path: Path) -> None:
    fast = planned(Chain(), tmp_path)
    with autocast():
        verdict = compare_steps(fast, (images(),), Deadline(100.0))
    assert verdict is not None and verdict.rounds >= 3
    assert "channels_last" in verdict.reason or not verdict.reason


def test_other_kinds_of_autocast_are_refused(tmp_path: Path) -> None:
    with autocast(torch.float16), pytest.raises(torchalgo.Error, match="TA1118"):
        torchalgo.optimize_training(Chain(), (images(),), **options(tmp_path))
