# SPDX-License-Identifier: BSD-3-Clause
"""Warnings that name the user's line, and not one of torchalgo or torch."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

import torch

# The code between the user's line and a warning.
_OURS = (
    f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}",
    contextlib.__file__,
)  # fmt: skip


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the nearest line that is neither in torchalgo nor in torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"torchalgo: {text}", category, stacklevel=level)
