# SPDX-License-Identifier: BSD-3-Clause
"""The time of one optimize call: what its steps took, when it must end, what its end will take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchalgo._base.deadline import Deadline
from torchalgo._base.timings import Timings
from torchalgo._measure import guard
from torchalgo._plan.preparation import Prepared

BIND_SHARE = 0.3  # of the time to read the model: a first guess for binding a plan
LEAST_S = 0.3  # for work that does not depend on the model's size: solves, descriptions
AFTER_INTERRUPT_S = 3.0  # for the guard
MOST_RUNS, RUNS_SHARE = 3, 0.05  # of the model, to learn how long it takes; share of the budget


@dataclass(frozen=True)
class GuardEffort:
    """How thoroughly the plan is timed beside the baselines."""

    warmup: int
    limit_s: float  # for all rounds together
    baselines: tuple[str, ...] = ()  # only these are timed; all if empty
    has_single_layout: bool = False  # the best single-layout plan is timed too

    def includes(self, baseline: str) -> bool:
        return not self.baselines or baseline in self.baselines


class CallBudget:
    """Timings and a deadline that reserves time for the end of a call: bind, try, guard."""

    def __init__(self, timings: Timings, deadline: Deadline) -> None:
        self.timings, self.deadline = timings, deadline
        self._model_s = 0.0  # for one run of the frozen module
        self._bind_s = 0.0  # to bind a plan and to run it once
        self._calls = 4  # that the guard times, the plan included

    def part(self, parts_left: int) -> CallBudget:
        """Returns the budget of the next plan: an equal part of the time that is left."""
        left_s = max(0.0, self.deadline.left_s("finish"))
        return CallBudget(self.timings, Deadline(left_s / parts_left, self.deadline.now_s))

    def expect_end(self, prepared: Prepared) -> None:
        """Runs the model and reserves time for the end. If the time to read the model, which
        runs it too, is not left any more, that time is the estimate and the model does not run."""
        read_s = self.timings.of("read").wall_s
        self._calls = 4 if prepared.device is None else 7
        if self.deadline.left_s("finish") < min(read_s, self.deadline.budget_s / 2):
            self._model_s = read_s
        else:
            self._model_s = self._run_s(prepared)
        self._bind_s = BIND_SHARE * read_s + 2 * self._model_s
        self._reserve(self._bind_s)

    def _run_s(self, prepared: Prepared) -> float:
        """Runs the frozen module a few times and returns the least seconds of a run. Its first run
        is slower than the others, and so is a run that other programs disturb."""
        times: list[float] = []
        while len(times) < MOST_RUNS and sum(times) <= RUNS_SHARE * self.deadline.budget_s:
            started = self.deadline.now_s()
            with torch.no_grad():
                prepared.frozen(*prepared.inputs)
            guard.synchronizer(prepared.where)()
            times.append(self.deadline.now_s() - started)
        return min(times)

    @property
    def can_time(self) -> bool:
        """True if there is time to bind a plan and to time it with the least effort."""
        return self.least_s <= self.deadline.left_s("finish")

    @property
    def least_s(self) -> float:
        """The seconds that binding a plan and timing it with the least effort take."""
        return LEAST_S + self._bind_s + self._seconds(self._efforts()[-1])

    @property
    def whole_s(self) -> float:
        """The seconds of a call that has time for the least effort, measuring not counted."""
        read_s = self.timings.of("read").wall_s + self.timings.of("values").wall_s
        return read_s + self._model_s + self.least_s

    def expect_guard(self) -> None:
        """Reserves time for the guard alone: the plan is bound and was tried."""
        self._reserve(0.0)

    def learn_binding(self, seconds: float) -> None:
        """Notes how long binding a plan and running it once took."""
        self._bind_s = seconds

    def can_bind(self, plans: int = 1) -> bool:
        """True if further plans can be bound and tried before the time of the guard begins."""
        return plans * self._bind_s <= self.deadline.left_s("check")

    def hurry(self) -> None:
        """Ends the call soon: the user has interrupted it."""
        self.deadline.end_within(AFTER_INTERRUPT_S)

    def guard_effort(self) -> GuardEffort | None:
        """Returns the best effort that there is time for, None if there is none."""
        left_s = self.deadline.left_s("finish")
        for effort in self._efforts():
            if self._seconds(effort) <= left_s:
                return effort
        return None

    def _efforts(self) -> list[GuardEffort]:
        """The efforts, the best first."""
        limit_s = min(6.0, max(0.5, 0.1 * self.deadline.budget_s))
        return [
            GuardEffort(2, limit_s, has_single_layout=True),
            GuardEffort(2, limit_s),
            GuardEffort(0, 0.0, ("frozen", "channels_last")),
        ]

    def _seconds(self, effort: GuardEffort) -> float:
        calls = len(effort.baselines) + 1 if effort.baselines else self._calls
        bind_s = 0.0
        if effort.has_single_layout:
            calls, bind_s = calls + 1, self._bind_s
        least_s = guard.LEAST_ROUNDS * calls * self._model_s
        first_s = (1 + effort.warmup) * calls * self._model_s  # once to see which of them run
        return bind_s + first_s + max(least_s, effort.limit_s)

    def _reserve(self, bind_s: float) -> None:
        """Reserves the end: a usual guard if that takes a third of the budget at most, else the
        least one. Under a budget the single-layout plan is the first thing to be dropped."""
        usual_s, least_s = (self._seconds(effort) for effort in self._efforts()[1:])
        guard_s = usual_s if usual_s <= self.deadline.budget_s / 3 else least_s
        self.deadline.keep("finish", LEAST_S + bind_s + guard_s)
