# SPDX-License-Identifier: BSD-3-Clause
"""One optimize call in time: what its steps took, when it must end, what the end will take."""

from __future__ import annotations

from dataclasses import dataclass

from torchalgo import guard
from torchalgo.deadline import Deadline
from torchalgo.preparation import Prepared
from torchalgo.timings import Timings

BIND_SHARE = 0.3  # of what it takes to read the model, which traces and freezes
LEAST_S = 0.3  # of what no run of the model takes: solves, descriptions


@dataclass(frozen=True)
class GuardEffort:
    """How the plan is timed beside the baselines."""

    warmup: int
    limit_s: float  # of the rounds
    baselines: tuple[str, ...] = ()  # only these; none: all

    def includes(self, baseline: str) -> bool:
        return not self.baselines or baseline in self.baselines


class Course:
    """Timings and a deadline that keeps time for the end: bind, try, compare, guard."""

    def __init__(self, timings: Timings, deadline: Deadline) -> None:
        self.timings, self.deadline = timings, deadline
        self._model_s = 0.0  # one run of the frozen module
        self._calls = 4  # what the guard times, the plan included

    def part(self, parts_left: int) -> Course:
        """The course of the first of so many plans: an equal part of the time that is left."""
        if self.deadline.budget_s is None:
            return Course(self.timings, Deadline(None, self.deadline.now_s))
        left_s = max(0.0, self.deadline.left_s("finish"))
        return Course(self.timings, Deadline(left_s / parts_left, self.deadline.now_s))

    def expect_end(self, prepared: Prepared) -> None:
        """Runs the model once, and keeps time for the end."""
        started = self.deadline.now_s()
        prepared.reference  # noqa: B018
        guard.synchronizer(prepared.where)()
        self._model_s = self.deadline.now_s() - started
        self._calls = 4 if prepared.device is None else 7
        bind_s = BIND_SHARE * self.timings.of("read").wall_s
        self.deadline.keep("finish", LEAST_S + bind_s + 2 * self._model_s + self._guard_s())

    def expect_guard(self) -> None:
        """Bound and tried: the guard is what is left."""
        self.deadline.keep("finish", LEAST_S + self._guard_s())

    def guard_effort(self) -> GuardEffort | None:
        """The most that there is time for; None: there is none."""
        left_s = self.deadline.left_s("finish")
        for effort in self._efforts():
            if self._seconds(effort) <= left_s:
                return effort
        return None

    def _efforts(self) -> list[GuardEffort]:
        """From the best to the shortest."""
        budget_s = self.deadline.budget_s
        limit_s = 6.0 if budget_s is None else min(6.0, max(0.5, 0.1 * budget_s))
        return [GuardEffort(3, limit_s), GuardEffort(1, 0.0, ("frozen", "channels_last"))]

    def _seconds(self, effort: GuardEffort) -> float:
        calls = len(effort.baselines) + 1 if effort.baselines else self._calls
        least_s = guard.LEAST_ROUNDS * calls * self._model_s
        return effort.warmup * calls * self._model_s + max(least_s, effort.limit_s)

    def _guard_s(self) -> float:
        """What is kept for it: at most half of the budget, and a third for the best effort."""
        full, short = map(self._seconds, self._efforts())
        budget_s = self.deadline.budget_s or float("inf")
        if full <= budget_s / 3:
            return full
        return short if short <= budget_s / 2 else 0.0
