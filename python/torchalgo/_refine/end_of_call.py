# SPDX-License-Identifier: BSD-3-Clause
"""Reserves time for the last steps of one optimize call, and chooses their effort."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import LEAST_END_S
from torchalgo._measure import guard
from torchalgo._plan.preparation import Prepared

# The first guess of the time to bind a plan, as a part of the time to read the model.
BIND_SHARE = 0.3
AFTER_INTERRUPT_S = 3.0  # seconds for the guard after Ctrl-C
# The model is run at most this often to learn its time, in at most this part of the budget.
MOST_RUNS, RUNS_SHARE = 3, 0.05


@dataclass(frozen=True)
class GuardEffort:
    """The effort of timing the plan against the baselines."""

    warmup: int
    limit_s: float  # seconds for all rounds together
    baselines: tuple[str, ...] = ()  # only these are timed; all if empty
    rounds: int = guard.LEAST_ROUNDS  # at least so many; with fewer than that, only if it is clear

    @property
    def is_whole(self) -> bool:
        """Returns True if all baselines are timed."""
        return not self.baselines

    def includes(self, baseline: str) -> bool:
        return not self.baselines or baseline in self.baselines


class CallBudget:
    """Reserves time for the end of a call: bind, try, guard."""

    def __init__(self, call: CallContext) -> None:
        self.call, self.now_s = call, call.deadline.now_s
        self.least_sample_s = 0.0  # seconds of a call in the guard, if the model takes less
        self._model_s = 0.0  # seconds of one run of the frozen module
        self._bind_s = 0.0  # seconds to bind a plan and to run it once
        self._calls = 4  # number of calls that the guard times, the plan included

    def expect_end(self, prepared: Prepared) -> None:
        """Times the model and reserves time for the end of the call.

        If less time is left than reading the model took, the model is not run. Then the time to
        read it, which includes a run, is the estimate.
        """
        read_s = self.call.timings.of("read").wall_s
        self._calls = 4 if prepared.device is None else 7
        if self.call.deadline.left_s("finish") < min(read_s, self.call.deadline.budget_s / 2):
            self._model_s = read_s
        else:
            self._model_s = self._run_s(prepared)
        self._bind_s = BIND_SHARE * read_s + 2 * self._model_s
        guard.reserve(self.call.deadline, self._efforts_s(), self._bind_s)

    def _run_s(self, prepared: Prepared) -> float:
        """Runs the frozen module up to MOST_RUNS times and returns the seconds of the fastest run.

        The first run is slower than the others, and so is a run that other programs disturb.
        """
        times: list[float] = []
        while len(times) < MOST_RUNS and sum(times) <= RUNS_SHARE * self.call.deadline.budget_s:
            started = self.now_s()
            with torch.no_grad():
                prepared.frozen(*prepared.inputs)
            guard.synchronizer(prepared.where)()
            times.append(self.now_s() - started)
        return min(times)

    @property
    def can_time(self) -> bool:
        """True if there is time to bind a plan and to time it with the least effort."""
        return self._least_s <= self.call.deadline.left_s("finish")

    @property
    def _least_s(self) -> float:
        """The seconds that binding a plan and timing it with the least effort take."""
        return LEAST_END_S + self._bind_s + self._efforts_s()[-1]

    @property
    def least_call_s(self) -> float:
        """The seconds of a whole call with the least effort, without measuring."""
        read_s = self.call.timings.of("read").wall_s + self.call.timings.of("values").wall_s
        return read_s + self._model_s + self._least_s

    def expect_guard(self) -> None:
        """Reserves time for the guard only, after the plan was bound and tried."""
        guard.reserve(self.call.deadline, self._efforts_s())

    def learn_binding(self, seconds: float) -> None:
        """Notes how long binding a plan and running it once took."""
        self._bind_s = seconds

    def can_bind(self) -> bool:
        """Returns True if a further plan can be bound and tried before the guard must begin."""
        return self._bind_s <= self.call.deadline.left_s("check")

    def can_run(self, times: int) -> bool:
        """Returns True if the model can run so many times before the guard must begin."""
        return times * self._model_s <= self.call.deadline.left_s("check")

    def hurry(self) -> None:
        """Moves the deadline to AFTER_INTERRUPT_S from now at most, after Ctrl-C."""
        self.call.deadline.end_within(AFTER_INTERRUPT_S)

    def guard_effort(self) -> GuardEffort | None:
        """Returns the best effort that there is time for, None if there is none."""
        left_s = self.call.deadline.left_s("finish")
        efforts = zip(self._efforts(), self._efforts_s(), strict=True)
        return next((effort for effort, own_s in efforts if own_s <= left_s), None)

    def _efforts(self) -> list[GuardEffort]:
        """Returns the efforts, the best first."""
        limit_s = min(6.0, max(0.5, 0.1 * self.call.deadline.budget_s))
        return [
            GuardEffort(2, limit_s),
            GuardEffort(0, 0.0, ("frozen", "channels_last")),
            GuardEffort(0, 0.0, ("frozen", "channels_last"), rounds=guard.CLEAR_ROUNDS),
        ]

    def _efforts_s(self) -> list[float]:
        """Returns the seconds of the efforts. Each call runs once more, to show if it fails."""
        return [
            guard.expect_s(
                len(effort.baselines) + 1 if effort.baselines else self._calls,
                max(self._model_s, self.least_sample_s),
                warmup=1 + effort.warmup, rounds=effort.rounds, limit_s=effort.limit_s,
            )
            for effort in self._efforts()
        ]  # fmt: skip
