#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How good is the plan after a part of the measuring? Replayed on recorded full tables.

    python benchmarks/bench_anytime.py                   # all of benchmarks/tables
    python benchmarks/bench_anytime.py /tmp/tables/*.json.gz

The loop of optimize runs as in bench_lazy.py, once as it is and once guided by a model that is
learned from the other tables (no row of any problem that the network has). After each part of the
seconds that the unguided loop takes in all: the best plan of the costs known by then, relative to
the optimum, or null while they are not enough for a plan. One JSON line per network; nothing is
timed, the seconds are the recorded ones.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_lazy import Replay
from bench_predict import costs_of
from records import git_state, record
from tables import Table, read_tables, usable
from torchalgo import _C
from torchalgo.bounds import Peaks
from torchalgo.measuring import TuneSettings, Tuning
from torchalgo.prediction import CostModel, learn

SCHEMA = 1
RESULTS = Path(__file__).with_name("results") / "anytime.jsonl"
PARTS = (0.1, 0.2, 0.3, 0.5)


class Watched(Replay):
    """A replay that tells what the plan of known costs takes when some seconds are about to
    pass."""

    def __init__(self, table: Table, marks_s: Sequence[float]) -> None:
        super().__init__(table)
        self.marks_s, self.plans = list(marks_s), list[int | None]()
        self.tuning: Tuning | None = None

    def measure(self, tasks: Sequence[tuple[str, _C.Primitive]], **options: Any) -> list[Any]:
        taken = super().measure(tasks, **options)
        while len(self.plans) < len(self.marks_s) and self.seconds > self.marks_s[len(self.plans)]:
            self.plans.append(self.known_plan())
        return taken

    def known_plan(self) -> int | None:
        assert self.tuning is not None
        try:
            return self.tuning.ask_known(cheapest_ticks)
        except _C.Error:
            return None


def cheapest_ticks(
    graph: _C.Graph,
    found: _C.Candidates,
    transforms: list[_C.Candidate],
    costs: _C.CostTable,
    allow: _C.Allow,
) -> int:
    return _C.make_plan(graph, found, transforms, costs, allow=allow)[0].cost


def replay(table: Table, marks_s: Sequence[float], model: CostModel | None) -> tuple[Watched, int]:
    """The replay and the final plan's cost."""
    watched = Watched(table, marks_s)
    watched.tuning = Tuning(
        table.graph, table.found, {}, TuneSettings(), bench=watched.bench(),
        transforms=table.transforms, guide=lambda: model,
    )  # fmt: skip
    return watched, watched.tuning.settle(_C.make_plan).cost


def result_of(table: Table, others: Sequence[Table]) -> dict[str, Any]:
    peaks = Peaks.probed(table.probes)
    known = costs_of(others, {key.problem for key in table.rows})
    model = learn(known, peaks, is_quick=True)
    unguided, optimum = replay(table, [], None)
    marks = [part * unguided.seconds for part in PARTS]
    result: dict[str, Any] = {
        "schema": SCHEMA, "benchmark": "anytime", "network": table.network,
        "threads": table.head["threads"], "parts": PARTS,
        "seconds": round(unguided.seconds, 3),
    }  # fmt: skip
    for name, guide in (("unguided", None), ("guided", model)):
        watched, cost = replay(table, marks, guide)
        result[name] = {
            "times_optimum": [None if c is None else round(c / optimum, 4) for c in watched.plans],
            "seconds": round(watched.seconds, 3),
            "equal": cost == optimum,
        }
    return {**result, "table": table.head["git"], "git": git_state()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, help="default: all of benchmarks/tables")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    tables = [usable(table) for table in read_tables(args.tables)]
    results = []
    for table in tables:
        results.append(result_of(table, [other for other in tables if other is not table]))
        record(args.out, results[-1])
    for i, part in enumerate(PARTS):
        for name in ("unguided", "guided"):
            reached = [r[name]["times_optimum"][i] for r in results]
            plans = [ratio for ratio in reached if ratio is not None]
            middle = f"median {statistics.median(plans):.3f}x the optimum" if plans else "none"
            print(f"{part:4.0%} {name:>8}: {len(plans)} of {len(reached)} have a plan, {middle}")
    return 0 if all(r[name]["equal"] for r in results for name in ("guided", "unguided")) else 1


if __name__ == "__main__":
    raise SystemExit(main())
