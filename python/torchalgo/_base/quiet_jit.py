# SPDX-License-Identifier: BSD-3-Clause
"""Hides the deprecation warnings of torch.jit."""

from __future__ import annotations

import contextlib

from torchalgo._base.overlap import WhileAny, filter_warnings

_hidden = WhileAny(
    lambda: filter_warnings("ignore", r"`torch\.jit\.", DeprecationWarning, FutureWarning)
)


def quiet_jit() -> contextlib.AbstractContextManager[None]:
    """Hides the deprecation warnings of torch.jit, because the user did not call it."""
    return _hidden.block()
