# SPDX-License-Identifier: BSD-3-Clause
"""How times of candidates are taken."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchalgo import _C
from torchalgo._base.deadline import Deadline
from torchalgo._base.stats import cost_of_setups
from torchalgo._ir.bounds import Peaks, probe_cpu
from torchalgo._ir.costs import LEAST_SAMPLES, TICKS_PER_NS, Cost, Key, summarize
from torchalgo._ir.problems import weight_count
from torchalgo._measure import process_bench
from torchalgo._measure.machine_load import WaitWatch

ROUNDS = 9

# What a plan rests on is timed again: of many candidates the fastest was also the luckiest, and
# what a plan predicts shall not rest on luck. So often it is set up anew, since where its pages lie
# makes it a tenth faster or slower for as long as they stay; and so many rounds are run each time.
SETUPS, ROUNDS_OF_SETUP = 5, 3
RETIMED_SAMPLES = SETUPS * ROUNDS_OF_SETUP

# What the least of the few samples of a race's loser may still be above the truth.
ROUGH_FLOOR = 0.9

# Weights are timed as cold as inside the model, whose other weights pass the caches in between;
# above this much nothing is left of them in any cache.
MOST_COLD_BYTES = 256 << 20


class Measure(Protocol):
    def __call__(
        self,
        tasks: Sequence[tuple[str, _C.Primitive]],
        *,
        warmup: int,
        rounds: int,
        budget_s: float,
        cold_bytes: int,
        seed: int,
        race: bool = False,
    ) -> list[_C.Measurement]: ...


# A problem, its primitives, and the bound of their relative L2.
Asked = tuple[str, Sequence[_C.Primitive], float]

Check = Callable[[str, Sequence[_C.Primitive], float], list[tuple[float, str]]]


def _no_peaks() -> Peaks | None:
    """Nothing bounds a cost before a run."""
    return None


@dataclass(frozen=True)
class Bench:
    """How to measure and check: injected, so that tests and other processes can replace it."""

    measure: Measure = _C.measure
    check: Check = _C.check_primitives
    now_s: Callable[[], float] = time.monotonic
    peaks: Callable[[], Peaks | None] = _no_peaks
    pid: Callable[[], int | None] = os.getpid  # of the process that measures

    def sampler(
        self, primitives: Mapping[Key, _C.Primitive], cold_bytes: int, seed: int
    ) -> Sampler:
        """What takes the times of `primitives`."""
        return Sampler(self, primitives, cold_bytes, seed)

    @staticmethod
    def on(device: _C.Device | None, deadline: Deadline | None = None) -> Bench:
        """On a GPU, or on the CPU if None; by a worker, unless TORCHALGO_ISOLATE=0, which is ended
        when a deadline is lost."""
        peaks = probe_cpu if device is None else _no_peaks
        if process_bench.is_isolated():
            isolated = process_bench.ProcessBench(device, deadline=deadline)
            return Bench(isolated.measure, isolated.check, peaks=peaks, pid=lambda: isolated.pid)
        if device is None:
            return Bench(peaks=peaks)
        return Bench(
            functools.partial(_C.measure, device=device),
            functools.partial(_C.check_primitives, device=device),
        )


def cold_bytes(graph: _C.Graph) -> int:
    """What the model's weights take in f32, about what passes the caches between two runs: so much
    is read before each sample."""
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    return min(MOST_COLD_BYTES, 4 * sum(map(weight_count, problems)))


class Sampler:
    """Takes times and checks; what fails to run ends up in `failures` with the reason."""

    lot = 1  # visits that are made at once

    def __init__(
        self, bench: Bench, primitives: Mapping[Key, _C.Primitive], cold_bytes: int, seed: int
    ) -> None:
        self._bench, self._primitives = bench, primitives
        self._cold_bytes, self._seed = cold_bytes, seed
        self.failures: dict[Key, str] = {}
        self.samples = 0  # that were taken
        self.disturbed = 0  # of them by something else, and taken again

    def take_all(
        self, visits: Sequence[Sequence[Key]], budget_s: float, again: bool = False
    ) -> dict[Key, Cost]:
        """The costs of at most `lot` visits, each within `budget_s`."""
        return {k: c for keys in visits for k, c in self.take(keys, budget_s, again).items()}

    def check_all(self, asked: Iterable[Asked]) -> Iterator[list[tuple[float, str]]]:
        """The errors and failures of each group."""
        return (self._bench.check(*group) for group in asked)

    def take(self, keys: Sequence[Key], budget_s: float, again: bool = False) -> dict[Key, Cost]:
        """The costs of `keys`, in interleaved rounds, so that a slow phase of the machine decides
        nothing between them.

        They race: those that are clearly slower than a rival have rough costs. `again`: all are
        timed to the end, in several set-ups, for costs that luck has no part in.
        """
        setups = SETUPS if again else 1
        of_key: dict[Key, list[list[float]]] = {key: [] for key in keys}
        watch = WaitWatch(self._bench.pid)
        for _ in range(setups):
            taken = self._bench.measure(
                [(key.problem, self._primitives[key]) for key in of_key],
                warmup=1,
                rounds=ROUNDS_OF_SETUP if again else ROUNDS,
                budget_s=budget_s / setups,
                cold_bytes=self._cold_bytes,
                seed=self._seed,
                race=not again,
            )
            for key, result in zip(list(of_key), taken, strict=True):
                if result.failure or not result.ns:
                    self.failures[key] = result.failure or "gave no samples"
                    del of_key[key]
                    continue
                self.disturbed += result.disturbed
                self.samples += len(result.ns) + result.disturbed
                of_key[key].append(result.ns)
            if not of_key:
                break
        is_disturbed = watch.was_disturbed()
        return {
            key: cost_of(samples, self._primitives[key].workspace_bytes, is_disturbed)
            for key, samples in of_key.items()
        }


def cost_of(
    setups: Sequence[Sequence[float]], workspace_bytes: int, is_disturbed: bool = False
) -> Cost:
    """What a candidate's samples say, by set-up: the median of what these tell."""
    ns = [time for samples in setups for time in samples]
    if len(ns) < LEAST_SAMPLES:
        least = min(ns)
        ticks, noise = ROUGH_FLOOR * least, (1 - ROUGH_FLOOR) * least
    else:
        ticks, noise = cost_of_setups(setups)
    own, spread = round(ticks * TICKS_PER_NS), round(noise * TICKS_PER_NS)
    return Cost(own, spread, summarize(ns), workspace_bytes, is_disturbed)
