# SPDX-License-Identifier: BSD-3-Clause
"""torchalgo::conv2d under torch.compile, torch.export and TorchScript."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

import torchalgo
from torchalgo import _C
from torchalgo._ir.choices import Choice

pytestmark = pytest.mark.usefixtures("clean_settings")
ops = torch.ops.torchalgo
Runs = Callable[[], dict[tuple[str, str], int]]


def rand(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rand(4, 4, 3, 3))
        self.up = nn.Parameter(rand(4, 4, 2, 2, seed=1))

    def forward(self, x: Tensor) -> Tensor:
        y = ops.conv2d(
            x,
            self.weight,
            None,
            [1, 1],
            [1, 1],
            forward="cpu.im2col_gemm",
            backward_filter="aten.conv",
        ).relu()
        return ops.conv_transpose2d(y, self.up, None, [2, 2], backward_data="cpu.im2col_gemm")


def losses_and_grads(net: Callable[[Tensor], Tensor], weights: nn.Module) -> list[Tensor]:
    x = rand(2, 4, 8, 8, seed=3).requires_grad_()
    loss = net(x).square().mean()
    weights.zero_grad()
    loss.backward()
    return [loss.detach(), x.grad, *[p.grad.clone() for p in weights.parameters()]]


EXPECTED_RUNS = {
    ("fwd", "cpu.im2col_gemm"): 2,  # the forward pass, and the gradient of conv_transpose2d's input
    ("bwd_filter", "aten.conv"): 1,
}


def pinned(runs: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {key: count for key, count in runs.items() if key[1] != "auto"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_torch_compile_keeps_choices_and_results(backend: str, runs: Runs) -> None:
    net = Net()
    expected = losses_and_grads(net, net)
    assert pinned(runs()) == EXPECTED_RUNS
    _C.reset_recorded_runs()
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for mine, reference in zip(losses_and_grads(compiled, net), expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)
    assert pinned(runs()) == EXPECTED_RUNS


def test_dynamic_shapes_compile_once() -> None:
    torch._dynamo.reset()
    w = rand(4, 4, 3, 3)
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    call = torch.compile(lambda x: ops.conv2d(x, w), backend=count, dynamic=True, fullgraph=True)
    for size in [8, 9, 17]:
        x = rand(2, 4, size, size)
        torch.testing.assert_close(call(x), torch.conv2d(x, w))
    assert count.frame_count == 1


@pytest.mark.parametrize("choice", ["aten.conv", ("aten.conv",), {"f32": "aten.conv"}])
def test_torch_compile_takes_the_choices_of_functions(choice: Choice, runs: Runs) -> None:
    torch._dynamo.reset()
    w, x = rand(4, 4, 3, 3), rand(2, 4, 8, 8)
    call = torch.compile(
        lambda x: torchalgo.conv2d(x, w, padding=1, forward=choice), backend="eager", fullgraph=True
    )
    _C.reset_recorded_runs()
    torch.testing.assert_close(call(x), torch.conv2d(x, w, padding=1))
    assert runs() == {("fwd", "aten.conv"): 1}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_torch_export_keeps_the_choices(runs: Runs) -> None:
    net, x = Net(), rand(2, 4, 8, 8)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    _C.reset_recorded_runs()
    y = torch.export.load(buffer).module()(rand(3, 4, 8, 8, seed=4))
    assert runs()["fwd", "cpu.im2col_gemm"] == 1
    torch.testing.assert_close(y, net(rand(3, 4, 8, 8, seed=4)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["script", "trace"])
def test_torchscript_files_keep_the_choices(how: str, runs: Runs) -> None:
    net, x = Net(), rand(2, 4, 8, 8)
    if how == "trace":
        scripted = torch.jit.trace(net, x, check_trace=False)
    else:
        scripted = torch.jit.script(net)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    expected = losses_and_grads(net, net)
    _C.reset_recorded_runs()
    for mine, reference in zip(losses_and_grads(loaded, loaded), expected, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)
    assert pinned(runs()) == EXPECTED_RUNS
