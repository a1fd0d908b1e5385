# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that tune together while one of them fails. Costs are invented, with each rank's own noise.

`python tests/python/support/ranks.py CASE` prints a line of JSON for each rank that ends.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

import torchalgo
from torchalgo import _C
from torchalgo._distributed.distribute import Hardware
from torchalgo._measure.process_bench import TakenSamples
from torchalgo._measure.sampling import Bench
from torchalgo.tune import plan_hash, tune

SIZE, VICTIM = 3, 1
TIMEOUT_S = 4.0  # of the group


def make_model(channels: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, k in enumerate((channels, 16, 24, 24, 32, 12)):
        layers += [nn.Conv2d(3 if not i else layers[-2].out_channels, k, 3, 1, 1), nn.ReLU()]  # type: ignore[arg-type]
    return nn.Sequential(*layers).eval()


class InventedBench:
    """Costs from names, and this rank's noise; every 17th candidate cannot run."""

    def __init__(self, rank: int, fault: Callable[[], None] = lambda: None) -> None:
        self._noise, self._fault = random.Random(rank), fault
        self.calls = 0

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **_: Any
    ) -> list[TakenSamples]:
        self.calls += 1
        self._fault()
        return [self._take(problem, primitive, rounds) for problem, primitive in tasks]

    def check(self, _: str, primitives: Sequence[Any], __: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def _take(self, problem: str, primitive: _C.Primitive, rounds: int) -> TakenSamples:
        ns = 1e3 + zlib.crc32(f"{problem} {primitive}".encode()) % 100_000
        if not primitive.name.startswith(("aten", "layout")) and round(ns) % 17 == 0:
            return TakenSamples([], "invented failure")
        return TakenSamples([ns * self._noise.uniform(0.99, 1.01) for _ in range(rounds)])

    def bench(self) -> Bench:
        return Bench(self.measure, self.check, now_s=time.monotonic)  # type: ignore[arg-type]


def raise_error() -> None:
    raise torchalgo.Error("measure: an invented fault")


FAULTS: dict[str, Callable[[], None]] = {
    "raises": raise_error,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def run_rank(case: str, rank: int, store: str) -> NoReturn:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", f"file://{store}", timeout, SIZE, rank)
    is_victim = rank == VICTIM
    bench = InventedBench(rank, FAULTS.get(case, lambda: None) if is_victim else lambda: None)
    own: dict[str, Any] = {"rank": rank}
    try:
        fast = tune(
            make_model(12 if is_victim and case == "another model" else 8),
            torch.rand(1, 3, 24, 24),
            settings=torchalgo.Settings(progress=False, cost_db=False),
            bench=bench.bench(),
            hardware=Hardware(f"host {rank}", ("core 0",)),
        )
        own["plan"] = plan_hash(fast.plan)
    except Exception as problem:
        own["error"] = f"{'' if isinstance(problem, torchalgo.Error) else type(problem)}{problem}"
    os.write(1, f"{json.dumps({**own, 'calls': bench.calls})}\n".encode())
    os._exit(0)


def main() -> None:
    """Forks the ranks before anything has started threads. Kills a rank that is left at the end."""
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(SIZE):
            pids.append(os.fork())
            if not pids[-1]:
                run_rank(sys.argv[1], rank, f"{folder}/store")
        for rank in sorted(range(SIZE), key=lambda rank: rank == VICTIM):
            if rank == VICTIM and sys.argv[1] == "stopped":
                os.kill(pids[rank], signal.SIGKILL)
            os.waitpid(pids[rank], 0)


if __name__ == "__main__":
    main()
