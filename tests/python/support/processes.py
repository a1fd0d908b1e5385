# SPDX-License-Identifier: BSD-3-Clause
"""What tests ask of other processes."""

from __future__ import annotations

import time
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether a process ended within 10 s; one that waits for its parent has ended too."""
    for _ in range(1000):
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False
