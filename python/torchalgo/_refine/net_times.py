# SPDX-License-Identifier: BSD-3-Clause
"""Times a plan's ops inside their net, and fits a line through the times of each kind of op."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchalgo import _C
from torchalgo._ir.problems import has_convolution

PASSES = 15
LEAST_PASSES = 7
WARMUP = 2  # TorchScript optimizes in its first two runs
FEWEST_OPS = 4  # a line is fitted through at least this many ops

Op = tuple[str, str]  # the layer, or the value that is transformed; and the problem
Call = Callable[[], Any]


@dataclass(frozen=True)
class NetTimes:
    """Samples in ns, one per pass.

    They are of the whole call, of each op of the plan, and of the rest of the call without the ops.
    If the call is one of a GraphRunner, the ops that are left to PyTorch have samples, too. They
    are part of the rest. Their keys are the positions of their nodes in the module's graph.
    """

    call: list[float]
    ops: dict[Op, list[float]]
    rest: list[float]
    left: dict[int, list[float]] = field(default_factory=dict)


def time_in_net(
    calls: Mapping[str, Call],
    *,
    passes: int = PASSES,
    budget_s: float = 2.0,
    least: int = LEAST_PASSES,
    warmup: int = WARMUP,
    seed: int = 0,
    now_ns: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, NetTimes]:
    """Times calls of rewritten modules once per pass, in random order within the pass.

    Each pass times all calls, so samples with the same index are a pair. Let no other thread run an
    optimized module meanwhile: its ops would be counted if their names are the same.

    Args:
        passes: the number of passes, unless the time ends before.
        budget_s: after this many seconds no further pass begins, once `least` passes were run.
        warmup: passes that run before and are not timed.
    """
    rng = random.Random(seed)
    times = {name: NetTimes([], {}, []) for name in calls}
    was_timing = _C.set_op_timing(False)
    try:
        with torch.no_grad():
            for call in itertools.chain.from_iterable([calls.values()] * warmup):
                call()
            started = now_ns()
            for i in range(passes):
                if i >= least and now_ns() - started > budget_s * 1e9:
                    break
                for name in rng.sample(list(calls), len(calls)):
                    _add_pass(times[name], calls[name], now_ns)
    finally:
        _C.set_op_timing(was_timing)
    return times


def _add_pass(times: NetTimes, call: Call, now_ns: Callable[[], int]) -> None:
    _C.take_op_times()
    _C.set_op_timing(True)
    before = now_ns()
    call()
    times.call.append(float(now_ns() - before))
    _C.set_op_timing(False)
    once: dict[Op, float] = {}
    for layer, problem, start_ns, end_ns, node in _C.take_op_times():
        if node >= 0:
            times.left.setdefault(node, []).append(float(end_ns - start_ns))
        else:
            once[layer, problem] = once.get((layer, problem), 0.0) + end_ns - start_ns
    times.rest.append(times.call[-1] - sum(once.values()))
    for op, ns in once.items():
        times.ops.setdefault(op, []).append(ns)


@dataclass(frozen=True)
class Line:
    """The line measured = factor * alone + call_ns, with times in ns."""

    factor: float = 1.0
    call_ns: float = 0.0

    def at(self, alone_ns: float) -> float:
        return self.factor * alone_ns + self.call_ns

    def alone(self, measured_ns: float) -> float:
        """Returns the time alone, in ns, of an op on the line with this time in the net."""
        return (measured_ns - self.call_ns) / self.factor


def fit_line(alone: Sequence[float], measured: Sequence[float]) -> Line:
    """Fits a line through points, of which up to a quarter may be outliers.

    The slope is the median of the slopes between any two points, weighted by their distance. If no
    two points differ, it is the median ratio, or 1 without points. `call_ns` is the median of the
    differences that remain, at least 0, and 0 with fewer than FEWEST_OPS points.

    Source: Sen 1968, JASA 63, pp. 1379-1389; the weights: Sievers 1978, JASA 73, pp. 628-631.
    """
    slopes = [
        ((y2 - y1) / (x2 - x1), abs(x2 - x1))
        for (x1, y1), (x2, y2) in itertools.combinations(zip(alone, measured, strict=True), 2)
        if x1 != x2
    ]
    factor = _weighted_median(slopes)
    if factor <= 0.0:
        ratios = [y / x for x, y in zip(alone, measured, strict=True) if x > 0 and y > 0]
        factor = statistics.median(ratios) if ratios else 1.0
    left = [y - factor * x for x, y in zip(alone, measured, strict=True)]
    call_ns = max(0.0, statistics.median(left)) if len(left) >= FEWEST_OPS else 0.0
    return Line(factor, call_ns)


def _weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Returns the median of pairs of value and weight. Returns 0 if there are none."""
    ordered = sorted(values)
    half, so_far = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        so_far += weight
        if so_far >= half:
            return value
    return 0.0


def kind_of(problem: str) -> str:
    """Returns the kind of an op's problem. Each kind has a line of its own."""
    if has_convolution(problem):
        return "convolution"
    return "transform" if problem.startswith("transform_") else "other"
