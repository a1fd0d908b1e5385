# SPDX-License-Identifier: BSD-3-Clause
"""A machine with all costs known beforehand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replay import sample_counts
from support.plan_samples import GraphText
from torchalgo import _C
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of, native_key
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning


@dataclass
class Taken:
    ns: list[float]
    failure: str = ""
    disturbed: int = 0


class DrawnMachine:
    """Random costs of all candidates of a random graph, and bounds that hold for them."""

    is_probed = False  # its bounds are not stored

    def __init__(self, seed: int, bound_factor: float = 1.0) -> None:
        self.pick = random.Random(seed)
        self.graph = _C.parse_graph(str(GraphText(seed, self.pick.choice([2, 3, 4, 5, 6]))))
        self.found = _C.find_candidates(self.graph)
        self.transforms = _C.transform_candidates(self.graph, self.found)
        every = [c for own in self.found.by_anchor for c in own] + self.transforms
        self.costs: dict[Key, int] = {}
        self.bounds: dict[Key, int] = {}
        base: dict[tuple[str, ...], float] = {}
        for key in sorted({key_of(c.problem, c.primitive) for c in every}):
            drawn = (
                self.pick.uniform(1e3, 2e4) if key.src != key.dst else self.pick.uniform(1e4, 1e5)
            )
            alike = base.setdefault((family_of(key), *key[1:]), drawn)
            fused = 1 + 0.25 * key.problem.count("+")
            self.costs[key] = round(alike * fused * self.pick.uniform(0.95, 1.05))
            share = self.pick.choice([0.0, 0.5, 0.9, 1.0]) * bound_factor
            self.bounds[key] = int(share * self.costs[key])
        self.measured: set[Key] = set()

    def bound_ticks(self, problem: str, primitive: _C.Primitive) -> int:
        return self.bounds[key_of(problem, primitive)]

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], rounds: int, race: bool, **_: Any
    ) -> list[Taken]:
        keys = [key_of(problem, primitive) for problem, primitive in tasks]
        self.measured.update(keys)
        ns = [self.costs[key] / TICKS_PER_NS for key in keys]
        counts = sample_counts(keys, ns, rounds, race)
        return [Taken([one_ns] * count) for one_ns, count in zip(ns, counts, strict=True)]

    def check(self, _problem: str, primitives: Sequence[Any], _: float) -> list[tuple[float, str]]:
        return [(0.0, "")] * len(primitives)

    def lazy_plan(self) -> _C.Plan:
        bench = Bench(self.measure, self.check, lambda: 0.0, lambda: self)  # type: ignore
        tuning = Tuning(
            self.graph, self.found, {}, TuneSettings(), bench=bench, transforms=self.transforms
        )
        return tuning.settle(_C.make_plan)

    def optimum(self) -> int:
        table = _C.CostTable()
        for key, ticks in self.costs.items():
            table.set(native_key(key), ticks, "measured")
        plan, wanted = _C.make_plan(self.graph, self.found, self.transforms, table)
        assert not wanted
        return plan.cost


def key(problem: str, name: str = "p.a", src: str = "nchw") -> Key:
    return Key(problem, name, src, src)
