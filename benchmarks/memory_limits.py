# SPDX-License-Identifier: BSD-3-Clause
"""Plans of C++ programs under falling limits of memory: what they need, and how long they take."""

from __future__ import annotations

import re
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch

import torchalgo
from compare import in_rounds, rounded
from harness import Record
from networks import random_input, random_network
from torchalgo._base.stats import is_faster

PX = 96
SHARES = (0.75, 0.5, 0.25, 0.0)  # between the least memory and that of the plan without a limit
CALLS = 20  # of each turn
LEAST = re.compile(r" needs (\d+) bytes")


def falling_limits(network: str, rounds: int, tune_s: float) -> list[Record]:
    """Returns a record for the plan without a limit, and one for each limit.

    All plans use one database of costs. Their modules, which compute what the programs compute,
    take turns on one thread. A ratio is the time over that without a limit in the same rounds.
    """
    torch.set_num_threads(1)
    model, x = random_network(network), random_input(network, PX)
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        database = Path(folder) / "costs.sqlite3"

        def planned(limit: int) -> torchalgo.Optimized:
            settings = torchalgo.Settings(
                own_kernels=True, memory_limit_bytes=limit, cost_db=database, progress=False
            )
            return torchalgo.optimize(model, x, budget_s=tune_s, settings=settings)

        free = planned(1 << 40)
        most = free.plan.memory_bytes or 0
        try:
            planned(most // 16)
            least = most // 16
        except torchalgo.Error as refused:
            least = int(LEAST.findall(str(refused))[0])
        limits = [least + int(share * (most - least)) for share in SHARES]
        plans = {most: free} | {limit: planned(limit) for limit in limits}

    with torch.inference_mode():
        takers = {str(limit): partial(seconds, fast, x) for limit, fast in plans.items()}
        times = in_rounds(takers, rounds)
    return [
        {
            "network": network, "px": PX, "threads": 1, "number": number,
            "limit_bytes": limit, "memory_bytes": fast.plan.memory_bytes,
            "predicted": round(fast.plan.cost_us / free.plan.cost_us, 4),
            "ms": round(1e3 * median(times[str(limit)]), 4),
            "ratio": rounded(is_faster(times[str(limit)], times[str(most)])),
            "unproven": fast.plan.unproven,
        }
        for number, (limit, fast) in enumerate(plans.items())
    ]  # fmt: skip


def seconds(fast: torchalgo.Optimized, x: torch.Tensor) -> float:
    """Returns the time of one call, the mean of a few."""
    start = time.perf_counter()
    for _ in range(CALLS):
        fast(x)
    return (time.perf_counter() - start) / CALLS
