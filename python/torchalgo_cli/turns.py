# SPDX-License-Identifier: BSD-3-Clause
"""Makes the calls of a process that takes turns. Imports no torch, so that it starts at once."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from time import monotonic, sleep
from typing import Any

WARM_S = 0.2  # calls at the beginning of a turn that do not count

Drive = Callable[[float], list[float]]  # calls until that time of `monotonic`, and the times in s


def by_call(call: Callable[[], Any]) -> Drive:
    """Makes one call after the other, at least one."""

    def drive(until_s: float) -> list[float]:
        times = [monotonic()]
        while len(times) < 2 or times[-1] < until_s:
            call()
            times.append(monotonic())
        return [end - start for start, end in pairwise(times)]

    return drive


def answers(*drives: Drive) -> Iterator[dict[str, float]]:
    """Answers lines of stdin: when a turn begins, and for how many seconds its calls count.

    The first turn is that of the first of `drives`, the next one that of the second, and so on.
    """
    for line, drive in zip(sys.stdin, cycle(drives)):
        start_s, seconds = json.loads(line)
        sleep(max(0.0, start_s - monotonic()))
        drive(start_s + WARM_S)
        began_s = monotonic()
        times = sorted(drive(start_s + WARM_S + seconds))
        yield {
            "calls_per_s": round(len(times) / (monotonic() - began_s), 2),
            "median_ms": round(statistics.median(times) * 1e3, 4),
            "p95_ms": round(times[math.ceil(0.95 * len(times)) - 1] * 1e3, 4),
        }
