# SPDX-License-Identifier: BSD-3-Clause
"""Tunes on recorded cost tables: a bench that answers from a table, and what plans cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cost_tables import Table
from torchalgo import _C
from torchalgo._base.call_context import CallContext
from torchalgo._base.time_budget import Deadline
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._measure.sampling import Bench
from torchalgo._measure.tuning import TuneSettings, Tuning
from torchalgo._predict.model import CostModel

Ticks = Mapping[Key, int]


@dataclass
class Taken:
    """The samples of one candidate, with the fields of _C.Samples."""

    ns: list[float]
    failure: str = ""
    disturbed: int = 0


def sample_counts(keys: Sequence[Key], ns: Sequence[float], rounds: int, race: bool) -> list[int]:
    """Returns the number of samples of each candidate if no time differs from ns."""
    if not race:
        return [rounds] * len(keys)
    places: dict[Key, int] = {}
    of_key = [places.setdefault(key._replace(primitive=""), len(places)) for key in keys]
    return _C.samples_without_noise(of_key, ns, rounds)


@dataclass
class Replay:
    """A bench that answers from a table, and what measuring would have taken.

    Each candidate is charged its own set-up, which in a visit it would share with others.
    """

    table: Table
    measured: set[Key] = field(default_factory=set)
    seconds: float = 0.0
    check_s: float = 0.0  # of each candidate's check

    def measure(
        self,
        tasks: Sequence[tuple[str, _C.Primitive]],
        *,
        rounds: int,
        warmup: int,
        race: bool,
        **_: Any,
    ) -> list[Taken]:
        keys = [key_of(problem, primitive) for problem, primitive in tasks]
        ns = [self.table.rows[key].ticks / TICKS_PER_NS for key in keys]
        counts = sample_counts(keys, ns, rounds, race)
        for key, one_ns, count in zip(keys, ns, counts, strict=True):
            self.seconds += self.table.rows[key].setup_s + (warmup + count) * one_ns * 1e-9
        self.measured.update(keys)
        return [Taken([one_ns] * count) for one_ns, count in zip(ns, counts, strict=True)]

    def check(
        self, problem: str, primitives: Sequence[_C.Primitive], bound: float
    ) -> list[tuple[float, str]]:
        self.seconds += self.check_s * len(primitives)
        return [(0.0, "")] * len(primitives)

    def bench(self) -> Any:
        peaks = Peaks.probed(self.table.probes)
        return Bench(self.measure, self.check, lambda: 0.0, lambda: peaks)  # type: ignore[arg-type]


class ForMeasuring(Deadline):
    """A budget for measuring alone: there is always time for what follows."""

    def keep(self, step: str, seconds: float) -> None:
        pass

    def left_s(self, step: str) -> float:
        return super().left_s(step) if step == "measure" else math.inf


def tune(
    table: Table,
    budget_s: float | None = None,
    model: CostModel | None = None,
    peaks: Peaks | None = None,
    check_s: float = 0.0,
) -> tuple[_C.Plan, Replay]:
    """Runs the measuring loop of optimize on a table.

    Args:
        budget_s: of measuring, in the seconds that the table holds; None: without end.
        model: predicts the costs that are not measured.
        peaks: the rates that bound costs; None: those of the table.
        check_s: the seconds of each candidate's check.
    Returns: the plan, and what was measured.
    """
    replay = Replay(table, check_s=check_s)
    bench = dataclasses.replace(replay.bench(), now_s=lambda: replay.seconds)
    if peaks is not None:
        bench = dataclasses.replace(bench, peaks=lambda: peaks)
    deadline = ForMeasuring(budget_s, lambda: replay.seconds)
    tuning = Tuning(
        table.graph, table.found, {}, TuneSettings(), bench=bench, transforms=table.transforms,
        guide=lambda _: model, call=CallContext.start(deadline),
    )  # fmt: skip
    return tuning.settle(_C.make_plan), replay


def ticks_of(table: Table) -> dict[Key, int]:
    """The recorded costs."""
    return {key: row.ticks for key, row in table.rows.items()}


def plan_of(table: Table, costs: _C.CostTable, local: bool = False, **options: Any) -> _C.Plan:
    planner: Callable[..., tuple[_C.Plan, list[_C.CostKey]]]
    planner = _C.make_local_plan if local else _C.make_plan
    plan, wanted = planner(table.graph, table.found, table.transforms, costs, **options)
    assert not wanted, wanted[:3]
    return plan


def keys_of(plan: _C.Plan) -> list[Key]:
    keys = [key_of(node.problem, node.primitive) for node in plan.nodes if node.primitive.name]
    return keys + [key_of(t.problem, t.primitive) for t in plan.transforms]


def price(plan: _C.Plan, ticks: Ticks) -> int:
    return sum(ticks[key] for key in keys_of(plan) if not _C.is_view(key.primitive))


def paid_ticks(table: Table, believed: Ticks) -> int:
    """Makes the plan of `believed` costs. Returns its time by the table."""
    return price(plan_of(table, table.costs(believed)), ticks_of(table))
