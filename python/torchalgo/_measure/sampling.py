# SPDX-License-Identifier: BSD-3-Clause
"""Times candidates and turns the samples into costs."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchalgo import _C
from torchalgo._base.stats import cost_of_setups
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.bounds import GpuPeaks, Peaks, probe_cpu
from torchalgo._ir.costs import LEAST_SAMPLES, TICKS_PER_NS, Cost, Key, summarize
from torchalgo._ir.problems import weight_count
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._measure.process_bench import ProcessBench, Task, is_isolated

ROUNDS = 9

# The candidates that a plan chooses are timed again. The fastest of many candidates was also a
# lucky one, and a plan's predicted time must not depend on luck. SETUPS is how often a candidate is
# set up anew: the addresses of its memory pages change its time by up to 10 %, for as long as the
# pages stay. ROUNDS_OF_SETUP is the number of rounds after each set-up.
SETUPS, ROUNDS_OF_SETUP = 5, 3
RETIMED_SAMPLES = SETUPS * ROUNDS_OF_SETUP

# The fastest of the few samples of a candidate that lost a race may be above its true cost. The
# true cost is assumed to be at least this part of it.
ROUGH_FLOOR = 0.9

# Before each sample, as many bytes are read as the model's other weights would move through the
# caches. So the timed weights are as cold as they are inside the model. After this many bytes, no
# cache holds any of the timed weights.
MOST_COLD_BYTES = 256 << 20


# A problem, its primitives, and the largest relative L2 error that they may have.
Asked = tuple[str, Sequence[_C.Primitive], float]
Checked = list[tuple[float, str]]  # the error of each primitive, and why it fails; "" if it passed


def no_peaks() -> Peaks | None:
    """Returns None: there are no peak rates that give lower bounds of costs."""
    return None


_HERE = ProcessBench(has_worker=False)


@dataclass(frozen=True)
class Bench:
    """The functions that measure and check candidates. Tests and other processes replace them."""

    measure: Callable[..., list[Any]] = _C.measure  # called as it; each result is a TakenSamples
    check: Callable[[str, Sequence[_C.Primitive], float], Checked] = _C.check_primitives
    now_s: Callable[[], float] = time.monotonic
    peaks: Callable[[], Peaks | None] = no_peaks
    pid: Callable[[], int | None] = os.getpid  # the id of the process that measures
    start: Callable[[], None] = lambda: None  # waits until that process can measure
    release: Callable[[], None] = lambda: None  # frees the memory that it keeps for measuring
    componentwise: Callable[[Sequence[Task]], Checked] = _HERE.componentwise

    def sampler(self, primitives: Mapping[Key, _C.Primitive], cold_bytes: int) -> Sampler:
        """Returns a sampler for `primitives`, see Sampler."""
        return Sampler(self, primitives, cold_bytes)

    @staticmethod
    def on(device: _C.Device | None, deadline: Deadline | None = None) -> Bench:
        """Returns a bench for a GPU, or for the CPU if `device` is None.

        Candidates run in a worker process, unless TORCHALGO_ISOLATE=0. The worker is ended
        when a step of `deadline` is lost, see Deadline.is_lost.
        """
        runs = ProcessBench(device, deadline=deadline, has_worker=is_isolated())
        return Bench(
            runs.measure, runs.check, pid=lambda: runs.pid, start=runs.start, release=runs.release,
            componentwise=runs.componentwise,
            peaks=probe_cpu if device is None else functools.partial(GpuPeaks.of, device),
        )  # fmt: skip


def cold_bytes(graph: _C.Graph) -> int:
    """Returns the bytes to read before each sample: the size of the model's weights in f32.

    About as much passes the caches between two runs of the model. At most MOST_COLD_BYTES.
    """
    problems = [node.problem for node in graph.nodes if node.problem is not None]
    return min(MOST_COLD_BYTES, 4 * sum(map(weight_count, problems)))


class Sampler:
    """Times and checks candidates. Those that fail are put into `failures`, with the reason."""

    lot = 1  # number of visits that one call makes

    def __init__(
        self, bench: Bench, primitives: Mapping[Key, _C.Primitive], cold_bytes: int
    ) -> None:
        self._bench, self._primitives, self._cold_bytes = bench, primitives, cold_bytes
        self.failures: dict[Key, str] = {}
        self.samples = 0  # number of samples taken, disturbed ones included
        self.disturbed = 0  # number of samples that something else disturbed, and were repeated

    def take_all(
        self, visits: Sequence[Sequence[Key]], budget_s: float, again: bool = False
    ) -> dict[Key, Cost]:
        """Returns the costs of at most `lot` visits. Each visit takes at most `budget_s`."""
        return {k: c for keys in visits for k, c in self.take(keys, budget_s, again).items()}

    def check_all(self, asked: Iterable[Asked]) -> Iterator[list[tuple[float, str]]]:
        """Yields the list of (error, failure) of each group; an empty failure if it passed."""
        return (self._bench.check(*group) for group in asked)

    def take(self, keys: Sequence[Key], budget_s: float, again: bool = False) -> dict[Key, Cost]:
        """Times `keys` in interleaved rounds and returns their costs.

        Interleaving spreads a slow phase of the machine over all candidates alike. By default the
        candidates race: one that is clearly slower than a rival is timed briefly, and gets a rough
        cost. Candidates that fail are left out and put into `failures`.

        Args:
            budget_s: seconds for all keys together.
            again: times all candidates to the end, in SETUPS set-ups, so that luck has no
                influence on the costs.
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
                seed=0,
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
    """Returns a candidate's cost: the median over its set-ups.

    With fewer than LEAST_SAMPLES samples in all, the cost is rough: ROUGH_FLOOR times the fastest
    sample.

    Args:
        setups: the samples of each set-up, in ns.
    """
    ns = [time for samples in setups for time in samples]
    if len(ns) < LEAST_SAMPLES:
        least = min(ns)
        ticks, noise = ROUGH_FLOOR * least, (1 - ROUGH_FLOOR) * least
    else:
        ticks, noise = cost_of_setups(setups)
    own, spread = round(ticks * TICKS_PER_NS), round(noise * TICKS_PER_NS)
    samples = summarize(ns)
    if len(setups) == 1:  # many samples of one set-up do not count as timed again
        samples = dataclasses.replace(samples, n=min(samples.n, RETIMED_SAMPLES - 1))
    return Cost(own, spread, samples, workspace_bytes, is_disturbed)
