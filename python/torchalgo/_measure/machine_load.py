# SPDX-License-Identifier: BSD-3-Clause
"""Detects other programs that use the processors while something is timed.

A time is too long if its process had to wait for a processor. Chance decides which candidates this
affects. The run that took such times uses them, but they are not stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torchalgo._base.processor_load import is_ignored, processors_s, used_s
from torchalgo._ir.plan import MOST_WAITING

# Shorter waiting times are ignored: the process was interrupted at most once.
LEAST_WAIT_S = 0.01


class WaitWatch:
    """The time that a process waits for processors. Counting starts with the constructor."""

    def __init__(self, pid: Callable[[], int | None] = os.getpid) -> None:
        """Starts counting.

        Args:
            pid: returns the id of the process that takes the times; it may be restarted later.
        """
        self._pid = pid
        self._before = None if is_ignored() else self._now()

    def _now(self) -> tuple[int | None, float, float, float]:
        pid = self._pid()
        return pid, *used_s(pid), processors_s()[1]

    def share(self) -> float:
        """Returns the waiting time divided by the sum of waiting and running time.

        Returns 0 if the waiting time is below LEAST_WAIT_S.
        """
        if self._before is None:
            return 0.0
        before, (pid, ran, waited, stolen) = self._before, self._now()
        if pid == before[0]:
            ran, waited = max(0.0, ran - before[1]), waited - before[2]
        waited += stolen - before[3]
        return 0.0 if waited < LEAST_WAIT_S else waited / (waited + ran)

    def was_disturbed(self) -> bool:
        """Returns True if the times taken since the constructor must not be stored."""
        return self.share() > MOST_WAITING
