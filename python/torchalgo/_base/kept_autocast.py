# SPDX-License-Identifier: BSD-3-Clause
"""Restores torch.autocast after a run on fake tensors that an error may end anywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def kept_autocast() -> Iterator[None]:
    """Restores the state of autocast after the block, also if an error left it on.

    Autocast keeps copies of weights for its whole block. None is kept of the runs in this block,
    which would be fake tensors.
    """
    states = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    has_cache = torch.is_autocast_cache_enabled()
    depth = torch.autocast_increment_nesting()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        while torch.autocast_decrement_nesting() >= depth:
            pass
        for device, is_enabled, dtype in states:
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(has_cache)
