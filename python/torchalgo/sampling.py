# SPDX-License-Identifier: BSD-3-Clause
"""How times of candidates are taken."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchalgo import _C, process_bench
from torchalgo.bounds import Peaks, probe_cpu
from torchalgo.costs import TICKS_PER_NS, Cost, Key, summarize
from torchalgo.deadline import Deadline
from torchalgo.stats import cost_of_samples

ROUNDS = 9

# A cost with a wider interval than this is taken again: something else ran meanwhile.
NOISE_RATIO = 0.05
REPEATS = 3

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
    ) -> list[_C.Samples]: ...


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

    @staticmethod
    def on(device: _C.Device | None, deadline: Deadline | None = None) -> Bench:
        """On a GPU, or on the CPU if None; by a worker, unless TORCHALGO_ISOLATE=0, which is ended
        when a deadline is lost."""
        peaks = probe_cpu if device is None else _no_peaks
        if process_bench.is_isolated():
            isolated = process_bench.ProcessBench(device, deadline=deadline)
            return Bench(isolated.measure, isolated.check, peaks=peaks)
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
    weights = sum(4 * math.prod(sizes) for sizes in map(_C.weight_sizes, problems) if sizes)
    return min(MOST_COLD_BYTES, weights)


def is_noisy(samples: Sequence[float]) -> bool:
    """Whether they should be taken again."""
    cost, noise = cost_of_samples(samples)
    return noise > NOISE_RATIO * cost


class Sampler:
    """Takes times; what fails to run ends up in `failures` with the reason."""

    def __init__(
        self, bench: Bench, primitives: Mapping[Key, _C.Primitive], cold_bytes: int, seed: int
    ) -> None:
        self._bench, self._primitives = bench, primitives
        self._cold_bytes, self._seed = cold_bytes, seed
        self.failures: dict[Key, str] = {}

    def take(self, keys: Sequence[Key], budget_s: float) -> dict[Key, Cost]:
        """The costs of `keys`, in interleaved rounds, so that a slow phase of the machine decides
        nothing between them."""
        started = self._bench.now_s()
        samples: dict[Key, list[float]] = {}
        left, budget = list(keys), budget_s
        for _ in range(REPEATS):
            if not left or (samples and budget <= 0):
                break
            self._add_rounds(left, samples, budget)
            left = [key for key in left if key in samples and is_noisy(samples[key])]
            budget = budget_s - (self._bench.now_s() - started)
        return {
            key: self._cost(key, taken, *(round(x * TICKS_PER_NS) for x in cost_of_samples(taken)))
            for key, taken in samples.items()
            if key not in self.failures
        }

    def _cost(self, key: Key, samples: Sequence[float], ticks: int, noise_ticks: int) -> Cost:
        workspace = self._primitives[key].workspace_bytes
        return Cost(ticks, noise_ticks, summarize(samples), workspace)

    def _add_rounds(
        self, keys: Sequence[Key], samples: dict[Key, list[float]], budget_s: float
    ) -> None:
        taken = self._bench.measure(
            [(key.problem, self._primitives[key]) for key in keys],
            warmup=1,
            rounds=ROUNDS,
            budget_s=budget_s,
            cold_bytes=self._cold_bytes,
            seed=self._seed,
        )
        for key, result in zip(keys, taken, strict=True):
            if result.failure or not result.ns:
                self.failures[key] = result.failure or "gave no samples"
            else:
                samples.setdefault(key, []).extend(result.ns)
