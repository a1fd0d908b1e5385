#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Replays lazy measuring on recorded full tables: the same optimum, for which part of the time?

    python benchmarks/bench_lazy.py                      # all of benchmarks/tables
    python benchmarks/bench_lazy.py /tmp/tables/*.json.gz

The measuring loop of optimize runs as it is; only its bench is replaced by one that answers from
the table and charges the recorded seconds. Shares of the time are given of the full table and of
one primitive per algorithm, layouts and problem (the variants and knobs of an algorithm left out).
Every recorded cost is also held against its bounds: of its work, and of the same primitive with
more or less fused to it. One JSON line per network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import git_state, record
from tables import Table, read_tables, replay_arguments, usable
from torchalgo import _C
from torchalgo._ir.bounds import Peaks, family_of, sibling_floor
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._measure.measuring import TuneSettings, Tuning
from torchalgo._measure.sampling import ROUNDS, Bench

SCHEMA = 3
RESULTS = Path(__file__).with_name("results") / "lazy.jsonl"


@dataclass
class Taken:
    """As _C.Samples."""

    ns: list[float]
    failure: str = ""
    disturbed: int = 0


def sample_counts(keys: Sequence[Key], ns: Sequence[float], rounds: int, race: bool) -> list[int]:
    """How many samples a visit takes of each candidate if no time differs from ns."""
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
        return [(0.0, "")] * len(primitives)

    def bench(self) -> Any:
        peaks = Peaks.probed(self.table.probes)
        return Bench(self.measure, self.check, lambda: 0.0, lambda: peaks)  # type: ignore[arg-type]


def replay(table: Table) -> tuple[_C.Plan, Replay]:
    """The plan of lazy measuring."""
    bench = Replay(table)
    tuning = Tuning(
        table.graph, table.found, {}, TuneSettings(), bench=bench.bench(),
        transforms=table.transforms,
    )  # fmt: skip
    return tuning.settle(_C.make_plan), bench


def seconds_to_the_end(table: Table, keys: Iterable[Key]) -> float:
    """What measuring all of `keys` with all rounds takes."""
    rows = [table.rows[key] for key in keys]
    return sum(r.setup_s + (1 + ROUNDS) * r.ticks / TICKS_PER_NS * 1e-9 for r in rows)


def one_per_algorithm(table: Table) -> list[Key]:
    """The fastest of each (problem, algorithm, layouts), variants and knobs left out."""
    names = [name for name, _ in _C.algorithms()]

    def row_name(primitive: str) -> str:
        fitting = [n for n in names if primitive == n or primitive.startswith((f"{n}.", f"{n}{{"))]
        return max(fitting, key=len, default=primitive)

    best: dict[tuple[str, ...], Key] = {}
    for key, row in table.rows.items():
        group = (key.problem, row_name(key.primitive), key.src, key.dst)
        if group not in best or row.ticks < table.rows[best[group]].ticks:
            best[group] = key
    return list(best.values())


def siblings(table: Table) -> Iterator[tuple[Key, Key]]:
    """Pairs of one primitive in the same layouts with different epilogues."""
    groups: dict[tuple[str, ...], list[Key]] = {}
    for key in table.rows:
        groups.setdefault((family_of(key), *key[1:]), []).append(key)
    for group in groups.values():
        yield from ((a, b) for a in group for b in group if a != b)


def bounds_held(table: Table) -> dict[str, Any]:
    """How recorded costs lie above their bounds: the least ratio of each kind, and how many are
    below 1."""
    peaks = Peaks.probed(table.probes)
    rows = table.rows
    work = [
        rows[key].ticks / max(peaks.bound_ticks(key.problem, _C.Primitive(*key[1:])), 1)
        for key in rows
    ]
    fused, unfused = [9.0], [9.0]
    for known, other in siblings(table):
        has_more = set(known.problem.split("+")[1:]) <= set(other.problem.split("+")[1:])
        ratio = rows[other].ticks / (rows[known].ticks * sibling_floor(known, other))
        (fused if has_more else unfused).append(ratio)
    return {
        name: {"least": round(min(ratios), 3), "below": sum(r < 1 for r in ratios)}
        for name, ratios in
        {"work": work, "fused": fused, "unfused": unfused}.items()
    }  # fmt: skip


def result_of(full: Table) -> dict[str, Any]:
    table = usable(full)
    optimum, wanted = _C.make_plan(table.graph, table.found, table.transforms, table.costs())
    assert not wanted
    plan, bench = replay(table)
    all_s = seconds_to_the_end(table, table.rows)
    family_s = seconds_to_the_end(table, one_per_algorithm(table))
    return {
        "schema": SCHEMA, "benchmark": "lazy", "network": table.network,
        "threads": table.head["threads"], "costs": len(table.rows),
        "measured": len(bench.measured), "equal": plan.cost == optimum.cost,
        "status": plan.status, "ticks": plan.cost, "optimum_ticks": optimum.cost,
        "seconds": round(bench.seconds, 3), "of_full": round(bench.seconds / all_s, 4),
        "of_one_per_algorithm": round(bench.seconds / family_s, 4),
        "bounds": bounds_held(table), "table": table.head["git"], "git": git_state(),
    }  # fmt: skip


def main() -> int:
    args = replay_arguments(__doc__, RESULTS)
    results = [result_of(table) for table in read_tables(args.tables)]
    for result in results:
        record(args.out, result)
    equal = sum(result["equal"] for result in results)
    shares = [result["of_one_per_algorithm"] for result in results]
    print(
        f"the same optimum on {equal} of {len(results)}; of the time of one primitive per algorithm"
        f" and layouts: {min(shares):.0%} to {max(shares):.0%}"
    )
    return 0 if equal == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
