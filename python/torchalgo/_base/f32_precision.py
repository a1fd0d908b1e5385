# SPDX-License-Identifier: BSD-3-Clause
"""Reads torch's settings for the precision of float32 arithmetic.

`torch.backends.cudnn.allow_tf32` and `torch.get_float32_matmul_precision()` raise RuntimeError once
a program has set one of the newer settings, `fp32_precision`. The functions here read only the
newer settings, which torch keeps up to date in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchalgo._base.overlap import WhileAny


def convolutions_use_tf32() -> bool:
    """Returns True if torch lets cuDNN compute convolutions of float32 tensors in TF32."""
    cudnn: Any = torch.backends.cudnn
    return bool(cudnn.conv.fp32_precision == "tf32")


def products_use_tf32() -> bool:
    """Returns True if torch lets cuBLAS multiply matrices of float32 numbers in TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def cpu_precisions() -> tuple[str, str]:
    """Returns torch's settings for convolutions and for products of matrices on a CPU.

    Each is "none", "ieee", "tf32" or "bf16".
    """
    mkldnn: Any = torch.backends.mkldnn
    return mkldnn.conv.fp32_precision, mkldnn.matmul.fp32_precision


def cpu_is_exact() -> bool:
    """Returns True if torch lets no library round float32 numbers to fewer bits on a CPU."""
    return all(setting in ("none", "ieee") for setting in cpu_precisions())


def _make_exact() -> Callable[[], None]:
    if cpu_is_exact():
        return lambda: None
    before = cpu_precisions()
    _set("ieee", "ieee")
    return lambda: _set(*before)


def _set(conv: str, matmul: str) -> None:
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.conv.fp32_precision, mkldnn.matmul.fp32_precision = conv, matmul


# In a block of this, torch computes in float32 on a CPU, whatever its settings allow. The settings
# belong to the process, so this holds for other threads too.
EXACT_CPU = WhileAny(_make_exact)
