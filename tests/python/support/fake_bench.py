# SPDX-License-Identifier: BSD-3-Clause
"""A machine whose times are drawn, and tunings on it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from torchalgo import _C
from torchalgo._ir.overrides import forced_primitives
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning


@dataclasses.dataclass
class Taken:
    ns: list[float]
    failure: str = ""
    disturbed: int = 0


Cost = Callable[[str, _C.Primitive], float]


class FakeBench:
    """Times from a function, and a log of what was asked."""

    def __init__(self, cost_ns: Cost) -> None:
        self.cost_ns = cost_ns
        self.measured: list[tuple[str, str, int]] = []
        self.tasks: list[tuple[str, str, str, str]] = []
        self.checked: list[tuple[str, str]] = []
        self.failures: dict[str, str] = {}
        self.check_errors: dict[str, float] = {}
        self.calls = 0
        self.visits: list[list[tuple[str, str]]] = []
        self.interrupt_after: int | None = None  # calls
        self.clock_s = 0.0

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **options: Any
    ) -> list[Any]:
        self.calls += 1
        if self.interrupt_after is not None and self.calls > self.interrupt_after:
            raise KeyboardInterrupt
        self.clock_s += 1.0
        self.visits.append([(problem, p.name) for problem, p in tasks])
        results = []
        for problem, p in tasks:
            self.measured.append((problem, p.name, rounds))
            self.tasks.append((problem, p.name, p.src, p.dst))
            failure = self.failures.get(p.name, "")
            results.append(Taken([] if failure else [self.cost_ns(problem, p)] * rounds, failure))
        return results

    def check(
        self, problem: str, primitives: Sequence[_C.Primitive], bound: float
    ) -> list[tuple[float, str]]:
        results = []
        for p in primitives:
            self.checked.append((problem, p.name))
            error = self.check_errors.get(p.name, 1e-7)
            results.append((error, f"relative L2 {error}" if error > bound else ""))
        return results

    def bench(self) -> Bench:
        return Bench(self.measure, self.check, lambda: self.clock_s)


def spread(problem: str, p: _C.Primitive) -> float:
    """Between 1 and 1.8 us, the same on every machine; fused costs no less than alone."""
    base = zlib.crc32(f"{problem.split('+')[0]} {p.name} {p.src} {p.dst}".encode()) % 800
    return 1000.0 + base + problem.count("+")


def fake_optimize(monkeypatch: pytest.MonkeyPatch, cost_ns: Cost) -> FakeBench:
    """Gives calls of optimize these times, with real numerics.

    How fast this machine runs the network corrects none of the times.
    """
    fake = FakeBench(cost_ns)
    bench = Bench(fake.measure, _C.check_primitives, lambda: fake.clock_s)
    monkeypatch.setattr(Bench, "on", staticmethod(lambda *_: bench))
    return fake


def make_tuning(imported: _C.Imported, fake: FakeBench, **settings: Any) -> Tuning:
    found = _C.find_candidates(imported.graph)
    overrides = settings.pop("overrides", None)
    forced = forced_primitives(imported.graph, found, overrides)
    return Tuning(imported.graph, found, forced, TuneSettings(**settings), bench=fake.bench())
