#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Plans from predicted costs of networks that were left out, on recorded full tables.

    python benchmarks/bench_predict.py                   # all of benchmarks/tables
    python benchmarks/bench_predict.py /tmp/tables/*.json.gz

For each network the other tables are learned from; the plan of predicted costs is then paid for in
recorded costs, relative to the optimum of these. Networks share problems, so twice: "left out":
nothing is learned of any problem that the network has, and every cost is predicted; "shared": what
other networks measured is known, as it is in a user's database. Beside it: each candidate at its
bound (roofline), and as many times its bound as the most similar problem of the same primitive and
layouts (nearest). One JSON line per network; then some for models of what tuning measures of the
others, and of a few networks only. Nothing is timed.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_lazy import Replay
from harness import git_state, record
from tables import Table, read_tables, replay_arguments, usable
from torchalgo import _C
from torchalgo._ir.bounds import Peaks
from torchalgo._ir.costs import Key, key_of
from torchalgo._measure.measuring import TuneSettings, Tuning
from torchalgo._predict import learn
from torchalgo._predict.features import Features, features_of

SCHEMA = 1
RESULTS = Path(__file__).with_name("results") / "predict.jsonl"

Costs = Mapping[Key, int]
FEW = (
    ("resnet50",),
    ("mobilenet_v2", "resnet50"),
    ("googlenet", "mobilenet_v3_large", "resnet18"),
    ("efficientnet_b0", "googlenet", "mobilenet_v3_large", "regnet_y_400mf", "resnet50"),
)

Ranking = Callable[[Costs, Sequence[Key], Peaks], Costs]  # known, wanted


def by_roofline(known: Costs, wanted: Sequence[Key], peaks: Peaks) -> Costs:
    """Each at its bound."""
    return {key: known.get(key, features_of(key, peaks).floor_ticks) for key in wanted}


def by_nearest(known: Costs, wanted: Sequence[Key], peaks: Peaks) -> Costs:
    """Each as many times its bound as the nearest problem with the same primitive and layouts, or
    with the same primitive; at its bound where there is none."""
    groups: dict[tuple[str, ...], list[tuple[Features, float]]] = {}
    for key in sorted(known):
        f = features_of(key, peaks)
        for group in ((f.category, key.src, key.dst), (f.category,)):
            groups.setdefault(group, []).append((f, known[key] / f.floor_ticks))

    def nearest_ticks(key: Key) -> int:
        f = features_of(key, peaks)
        rivals = groups.get((f.category, key.src, key.dst)) or groups.get((f.category,))
        if key in known or not rivals:
            return known.get(key, f.floor_ticks)
        nearest = min(rivals, key=lambda rival: math.dist(rival[0].numbers, f.numbers))
        return round(f.floor_ticks * max(1.0, nearest[1]))

    return {key: nearest_ticks(key) for key in wanted}


def by_model(known: Costs, wanted: Sequence[Key], peaks: Peaks) -> Costs:
    """As mode="predict" does."""
    return learn(known, peaks).predict(wanted)


WAYS: Mapping[str, Ranking] = {"roofline": by_roofline, "nearest": by_nearest, "model": by_model}


def costs_of(tables: Iterable[Table], without: Iterable[str] = ()) -> dict[Key, int]:
    """The median over the tables of each recorded cost, problems in `without` left out."""
    left_out = set(without)
    ticks: dict[Key, list[int]] = {}
    for table in tables:
        for key, row in table.rows.items():
            if key.problem not in left_out:
                ticks.setdefault(key, []).append(row.ticks)
    return {key: round(statistics.median(all_of)) for key, all_of in ticks.items()}


def paid_ticks(table: Table, believed: Costs) -> int:
    """What the plan of `believed` costs takes by the table."""
    plan, wanted = _C.make_plan(table.graph, table.found, table.transforms, table.costs(believed))
    assert not wanted
    keys = [key_of(node.problem, node.primitive) for node in plan.nodes if node.primitive.name]
    keys += [key_of(change.problem, change.primitive) for change in plan.transforms]
    return sum(0 if _C.is_view(key.primitive) else table.rows[key].ticks for key in keys)


def result_of(table: Table, others: Sequence[Table]) -> dict[str, Any]:
    peaks = Peaks.probed(table.probes)
    optimum = paid_ticks(table, ticks_of(table))
    result: dict[str, Any] = {
        "schema": SCHEMA, "benchmark": "predict", "network": table.network,
        "threads": table.head["threads"], "costs": len(table.rows), "optimum_ticks": optimum,
    }  # fmt: skip
    for name, without in (("left_out", {key.problem for key in table.rows}), ("shared", set())):
        known = costs_of(others, without)
        wanted = list(table.rows)
        believed = {way: rank(known, wanted, peaks) for way, rank in WAYS.items()}
        errors = [
            abs(math.log(ticks / table.rows[key].ticks)) for key, ticks in believed["model"].items()
        ]
        result[name] = {
            "known": len(known),
            "of_them_wanted": sum(key in known for key in wanted),
            "times_optimum": {
                way: round(paid_ticks(table, costs) / optimum, 4) for way, costs in believed.items()
            },
            "median_log_error": round(statistics.median(errors), 4),
        }
    return {**result, "table": table.head["git"], "git": git_state()}


def left_out_ratio(table: Table, others: Sequence[Table]) -> float:
    """How many times its optimum a network's plan costs, learned from others without its
    problems."""
    known = costs_of(others, {key.problem for key in table.rows})
    believed = by_model(known, list(table.rows), Peaks.probed(table.probes))
    return paid_ticks(table, believed) / paid_ticks(table, ticks_of(table))


def ticks_of(table: Table) -> dict[Key, int]:
    return {key: row.ticks for key, row in table.rows.items()}


def few_result(names: Sequence[str], tables: Sequence[Table]) -> dict[str, Any]:
    """The same, "left out", where only the tables of `names` were measured."""
    few = [table for table in tables if table.network in names]
    others = [table for table in tables if table.network not in names]
    return {
        "schema": SCHEMA, "benchmark": "predict_few", "learned_from": list(names),
        "times_optimum": {t.network: round(left_out_ratio(t, few), 4) for t in others},
        "git": git_state(),
    }  # fmt: skip


class Noted(Replay):
    """A replay that keeps what was measured."""

    def measure(self, tasks: Sequence[tuple[str, _C.Primitive]], **options: Any) -> list[Any]:
        self.keys = getattr(self, "keys", set()) | {key_of(*task) for task in tasks}
        return super().measure(tasks, **options)


def measured_lazily(table: Table) -> Table:
    """With the costs only that optimize would have measured."""
    noted = Noted(table)
    tuning = Tuning(
        table.graph, table.found, {}, TuneSettings(), bench=noted.bench(),
        transforms=table.transforms,
    )  # fmt: skip
    tuning.settle(_C.make_plan)
    rows = {key: row for key, row in table.rows.items() if key in noted.keys}
    return dataclasses.replace(table, rows=rows)


def lazy_result(tables: Sequence[Table]) -> dict[str, Any]:
    """The same, "left out", where the other networks were tuned, not measured in full."""
    lazy = [measured_lazily(table) for table in tables]
    ratios = {
        table.network: left_out_ratio(table, [t for t in lazy if t.network != table.network])
        for table in tables
    }
    return {
        "schema": SCHEMA, "benchmark": "predict_lazy",
        "part_of_costs": round(
            sum(len(t.rows) for t in lazy) / sum(len(t.rows) for t in tables), 3
        ),
        "times_optimum": {network: round(ratio, 4) for network, ratio in ratios.items()},
        "git": git_state(),
    }  # fmt: skip


def summary(results: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    ratios = [result[name]["times_optimum"] for result in results]
    return [
        f"{name:12}{way:>10}: median {statistics.median(r[way] for r in ratios):.3f}x the optimum,"
        f" worst {max(r[way] for r in ratios):.3f}x"
        for way in WAYS
    ]


def main() -> int:
    args = replay_arguments(__doc__, RESULTS)
    tables = [usable(table) for table in read_tables(args.tables)]
    results = []
    for table in tables:
        others = [other for other in tables if other is not table]
        results.append(result_of(table, others))
        record(args.out, results[-1])
    networks = {table.network for table in tables}
    some = [few_result(names, tables) for names in FEW if set(names) < networks]
    for result in [lazy_result(tables), *some]:
        record(args.out, result)
        reached = result["times_optimum"].values()
        source = ", ".join(result.get("learned_from", ["what tuning measures"]))
        middle, worst = statistics.median(reached), max(reached)
        print(f"from {source}: median {middle:.3f}x the optimum, worst {worst:.3f}x")
    for name in ("left_out", "shared"):
        print("\n".join(summary(results, name)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
