# SPDX-License-Identifier: BSD-3-Clause
"""Makes runs on fake tensors safe in threads that end."""

from __future__ import annotations

import torch

from torchalgo import _C


def keep_fake_device() -> None:
    """Registers a device guard that outlives this thread. Call it before any FakeTensorMode.

    Without a GPU, PyTorch 2.11 registers a guard that belongs to the thread of the first
    FakeTensorMode, and reads it in each later one. A GPU is never initialized here: like
    FakeTensorMode itself, this only asks whether there is one.
    """
    if not torch.cuda.is_available():
        _C.keep_fake_cuda_guard()
