# SPDX-License-Identifier: BSD-3-Clause
"""Lower bounds of costs that were not measured.

A candidate takes at least the time of its arithmetic at the machine's highest rate. It also takes
at least the time of its bytes at the highest bandwidth for that many bytes. The planner uses these
bounds in place of missing costs. The costs of the best plan are then measured, until the best plan
contains only measured costs. This gives the same plan as measuring every cost.

One bound is a rule of experience, not physics: a primitive is compared with itself with more or
fewer fused steps (FUSED_FLOOR, UNFUSED_FLOOR). benchmarks/bench_replay.py checks this rule against
every measured table.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchalgo import _C
from torchalgo._base.f32_precision import cpu_is_exact
from torchalgo._ir.costs import TICKS_PER_NS, Key
from torchalgo._ir.problems import dtype_of

# Factor on the probed rates: the clock may be higher later than during the probe.
CLOCK_MARGIN = 1.1

# A primitive with more fused steps takes at least this part of its time with fewer...
FUSED_FLOOR = 0.35
# ...and with fewer fused steps at least this part of its time with more.
UNFUSED_FLOOR = 0.2

# Types whose arithmetic runs on the units that were probed, or on slower ones.
PROBED_TYPES = ("f32", "f64")
# Error bounds of types that round so coarsely that no algorithm can meet max_error.
COARSE_BOUND = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}


@dataclass(frozen=True)
class Peaks:
    """The highest rates of the CPU: flops per ns, and bytes per ns.

    `bytes_per_ns` lists pairs of a working set's size in bytes and its bandwidth, smallest first.
    """

    flops_per_ns: float
    bytes_per_ns: tuple[tuple[int, float], ...]

    is_probed: ClassVar[bool] = True  # a probe takes time, so the database keeps its result

    @staticmethod
    def probed(probes: tuple[float, Sequence[tuple[int, float]]]) -> Peaks:
        """Makes the rates from the result of _C.probe_peaks, or from a recorded table."""
        return Peaks(probes[0], tuple((int(size), rate) for size, rate in probes[1]))

    @staticmethod
    def from_json(text: str) -> Peaks | None:
        """Reads the text of `to_json`. Returns None for any other text."""
        try:
            flops, rates = json.loads(text)
            found = Peaks.probed((float(flops), [(int(size), float(r)) for size, r in rates]))
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        every = [found.flops_per_ns, *(rate for _, rate in found.bytes_per_ns)]
        is_sane = found.bytes_per_ns and all(0 < rate < math.inf for rate in every)
        return found if is_sane else None

    def to_json(self) -> str:
        return json.dumps([self.flops_per_ns, self.bytes_per_ns])

    def raised_by(self, other: Peaks) -> Peaks:
        """Returns the higher of each pair of rates.

        Keeps its own bandwidths if the sizes differ.
        """
        flops = max(self.flops_per_ns, other.flops_per_ns)
        sizes = [[size for size, _ in peaks.bytes_per_ns] for peaks in (self, other)]
        if sizes[0] != sizes[1]:
            return Peaks(flops, self.bytes_per_ns)
        pairs = zip(self.bytes_per_ns, other.bytes_per_ns, strict=True)
        return Peaks(flops, tuple((size, max(a, b)) for (size, a), (_, b) in pairs))

    def bandwidth(self, size: float) -> float:
        """Returns the highest bandwidth, in bytes per ns, at which `size` bytes may be passed.

        Let s be the largest probed size that is at most `size`, or 0 if there is none. The result
        is the highest rate of all probed sizes from s up.
        """
        at_least = self.bytes_per_ns[-1][1]
        below = max((s for s, _ in self.bytes_per_ns if s <= size), default=0)
        return max([at_least, *(rate for s, rate in self.bytes_per_ns if s >= below)])

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        """Returns the least time of a run of `primitive`, in ticks of 1/1024 ns."""
        return int(self.roofline_ns(problem, primitive) * TICKS_PER_NS / CLOCK_MARGIN)

    def roofline_ns(self, problem: str, primitive: _C.Primitive) -> float:
        """Returns the time of a run at these rates: of its arithmetic or of its bytes.

        The arithmetic counts only for PROBED_TYPES, and only if torch rounds no float32 number.
        """
        flops, size = _C.least_work(problem, primitive)
        ns = size / self.bandwidth(size) if size else 0.0
        if dtype_of(problem) in PROBED_TYPES and cpu_is_exact():
            ns = max(ns, flops / self.flops_per_ns)
        return ns


# The shortest kernels take 1.6 us on an H100, in a CUDA graph (benchmarks/results/gpu).
LEAST_KERNEL_NS = 1000.0
# The L2 cache of a GPU passes about this many times the bytes of its memory. What a kernel writes
# may stay there.
L2_OVER_MEMORY = 3.0
# Winograd's and FFT's convolutions compute with at least this part of the multiplications.
FEWEST_FLOPS = 1 / 6
# By ISA: what a multiprocessor computes in a clock with f16 inputs, in dense flops (NVIDIA's
# whitepapers of each generation); the last one is that of later ISAs.
F16_FLOPS_PER_CLOCK = {
    "sm_70": 1024, "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_87": 2048, "sm_89": 1024,
    "sm_90": 4096, "sm_100": 8192,
}  # fmt: skip
F32_FLOPS_PER_CLOCK = 256  # without tensor cores, since sm_86; older GPUs compute less


@dataclass(frozen=True)
class GpuPeaks(Peaks):
    """The highest rates of a GPU by its description: nothing is probed.

    `flops_per_ns` is that of f32 without tensor cores, `f16_flops_per_ns` that of f16 and bf16, and
    half of it that of tf32.
    """

    f16_flops_per_ns: float = math.inf

    is_probed: ClassVar[bool] = False

    @staticmethod
    def of(device: _C.Device) -> GpuPeaks | None:
        """Returns the rates of a GPU; None if its description lacks a figure."""
        try:
            facts = json.loads(device.properties)
            clock = 1e-6 * facts["smClockRateKHz"] * facts["multiProcessorCount"]
            # Two transfers in each clock of the memory.
            memory = 2e-6 * facts["memClockRateKHz"] * facts["memoryBusWidth"] / 8
        except (ValueError, KeyError, TypeError):
            return None
        if not (clock > 0 and memory > 0):
            return None
        f16 = F16_FLOPS_PER_CLOCK.get(device.isa, max(F16_FLOPS_PER_CLOCK.values()))
        return GpuPeaks(F32_FLOPS_PER_CLOCK * clock, ((0, memory),), f16 * clock)

    def raised_by(self, other: Peaks) -> Peaks:
        """Returns itself: a description says the same each time."""
        return self

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        flops_ns, bytes_ns = self._least_ns(problem)
        ns = max(LEAST_KERNEL_NS, FEWEST_FLOPS * flops_ns, bytes_ns / L2_OVER_MEMORY)
        return int(ns * TICKS_PER_NS / CLOCK_MARGIN)

    def roofline_ns(self, problem: str, primitive: _C.Primitive) -> float:
        return max(LEAST_KERNEL_NS, *self._least_ns(problem))

    def _least_ns(self, problem: str) -> tuple[float, float]:
        """Returns the times of the direct method's arithmetic, and of the bytes in memory."""
        flops, size = _work_of(problem)
        rates = {"f16": self.f16_flops_per_ns, "bf16": self.f16_flops_per_ns}
        rates |= {"tf32": self.f16_flops_per_ns / 2, "f64": self.flops_per_ns / 2}
        rate = rates.get(dtype_of(problem), self.flops_per_ns)
        return flops / rate, size / self.bandwidth(size)


@functools.lru_cache(maxsize=1 << 14)
def _work_of(problem: str) -> tuple[float, float]:
    """Returns the flops of the direct method, and the bytes of inputs, weights and result."""
    return _C.flop_count(problem), _C.least_bytes(problem)


def probe_cpu() -> Peaks:
    """Returns the rates of this CPU with torch's number of threads.

    Each number of threads is probed once per process, or again after forget_probe().
    """
    return _probed_with(torch.get_num_threads())


def forget_probe() -> None:
    """Lets the next probe_cpu() probe again, because other programs disturbed the last one."""
    _probed_with.cache_clear()


@functools.cache
def _probed_with(_threads: int) -> Peaks:
    return Peaks.probed(_C.probe_peaks())


def family_of(key: Key) -> str:
    """Returns the problem without its fused steps.

    Candidates of one family can replace each other.
    """
    before, k, last = key.problem.rpartition("_k")
    return before + k + last.partition("+")[0]


def sibling_floor(known: Key, other: Key) -> float:
    """Returns the factor f for which the cost of `other` is at least f times the cost of `known`.

    Both keys must be of one primitive with more or fewer fused steps.
    """
    fused, rival = (set(k.problem.rpartition("_k")[2].split("+")[1:]) for k in (known, other))
    return FUSED_FLOOR if fused <= rival else UNFUSED_FLOOR
