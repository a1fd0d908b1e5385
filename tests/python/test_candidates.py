# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torchalgo
from support.nets import Net
from torchalgo import _C
from torchalgo._ir.facts import Refused
from torchalgo._plan.candidates import MOST_LINES, LayerCandidates, OfferedPrimitive
from torchalgo_cli import main

CONV = "fwd_f32_n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1"

needs_cudnn = pytest.mark.skipif(bool(_C.cudnn_absence()), reason="this torch has no cuDNN")


def test_a_problem_lists_primitives_and_refusals() -> None:
    (layer,) = torchalgo.candidates(CONV)
    assert layer.problem == CONV
    offered = {o.primitive for o in layer.offered}
    assert "aten.conv" in offered
    assert any(name.startswith("cpu.winograd_f4x4_3x3") for name in offered)
    assert all(r.reason for r in layer.refused)
    text = str(torchalgo.candidates(CONV))
    assert "aten.conv" in text
    assert "refuses: " in text


def test_only_the_details_have_refusals_by_algorithms_of_other_operations() -> None:
    (layer,) = torchalgo.candidates(CONV.replace("st1x1", "st2x2"))
    for name in ("aten.pool", "cpu.add", "cpu.slice", "layout.tiled"):
        assert f"{name} " in layer.details and name not in str(layer)
    for name in ("cpu.depthwise", "cpu.grouped"):
        assert f"{name} " in layer.details and name in str(layer)


def test_a_strided_convolution_is_refused_by_winograd_with_a_reason() -> None:
    (layer,) = torchalgo.candidates(CONV.replace("st1x1", "st2x2"))
    reasons = {r.primitive: r.reason for r in layer.refused}
    winograd = [reason for name, reason in reasons.items() if name.endswith("_3x3")]
    assert winograd
    assert all("stride" in reason for reason in winograd)


def test_a_module_lists_each_of_its_layers(net: Net, x: torch.Tensor) -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval()
    (layer,) = torchalgo.candidates(conv, torch.rand(1, 64, 14, 14))
    assert layer.problem == CONV
    names = [layer.name for layer in torchalgo.candidates(net, x)]
    assert "layer1.0.conv1" in names


def test_directions_of_a_module_drop_what_is_fused_and_other_layers(
    net: Net, x: torch.Tensor
) -> None:
    found = torchalgo.candidates(net.train(), x, directions="bwd_data")
    assert [layer.name for layer in found][:2] == ["stem.0", "layer1.0.conv1"]
    assert all(layer.problem.startswith("bwd_data_f32") for layer in found)
    assert not any("+" in layer.problem for layer in found)
    assert all(any(o.primitive == "aten.conv" for o in layer.offered) for layer in found)
    conv = nn.Conv2d(64, 64, 3, padding=1)
    layers = torchalgo.candidates(conv, torch.rand(1, 64, 14, 14), directions="all")
    words = ("fwd", "bwd_data", "bwd_filter")
    assert [layer.problem for layer in layers] == [CONV.replace("fwd", w) for w in words]


def test_a_problems_own_words_are_replaced_where_asked() -> None:
    (layer,) = torchalgo.candidates(CONV + "+bias", directions="backward_filter", dtype="bf16")
    assert layer.problem == CONV.replace("fwd_f32", "bwd_filter_bf16")
    (layer,) = torchalgo.candidates(CONV.replace("fwd", "bwd_data"))
    assert layer.problem.startswith("bwd_data")
    (layer,) = torchalgo.candidates(CONV + "+bias", dtype=torch.float64)
    assert layer.problem == CONV.replace("f32", "f64") + "+bias"


def test_the_gradient_of_a_transposed_convolutions_input_is_an_ordinary_one() -> None:
    conv = nn.ConvTranspose2d(4, 6, 3)
    (layer,) = torchalgo.candidates(conv, torch.rand(1, 4, 8, 8), directions="bwd_data")
    assert layer.problem == "fwd_f32_n1c6h10w10_k4r3s3_st1x1_pad0x0_dil1x1_g1"
    (layer,) = torchalgo.candidates(conv, torch.rand(1, 4, 8, 8), directions="fwd")
    assert layer.problem == "bwd_data_f32_n1c6h10w10_k4r3s3_st1x1_pad0x0_dil1x1_g1"


def test_many_candidates_print_one_line_per_engine_and_details_all() -> None:
    offered = [
        OfferedPrimitive(
            f"cudnn9.conv.e{e}{{K={k}}}", src, src, 100 * k, hidden_bytes=0 if src == "nhwc" else 7
        )
        for e in (1, 22)
        for k in range(30)
        for src in ("nchw", "nhwc")
    ]
    offered.append(
        OfferedPrimitive("cudnn9.conv.e0", "nchw", "nchw", 0, False, True, ["tensor_core"], None)
    )
    refused = [Refused(f"cudnn9.conv.e{e}", "arch mismatch") for e in range(100, 150)]
    layer = LayerCandidates("conv1", CONV, offered, refused, "an H100 (sm_90; from public figures)")
    lines = str(layer).splitlines()
    assert lines[:2] == [f"conv1  {CONV}", "  on an H100 (sm_90; from public figures)"]
    assert lines[2].split() == ["primitive", "source->result", "workspace", "packed", "weights"]
    assert lines[3].split()[:2] == ["cudnn9.conv.e1", "nhwc->nhwc"]  # the lightest of the engine
    assert lines[3].endswith("1 of 60")
    assert lines[5].endswith(
        "not deterministic, copies unknown, compiled at first use, tensor_core"
    )
    assert "121 in all" in lines[6]
    assert lines[7:] == [
        "  cudnn9.conv.e100, cudnn9.conv.e101, cudnn9.conv.e102 and 47 more refuses: arch mismatch"
    ]
    assert len(offered) > MOST_LINES
    assert len(layer.details.splitlines()) == 3 + 121 + 50


@needs_cudnn
@pytest.mark.parametrize("direction", ["fwd", "bwd_data", "bwd_filter"])
def test_a_gpu_that_is_not_here_is_asked_by_name(direction: str) -> None:
    (layer,) = torchalgo.candidates(CONV, device="h100", directions=direction, dtype="f16")
    names = [o.primitive for o in layer.offered]
    row = "cudnn9.conv" if direction == "fwd" else f"cudnn9.conv_{direction}"
    assert any(name.startswith(f"{row}.e") for name in names)
    assert not any(name.startswith("cpu.") for name in names)
    assert any("tensor_core" in o.numerics for o in layer.offered)
    text = str(torchalgo.candidates(CONV, device="h100", directions=direction, dtype="f16"))
    assert "H100" in text and "gpu_check" in text
    assert len(text.splitlines()) < 150


@needs_cudnn
def test_a_modules_float_layers_are_tf32_where_torch_allows_it() -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval()
    x = torch.rand(1, 64, 14, 14)
    for direction in (None, "fwd"):
        (layer,) = torchalgo.candidates(conv, x, device="h100", directions=direction)
        assert layer.problem == CONV.replace("f32", "tf32")
        with torch.backends.cudnn.flags(allow_tf32=False):
            (layer,) = torchalgo.candidates(conv, x, device="h100", directions=direction)
        assert layer.problem == CONV


def test_wrong_targets_say_what_is_expected(net: Net, x: torch.Tensor) -> None:
    target: Any
    for target, arguments, text in [
        ("fwd_f32_nonsense", {}, "fwd_f32_nonsense"),
        (net, {}, "without its input"),
        (7, {"example_inputs": x}, "target is int"),
        (CONV, {"device": "h1000"}, "h1000"),
        (CONV, {"device": "cuda:x"}, "expected 'cuda' or 'cuda:0'"),
        (
            CONV,
            {"directions": "backward"},
            "expected forward, backward_data, backward_filter or all",
        ),
        (CONV, {"dtype": "f8"}, "expected one of f64"),
        ("add_f32_n1c8h9w9", {"directions": "fwd"}, "need a convolution"),
        (nn.ReLU(), {"example_inputs": x, "directions": "fwd"}, "ran no convolution"),
    ]:
        with pytest.raises(torchalgo.Error, match=text):
            torchalgo.candidates(target, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_no_cuda_device() -> None:
    with pytest.raises(torchalgo.Error, match="GPU"):
        torchalgo.candidates(CONV, device="cuda")


def test_the_command_takes_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    if not _C.cudnn_absence():
        assert main(["explain", CONV.replace("fwd", "bwd_data"), "--device", "h100"]) == 0
        assert "cudnn9.conv_bwd_data" in capsys.readouterr().out
