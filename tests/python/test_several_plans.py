# SPDX-License-Identifier: BSD-3-Clause
"""Several plans: how they are asked for, applied, stored and interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
import torchalgo._api.optimize as api_optimize
from support.nets import Net, arguments, fp64_error, make_net
from support.several_shapes import SHAPES, tensor
from torchalgo._api.enable import planned_choices
from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import Deadline
from torchalgo._capture.example_calls import example_calls, resized
from torchalgo._measure.checking import Checker
from torchalgo._measure.sampling import Sampler
from torchalgo_cli import main

X = torch.rand(1, 3, 8, 8)


# ---- how it is asked -----------------------------------------------------------------------------


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + y


def test_example_inputs_are_forwards_arguments_whatever_holds_them() -> None:
    net, two, x, y = make_net(), Two(), tensor(1, 3, 8, 8), tensor(1, 8, 6, 6)
    assert example_calls(net, x) == [((x,), {})]
    assert example_calls(net, (x,)) == example_calls(net, [x]) == [((x,), {})]
    assert example_calls(two, (x, y)) == example_calls(two, [x, y]) == [((x, y), {})]
    assert example_calls(two, [x, (y, y)]) == [((x, (y, y)), {})]
    assert example_calls(two, [(x,), (y,)]) == [(((x,), (y,)), {})]
    assert example_calls(net, ((x, y),)) == [(((x, y),), {})]
    assert example_calls(two, x, {"y": y}) == [((x,), {"y": y})]
    assert example_calls(two, None, {"x": x, "y": y}) == [((), {"x": x, "y": y})]


def test_shapes_make_a_call_each_of_the_examples_values() -> None:
    x = torch.arange(12.0).reshape(1, 3, 4)
    labels = torch.tensor([7, 3])
    small, large = example_calls(
        nn.Identity(),
        (x, {"labels": labels, "n": 5}),
        shapes=[[(1, 2, 2), (1,)], [(2, 3, 5), (3,)]],
    )
    assert torch.equal(small[0][0], x[:, :2, :2])
    assert small[0][1]["labels"].tolist() == [7] and small[0][1]["n"] == 5
    (again, values), _ = large
    assert torch.equal(again, torch.cat((x, x[..., :1]), 2).expand(2, 3, 5))
    assert values["labels"].tolist() == [7, 3, 7] and values["labels"].dtype == torch.int64
    image = torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    made = resized(image, (2, 3, 5, 3))
    assert made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous()


def test_shapes_alone_make_random_inputs_of_the_models_type() -> None:
    calls = example_calls(make_net().double(), None, shapes=[(1, 3, 8, 8), (2, 3, 8, 8)])
    assert [(tuple(x.shape), x.dtype) for (x,), _ in calls] == [
        ((1, 3, 8, 8), torch.float64),
        ((2, 3, 8, 8), torch.float64),
    ]


@pytest.mark.parametrize(
    ("inputs", "options", "text"),
    [
        ([X, X], {}, r"2 arguments, which forward does not take. For several plans"),
        ([(X,), (X,)], {}, r"2 arguments, which forward does not take. For several plans"),
        ([], {}, r"non-empty sequence"),
        (3, {}, r"is int, expected a tensor"),
        (X, {"example_kwargs": [{}]}, r"example_kwargs is list, expected a dict"),
        (X, {"shapes": []}, r"shapes is \[\], expected a shape for each plan"),
        (X, {"shapes": (1, 3, 8, 8)}, r"shapes is \(1, 3, 8, 8\), expected a shape for each plan"),
        (X, {"shapes": [(1, 3, 8.5, 8)]}, r"shapes\[0\] is \(1, 3, 8.5, 8\), expected"),
        (X, {"shapes": [(1, 3, 8, -8)]}, r"shapes\[0\] is \(1, 3, 8, -8\), expected"),
        (X, {"shapes": [(1, 3, 8, 8), [1, 3, 8, 8]]}, r"shapes\[0\] and shapes\[1\] are both 1x3"),
        (X, {"shapes": [[(1, 3, 8, 8), (1, 3)]]}, r"has 2 tensors; the example inputs have 1"),
        (X, {"shapes": [(3, 8, 8)]}, r"3x8x8 for a tensor whose example is 1x3x8x8, expected 4"),
        (X[:0], {"shapes": [(1, 3, 8, 8)]}, r"example is 0x3x8x8.*and an example with values"),
    ],
)  # fmt: skip
def test_wrong_inputs_and_shapes_say_what_is_expected(
    net: Net, inputs: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        torchalgo.optimize(net, inputs, **options)


def test_a_model_that_fixes_sizes_is_right_for_each_shape_it_was_planned_for() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, *x: torch.Tensor) -> torch.Tensor:  # TorchScript refuses *x
            y = self.conv(x[0])
            half = int(y.shape[2]) // 2
            return y[:, :, :half] + (1.0 if half > 8 else 0.0)

    model = Fixed().eval()
    shapes = [(1, 3, 10, 9), (1, 3, 24, 9)]
    fast = torchalgo.optimize(model, shapes=shapes, **arguments())
    for x in (tensor(*sizes) for sizes in shapes):
        assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert torch.allclose(fast.scripted(x), model(x), atol=1e-5)


def test_a_result_that_differs_by_shape_runs_and_cannot_be_one_torchscript_module(
    tmp_path: Path, no_unseen_warning: None
) -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, *x: torch.Tensor) -> Any:
            y = self.conv(x[0])
            return (y, y.sum()) if x[0].shape[0] > 1 else y

    shapes = [(1, 3, 10, 9), (2, 3, 10, 9)]
    fast = torchalgo.optimize(Growing().eval(), shapes=shapes, **arguments())
    assert isinstance(fast(tensor(*shapes[0])), torch.Tensor)
    assert isinstance(fast(tensor(*shapes[1])), tuple)
    with pytest.raises(
        torchalgo.Error, match=r"cannot be saved as one .* save each module of .by_shape alone"
    ):
        fast.save(tmp_path / "net.pt")
    fast.by_shape["2x3x10x9"].save(tmp_path / "two.pt")


# ---- plans, options, files -----------------------------------------------------------------------


def test_a_file_of_several_plans_is_read_by_load_plans(
    shaped: torchalgo.Optimized, tmp_path: Path
) -> None:
    shaped.report(tmp_path / "net.json")
    shaped.save(tmp_path / "net.pt")
    for name in ("net.json", "net.pt"):
        assert torchalgo.load_plans(tmp_path / name) == shaped.plans
        with pytest.raises(torchalgo.Error, match=r"got 3 plans, expected one; torchalgo.load_pl"):
            torchalgo.load_plan(tmp_path / name)
    shaped.plan.save(tmp_path / "one.json")
    assert torchalgo.load_plans(tmp_path / "one.json") == {"1x3x40x40": shaped.plan}
    (tmp_path / "bad.json").write_text('{"schema": 1, "plans": []}')
    with pytest.raises(torchalgo.Error, match=r"bad.json: expected a list of plans"):
        torchalgo.load_plans(tmp_path / "bad.json")
    text = (tmp_path / "net.json").read_text().replace('"ties"', '"knots"')
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(torchalgo.Error, match=r"bad.json.plans\[0\]: lacks 'ties'"):
        torchalgo.load_plans(tmp_path / "bad.json")


def test_enable_takes_the_choices_of_all_plans_in_a_file(
    shaped: torchalgo.Optimized, tmp_path: Path
) -> None:
    shaped.save(tmp_path / "net.pt")
    alone = [planned_choices(plan) for plan in shaped.plans.values()]
    assert planned_choices(tmp_path / "net.pt") == {**alone[0], **alone[1], **alone[2]}
    assert all(any(size in problem for problem in own) for own, size in zip(
        alone, ("h40w40", "h24w64", "h96w32"), strict=True,
    ))  # fmt: skip


def test_reports_show_every_plan(shaped: torchalgo.Optimized, tmp_path: Path) -> None:
    for suffix in (".txt", ".html"):
        shaped.report(tmp_path / f"net{suffix}")
        text = (tmp_path / f"net{suffix}").read_text()
        assert [text.lower().count(f"plan for {shapes}") for shapes in shaped.plans] == [1, 1, 1]


def test_plans_are_applied_to_the_inputs_of_their_shapes(
    net: Net, shaped: torchalgo.Optimized
) -> None:
    shapes = (SHAPES[2], SHAPES[0])
    applied = torchalgo.optimize(net, shapes=shapes, plan=shaped.plans, **arguments())
    assert list(applied.plans) == ["1x3x96x32", "1x3x40x40"]
    assert applied.plan == shaped.plans["1x3x96x32"]
    first = torchalgo.optimize(net, plan=shaped.plans, settings=torchalgo.Settings(progress=False))
    assert fp64_error(net, first, tensor(*SHAPES[1])) <= 1e-5
    assert first.plans == {"2x3x24x64": shaped.plans["2x3x24x64"]}
    example = tensor(3, 3, 24, 64)  # of no plan
    every = torchalgo.optimize(net, example, plan=shaped.plans, **arguments())
    assert list(every.plans.items()) == list(shaped.plans.items())
    with pytest.warns(UserWarning, match="the nearest plan runs, which was made for 2x3x24x64"):
        assert fp64_error(net, every, example) <= 1e-5
    for plan in (shaped.plans, shaped.plan):
        with pytest.raises(torchalgo.Error, match="no plan for inputs of 1x3x8x8; plans exist for"):
            torchalgo.optimize(net, shapes=[(1, 3, 40, 40), (1, 3, 8, 8)], plan=plan)
    with pytest.raises(torchalgo.Error, match=r"plan is str, expected a torchalgo.Plan"):
        torchalgo.optimize(net, shapes=shapes, plan=["net.json"])  # type: ignore[list-item]


def test_overrides_hold_in_every_plan_and_the_budget_is_shared(net: Net) -> None:
    call = CallContext.start(Deadline(8.0, lambda: 3.0))
    assert [call.part(left).deadline.left_s("finish") for left in (2, 1)] == [4.0, 8.0]
    call.deadline.keep("finish", 2.0)
    assert [call.part(left).deadline.left_s("finish") for left in (2, 1)] == [3.0, 6.0]
    overrides = {"layer1.*": "cpu.im2col_gemm"}
    fast = torchalgo.optimize(
        net,
        shapes=SHAPES[:2],
        overrides=overrides,
        budget_s=4,
        settings=torchalgo.Settings(progress=False),
    )
    for plan in fast.plans.values():
        nodes = [n for n in plan.nodes if n.name.startswith("layer1.") and n.primitive]
        convs = [n.primitive for n in nodes if n.problem.startswith("fwd_")]
        assert convs
        assert set(convs) == {"cpu.im2col_gemm"}


def test_ctrl_c_keeps_the_plans_there_are(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Sampler.take
    seen: list[str] = []

    def interrupt(self: Sampler, keys: Any, budget_s: float, again: bool = False) -> Any:
        seen.extend(key.problem for key in keys)
        if any("n2c3h24w64" in problem for problem in seen):
            raise KeyboardInterrupt
        return taken(self, keys, budget_s, again)

    monkeypatch.setattr(Sampler, "take", interrupt)
    told: list[str] = []
    fast = torchalgo.optimize(
        net,
        shapes=SHAPES,
        settings=torchalgo.Settings(progress=lambda event: told.append(event.text)),
    )
    assert list(fast.plans) == ["1x3x40x40", "2x3x24x64"]  # the second of what is known
    assert "interrupted: no plans for inputs 1x3x96x32" in told
    assert fast.is_interrupted


def test_ctrl_c_between_two_plans_is_told(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_one = api_optimize.optimize_prepared
    made: list[Any] = []

    def interrupt(*args: Any, **options: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.append(plan_one(*args, **options))
        return made[0]

    monkeypatch.setattr(api_optimize, "optimize_prepared", interrupt)
    fast = torchalgo.optimize(net, shapes=SHAPES, **arguments())
    assert list(fast.plans) == ["1x3x40x40"] and not made[0].is_interrupted
    assert fast.is_interrupted


def test_ctrl_c_while_the_first_plan_is_made_ends_it_all(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Checker, keys: Any) -> bool:  # by then enough is measured for a plan
        raise KeyboardInterrupt

    monkeypatch.setattr(Checker, "check", interrupt)
    fast = torchalgo.optimize(net, shapes=SHAPES, **arguments())
    assert list(fast.plans) == ["1x3x40x40"]
    assert "interrupted" in fast.plan.method
    assert fast.plan.guard is not None and fast.plan.guard.rounds >= 7  # timed as short as can be
    assert fp64_error(net, fast, tensor(*SHAPES[1])) <= 1e-5


def test_an_input_that_the_model_refuses_is_told_before_anything_is_measured(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sampler, "take", None)
    with pytest.raises(torchalgo.Error, match=r"inputs of sizes \[1, 4, 8, 8\]\)"):
        torchalgo.optimize(net, shapes=[(1, 3, 8, 8), (1, 4, 8, 8)], **arguments())


def test_the_command_makes_a_plan_for_each_of_its_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_unseen_warning: None
) -> None:
    shapes = ("--shapes", "1x3x24x24", "--shapes", "2x3x16x32")
    files = ["-o", str(tmp_path / "o.pt"), "--plan-out", str(tmp_path / "o.json")]
    assert main(["optimize", "support.nets:net_factory", *shapes, *files, "--quiet"]) == 0
    assert "speed   2x3x16x32: " in capsys.readouterr().out
    plans = torchalgo.load_plans(tmp_path / "o.pt")
    assert list(plans) == ["1x3x24x24", "2x3x16x32"]
    assert torchalgo.load_plans(tmp_path / "o.json") == plans
    torch.save(tensor(3, 3, 16, 32), tmp_path / "data.pt")
    common = [str(tmp_path / "o.pt"), str(tmp_path / "data.pt")]
    assert main(["check", *common, "--original", "support.nets:net_factory"]) == 0
    assert main(["explain", str(tmp_path / "o.pt")]) == 0
    assert "plan for 1x3x24x24" in capsys.readouterr().out
    applied = ["--plan", str(tmp_path / "o.json"), "-o", str(tmp_path / "again.pt")]
    assert (
        main(["optimize", "support.nets:net_factory", *shapes, *applied, "--quiet", "--json"]) == 0
    )
    assert '"plans": [' in capsys.readouterr().out
    assert torchalgo.load_plans(tmp_path / "again.pt") == plans
    for wrong in (["--shapes", "1x3x24x"], ["--input", "1x3x8x8", *shapes], []):
        with pytest.raises(SystemExit):
            main(["optimize", "support.nets:net_factory", *wrong, *files])
