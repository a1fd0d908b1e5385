# SPDX-License-Identifier: BSD-3-Clause
"""Measures the energy of candidates: the time of one run times the power of a loop of runs.

A meter's counter steps once per millisecond or slower, while a run may take microseconds. So the
power is measured in a loop that lasts LOOP_STEPS steps. From the loop's energy and time, those of a
request with a single run are subtracted, which are the cost of the set-up. The counter is read just
after a step, so that the error is less than one step.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchalgo import _C
from torchalgo._base.error_code import with_inner_code
from torchalgo._base.stats import cost_of_samples
from torchalgo._C import Error
from torchalgo._db import DeviceCosts
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Cost, Key, key_of, summarize
from torchalgo._measure.meters import LOOP_STEPS, Meter
from torchalgo._measure.process_bench import TakenSamples
from torchalgo._measure.sampling import Bench

Task = tuple[str, _C.Primitive]

PASSES = 3  # number of loops of each candidate, in turn with its rivals
# The most rounds of a request, whose answer holds a time for each. A longer loop is several
# requests.
MOST_ROUNDS = 100_000
MOST_LOOP_S = 3600.0  # budget of a request; high, since the number of rounds ends a loop
# If a loop is too short for the meter, a longer one follows, up to this many in all.
MOST_LOOPS = 5

# While anything runs, the machine is assumed to use at least this part of its idle power. It is far
# below 1, because something else may have run while the idle power was measured.
IDLE_SHARE = 0.5


class EnergyBench:
    """The functions `measure` and `peaks` of sampling.Bench, in nJ and per nJ instead of ns."""

    def __init__(
        self, bench: Bench, meter: Meter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.meter = meter
        self.times: dict[Key, Cost] = {}  # the times of the measured runs
        self._bench, self._sleep = bench, sleep
        self._samples: dict[Key, list[float]] = {}
        self._least_watts: float | None = None

    def as_bench(self) -> Bench:
        return replace(self._bench, measure=self.measure, peaks=self.peaks)

    def measure(self, tasks: Sequence[Task], **options: Any) -> list[Any]:
        """Measures as _C.measure does, with samples in nJ.

        `budget_s` limits the time for measuring times only; the loops take as long as the meter
        needs. There is no race, since a slow candidate may need little energy.
        """
        if "race" in options:
            options["race"] = False
        taken = self._bench.measure(tasks, **options)
        failures = [t.failure or ("" if t.ns else "gave no samples") for t in taken]
        results = [TakenSamples([], failure) for failure in failures]
        watts: list[list[float]] = [[] for _ in tasks]
        for _ in range(PASSES):
            for i, task in enumerate(tasks):
                if results[i].failure:
                    continue
                run_s = 1e-9 * statistics.median(taken[i].ns)
                power, failure = self._power(task, run_s, options)
                watts[i].append(power)
                results[i].failure = failure
        for i, (task, result) in enumerate(zip(tasks, results, strict=True)):
            if not result.failure:
                powers = itertools.cycle(watts[i])
                samples = [ns * w for ns, w in zip(taken[i].ns, powers, strict=False)]
                results[i] = TakenSamples(samples, disturbed=getattr(taken[i], "disturbed", 0))
                self._keep_times(task, taken[i].ns)
        return results

    def peaks(self) -> Peaks | None:
        """Returns peak rates per nJ, for a machine that uses no more than idle power.

        Returns None if no peak rates per ns can be probed here.
        """
        peaks = self._bench.peaks()
        if peaks is None or not peaks.is_probed:
            return None
        if self._least_watts is None:
            self._least_watts = IDLE_SHARE * self._idle_watts()
        watts = max(self._least_watts, 1e-9)
        rates = tuple((size, rate / watts) for size, rate in peaks.bytes_per_ns)
        return Peaks(peaks.flops_per_ns / watts, rates)

    # ---- power ---------------------------------------------------------------------------------

    def _power(self, task: Task, run_s: float, options: Mapping[str, Any]) -> tuple[float, str]:
        """Returns the power in watts while `task` runs, and "" or the reason why it is unknown."""
        least_s, least_uj = LOOP_STEPS * self.meter.interval_s, LOOP_STEPS * self.meter.step_uj
        rounds = math.ceil(least_s / max(run_s, 1e-9))
        uj, seconds = 0, 0.0
        for _ in range(MOST_LOOPS):
            requests = math.ceil(rounds / MOST_ROUNDS)
            setup_uj, setup_s, failure = self._spent(task, requests, 1, options)
            if failure:
                return 0.0, failure
            each = 1 + math.ceil(rounds / requests)
            uj, seconds, failure = self._spent(task, requests, each, options)
            if failure:
                return 0.0, failure
            uj, seconds = uj - setup_uj, seconds - setup_s
            if seconds >= 0.9 * least_s and uj >= least_uj:
                break
            rounds = math.ceil(rounds * min(64.0, 1.1 * max(2.0, least_uj / max(uj, 1))))
        if uj <= 0 or seconds <= 0:
            return 0.0, f"{self.meter.name} counted {uj} uJ while it ran for {seconds:.3f} s"
        return 1e-6 * uj / seconds, ""

    def _spent(
        self, task: Task, requests: int, rounds: int, options: Mapping[str, Any]
    ) -> tuple[int, float, str]:
        """Makes `requests` requests of `rounds` runs each.

        Returns their microjoules and seconds, set-up included, and "" or the reason of a failure.
        """
        asked = {**options, "rounds": rounds, "budget_s": MOST_LOOP_S}
        uj, started = self._read_at_step()
        for _ in range(requests):
            if failure := self._bench.measure([task], **asked)[0].failure:
                return 0, 0.0, failure
        end_uj, ended = self._read_at_step()
        return end_uj - uj, ended - started, ""

    def _idle_watts(self) -> float:
        uj, started = self._read_at_step()
        self._sleep(LOOP_STEPS * self.meter.interval_s)
        end_uj, ended = self._read_at_step()
        return 1e-6 * (end_uj - uj) / max(ended - started, 1e-9)

    def _read_at_step(self) -> tuple[int, float]:
        """Returns the counter in uJ just after a step, and the time in s.

        Waits for the step for at most two intervals of the meter.
        """
        now = self._bench.now_s
        first, deadline = self._read_uj(), now() + 2 * self.meter.interval_s
        while (uj := self._read_uj()) == first and now() < deadline:
            pass
        return uj, now()

    def _read_uj(self) -> int:
        try:
            return self.meter.read_uj()
        except OSError as problem:
            raise Error(
                with_inner_code(f"TA3304 energy: {self.meter.name} cannot be read: {problem}")
            ) from None

    def _keep_times(self, task: Task, ns: Sequence[float]) -> None:
        key = key_of(*task)
        samples = self._samples.setdefault(key, [])
        samples.extend(ns)
        ticks, noise = (round(x * TICKS_PER_NS) for x in cost_of_samples(samples))
        self.times[key] = Cost(ticks, noise, summarize(samples), task[1].workspace_bytes)


class EnergyCosts(DeviceCosts):
    """The costs of a plan of the least energy: energies, each with the time of the same runs.

    A candidate counts as measured only if both its energy and its time are stored.
    """

    def __init__(self, bench: EnergyBench, times: DeviceCosts) -> None:
        super().__init__(times._store, times._environment)
        self._bench, self.energies = bench, times.for_energy(bench.meter.name)
        self._times: dict[Key, Cost] = {}
        self._energies: dict[Key, Cost] = {}

    def read(self, keys: Iterable[Key] | None = None) -> dict[Key, Cost]:
        energies = self.energies.read(keys)
        times = super().read(energies)
        return self._learn(times, {key: cost for key, cost in energies.items() if key in times})

    def append(self, costs: Mapping[Key, Cost]) -> bool:
        times = {
            key: replace(self._bench.times[key], is_disturbed=cost.is_disturbed)
            for key, cost in costs.items()
        }
        self._learn(times, costs)
        are_there = super().append(times)
        return self.energies.append(costs) and are_there

    def read_peaks(self) -> Peaks | None:
        return self.energies.read_peaks()

    def keep_peaks(self, peaks: Peaks) -> None:
        self.energies.keep_peaks(peaks)

    def time_ticks(self, key: Key) -> int:
        """Returns the time of a run in ticks of 1/1024 ns, 0 if it was not measured."""
        cost = self._times.get(key)
        return 0 if cost is None else cost.ticks

    def energy_ticks(self, key: Key) -> int:
        """Returns the energy of a run in 1/1024 nJ, 0 if it was not measured."""
        cost = self._energies.get(key)
        return 0 if cost is None else cost.ticks

    def _learn(self, times: Mapping[Key, Cost], energies: Mapping[Key, Cost]) -> dict[Key, Cost]:
        self._times.update(times)
        self._energies.update(energies)
        return dict(energies)
