# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import pytest
import torch
from torch import nn

import torchalgo
from nets import Net

CONV = "fwd_f32_n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1"


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


def test_a_strided_convolution_is_refused_by_winograd_with_a_reason() -> None:
    (layer,) = torchalgo.candidates(CONV.replace("st1x1", "st2x2"))
    reasons = {r.primitive: r.reason for r in layer.refused}
    winograd = [reason for name, reason in reasons.items() if "winograd" in name]
    assert winograd
    assert all("stride" in reason for reason in winograd)


def test_a_module_lists_each_of_its_layers(net: Net, x: torch.Tensor) -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval()
    (layer,) = torchalgo.candidates(conv, torch.rand(1, 64, 14, 14))
    assert layer.problem == CONV
    names = [layer.name for layer in torchalgo.candidates(net, x)]
    assert "layer1.0.conv1" in names


def test_wrong_targets_say_what_is_expected(net: Net, x: torch.Tensor) -> None:
    with pytest.raises(torchalgo.Error, match="fwd_f32_nonsense"):
        torchalgo.candidates("fwd_f32_nonsense")
    with pytest.raises(torchalgo.Error, match="needs its input"):
        torchalgo.candidates(net)
    with pytest.raises(torchalgo.Error, match="this version has 'cpu' only"):
        torchalgo.candidates(CONV, device="cuda")
    with pytest.raises(torchalgo.Error, match="only 'fwd'"):
        torchalgo.candidates(net, x, direction="bwd_data")
