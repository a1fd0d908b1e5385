#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How good is the plan of a short budget? Replayed on recorded full tables.

    python benchmarks/bench_anytime.py                   # all of benchmarks/tables
    python benchmarks/bench_anytime.py /tmp/tables/*.json.gz

The loop of optimize runs as in bench_lazy.py, with a part of the seconds that it takes in all as
its budget: once as it is, so that operations it did not come to run PyTorch's own, and once with a
model that is learned from the other tables (no row of any problem that the network has) and
predicts what was not measured. The budget is for measuring alone: checks take no time. The plans
are priced by the table, relative to its optimum. One JSON line per network; nothing is timed, the
seconds are the recorded ones.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_globality import price
from bench_lazy import Replay
from bench_predict import costs_of
from harness import git_state, record
from tables import Table, read_tables, replay_arguments, usable
from torchalgo import _C
from torchalgo._base.deadline import Deadline
from torchalgo._ir.bounds import Peaks
from torchalgo._measure.measuring import TuneSettings, Tuning
from torchalgo._predict import CostModel, learn

SCHEMA = 2
RESULTS = Path(__file__).with_name("results") / "anytime.jsonl"
PARTS = (0.05, 0.1, 0.2, 0.3, 0.5)


class ForMeasuring(Deadline):
    """There is always time for what follows."""

    def keep(self, step: str, seconds: float) -> None:
        pass

    def left_s(self, step: str) -> float:
        return super().left_s(step) if step == "measure" else math.inf


def replay(table: Table, budget_s: float | None, model: CostModel | None) -> tuple[float, float]:
    """Seconds, and what the plan costs by the table, relative to the optimum."""
    replay = Replay(table)
    bench = dataclasses.replace(replay.bench(), now_s=lambda: replay.seconds)
    tuning = Tuning(
        table.graph, table.found, {}, TuneSettings(), bench=bench, transforms=table.transforms,
        guide=lambda _: model, deadline=ForMeasuring(budget_s, lambda: replay.seconds),
    )  # fmt: skip
    plan = tuning.settle(_C.make_plan)
    ticks = {key: row.ticks for key, row in table.rows.items()}
    optimum, _ = _C.make_plan(table.graph, table.found, table.transforms, table.costs())
    return replay.seconds, price(plan, ticks) / optimum.cost


def result_of(table: Table, others: Sequence[Table]) -> dict[str, Any]:
    peaks = Peaks.probed(table.probes)
    known = costs_of(others, {key.problem for key in table.rows})
    model = learn(known, peaks, is_quick=True)
    whole_s, last = replay(table, None, None)
    result: dict[str, Any] = {
        "schema": SCHEMA, "benchmark": "anytime", "network": table.network,
        "threads": table.head["threads"], "parts": PARTS, "seconds": round(whole_s, 3),
        "unlimited": round(last, 4),
    }  # fmt: skip
    for name, guide in (("unguided", None), ("guided", model)):
        ends = [replay(table, part * whole_s, guide) for part in PARTS]
        result[name] = {
            "times_optimum": [round(ratio, 4) for _, ratio in ends],
            "seconds": [round(seconds, 3) for seconds, _ in ends],
        }
    return {**result, "table": table.head["git"], "git": git_state()}


def main() -> int:
    args = replay_arguments(__doc__, RESULTS)
    tables = [usable(table) for table in read_tables(args.tables)]
    results = []
    for table in tables:
        results.append(result_of(table, [other for other in tables if other is not table]))
        record(args.out, results[-1])
    for i, part in enumerate(PARTS):
        for name in ("unguided", "guided"):
            ratios = [r[name]["times_optimum"][i] for r in results]
            print(
                f"{part:4.0%} {name:>8}: median {statistics.median(ratios):.3f}x the optimum, worst"
                f" {max(ratios):.3f}x"
            )
    return 0 if all(r["unlimited"] == 1 for r in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
