# SPDX-License-Identifier: BSD-3-Clause
"""The time budget of one optimize call, and estimates of how long a step of it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

OUT_OF_BUDGET = "out of budget"

# The time budget of a call without budget_s, in seconds for each of its plans.
DEFAULT_BUDGET_S = 90.0

# The guard times the plan against PyTorch at the end. This part of a budget is reserved for it at
# most, and LEAST_END_S are reserved for work that does not depend on the model's size.
GUARD_SHARE = 1 / 3
LEAST_END_S = 0.3

# The time of a candidate's check on one core of an EPYC: a reference in f64, at least six runs, and
# comparisons. `Pace` corrects it on other machines.
CHECK_S = 3e-3
CHECK_S_PER_BYTE = 1.5e-8  # per byte of inputs, weights and result
CHECK_S_PER_FLOP = 6e-11

# A visit sets up each candidate, warms it up once and takes at least three samples. Set-ups in the
# recorded tables took 2 to 5 ms, and 7 to 20 ns per weight (benchmarks/tables).
SET_UP_S = 3e-3
SET_UP_S_PER_WEIGHT = 1e-8
LEAST_RUNS = 4


class Deadline:
    """The end of a call. Each step must end earlier by the time that is reserved for later steps.

    The steps in their order are "measure", "check" and "finish" (bind, try, guard).
    """

    STEPS = ("measure", "check", "finish")

    def __init__(
        self,
        budget_s: float | None,
        now_s: Callable[[], float] = time.monotonic,
        call_s: float | None = None,
    ) -> None:
        """Starts the budget now. There is no end if `budget_s` is None or infinite.

        Args:
            call_s: the budget of the whole call, if this is the deadline of a part of it.
        """
        self.budget_s = math.inf if budget_s is None else budget_s
        self.call_s = self.budget_s if call_s is None else call_s
        self.now_s = now_s
        self._end = now_s() + self.budget_s
        self._kept = dict.fromkeys(self.STEPS, 0.0)
        self.can_break = False  # a plan exists without the work that runs now

    @property
    def has_end(self) -> bool:
        """Returns False if there is no budget."""
        return self.budget_s < math.inf

    def keep(self, step: str, seconds: float) -> None:
        """Reserves `seconds` for a step. This replaces an earlier reservation for the step."""
        self._kept[step] = seconds

    def end_within(self, seconds: float) -> None:
        """Moves the end to at most `seconds` from now, and drops all reservations."""
        self._end = min(self._end, self.now_s() + seconds)
        self._kept = dict.fromkeys(self.STEPS, 0.0)

    def left_s(self, step: str) -> float:
        """Returns the seconds until a step must end; negative after that."""
        later = self.STEPS[self.STEPS.index(step) + 1 :]
        return self._end - self.now_s() - sum(self._kept[name] for name in later)

    def is_over(self, step: str) -> bool:
        return self.left_s(step) <= 0

    def is_lost(self, step: str) -> bool:
        """Returns whether a step has used half of the time that is reserved for the next one.

        Such a step must be aborted. Returns False while `can_break` is not set.
        """
        if not self.can_break:
            return False
        following = self.STEPS[min(self.STEPS.index(step) + 1, len(self.STEPS) - 1)]
        return self.left_s(step) + self.left_s(following) <= 0


def budget_of_call(budget_s: float | None, plans: int = 1) -> float:
    """Returns the seconds that a call for `plans` plans may take; infinity means no limit."""
    return DEFAULT_BUDGET_S * plans if budget_s is None else budget_s


class Pace:
    """An estimate of how long a kind of work takes: a guess, corrected by the times seen so far."""

    CAUTION = 1.5  # expected times are this factor above the average so far

    def __init__(self, first_factor: float) -> None:
        self._guessed, self._took = 1e-3, first_factor * 1e-3  # of small weight

    def expect_s(self, guess_s: float) -> float:
        """Returns the seconds that work with a guess of `guess_s` is expected to take."""
        return guess_s * self.CAUTION * self._took / self._guessed

    def learn(self, guess_s: float, took_s: float) -> None:
        self._guessed += guess_s
        self._took += took_s


def guess_check_s(flops: float, size: float) -> float:
    """Estimates the seconds of one candidate's check from its flops and its bytes of tensors."""
    return CHECK_S + CHECK_S_PER_BYTE * size + CHECK_S_PER_FLOP * flops


def guess_visit_s(weights: int, run_s: float) -> float:
    """Estimates the seconds of one candidate's visit if each of its runs takes at least `run_s`."""
    return SET_UP_S + SET_UP_S_PER_WEIGHT * weights + LEAST_RUNS * run_s
