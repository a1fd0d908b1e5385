# SPDX-License-Identifier: BSD-3-Clause
"""Calls as bare CUDA graphs, and their times: what all networks of gpu_check.py are timed by."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

ROUNDS = 11
ROUND_MS = 10.0  # of each graph
MOST_REPLAYS = 200

Call = Callable[[], Any]


def in_graph(call: Call, warmup: int = 3) -> Call:
    """Captures `call` as a CUDA graph. Returns the function that replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        call()
    return graph.replay


def repeated_us(replay: Call, count: int) -> float:
    """Returns the time of one of `count` replays in a row, by events."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        replay()
    stop.record()
    stop.synchronize()
    return float(1e3 * start.elapsed_time(stop) / count)


def graph_us(replays: Mapping[str, Call], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Returns the times of each graph: one per round, in which the graphs take turns."""
    counts = {}
    for name, replay in replays.items():
        repeated_us(replay, 3)
        us = max(repeated_us(replay, 3), 1.0)
        counts[name] = min(MOST_REPLAYS, max(1, round(1e3 * ROUND_MS / us)))
    times: dict[str, list[float]] = {name: [] for name in replays}
    rng = random.Random(0)
    for _ in range(rounds):
        for name in rng.sample(list(replays), len(replays)):
            times[name].append(round(repeated_us(replays[name], counts[name]), 2))
    return times


def median_us(times: Sequence[float]) -> float:
    return statistics.median(times)


def geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan
