# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own settings that allow bf16 on a CPU: fp32_precision and torch.autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import arguments, run_plan
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.f32_precision import EXACT_CPU, cpu_is_exact, cpu_precisions

HAS_AMX = _C.cpu_device().bf16_isa == "amx"  # then PyTorch computes in bf16 if it may
QUICK: dict[str, Any] = {"budget_s": 6.0, "cost_db": False, "run_untimed": True}
CONV = "fwd_f32_n1c64h28w28_k64r3s3_st1x1_pad1x1_dil1x1_g1"  # larger than what oneDNN leaves out


class Net(nn.Module):
    """Returns a dict with results of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.relu(self.middle(torch.relu(self.stem(x))))
        scores = self.head(y.mean((2, 3)))
        return {"scores": scores, "best": scores.argmax(1), "sum": x.sum()}


class Chain(Net):
    """Returns a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x)["scores"]


def made(kind: type[Net]) -> Any:
    torch.manual_seed(4)
    return kind().eval()


X = torch.rand((1, 3, 20, 20), generator=torch.Generator().manual_seed(5))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = cpu_precisions()
    with torch.no_grad():
        yield
    set_precisions(*before)


def set_precisions(conv: str, matmul: str) -> None:
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.conv.fp32_precision, mkldnn.matmul.fp32_precision = conv, matmul


def autocast(dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
    return torch.autocast("cpu", dtype=dtype)


def types(result: dict[str, torch.Tensor]) -> dict[str, torch.dtype]:
    return {name: value.dtype for name, value in result.items()}


# ---- fp32_precision ------------------------------------------------------------------------------


def test_fp32_precision_allows_bf16_and_a_bound_of_your_own_does_not() -> None:
    net = made(Chain)
    exact = net(X)
    set_precisions("bf16", "bf16")
    fast = run_plan(net, X, **{**QUICK, "run_untimed": False})
    assert output_error(fast(X), exact) <= 1e-2
    if HAS_AMX:  # PyTorch's own algorithms compute in bf16, and each plan counts their errors
        plan = run_plan(net, X, overrides={"*": "aten.conv"}, **QUICK).plan
        assert plan.max_error == pytest.approx(1e-2, rel=1e-3)
        assert plan.predicted_error is not None and plan.predicted_error > 1e-4
        assert plan.rel_error is not None and 1e-4 < plan.rel_error < 3 * plan.predicted_error
    own = torchalgo.optimize(net, X, max_error=1e-5, **arguments(**QUICK))
    assert output_error(own(X), exact) <= 1e-5
    assert cpu_precisions() == ("bf16", "bf16")


def test_pytorchs_own_algorithms_have_the_bound_of_the_type_in_which_they_compute() -> None:
    primitive = _C.Primitive("aten.conv", "nchw", "nchw")
    exact = _C.check_primitives(CONV, [primitive], 1e-5)[0]
    assert exact[0] < 1e-5 and not exact[1]
    assert not _C.computes_coarsely(CONV, primitive)
    set_precisions("bf16", "none")
    error, why = _C.check_primitives(CONV, [primitive], 1e-5)[0]
    assert not why
    assert (error > 1e-4) == HAS_AMX
    assert _C.computes_coarsely(CONV, primitive)
    assert not _C.computes_coarsely(CONV, _C.Primitive("cpu.direct", "nChw16c", "nChw16c"))
    stored = _C.Primitive("cpu.bf16_conv", "nhwc.bf16", "nhwc.bf16")  # coarse by itself
    assert _C.rounds_coarsely(CONV, stored) and not _C.computes_coarsely(CONV, stored)


def test_overlapping_exact_blocks_restore_the_settings() -> None:
    set_precisions("bf16", "tf32")
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with EXACT_CPU.block():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with EXACT_CPU.block():
        thread.start()
        assert inside.wait(30) and cpu_is_exact()
    assert cpu_is_exact()  # the other block goes on
    leave.set()
    thread.join()
    assert cpu_precisions() == ("bf16", "tf32")


# ---- torch.autocast ------------------------------------------------------------------------------


def test_a_plan_made_inside_of_autocast_serves_calls_inside_with_their_types(
    tmp_path: Path,
) -> None:
    net = made(Net)
    exact = net(X)["scores"]
    with autocast():
        fast = run_plan(net, X, validation=[X.flip(3)], **{**QUICK, "run_untimed": False})
        wanted, result = net(X), fast(X)
        assert types(result) == types(wanted)
        assert result["scores"].dtype == torch.bfloat16
        assert output_error(result["scores"].double(), exact.double()) < 1e-2
        assert torch.equal(result["best"], exact.argmax(1))
        assert fast.plan.validation_error is not None and fast.plan.validation_error < 1e-2
        fast.save(tmp_path / "net.pt")
        loaded = torchalgo.load(tmp_path / "net.pt")
        assert types(loaded(X)) == types(wanted)
        assert torch.equal(loaded(X)["scores"], result["scores"])
        assert types(fast(X.repeat(2, 1, 1, 1))) == types(wanted)
        fast.refresh()
        assert types(fast(X)) == types(wanted)
        assert not fast.original_runs
    with pytest.warns(UserWarning, match=r"outside of torch\.autocast"):
        assert torch.equal(fast(X)["scores"], exact)
    with pytest.raises(torchalgo.Error, match=r"outside of torch\.autocast"):
        loaded(X)
    with autocast(torch.float16):
        assert fast(X)["scores"].dtype == torch.float16
    assert len(fast.original_runs) == 2
    fast.refresh()  # outside: the plan is still for calls inside
    with autocast():
        assert types(fast(X)) == types(wanted)


def test_a_first_call_inside_of_autocast_plans_for_it_if_optimize_was_inside() -> None:
    with autocast():
        fast = torchalgo.optimize(made(Chain), **arguments(**QUICK))
        assert fast(X).dtype == torch.bfloat16
        assert not fast.original_runs
    outside = torchalgo.optimize(made(Chain), **arguments(**QUICK))
    with autocast(), pytest.raises(torchalgo.Error, match=r"TA1118.*torch\.autocast is on"):
        outside(X)


def test_scripts_take_autocast_and_other_types_of_it_are_refused() -> None:
    script = torch.jit.script(made(Net))
    with autocast():
        fast = torchalgo.optimize(script, X, **arguments(**QUICK))
        assert types(fast(X)) == types(script(X))
        assert not fast.original_runs
    with autocast(torch.float16), pytest.raises(torchalgo.Error, match=r"dtype=torch\.bfloat16"):
        torchalgo.optimize(script, X, **arguments(**QUICK))
