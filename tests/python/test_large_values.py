# SPDX-License-Identifier: BSD-3-Clause
"""Algorithms that a large value in the input spoils are seen, bounded, and kept out."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from torchalgo import _C
from torchalgo._base.compare_outputs import worst_output_error
from torchalgo._measure import componentwise
from torchalgo._measure.sampling import Bench

QUIET: dict[str, Any] = {"progress": False, "cost_db": False}
TRANSFORMS = ("winograd_f4", "winograd_f6", "winograd_f3", "fft", "strassen")
X = torch.rand(1, 32, 24, 24, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 1)
    ).eval()


def bright(at: int = 12, value: float = 1e4) -> Tensor:
    x = X.clone()
    x[..., at, at] = value
    return x


def transforms_in(plan: torchalgo.Plan) -> list[str]:
    return [n.primitive for n in plan.nodes if any(word in n.primitive for word in TRANSFORMS)]


def forced(model: nn.Module, **overrides: str) -> torchalgo.Optimized:
    """The model with these primitives, whatever is faster."""
    names = {name.removeprefix("layer"): primitive for name, primitive in overrides.items()}
    made = torchalgo.optimize(
        model, X, budget_s=1.0, overrides=names,
        settings=torchalgo.Settings(run_untimed=True, **QUIET),
    )  # fmt: skip
    plan = dataclasses.replace(made.plan, guard=None)
    return torchalgo.optimize(model, X, plan=plan, settings=torchalgo.Settings(**QUIET))


@torch.no_grad()
def error_away_from_the_pixel(fast: nn.Module, model: nn.Module) -> float:
    far = torch.ones(24, 24, dtype=torch.bool)
    far[11:14, 11:14] = False
    want = copy.deepcopy(model).double()(bright().double())[..., far]
    return float((fast(bright())[..., far] - want).abs().max() / want.abs().max())


def test_a_bright_pixel_spoils_winograd_and_the_word_componentwise_keeps_it_out() -> None:
    model = net()
    spoiled = forced(model, layer0="cpu.winograd_f4x4_3x3")
    kept = torchalgo.optimize(
        model, X, budget_s=2.0, overrides={"*": "componentwise"},
        settings=torchalgo.Settings(run_untimed=True, **QUIET),
    )  # fmt: skip
    assert error_away_from_the_pixel(spoiled, model) > 1e-4
    assert error_away_from_the_pixel(kept, model) < 1e-5
    assert not transforms_in(kept.plan)


@pytest.mark.usefixtures("drawn_costs")
@pytest.mark.parametrize("layers", ["*", "0", "2"])
def test_the_word_leaves_out_every_transform_of_the_layers_that_it_names(layers: str) -> None:
    fast = torchalgo.optimize(net(), X, settings=torchalgo.Settings(**QUIET))
    assert fast.plan is not None
    plan = fast.plan.with_overrides({layers: "componentwise"})
    named = [n for n in plan.nodes if layers in ("*", n.name)]
    assert named
    assert not any(word in n.primitive for n in named for word in TRANSFORMS)


@pytest.mark.usefixtures("drawn_costs")
def test_later_globs_win_over_the_word() -> None:
    overrides = {"*": "componentwise", "0": "cpu.winograd_f6x6_3x3"}
    fast = torchalgo.optimize(net(), X, overrides=overrides, settings=torchalgo.Settings(**QUIET))
    assert fast.plan is not None
    assert [name.partition(".t")[0] for name in transforms_in(fast.plan)] == [
        "cpu.winograd_f6x6_3x3"
    ]


def test_the_word_holds_for_training_too() -> None:
    overrides = {"*": {"forward": "componentwise", "backward_data": "componentwise"}}
    planned = torchalgo.optimize_training(
        net().train(), (X,), budget_s=3.0, overrides=overrides,
        settings=torchalgo.Settings(run_untimed=True, **QUIET),
    )  # fmt: skip
    rows = [row for row in str(planned.plan).splitlines() if any(w in row for w in TRANSFORMS)]
    assert not [row for row in rows if "winograd_f3x3_4x4" not in row]  # the gradient of weights


@pytest.mark.usefixtures("drawn_costs")
def test_candidates_above_the_bound_are_left_out_with_the_reason() -> None:
    settings = torchalgo.Settings(max_componentwise_error=1e-6, **QUIET)
    fast = torchalgo.optimize(net(), X, settings=settings)
    assert fast.plan is not None
    assert not [name for name in transforms_in(fast.plan) if "f4x4" in name]
    reasons = {q.primitive.partition(".t")[0]: q.reason for q in fast.plan.quarantined}
    assert "componentwise error is" in reasons["cpu.winograd_f4x4_3x3"]
    assert "expected at most 1.0e-06" in reasons["cpu.winograd_f4x4_3x3"]


@pytest.mark.usefixtures("drawn_costs")
def test_a_bound_that_all_candidates_keep_leaves_none_out() -> None:
    settings = torchalgo.Settings(max_componentwise_error=1.0, **QUIET)
    fast = torchalgo.optimize(net(), X, settings=settings)
    assert fast.plan is not None
    assert not fast.plan.quarantined


@pytest.mark.parametrize("bound", [0.0, -1e-6, float("nan"), "1e-6", True])
def test_a_bound_that_is_no_number_above_0_is_refused(bound: Any) -> None:
    with pytest.raises(torchalgo.Error, match=r"TA1001 .*max_componentwise_error"):
        torchalgo.Settings(max_componentwise_error=bound)


def test_errors_are_the_same_with_an_epilogue_and_on_a_larger_image() -> None:
    tasks = [
        (f"fwd_f32_n{n}c32h{h}w{h}_k32r3s3_st1x1_pad1x1_dil1x1_g1{end}",
         _C.Primitive("cpu.winograd_f4x4_3x3.t28", "nChw16c", "nChw16c"))
        for n, h, end in ((1, 56, ""), (1, 56, "+bias+relu"), (4, 56, "+relu"))
    ]  # fmt: skip
    (error, why), *others = componentwise.errors_of(tasks, Bench.on(None))
    assert why == ""
    assert 1e-5 < error < 1e-2
    assert others == [(error, "")] * 2


def test_what_cannot_run_has_no_error_and_a_reason() -> None:
    problem = "fwd_f32_n1c32h16w16_k32r3s3_st2x2_pad1x1_dil1x1_g1"
    primitive = _C.Primitive("cpu.winograd_f4x4_3x3.t28", "nChw16c", "nChw16c")
    ((error, why),) = componentwise.errors_of([(problem, primitive)], Bench.on(None))
    assert error == float("inf")
    assert "needs stride 1x1" in why


def test_profile_shows_the_error_of_each_algorithm_beside_a_large_value() -> None:
    table = torchalgo.profile("fwd_f32_n1c32h24w24_k32r3s3_st1x1_pad1x1_dil1x1_g1", budget_s=20.0)
    rows = {row.primitive.partition(".t")[0]: row for row in table.rows if row.is_supported}
    assert rows["cpu.winograd_f4x4_3x3"].componentwise_error > 1e-5  # type: ignore[operator]
    assert rows["aten.conv"].componentwise_error < 2e-6  # type: ignore[operator]
    assert "componentwise" in str(table)


def test_a_plan_shows_the_worst_output_for_the_values_of_its_example() -> None:
    model = net()
    plan = forced(model, layer0="cpu.winograd_f4x4_3x3").plan
    assert plan is not None
    made = torchalgo.optimize(
        model, bright(), budget_s=1.0, overrides={"0": "cpu.winograd_f4x4_3x3"},
        settings=torchalgo.Settings(run_untimed=True, **QUIET),
    )  # fmt: skip
    assert made.plan is not None
    assert made.plan.rel_error < 1e-5  # type: ignore[operator]
    assert made.plan.worst_error > 1e-4  # type: ignore[operator]
    assert f"worst single output {made.plan.worst_error:.1e}" in str(made.plan)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, 1.0, 1e6], [1.0, 1.1, 1e6], 0.1 / 2.2),  # the norm is 1e-7
        ([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], 0.0),
        ([0.0, 0.5, 1.0], [0.0, 0.0, 1.0], 0.5),
        ([float("nan"), 1.0], [float("nan"), 1.0], 0.0),
        ([0.0], [0.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_worst_output_is_relative_to_its_size_and_the_median(
    got: list[float], want: list[float], error: float
) -> None:
    found = worst_output_error([torch.tensor(got)], [torch.tensor(want)])
    assert found == pytest.approx(error, rel=1e-5)
