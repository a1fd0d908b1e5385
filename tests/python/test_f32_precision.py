# SPDX-License-Identifier: BSD-3-Clause
"""Torch's newer settings for float32, after which reading `allow_tf32` is an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from torchalgo import _C
from torchalgo._base.f32_precision import (
    convolutions_use_tf32,
    cpu_is_exact,
    products_use_tf32,
)
from torchalgo._capture.freeze import freeze_model
from torchalgo._db.environment import _gpu_flags
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.devices import named_device
from torchalgo._plan.find import import_model

NAMES = (
    "fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision", "cuda.matmul.fp32_precision", "mkldnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
)  # fmt: skip
CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1"


def owner_of(name: str) -> Any:
    owner: Any = torch.backends
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    return owner


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = {name: owner_of(name).fp32_precision for name in NAMES}
    yield
    for name, precision in before.items():
        owner_of(name).fp32_precision = precision
    assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"


# By setting and precision: whether convolutions and products of a GPU use TF32, and whether the CPU
# rounds nothing.
EFFECTS = {
    ("cudnn.conv.fp32_precision", "ieee"): (False, False, True),
    ("cudnn.conv.fp32_precision", "tf32"): (True, False, True),
    ("cudnn.fp32_precision", "ieee"): (True, False, True),
    ("fp32_precision", "ieee"): (True, False, True),
    ("fp32_precision", "tf32"): (True, True, False),
    ("cuda.matmul.fp32_precision", "tf32"): (True, True, True),
    ("mkldnn.matmul.fp32_precision", "bf16"): (True, False, False),
    ("mkldnn.conv.fp32_precision", "bf16"): (True, False, False),
}


@pytest.mark.parametrize(("setting", "precision"), EFFECTS)
def test_each_setting_is_read_without_an_error(setting: str, precision: str) -> None:
    owner_of(setting).fp32_precision = precision
    read = (convolutions_use_tf32(), products_use_tf32(), cpu_is_exact())
    assert read == EFFECTS[setting, precision]


@pytest.mark.parametrize(("setting", "precision"), EFFECTS)
def test_a_model_is_imported_and_its_costs_are_stored_under_what_torch_may_do(
    setting: str, precision: str
) -> None:
    x = torch.rand(1, 16, 14, 14)
    frozen = freeze_model(nn.Conv2d(16, 16, 3, padding=1, bias=False).eval(), (x,))
    before = _gpu_flags()
    owner_of(setting).fp32_precision = precision
    convolutions, products, is_exact = EFFECTS[setting, precision]
    (node,) = import_model(named_device("h100"), frozen, (x,)).graph.nodes
    assert str(node.problem) == (CONV.replace("f32", "tf32") if convolutions else CONV)
    assert (_gpu_flags() == before) == (convolutions and not products)
    peaks, direct = Peaks(1.0, ((1, 1e9),)), _C.Primitive("cpu.direct", "nchw", "nchw")
    assert (peaks.roofline_ns(CONV, direct) > 1) == is_exact
