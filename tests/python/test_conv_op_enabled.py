# SPDX-License-Identifier: BSD-3-Clause
"""Unmodified code obeys settings while torchalgo is enabled; torch is as it was afterwards."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import torchalgo
from torchalgo import _C

OPS = ("aten::_convolution", "aten::convolution_backward")


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    _C.reset_recorded_runs()
    _C.set_recording(True)
    _C.set_enabled(True)
    yield
    _C.set_enabled(False)
    _C.set_recording(False)
    _C.set_flag_choices("", "", "")
    _C.set_context_choices("", "", "")
    _C.set_planned_choices({})
    torchalgo.reset_fallbacks()


def ran() -> set[tuple[str, str]]:
    """Direction and primitive of all that was recorded."""
    directions = ("fwd", "bwd_data", "bwd_filter")
    return {
        (next(d for d in directions if problem.startswith(d + "_")), primitive)
        for problem, primitive, _, _ in _C.recorded_runs()
    }


def rand(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def make_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3, stride=2),
    )


def train(net: nn.Module, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x = rand(4, 3, 12, 12, seed=step)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_torch_is_exactly_as_before_when_disabled(capfd: pytest.CaptureFixture[str]) -> None:
    assert _C.set_enabled(False) is True
    before = [torch._C._dispatch_dump(op) for op in OPS]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _C.set_enabled(True) is False
        assert _C.is_enabled()
        during = [torch._C._dispatch_dump(op) for op in OPS]
        assert _C.set_enabled(True) is True
        _C.set_enabled(False)
    assert [torch._C._dispatch_dump(op) for op in OPS] == before
    assert all(now != then for now, then in zip(during, before, strict=True))
    torch.conv2d(rand(1, 1, 4, 4), rand(1, 1, 3, 3))
    assert _C.recorded_runs() == []
    assert capfd.readouterr().err == ""


def test_where_nothing_is_asked_for_every_bit_is_torchs() -> None:
    losses = train(make_net())
    assert ran() == {(d, "auto") for d in ("fwd", "bwd_data", "bwd_filter")}
    _C.set_recording(False)  # the path without any search
    assert train(make_net()) == losses
    _C.set_enabled(False)
    assert train(make_net()) == losses


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        ("aten.conv", "aten.conv", "aten.conv"),
        ("cpu.im2col_gemm;aten.conv", "cpu.direct", "aten.conv"),
        ("aten.prepacked", "", "aten.conv"),
    ],
)
@pytest.mark.filterwarnings("ignore:torchalgo")
def test_training_gives_eagers_losses(choices: tuple[str, str, str], channels_last: bool) -> None:
    def make() -> nn.Module:
        net: nn.Module = make_net()
        return net.to(memory_format=torch.channels_last) if channels_last else net

    _C.set_enabled(False)
    expected = train(make())
    _C.set_enabled(True)
    _C.set_flag_choices(*choices)
    losses = train(make())
    assert losses == pytest.approx(expected, rel=1e-4)
    for direction, choice in zip(("fwd", "bwd_data", "bwd_filter"), choices, strict=True):
        name = choice.split(";")[0] or "auto"
        assert any(d == direction and p.startswith(name) for d, p in ran())


def test_forward_by_atens_row_is_bit_identical() -> None:
    net, x = make_net()[:6], rand(2, 3, 12, 12)
    with torch.no_grad():
        expected = net(x)
        _C.set_flag_choices("aten.conv", "", "")
        assert torch.equal(net(x), expected)
    assert ("fwd", "aten.conv") in ran()


def test_a_plan_names_problems_of_unmodified_code() -> None:
    conv = nn.Conv2d(4, 4, 3)
    problem = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad0x0_dil1x1_g1+bias"
    assert _C.set_planned_choices({problem: "cpu.direct"}) == {}
    conv(rand(1, 4, 8, 8))
    conv(rand(1, 4, 9, 9))
    assert ran() == {("fwd", "cpu.direct"), ("fwd", "auto")}
    assert _C.set_planned_choices({}) == {problem: "cpu.direct"}


def script(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.jit.script(net)


def trace(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.jit.trace(net, rand(2, 3, 12, 12), check_trace=False)


def compile_net(net: nn.Module) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(net, backend="aot_eager")


@pytest.mark.parametrize("wrap", [script, trace, compile_net])
def test_other_front_ends_obey(wrap: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> None:
    net, x = make_net(), rand(2, 3, 12, 12).requires_grad_()
    (expected,) = torch.autograd.grad(net(x).square().mean(), x)
    _C.set_flag_choices("cpu.im2col_gemm", "aten.conv", "aten.conv")
    call = wrap(net)
    _C.reset_recorded_runs()
    (actual,) = torch.autograd.grad(call(x).square().mean(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert {("fwd", "cpu.im2col_gemm"), ("bwd_data", "aten.conv")} <= ran()


def test_code_compiled_before_obeys_later_settings() -> None:
    net, x = make_net(), rand(2, 3, 12, 12)
    call = compile_net(net)
    expected = call(x)
    _C.reset_recorded_runs()
    _C.set_flag_choices("cpu.im2col_gemm", "", "")
    torch.testing.assert_close(call(x), expected, rtol=1e-4, atol=1e-5)
    assert ("fwd", "cpu.im2col_gemm") in ran()


def test_inference_mode_and_autocast_obey() -> None:
    net, x = make_net()[:1], rand(2, 3, 12, 12)
    _C.set_flag_choices("bf16:aten.conv;cpu.direct", "", "")
    with torch.inference_mode():
        net(x)
        assert ran() == {("fwd", "cpu.direct")}
        with torch.autocast("cpu", torch.bfloat16):
            assert net(x).dtype == torch.bfloat16
    assert ran() == {("fwd", "cpu.direct"), ("fwd", "aten.conv")}


def test_threads_run_at_once() -> None:
    net, x = make_net(), rand(2, 3, 12, 12)
    expected = net(x).detach()
    _C.set_flag_choices("cpu.im2col_gemm", "aten.conv", "aten.conv")
    failures: list[str] = []
    nets = [make_net() for _ in range(4)]  # not in the threads: torch's seed is one for all

    def work(seed: int) -> None:
        mine = nets[seed]
        for step in range(20):
            if seed == 0:  # settings may change while others run
                _C.set_context_choices("aten.conv" if step % 2 else "", "", "")
            y = mine(x)
            y.sum().backward()
            if not torch.allclose(y, expected, rtol=1e-4, atol=1e-5):
                failures.append(f"thread {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_what_is_no_convolution_of_ours_takes_torchs_path() -> None:
    _C.set_flag_choices("cpu.im2col_gemm", "", "")
    x, w = rand(1, 4, 8, 8), rand(4, 4, 3, 3)
    z = torch.complex(x, x)
    expected = torch.conv2d(x.to_mkldnn(), w.to_mkldnn()).to_dense()
    torch.testing.assert_close(expected, torch.conv2d(x, w), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.conv2d(z, w + 0j).real, expected, rtol=1e-4, atol=1e-4)
    assert torch.conv2d(x[:0], w).shape == (0, 4, 6, 6)
    with pytest.raises(RuntimeError, match="Given groups=1"):
        torch.conv2d(x, rand(4, 3, 3, 3))
    assert torchalgo.fallbacks() == {}
