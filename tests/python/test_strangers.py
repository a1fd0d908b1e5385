# SPDX-License-Identifier: BSD-3-Clause
"""Models and calls that nobody had in mind when the rows were written."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional

import torchalgo
from support.nets import Net, arguments, fp64_error, run_plan
from torchalgo._ir.plan import Plan


class UNet(nn.Module):
    """Skips that join by concat; in-place activations; both ways to resize."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.mid = nn.Sequential(nn.Conv2d(16, 20, 3, padding=1), nn.ReLU(inplace=True))
        self.low = nn.Sequential(nn.Conv2d(20, 32, 3, padding=1, groups=2), nn.ReLU6(inplace=True))
        self.up = nn.Conv2d(52, 16, 3, padding=1)
        self.out = nn.Conv2d(32, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.top(x)
        mid = self.mid(functional.max_pool2d(top, 2))
        low = functional.interpolate(
            self.low(functional.max_pool2d(mid, 2)), scale_factor=2.0, mode="bilinear"
        )
        up = functional.interpolate(
            self.up(torch.cat([low, mid], 1)), size=x.shape[2:], mode="bilinear"
        )
        return self.out(torch.cat([up, top], 1))


class ChannelAttention(nn.Module):
    """Channel attention as in CBAM. The adaptive maximum has two results; the model reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        largest = functional.adaptive_max_pool2d(x, 1)
        mean = functional.adaptive_avg_pool2d(x, 1)
        parts = [self.excite(self.squeeze(y).relu_()) for y in (largest, mean)]
        return x * torch.sigmoid(parts[0] + parts[1])


class Gate(nn.Module):
    """At a 1-pixel image the gate and what it gates have equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 24, 3, padding=1)
        self.gate = nn.Conv2d(24, 24, 1)
        self.out = nn.Conv2d(24, 24, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.hardswish(self.conv(x))
        gated = x * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1)))
        return self.out(gated) + functional.adaptive_avg_pool2d(x, 1)


class Odd(nn.Module):
    """Asymmetric, dilated, grouped, reflected, same."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=2, dilation=2), nn.ReLU6(),
            nn.Conv2d(12, 18, 3, groups=2, dilation=(1, 2), padding=(1, 0)), nn.SiLU(),
            nn.Conv2d(18, 20, (1, 7), padding=(0, 3)),
            nn.Conv2d(20, 20, (7, 1), padding=(3, 0), stride=(2, 1)), nn.PReLU(20),
            nn.Conv2d(20, 17, 3, padding="same", dilation=2), nn.ELU(),
            nn.Conv2d(17, 6, 3, padding=1, padding_mode="reflect"), nn.Mish(),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(20, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.LeakyReLU(0.1),
            nn.Conv2d(8, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class TwoBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        a, b = self.a(x), self.b(y)
        return {"sum": functional.relu(a + b), "product": a * b}


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(4))


CASES = {
    "unet": (UNet, (1, 3, 24, 28), [(2, 3, 16, 20), (1, 3, 4, 4)]),
    "gate": (Gate, (1, 3, 12, 9), [(3, 3, 5, 5), (2, 3, 1, 1)]),
    "gate of one pixel": (Gate, (1, 3, 1, 1), [(3, 3, 1, 1), (3, 3, 7, 6)]),
    "odd": (Odd, (1, 3, 21, 22), [(3, 3, 17, 30)]),
    "decoder": (Decoder, (1, 20, 5, 7), [(3, 20, 2, 1)]),
    "channel attention": (ChannelAttention, (1, 3, 12, 9), [(2, 3, 7, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_right_at_its_shape_and_at_others(name: str) -> None:
    make, planned, others = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    fast = run_plan(model, rand(*planned), budget_s=1.0)
    assert fast.runs == "plan"
    for shape in (planned, *others):
        assert fp64_error(model, fast, rand(*shape)) <= 1e-5, shape


def test_an_inplace_activation_of_a_skip_leaves_its_convolution_planned() -> None:
    fast = torchalgo.optimize(
        UNet().eval(), rand(1, 3, 16, 16), budget_s=1.0, settings=torchalgo.Settings(progress=False)
    )
    assert {"top.0", "mid.0", "low.0", "up", "out"} <= {node.name for node in fast.plan.nodes}
    assert not any("in place" in item.note for item in fast.plan.left_alone)


def test_batches_of_one_are_repeated_as_in_pytorch() -> None:
    torch.manual_seed(0)
    model = TwoBatches().eval()
    fast = run_plan(model, rand(1, 3, 9, 9), rand(1, 3, 9, 9), budget_s=1.0)
    for x, y in ((rand(3, 3, 9, 9), rand(1, 3, 9, 9)), (rand(1, 3, 9, 9), rand(3, 3, 9, 9))):
        assert fp64_error(model, fast, x, y) <= 1e-5
    with pytest.raises(torchalgo.Error):
        fast(rand(2, 3, 9, 9), rand(3, 3, 9, 9))


def test_a_dual_tensor_is_an_error_and_never_a_missing_tangent(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with torch.no_grad(), pytest.raises(RuntimeError, match="an input is dual"):
            fast.scripted(dual)
        with warnings.catch_warnings(action="ignore"):
            assert forward_ad.unpack_dual(fast(dual)).tangent is not None
        assert fast.original_runs["input x has a forward-mode gradient"] == 1


def test_an_error_of_a_call_is_short_and_names_the_input(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    raises = "^TA1110 forward: the model raises for inputs {}: "
    for bad, text in (
        (x[0], raises.format("3x40x40")),
        (x[:, :2], raises.format("1x2x40x40")),
        (x.to(torch.uint8), "^TA1204 forward: input x is torch.uint8, the plan was made for "),
    ):
        with pytest.raises(torchalgo.Error, match=text) as caught:
            fast(bad)
        assert "\n" not in str(caught.value)


def test_an_optimized_module_is_not_traced(fast: torchalgo.Optimized, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match=r"put its \.scripted"):
        torch.jit.trace(fast, (x,))


def test_what_is_optimized_already_is_refused_in_every_form(
    fast: torchalgo.Optimized, x: torch.Tensor
) -> None:
    for model in (fast, fast.scripted, nn.Sequential(fast).eval()):
        with pytest.raises(torchalgo.Error, match="already optimized"):
            torchalgo.optimize(model, x, settings=torchalgo.Settings(progress=False))


@pytest.mark.parametrize(
    "options",
    [
        {"budget_s": "3"}, {"max_error": "1e-2"}, {"workspace_limit_bytes": 1.5},
        {"overrides": [("stem.0", "cpu.direct")]},
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_an_error(
    net: Net, x: torch.Tensor, options: dict[str, object]
) -> None:
    with pytest.raises(torchalgo.Error, match=next(iter(options))):
        torchalgo.optimize(net, x, **arguments(**options))


def test_inputs_that_do_not_fit_are_told_in_one_line(net: Net) -> None:
    with pytest.raises(torchalgo.Error, match=r"3 channels.*sizes \[1, 4, 40, 40\]") as caught:
        torchalgo.optimize(net, rand(1, 4, 40, 40), settings=torchalgo.Settings(progress=False))
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_an_error(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    fast.save(path)
    whole = path.read_bytes()
    for place in range(100, len(whole), len(whole) // 40):
        data = bytearray(whole)
        data[place] ^= 0x55
        path.write_bytes(data)
        for read in (torchalgo.load, torchalgo.load_plan):
            try:
                result = read(path)
            except torchalgo.Error:
                continue  # and nothing but Error
            plan = result.plan if isinstance(result, torchalgo.Optimized) else result
            assert plan == fast.plan, place


@pytest.mark.parametrize(
    ("place", "value"), [("cost_ticks", 1 << 63), ("inputs", "load"), ("nodes", "cpu.nowhere")]
)
def test_an_edited_plan_is_an_error_or_falls_back(
    net: Net, fast: torchalgo.Optimized, x: torch.Tensor, place: str, value: object
) -> None:
    data = json.loads(fast.plan.to_json())
    if place == "cost_ticks":
        data[place] = value
    elif place == "inputs":
        data[place][0]["dtype"] = value
    else:
        data[place][0]["primitive"] = value
        edited = torchalgo.optimize(
            net, x, plan=read_plan(data), settings=torchalgo.Settings(progress=False)
        )
        assert fp64_error(net, edited, x) <= 1e-5
        return
    with pytest.raises(torchalgo.Error):
        torchalgo.optimize(
            net, x, plan=read_plan(data), settings=torchalgo.Settings(progress=False)
        )


def read_plan(data: dict[str, object]) -> Plan:
    return Plan.from_json(json.dumps(data))


def test_files_that_cannot_be_written_are_errors(fast: torchalgo.Optimized, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for write, name in (
        (fast.save, "net.pt"),
        (fast.plan.save, "net.json"),
        (fast.report, "net.json"),
    ):
        with pytest.raises(torchalgo.Error, match="cannot write"):
            write(nowhere / name)
    with pytest.raises(torchalgo.Error, match="is a folder"):
        fast.save(tmp_path)
