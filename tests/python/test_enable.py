# SPDX-License-Identifier: BSD-3-Clause
"""enable(): unmodified code runs what is chosen, and afterwards nothing is left."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import torchalgo
from support.losses import losses
from support.nets import Net
from torchalgo import _C

FLAGS = ("conv_fwd_algo", "conv_bwd_data_algo", "conv_bwd_filter_algo")
PROBLEM = "fwd_f32_n1c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g1"
X, W = torch.rand(1, 8, 9, 9), torch.rand(8, 8, 3, 3)


def everything() -> tuple[Any, ...]:
    """All that enable() may touch."""
    cudnn = torch.backends.cudnn
    planned = _C.set_planned_choices({})
    _C.set_planned_choices(planned)
    return (
        type(cudnn),
        dict(vars(type(cudnn))),
        dict(vars(cudnn)),
        _C.is_enabled(),
        _C.flag_choices(),
        planned,
    )


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = everything()
    yield
    for name in FLAGS:  # what a test gave to stock torch
        vars(torch.backends.cudnn).pop(name, None)
    assert everything() == before


def ran() -> str:
    """The primitive that computes torch's own convolution here and now; empty: it passed us by."""
    with torch.no_grad(), torchalgo.record_runs() as runs:
        F.conv2d(X, W, padding=1)
    return runs.runs[0].primitive if runs.runs else ""


def test_the_forks_line_works_inside_and_only_there() -> None:
    cudnn: Any = torch.backends.cudnn
    assert ran() == ""
    with torchalgo.enable():
        assert ran() == "auto"
        cudnn.conv_fwd_algo = "cpu.direct"
        assert cudnn.conv_fwd_algo == "cpu.direct"
        assert torchalgo.backends.cudnn.conv_fwd_algo == "cpu.direct"
        assert ran().startswith("cpu.direct")
        cudnn.conv_bwd_data_algo = 1
        cudnn.conv_bwd_filter_algo = "ALGO_1"
        assert (cudnn.conv_bwd_data_algo, cudnn.conv_bwd_filter_algo) == (1, 1)
        with pytest.raises(torchalgo.Error, match="conv_fwd_algo: 99 is neither"):
            cudnn.conv_fwd_algo = 99
    assert not hasattr(cudnn, "conv_fwd_algo")
    assert ran() == ""


def test_a_value_that_stock_torch_ignored_is_obeyed_inside() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.conv_fwd_algo = "cpu.direct"  # stock torch accepts this silently
    assert ran() == ""
    with torchalgo.enable():
        assert ran().startswith("cpu.direct")
        cudnn.conv_fwd_algo = None
    assert cudnn.conv_fwd_algo == "cpu.direct"
    cudnn.conv_fwd_algo = "nonsense"
    with pytest.raises(torchalgo.Error, match=r"torch\.backends\.cudnn\.conv_fwd_algo, set before"):
        torchalgo.enable()
    assert not _C.is_enabled()


def test_a_flag_of_ours_goes_before_an_ignored_one() -> None:
    torch.backends.cudnn.conv_fwd_algo = "cpu.direct"  # type: ignore[attr-defined]
    with torchalgo.backends.cudnn.flags(conv_fwd_algo="cpu.im2col_gemm"), torchalgo.enable():
        assert ran().startswith("cpu.im2col_gemm")


def test_blocks_nest_and_put_back_what_each_found() -> None:
    cudnn: Any = torch.backends.cudnn
    with torchalgo.enable():
        cudnn.conv_fwd_algo = "cpu.direct"
        with torchalgo.enable({PROBLEM: "aten.conv"}):
            cudnn.conv_fwd_algo = None
            assert ran() == "aten.conv"
        assert ran().startswith("cpu.direct")
        with pytest.raises(ZeroDivisionError), torchalgo.enable():
            cudnn.conv_fwd_algo = "cpu.im2col_gemm"
            raise ZeroDivisionError
        assert ran().startswith("cpu.direct")
    assert ran() == ""


def test_calls_are_undone_one_by_one() -> None:
    torchalgo.enable()
    torchalgo.enable({PROBLEM: "cpu.direct"})
    assert ran().startswith("cpu.direct")
    torchalgo.disable()
    assert ran() == "auto"
    torchalgo.disable()
    assert ran() == ""
    with pytest.raises(torchalgo.Error, match="is not enabled"):
        torchalgo.disable()


def test_a_block_ends_what_was_left_open_inside() -> None:
    with torchalgo.enable():
        torchalgo.enable()
    assert not _C.is_enabled()
    with torchalgo.enable():
        torchalgo.disable()
    assert not _C.is_enabled()


def test_training_code_runs_unmodified_with_the_losses_of_torch(net: Net) -> None:
    net.train()
    eager = copy.deepcopy(net)
    with (
        torchalgo.enable(),
        torchalgo.algorithms(forward="cpu.im2col_gemm", backward_data="aten.conv"),
        torchalgo.record_runs() as runs,
    ):
        got = losses(net, 3)
    assert {r.primitive.split(".")[0] for r in runs} == {"cpu", "aten", "auto"}
    assert got == pytest.approx(losses(eager, 3), rel=1e-3)


def test_a_plan_by_problem_speaks_where_nothing_else_does() -> None:
    with torchalgo.enable({PROBLEM + "+bias": "cpu.direct"}):
        assert ran().startswith("cpu.direct")
        with torchalgo.algorithms(forward="aten.conv"):
            assert ran() == "aten.conv"
        with torch.no_grad(), torchalgo.record_runs() as runs:
            F.conv2d(X, W, torch.rand(8), padding=1)
            F.conv2d(X, W)
        assert sorted(r.primitive[:10] for r in runs) == ["auto", "cpu.direct"]


def test_an_optimized_models_plan_serves_the_plain_model(
    fast: torchalgo.Optimized, net: Net, x: torch.Tensor, tmp_path: Path
) -> None:
    file = tmp_path / "net.plan.json"
    fast.plan.save(file)
    for plan in (fast.plan, file, str(file)):
        with torchalgo.enable(plan), torchalgo.record_runs() as runs, torch.no_grad():
            y = net(x)
        assert torch.allclose(y, fast(x), atol=1e-4)
        asked = {n.problem.partition("+")[0] for n in fast.plan.nodes if n.problem[:4] == "fwd_"}
        assert {r.problem.partition("+")[0] for r in runs} == asked
        assert not any(r.primitive == "auto" for r in runs)


def test_wrong_plans_are_refused() -> None:
    for plan, text in [
        ({"nonsense": 1}, "nonsense"),
        ({"add_f32_n1c8h9w9": "cpu.add"}, "is no convolution"),
        ({PROBLEM: "cpu.drect"}, "did you mean 'cpu.direct'"),
        ({PROBLEM: "cudnn9.conv_bwd_data.e1"}, "expected an algorithm for fwd"),
        (7, "plan is int"),
        ("/nowhere/net.plan.json", "cannot read"),
    ]:
        with pytest.raises(torchalgo.Error, match=text):
            torchalgo.enable(plan)  # type: ignore[arg-type]


def test_runs_are_counted_and_printed() -> None:
    with torch.no_grad(), torchalgo.record_runs() as outer:
        torchalgo.conv2d(X, W, padding=1, forward="cpu.direct")
        with torchalgo.record_runs() as inner:
            torchalgo.conv2d(X, W, padding=1, forward="cpu.direct")
            torchalgo.conv2d(X, W, padding=1)
    assert [r.count for r in inner] == [1, 1]
    assert sorted(r.count for r in outer) == [1, 2]
    assert len(outer) == 2
    lines = str(outer).splitlines()
    assert lines[0].split() == ["count", "primitive", "step", "problem"]
    assert any("cpu.direct" in line and PROBLEM in line for line in lines)
    torchalgo.conv2d(X, W, padding=1)
    assert sorted(r.count for r in outer) == [1, 2]


def test_modules_pass_through_both_ways() -> None:
    conv = nn.ConvTranspose2d(8, 8, 3)
    with (
        torchalgo.enable(),
        torchalgo.algorithms(backward_data="aten.conv"),
        torchalgo.record_runs() as runs,
        torch.no_grad(),
    ):
        conv(X)
    (run,) = runs
    assert run.problem.startswith("bwd_data_f32") and run.primitive == "aten.conv"
