# SPDX-License-Identifier: BSD-3-Clause
"""Wall time and CPU time of each step of one optimize call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

# Texts for the steps in the order in which they begin. Another step is shown by its name.
STEP_TEXTS = {
    "": "working",
    "read": "tracing and freezing the model",
    "values": "comparing values with the model as it was given",
    "find": "listing candidates",
    "look up": "reading the database of costs",
    "probe": "measuring the processor's rates",
    "start": "starting the process that measures",
    "measure": "measuring candidates",
    "check": "checking candidates against f64",
    "predict": "predicting costs",
    "solve": "solving for the cheapest plan",
    "compare": "comparing with other ways to plan",
    "bind": "building the planned module",
    "try": "running the planned module",
    "describe": "describing the plan",
    "guard": "timing the plan beside PyTorch",
}


@dataclass(frozen=True)
class StepTime:
    """The wall time of a step, and the CPU time of this process's threads.

    Workers are not included.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0


class Timings:
    """The time of each step so far. Time in an inner step is not counted for the outer one."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._now_s, self._cpu_s = now_s, cpu_s
        self._open: list[str] = []
        self._spent: dict[str, StepTime] = {}
        self._since = now_s(), cpu_s()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Counts the time inside the block for the step `name`."""
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    @property
    def now(self) -> str:
        """Returns the innermost running step; empty between steps. Other threads may call it."""
        return "".join(self._open[-1:])

    def of(self, name: str) -> StepTime:
        return self._spent.get(name, StepTime())

    def all(self) -> Mapping[str, StepTime]:
        """Returns the times by step, in the order of STEP_TEXTS.

        "rest" is the time outside of all steps.
        """
        self._switch()
        names = [*STEP_TEXTS, *sorted(set(self._spent) - set(STEP_TEXTS))]
        return {name: self._spent[name] for name in names if name in self._spent}

    def _switch(self) -> None:
        """Adds the time since the last switch to the innermost step."""
        now = self._now_s(), self._cpu_s()
        name = self._open[-1] if self._open else "rest"
        before = self.of(name)
        self._spent[name] = StepTime(
            before.wall_s + now[0] - self._since[0], before.cpu_s + now[1] - self._since[1]
        )
        self._since = now


def timings_text(times: Mapping[str, StepTime]) -> str:
    """Formats the times in one line, the longest steps first, without steps below 0.005 s."""
    longest = sorted(times.items(), key=lambda item: -item[1].wall_s)
    parts = [f"{name} {time.wall_s:.2f}" for name, time in longest if time.wall_s >= 0.005]
    return f"{sum(t.wall_s for t in times.values()):.2f} s: " + ", ".join(parts)
