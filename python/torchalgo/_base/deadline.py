# SPDX-License-Identifier: BSD-3-Clause
"""The end of one optimize call, what is to follow before it, and how long a piece of work lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

OUT_OF_BUDGET = "out of budget"

# The time budget of a call that names none, for each of its plans.
DEFAULT_BUDGET_S = 90.0

# A candidate's check on one core of an EPYC: a reference in f64, six runs at least, comparisons.
# A pace corrects it on other machines.
CHECK_S = 3e-3
CHECK_S_PER_BYTE = 1.5e-8  # of inputs, weights and result
CHECK_S_PER_FLOP = 6e-11

# A visit sets each candidate up, warms it up once and takes three samples at least. Set-ups in the
# recorded tables took 2 to 5 ms, and 7 to 20 ns per weight (benchmarks/tables).
SET_UP_S = 3e-3
SET_UP_S_PER_WEIGHT = 1e-8
LEAST_RUNS = 4


class Deadline:
    """The end of a call. Each step must end earlier by the time that is reserved for later steps.

    The steps in their order: "measure", "check", "finish" (bind, try, guard).
    """

    STEPS = ("measure", "check", "finish")

    def __init__(self, budget_s: float | None, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begins now. There is no end if `budget_s` is None or infinite."""
        self.budget_s = math.inf if budget_s is None else budget_s
        self.now_s = now_s
        self._end = now_s() + self.budget_s
        self._kept = dict.fromkeys(self.STEPS, 0.0)
        self.can_break = False  # there is a plan without what runs now

    @property
    def has_end(self) -> bool:
        """False without a budget."""
        return self.budget_s < math.inf

    def keep(self, step: str, seconds: float) -> None:
        """Reserves `seconds` for a step, in place of what was reserved for it before."""
        self._kept[step] = seconds

    def end_within(self, seconds: float) -> None:
        """Moves the end forward, to `seconds` from now at most; nothing stays reserved."""
        self._end = min(self._end, self.now_s() + seconds)
        self._kept = dict.fromkeys(self.STEPS, 0.0)

    def left_s(self, step: str) -> float:
        """Seconds until a step must end."""
        later = self.STEPS[self.STEPS.index(step) + 1 :]
        return self._end - self.now_s() - sum(self._kept[name] for name in later)

    def is_over(self, step: str) -> bool:
        return self.left_s(step) <= 0

    def is_lost(self, step: str) -> bool:
        """Whether a step has taken half of what is kept for the next one: it must be broken off,
        if it can."""
        if not self.can_break:
            return False
        following = self.STEPS[min(self.STEPS.index(step) + 1, len(self.STEPS) - 1)]
        return self.left_s(step) + self.left_s(following) <= 0


def budget_of_call(budget_s: float | None, plans: int = 1) -> float:
    """Returns the seconds that a call may take for so many plans; infinity means without end."""
    return DEFAULT_BUDGET_S * plans if budget_s is None else budget_s


class Pace:
    """How long a kind of work lasts: a guess, corrected by what it took so far."""

    CAUTION = 1.5  # over the average so far

    def __init__(self, first_factor: float) -> None:
        self._guessed, self._took = 1e-3, first_factor * 1e-3  # of next to no weight

    def expect_s(self, guess_s: float) -> float:
        """What work that is guessed at `guess_s` will take."""
        return guess_s * self.CAUTION * self._took / self._guessed

    def learn(self, guess_s: float, took_s: float) -> None:
        self._guessed += guess_s
        self._took += took_s


def guess_check_s(flops: float, size: float) -> float:
    """Guesses the seconds of one candidate's check from its arithmetic and bytes of tensors."""
    return CHECK_S + CHECK_S_PER_BYTE * size + CHECK_S_PER_FLOP * flops


def guess_visit_s(weights: int, run_s: float) -> float:
    """Guesses the seconds of one candidate's visit, whose runs take `run_s` at least."""
    return SET_UP_S + SET_UP_S_PER_WEIGHT * weights + LEAST_RUNS * run_s
