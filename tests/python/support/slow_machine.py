# SPDX-License-Identifier: BSD-3-Clause
"""A clock, and a machine that is slow by it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from support.fake_bench import Taken, spread
from support.workers import CONV, OPTIONS, MakeBench, make_bench  # noqa: F401
from torchalgo import _C
from torchalgo._base.time_budget import Deadline, guess_check_s
from torchalgo._ir.costs import TICKS_PER_NS
from torchalgo._ir.failures import LATE
from torchalgo._measure.sampling import Bench


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class SlowMachine:
    """Candidates that take their time, on a clock: set-up, warm-up and rounds of each visit."""

    is_probed = False  # its bounds are not stored

    def __init__(self, clock: Clock, seed: int, run_s: float) -> None:
        self.clock, self.rng, self.run_s = clock, random.Random(seed), run_s
        self.deadline: Deadline | None = None
        self.factor = {True: self.rng.uniform(0.2, 2.0), False: self.rng.uniform(0.3, 3.0)}
        self.checked: set[tuple[str, str]] = set()
        self.rounds_s = 0.0  # of the longest visit

    def cost_s(self, problem: str, p: _C.Primitive) -> float:
        return self.run_s * (spread(problem, p) / 1000 if problem.startswith("fwd") else 0.02)

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, budget_s: float, **_: Any
    ) -> list[Any]:
        round_s = sum(self.cost_s(*task) for task in tasks)
        taken = min(rounds, max(3, math.ceil(budget_s / max(round_s, 1e-9))))
        self.clock.s += self.factor[True] * (0.01 * len(tasks) + (1 + taken) * round_s)
        return [Taken([self.cost_s(*task) * 1e9] * taken) for task in tasks]

    def check(
        self, problem: str, primitives: Sequence[_C.Primitive], _: float
    ) -> list[tuple[float, str]]:
        flops, size = _C.least_work(problem, primitives[0])
        once = guess_check_s(flops, size) + 10 * self.cost_s(problem, primitives[0])
        takes_s = self.factor[False] * once * len(primitives)
        if takes_s > (lost_s := self.lost_after_s()):
            self.clock.s += lost_s
            return [(math.nan, LATE)] * len(primitives)
        self.checked |= {(problem, p.name) for p in primitives}
        self.clock.s += takes_s
        return [(1e-7, "")] * len(primitives)

    def lost_after_s(self) -> float:
        """When a check is broken off (Deadline.is_lost), as process_bench does."""
        if self.deadline is None or not self.deadline.can_break:
            return math.inf
        return max(0.0, self.deadline.left_s("check") + self.deadline.left_s("finish")) / 2

    def bound_ticks(self, problem: str, p: _C.Primitive) -> int:
        return round(self.roofline_ns(problem, p) * TICKS_PER_NS)

    def roofline_ns(self, problem: str, p: _C.Primitive) -> float:
        return self.cost_s(problem, p) * 1e9 / 3

    def bench(self) -> Bench:
        return Bench(self.measure, self.check, self.clock, lambda: self)  # type: ignore[arg-type, return-value]
