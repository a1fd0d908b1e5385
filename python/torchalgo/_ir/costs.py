# SPDX-License-Identifier: BSD-3-Clause
"""Costs: what one belongs to, what it says, and what a place that keeps costs must do."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from torchalgo import _C
from torchalgo._ir.failures import Failure

if TYPE_CHECKING:
    from torchalgo._ir.bounds import Peaks

TICKS_PER_NS = 1024

# With fewer samples than this it lost a race, see csrc/profiler/race.h.
LEAST_SAMPLES = 3


class Key(NamedTuple):
    """Problem, primitive and layouts: what a cost belongs to."""

    problem: str
    primitive: str
    src: str
    dst: str


def key_of(problem: str, primitive: _C.Primitive) -> Key:
    return Key(problem, primitive.name, primitive.src, primitive.dst)


def native_key(key: Key) -> _C.CostKey:
    return _C.CostKey(*key)


@dataclass(frozen=True)
class Samples:
    """The samples behind a cost, for reports: their number, and percentiles in 1/1024 ns."""

    n: int = 0
    median_ticks: int = 0
    p10_ticks: int = 0
    p90_ticks: int = 0


def summarize(samples_ns: Sequence[float]) -> Samples:
    """The summary of times in ns."""
    if not samples_ns:
        return Samples()
    ticks = sorted(round(ns * TICKS_PER_NS) for ns in samples_ns)
    last = len(ticks) - 1
    p10, p90 = ticks[round(0.1 * last)], ticks[round(0.9 * last)]
    return Samples(len(ticks), round(statistics.median(ticks)), p10, p90)


@dataclass(frozen=True)
class Cost:
    """ticks: 1/1024 ns; noise_ticks: half the width of its 95 % interval, 0 if unknown.

    Of what lost a race, ticks is the lower end of the interval, and noise_ticks its whole width.

    The rest is for reports: the workspace is asked again before a primitive runs.
    """

    ticks: int
    noise_ticks: int = 0
    samples: Samples = Samples()
    workspace_bytes: int | None = None
    is_disturbed: bool = False  # other programs used the processors meanwhile: it is not kept

    @property
    def is_rough(self) -> bool:
        """True if it is but a lower bound: of what lost a race after too few samples for more."""
        return 0 < self.samples.n < LEAST_SAMPLES

    @property
    def estimate_ticks(self) -> int:
        """The most likely cost, where a lower bound is not asked for."""
        return self.ticks + self.noise_ticks if self.is_rough else self.ticks


class Passed(NamedTuple):
    """A passed comparison with f64: the relative L2, and the bound that was kept."""

    rel_error: float
    bound: float

    def holds_for(self, bound: float) -> bool:
        """True if it would pass for a caller who allows the error `bound`. Single elements have
        limits in proportion to the bound, so that a tighter bound needs another comparison."""
        return bound >= self.bound


class CostFile(Protocol):
    """What tuning reads and appends to."""

    def read(self, keys: Iterable[Key] | None = None) -> dict[Key, Cost]:
        """The costs of `keys`, or all, that hold here."""
        ...

    def append(self, costs: Mapping[Key, Cost]) -> bool:
        """Keeps `costs` but the disturbed ones, each in place of an older one; True: they are on
        disk."""
        ...

    def read_peaks(self) -> Peaks | None:
        """The highest rates that this machine was ever probed at; None: it was not."""
        ...

    def keep_peaks(self, peaks: Peaks) -> None:
        """In place of what read_peaks gave."""
        ...

    def read_checks(self, keys: Iterable[Key]) -> dict[Key, Passed]:
        """Which of `keys` passed the comparison with f64 here."""
        ...

    def append_checks(self, checks: Mapping[Key, Passed]) -> bool:
        """Keeps passed comparisons; True: they are on disk."""
        ...

    def read_failures(self, keys: Iterable[Key]) -> dict[Key, Failure]:
        """Why candidates among `keys` cannot be chosen here, as was found out before."""
        ...

    def append_failures(self, failures: Mapping[Key, Failure]) -> bool:
        """Keeps why candidates cannot be chosen; True: it is on disk."""
        ...

    def forget_failures(self, keys: Iterable[Key], *, checked: bool) -> None:
        """Of candidates that ran again and did not fail, or were even `checked`."""
        ...


def environment(device: _C.Device | None = None) -> dict[str, str]:
    """Where a plan was made, for people and for the plan's file."""
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
