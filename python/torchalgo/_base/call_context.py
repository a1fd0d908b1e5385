# SPDX-License-Identifier: BSD-3-Clause
"""One object that all steps of an optimize call get: its timings, its deadline, its progress."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torchalgo._base.progress import Progress
from torchalgo._base.time_budget import Deadline
from torchalgo._base.timings import Timings


@dataclass(frozen=True)
class CallContext:
    """The time of each step so far, the time budget, and the progress display of one call."""

    timings: Timings
    deadline: Deadline
    progress: Progress

    @staticmethod
    def start(
        deadline: Deadline | None = None,
        progress: Progress | None = None,
        timings: Timings | None = None,
    ) -> CallContext:
        """Starts a call. By default it has no time budget and shows no progress."""
        return CallContext(
            Timings() if timings is None else timings,
            Deadline(None) if deadline is None else deadline,
            Progress(False) if progress is None else progress,
        )

    def within(self, seconds: float) -> CallContext:
        """Returns the context of steps that may take so many seconds from now on."""
        whole = self.deadline
        return dataclasses.replace(self, deadline=Deadline(seconds, whole.now_s, whole.call_s))

    def part(self, parts_left: float) -> CallContext:
        """Returns the context of the next plan: one of so many parts of the time that is left.

        The time that is reserved for the step "finish" of the whole call is not divided.
        """
        return self.within(max(0.0, self.deadline.left_s("check")) / parts_left)
