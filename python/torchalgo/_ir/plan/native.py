# SPDX-License-Identifier: BSD-3-Clause
"""The C++ names that plans use. Where torchalgo is not installed, stand-ins take their place."""

from __future__ import annotations

import sys
import typing

__all__ = ["STRUCTURE_VERSION", "Error"]

if typing.TYPE_CHECKING:
    from torchalgo._C import STRUCTURE_VERSION, Error
else:
    try:
        from torchalgo._C import STRUCTURE_VERSION, Error
    except ImportError:
        STRUCTURE_VERSION = sys.maxsize  # a plan of any version can be printed

        class Error(RuntimeError):
            """A plan that cannot be read."""
