# SPDX-License-Identifier: BSD-3-Clause
"""Costs, and the keys that they belong to."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torchalgo import _C
from torchalgo._C import matches_name

TICKS_PER_NS = 1024
# The default of all bounds of errors: relative L2 of a convolution against f64, and of outputs
# against the model's.
MAX_ERROR = 1e-5

# A candidate with fewer samples than this has lost a race: csrc/profiler/race.h.
LEAST_SAMPLES = 3


class Key(NamedTuple):
    """The problem, primitive and layouts that a cost belongs to."""

    problem: str
    primitive: str
    src: str
    dst: str


def key_of(problem: str, primitive: _C.Primitive) -> Key:
    return Key(problem, primitive.name, primitive.src, primitive.dst)


def key_of_native(native: _C.CostKey) -> Key:
    """Converts a key of the planner (C++)."""
    return Key(native.problem, native.primitive, native.src, native.dst)


def engine_of(primitive: str) -> str:
    """Returns a primitive's name without knobs, math type and layout of the weights."""
    return re.split(r"[{@]", primitive)[0].removesuffix(".krsc")


def longest_match(primitive: str, names: Iterable[str]) -> str | None:
    """Returns the longest of `names` that `primitive` extends, or None if there is none."""
    return max((name for name in names if matches_name(primitive, name)), key=len, default=None)


@functools.cache
def algorithm_of(primitive: str) -> str | None:
    """Returns the algorithm that offers a primitive, or None if this build has none."""
    return longest_match(primitive, dict(_C.algorithms()))


def native_key(key: Key) -> _C.CostKey:
    """Converts a key to that of the planner (C++)."""
    return _C.CostKey(*key)


@dataclass(frozen=True)
class Samples:
    """A summary of the samples of a cost, for reports: their number, and percentiles in ticks."""

    n: int = 0
    median_ticks: int = 0
    p10_ticks: int = 0
    p90_ticks: int = 0


def summarize(samples_ns: Sequence[float]) -> Samples:
    """Summarizes times in ns. Returns zeros if there is no time."""
    if not samples_ns:
        return Samples()
    ticks = sorted(round(ns * TICKS_PER_NS) for ns in samples_ns)
    last = len(ticks) - 1
    p10, p90 = ticks[round(0.1 * last)], ticks[round(0.9 * last)]
    return Samples(len(ticks), round(statistics.median(ticks)), p10, p90)


@dataclass(frozen=True)
class Cost:
    """A cost in ticks of 1/1024 ns.

    `noise_ticks` is half the width of the cost's 95 % interval, or 0 if that is unknown. A rough
    cost is an exception: its `ticks` is a lower bound, and `ticks + noise_ticks` is its fastest
    sample.

    The other fields are for reports. `workspace_bytes` is asked again before a primitive runs.
    """

    ticks: int
    noise_ticks: int = 0
    samples: Samples = Samples()
    workspace_bytes: int | None = None
    is_disturbed: bool = False  # other programs used the processors meanwhile; not stored

    @property
    def is_rough(self) -> bool:
        """Returns whether `ticks` is only a lower bound, since the candidate lost a race early."""
        return 0 < self.samples.n < LEAST_SAMPLES

    @property
    def estimate_ticks(self) -> int:
        """Returns the most likely cost in ticks. For a rough cost this is its fastest sample."""
        return self.ticks + self.noise_ticks if self.is_rough else self.ticks


class Passed(NamedTuple):
    """A passed comparison with f64: the relative L2 error, and the bound that it had to meet."""

    rel_error: float
    bound: float

    def holds_for(self, bound: float) -> bool:
        """Returns whether the comparison also passes for a caller who allows the error `bound`.

        Limits of single elements are proportional to the bound, so a tighter bound needs another
        comparison.
        """
        return bound >= self.bound


def environment(device: _C.Device | None = None) -> dict[str, str]:
    """Returns versions and the hardware of `device`, for people and for a plan's file.

    None is the CPU.
    """
    versions = {"torch": torch.__version__, "torchalgo": _C.version}
    if device is None or device.kind == "cpu":
        cpu = _C.cpu_device()
        return {**versions, "cpu": cpu.name, "isa": cpu.isa, "threads": str(cpu.threads)}
    driver, runtime = _C.cuda_versions() if device.index >= 0 else (0, 0)
    return {
        **versions,
        "gpu": device.name,
        "isa": device.isa,
        "cudnn": str(torch.backends.cudnn.version()),
        "cuda": str(runtime),
        "driver": str(driver),
    }
