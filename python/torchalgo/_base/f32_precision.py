# SPDX-License-Identifier: BSD-3-Clause
"""Reads torch's settings for the precision of float32 arithmetic.

`torch.backends.cudnn.allow_tf32` and `torch.get_float32_matmul_precision()` raise RuntimeError once
a program has set one of the newer settings, `fp32_precision`. The functions here read only the
newer settings, which torch keeps up to date in any case.
"""

from __future__ import annotations

from typing import Any

import torch


def convolutions_use_tf32() -> bool:
    """Returns True if torch lets cuDNN compute convolutions of float32 tensors in TF32."""
    cudnn: Any = torch.backends.cudnn
    return bool(cudnn.conv.fp32_precision == "tf32")


def products_use_tf32() -> bool:
    """Returns True if torch lets cuBLAS multiply matrices of float32 numbers in TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def cpu_is_exact() -> bool:
    """Returns True if torch lets no library round float32 numbers to fewer bits on a CPU."""
    mkldnn: Any = torch.backends.mkldnn
    settings = (mkldnn.conv.fp32_precision, mkldnn.matmul.fp32_precision)
    return all(setting in ("none", "ieee") for setting in settings)
