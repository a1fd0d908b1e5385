# SPDX-License-Identifier: BSD-3-Clause
"""Makes the calls of one process of bench_load.py. Imports no torch, so that it starts at once."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
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


def loop() -> Iterator[dict[str, Any]]:
    """Computes without a pause in each turn."""
    yield {}
    yield from answers(by_call(partial(sum, range(10_000))))


def answers(drive: Drive) -> Iterator[dict[str, Any]]:
    """Answers lines of stdin: when a turn begins, and for how many seconds its calls count."""
    for line in sys.stdin:
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
