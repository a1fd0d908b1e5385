# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import dataclasses
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net, arguments, fp64_error, run_plan
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.progress import Event
from torchalgo._measure import guard


def test_the_result_equals_the_fp64_model(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    assert fp64_error(net, fast, x) <= 1e-5


def test_the_plan_runs_and_names_every_convolution(
    fast: torchalgo.Optimized,
    x: torch.Tensor,
    count_ops: Callable[[nn.Module, torch.Tensor], dict[str, int]],
) -> None:
    names = [n.name for n in fast.plan.nodes if n.problem.startswith("fwd_")]
    assert sorted(names) == [
        "layer1.0.conv1",
        "layer1.0.conv2",
        "layer1.1.conv1",
        "layer1.1.conv2",
        "layer1.1.down.0",
        "layer2.0.conv1",
        "layer2.0.conv2",
        "layer2.0.down.0",
        "stem.0",
    ]
    assert fast.runs == "plan"
    assert sum(count_ops(fast, x).values()) >= len(names)


def test_the_plan_tells_its_proof_and_comparisons(fast: torchalgo.Optimized) -> None:
    plan = fast.plan
    assert plan.status == "optimal"
    assert plan.cost_ticks == plan.lower_bound_ticks
    parts = [*plan.nodes, *plan.transforms]
    assert plan.cost_ticks == sum(part.ticks for part in parts)
    assert {"aten_only", "local_optimum", "single_layout_nchw"} <= set(plan.comparisons)
    assert all(us >= plan.cost_us - 0.01 for us in plan.comparisons.values())
    assert plan.rel_error is not None
    assert plan.environment["torch"] == torch.__version__
    assert [i.shape for i in plan.inputs] == [[1, 3, 40, 40]]
    assert max(map(len, str(plan).splitlines())) <= 120


def test_the_guard_verdict_is_kept_with_the_plan(net: Net, x: torch.Tensor) -> None:
    tuned = torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=False))
    assert tuned.plan.guard is not None
    assert tuned.plan.guard.rounds >= 7
    assert tuned.plan.guard.baseline in ("eager", "channels_last", "frozen")
    assert tuned.runs == tuned.plan.guard.runs
    what = "plan in one layout" if tuned.runs == "single_layout" else tuned.runs
    assert f"the {what} runs" in " ".join(str(tuned.plan).split())
    assert fp64_error(net, tuned, x) <= 1e-5
    assert set(tuned.alternatives) == set(tuned.plan.comparisons) - {"best_single_layout"}
    assert len(tuned.costs) > 50


def test_a_plan_applied_again_measures_nothing_and_computes_the_same(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    events: list[Event] = []
    again = torchalgo.optimize(
        net, x, plan=fast.plan, settings=torchalgo.Settings(progress=events.append)
    )
    assert not [e for e in events if e.total]
    assert again.plan == fast.plan
    assert torch.equal(again(x), fast(x))


def test_the_planned_alternatives_run(net: Net, x: torch.Tensor) -> None:
    tuned = torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=False))
    for plan in tuned.alternatives.values():
        fast = torchalgo.optimize(net, x, plan=plan, settings=torchalgo.Settings(progress=False))
        assert fp64_error(net, fast, x) <= 1e-5


def test_a_verdict_for_the_baseline_is_obeyed(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    tuned = torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=False))
    assert tuned.plan.guard is not None
    slower = dataclasses.replace(tuned.plan.guard, verdict="slower", runs="baseline")
    again = torchalgo.optimize(
        net,
        x,
        plan=dataclasses.replace(tuned.plan, guard=slower),
        settings=torchalgo.Settings(progress=False),
    )
    assert again.runs == "baseline"
    assert fp64_error(net, again, x) <= 1e-5


def test_a_plan_for_another_model_or_shape_is_an_error(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    with pytest.raises(
        torchalgo.Error, match=r"another model.*node 0 is .* in the plan, .* in the model"
    ):
        torchalgo.optimize(nn.Conv2d(3, 4, 3).eval(), x, plan=fast.plan)
    with pytest.raises(torchalgo.Error, match=r"is fwd.*h40w40.* in the plan, fwd.*h64w64"):
        torchalgo.optimize(net, torch.rand(1, 3, 64, 64), plan=fast.plan)
    with pytest.raises(torchalgo.Error, match=r"expected a torchalgo\.Plan"):
        torchalgo.optimize(net, x, plan="net.plan.json")  # type: ignore[arg-type]
    for nothing in ({}, []):
        with pytest.raises(torchalgo.Error, match=r"TA1004 .*plan holds no plan"):
            torchalgo.optimize(net, x, plan=nothing)
    with pytest.raises(torchalgo.Error, match="got both plan and overrides"):
        torchalgo.optimize(net, x, plan=fast.plan, overrides={"*": "aten.conv"})
    for ignored in (
        {"budget_s": 5.0},
        {"objective": "energy"},
        {"mode": "predict"},
        {"fresh": True},
    ):
        with pytest.raises(torchalgo.Error, match=f"{next(iter(ignored))}=.* has no effect"):
            torchalgo.optimize(net, x, plan=fast.plan, **arguments(**ignored))


def test_a_strict_plan_refuses_what_the_machine_lacks(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    foreign = [
        dataclasses.replace(n, primitive="gpu9.conv") if n.name == "stem.0" else n
        for n in fast.plan.nodes
    ]
    plan = dataclasses.replace(fast.plan, nodes=foreign)
    with pytest.raises(torchalgo.Error, match=r"does not offer stem.0 \(gpu9.conv\)"):
        torchalgo.optimize(net, x, plan=plan, settings=torchalgo.Settings(strict=True))
    events: list[Event] = []
    again = torchalgo.optimize(
        net, x, plan=plan, settings=torchalgo.Settings(progress=events.append)
    )
    assert "stem.0 (gpu9.conv)" in events[1].text
    assert fp64_error(net, again, x) <= 1e-5


@pytest.mark.parametrize(
    "option",
    [{"max_error": 0.0}, {"budget_s": -1.0}, {"workspace_limit_bytes": -1}, {"mode": "guess"}],
)
def test_an_option_out_of_range_is_an_error(
    net: Net, x: torch.Tensor, option: dict[str, Any]
) -> None:
    (name,) = option
    with pytest.raises(torchalgo.Error, match=rf"{name}=.*expected"):
        torchalgo.optimize(net, x, **arguments(**option))


def test_an_optimized_model_is_not_optimized_again(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    with pytest.raises(torchalgo.Error, match="already optimized"):
        torchalgo.optimize(fast, x)


def test_a_workspace_limit_of_zero_still_gives_a_plan(net: Net, x: torch.Tensor) -> None:
    fast = run_plan(net, x, workspace_limit_bytes=0)
    assert fp64_error(net, fast, x) <= 1e-5


def test_a_small_budget_still_gives_a_plan(net: Net, x: torch.Tensor) -> None:
    fast = torchalgo.optimize(net, x, budget_s=0.5, settings=torchalgo.Settings(progress=False))
    assert fp64_error(net, fast, x) <= 1e-5


def test_a_bound_no_algorithm_holds_is_an_error(net: Net, x: torch.Tensor) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()  # freezing it changes nothing
    with pytest.raises(torchalgo.Error, match="quarantined"):
        torchalgo.optimize(model, x, **arguments(max_error=1e-12))


def test_a_bound_that_freezing_alone_misses_is_an_error(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"freezing alone.* pass max_error=\d"):
        torchalgo.optimize(net, x, **arguments(max_error=1e-12))


def test_a_model_without_convolutions_comes_back_and_says_so() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.rand(2, 4)
    events: list[Event] = []
    fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(progress=events.append))
    assert fast.runs == "baseline"
    assert torch.allclose(fast(x), model(x))
    assert events[-1].text == "the model has no convolutions; the baseline runs"
    assert "no convolutions" in str(fast.plan)


class Detector(nn.Module):
    """Structured outputs, a loop over a list, and boxes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(16, 5, 1)

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        results: list[dict[str, torch.Tensor]] = []
        features = self.backbone(torch.stack(images))
        maps = self.head(features)
        for i in range(len(images)):
            scores = maps[i, 0].flatten()
            keep = torch.nonzero(scores > scores.mean()).squeeze(1)
            results.append({"scores": scores[keep], "boxes": maps[i, 1:].flatten(1)[:, keep]})
        return results


def test_a_detector_with_lists_and_dicts_runs() -> None:
    torch.manual_seed(0)
    model, images = Detector().eval(), [torch.rand(3, 24, 24) for _ in range(2)]
    fast = run_plan(model, images)
    assert output_error(fast(images), model(images)) <= 1e-5
    assert {n.name for n in fast.plan.nodes if n.problem.startswith("fwd_")} == {
        "backbone.0",
        "head",
    }


class TwoHeads(nn.Module):
    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 2, 1)
        self.as_dict = as_dict

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
        y = torch.relu(self.trunk(x)) * scale
        a, b = self.a(y), self.b(y)
        return OrderedDict(a=a, b=b) if self.as_dict else (a, (b, y))


@pytest.mark.parametrize("as_dict", [False, True])
def test_several_inputs_and_tuple_or_dict_outputs_work(as_dict: bool) -> None:
    torch.manual_seed(0)
    model, inputs = TwoHeads(as_dict).eval(), (torch.rand(1, 3, 10, 10), torch.rand(1, 8, 8, 8))
    fast = run_plan(model, *inputs)
    got, want = fast(*inputs), model(*inputs)
    assert output_error(got, want) <= 1e-5
    assert (list(got) == list(want)) if as_dict else isinstance(got, tuple)


def test_shared_weights_are_planned_per_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(torch.relu(self.conv(x)))

    torch.manual_seed(0)
    model, x = Twice().eval(), torch.rand(1, 4, 9, 9)
    fast = run_plan(model, x)
    assert [n.name for n in fast.plan.nodes if n.problem.startswith("fwd_")] == ["conv", "conv#1"]
    assert fp64_error(model, fast, x) <= 1e-5


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.bfloat16, 3e-2)]
)  # fmt: skip
def test_other_dtypes_are_planned_too(net: Net, dtype: torch.dtype, bound: float) -> None:
    x = torch.rand(1, 3, 24, 24)
    want = net.double()(x.double())
    model = net.to(dtype)
    fast = run_plan(model, x.to(dtype), max_error=max(1e-5, bound))
    assert fast(x.to(dtype)).dtype == dtype
    # The bf16 input is rounded too.
    assert output_error(fast(x.to(dtype)).double(), want) <= bound if dtype != torch.float64 else 1


def test_channels_last_inputs_are_taken_as_they_are(net: Net, x: torch.Tensor) -> None:
    last = x.contiguous(memory_format=torch.channels_last)
    fast = run_plan(net, last)
    assert fast.plan.inputs[0].layout == "nhwc"
    assert fp64_error(net, fast, last) <= 1e-5
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_without_example_inputs_the_first_call_plans(net: Net, x: torch.Tensor) -> None:
    fast = torchalgo.optimize(net, settings=torchalgo.Settings(progress=False))
    with pytest.raises(torchalgo.Error, match="not planned yet"):
        fast.plan  # noqa: B018
    assert fp64_error(net, fast, x) <= 1e-5
    plan = fast.plan
    fast(torch.rand(2, 3, 40, 40))
    assert fast.plan is plan


def test_nothing_warns_and_the_model_is_not_changed(net: Net, x: torch.Tensor) -> None:
    before = {name: t.clone() for name, t in net.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=False))(x)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert not net.training
    assert all(p.requires_grad for p in net.parameters())


def test_progress_begins_at_once_and_ends_at_its_total(net: Net, x: torch.Tensor) -> None:
    events: list[Event] = []
    torchalgo.optimize(net, x, settings=torchalgo.Settings(progress=events.append))
    counts = [e for e in events if e.total]
    assert events[0].text == "reading the model"
    assert counts[0].done == 0 and counts[0].eta_s is None  # it names what runs first
    assert 0 < counts[len(counts) // 2].done < counts[len(counts) // 2].total
    assert counts[-1].done == counts[-1].total


@pytest.mark.parametrize("run_untimed", [False, True])
def test_an_interrupted_guard_leaves_the_baseline_unless_the_caller_wants_the_plan(
    run_untimed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(guard, "time_interleaved", interrupted)
    model, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)
    fast = torchalgo.optimize(
        model, x, settings=torchalgo.Settings(progress=False, run_untimed=run_untimed)
    )
    assert fast.runs == ("plan" if run_untimed else "baseline")
    assert fast.plan.nodes and fast.plan.guard is not None
    assert "interrupted" in fast.plan.guard.reason and fast.is_interrupted
    torch.testing.assert_close(fast(x), model(x))
    monkeypatch.undo()
    again = torchalgo.optimize(
        model, x, plan=fast.plan, settings=torchalgo.Settings(run_untimed=True, progress=False)
    )
    assert again.runs == "plan"


class LeNet(nn.Module):
    """`view` needs nchw strides, so a channels_last copy of this model raises."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc = nn.Linear(400, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        y = torch.max_pool2d(torch.relu(self.conv2(y)), 2)
        return self.fc(y.view(-1, 400))


def test_a_baseline_that_raises_does_not_end_the_tuning() -> None:
    model, x = LeNet().eval(), torch.rand(2, 1, 32, 32)
    fast = torchalgo.optimize(model, x, settings=torchalgo.Settings(progress=False))
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    verdict = fast.plan.guard
    assert verdict is not None and verdict.rounds >= 7
    assert verdict.baseline in ("eager", "frozen")
    assert "channels_last raised RuntimeError" in verdict.reason


# ---- plans whose structure hash has an older version ---------------------------------------------


def older(plan: torchalgo.Plan, **changes: Any) -> torchalgo.Plan:
    """The plan as a version with another structure hash would have written it."""
    return dataclasses.replace(
        plan, structure_hash="00112233445566ff", structure_version=0, **changes
    )


def test_an_older_plan_is_fitted_by_name_and_the_user_is_told(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    with pytest.warns(UserWarning, match="has version 0, this torchalgo's version 4") as told:
        again = torchalgo.optimize(
            net, x, plan=older(fast.plan), settings=torchalgo.Settings(progress=False)
        )
    assert len(told) == 1
    with torch.no_grad():
        assert torch.equal(again(x), fast(x))
    assert again.plan == fast.plan
    again.refresh()  # no second warning


def test_an_older_plan_that_lacks_a_layer_is_refused(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    for wanted, nodes in (
        ("the model has no other; make a plan", [
            dataclasses.replace(n, name="other") if n.name == "fc" else n for n in fast.plan.nodes
        ]),
        ("the plan has no fc; make a plan", [n for n in fast.plan.nodes if n.name != "fc"]),
    ):  # fmt: skip
        with pytest.raises(torchalgo.Error, match=wanted):
            torchalgo.optimize(
                net,
                x,
                plan=older(fast.plan, nodes=nodes),
                settings=torchalgo.Settings(progress=False),
            )


def test_an_older_plan_for_other_inputs_is_refused(
    net: Net, x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    with pytest.raises(
        torchalgo.Error, match=r"is fwd_.* in the plan and fwd_.* in the model; make"
    ):
        torchalgo.optimize(
            net,
            torch.rand(1, 3, 64, 64),
            plan=older(fast.plan),
            settings=torchalgo.Settings(progress=False),
        )
    last = x.to(memory_format=torch.channels_last)
    with pytest.raises(torchalgo.Error, match=r"made for inputs .* nchw, got .* nhwc"):
        torchalgo.optimize(
            net, last, plan=older(fast.plan), settings=torchalgo.Settings(progress=False)
        )


def test_an_older_plan_with_layers_is_refused_for_a_model_without_convolutions(
    x: torch.Tensor, fast: torchalgo.Optimized
) -> None:
    with pytest.raises(torchalgo.Error, match="make a plan"):
        torchalgo.optimize(
            nn.ReLU().eval(), x, plan=older(fast.plan), settings=torchalgo.Settings(progress=False)
        )
