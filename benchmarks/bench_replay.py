# SPDX-License-Identifier: BSD-3-Clause
"""Replays tuning on the recorded cost tables of whole networks. Nothing is timed.

    python benchmarks/bench_replay.py lazy              # is the optimum found, in which time?
    python benchmarks/bench_replay.py anytime           # how good is the plan of a short budget?
    python benchmarks/bench_replay.py predict           # and one from predicted costs?
    python benchmarks/bench_replay.py globality         # is it worth choosing all layers at once?
    python benchmarks/bench_replay.py gpu               # what need not be measured on a GPU?
    python benchmarks/bench_replay.py lazy benchmarks/tables/alexnet.json.gz

The tables are those of benchmarks/tables, which record_tables.py measured, or those named. The
measuring loop of optimize runs as it is; only its bench is replaced by one that answers from the
table and charges the recorded seconds. Each plan is priced by the table and compared with the
table's proven optimum.

lazy: measuring until the plan is proven. The shares of the time are of all costs of the table, and
  of one primitive per algorithm, layouts and problem. Each recorded cost is also compared with its
  bounds: of its work, and of the same primitive with more or less fused to it. Takes seconds per
  table.
anytime: the budget is a part of the seconds that the whole tuning takes. Each budget is replayed
  without predictions, and with a model that is learned from the other tables. This model knows no
  problem of the network. The budget is for measuring alone: checks take no time. Takes about a
  minute per table.
predict: the plan of costs that are predicted from the other tables. "left out": nothing is learned
  of any problem that the network has. "shared": what other networks measured is known, as in a
  user's database. Beside it each candidate at its bound (roofline), and as many times its bound as
  the most similar problem of the same primitive and layouts (nearest). Then models of what tuning
  measures of the others, and of a few networks only. Takes about ten minutes for all tables.
globality: the proven optimum beside weaker ways to choose. Takes about ten minutes for all tables.
gpu: the best plan, and the plans of short budgets, for several choices of candidates of an H100, by
  the table of benchmarks/results/gpu/h100. Takes about a minute per table.

lazy, anytime and predict append one JSON line per network to benchmarks/results/NAME.jsonl, and gpu
one per choice. globality writes docs/records/globality.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import globality
from cost_tables import Table, read_tables, usable
from gpu_replay import run_gpu
from harness import (
    RESULTS,
    ROOT,
    Record,
    count,
    git_state,
    make_parser,
    record,
    run_script,
    script_line,
    tell_failure,
)
from replay import Ticks, paid_ticks, price, ticks_of, tune
from torchalgo import _C
from torchalgo._ir.bounds import Peaks, family_of, sibling_floor
from torchalgo._ir.costs import TICKS_PER_NS, Key
from torchalgo._measure.sampling import ROUNDS
from torchalgo._predict.features import Features, features_of
from torchalgo._predict.model import CostModel, learn

# ---- lazy: measuring until the plan is proven ----------------------------------------------------


def seconds_to_the_end(table: Table, keys: Iterable[Key]) -> float:
    """Returns the time that it takes to measure all of `keys` with all rounds."""
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
    """Compares recorded costs with their bounds: the least ratio of each kind, and how many are
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


def lazy_result(full: Table) -> Record:
    """The record of one table."""
    table = usable(full)
    optimum, wanted = _C.make_plan(table.graph, table.found, table.transforms, table.costs())
    assert not wanted
    plan, bench = tune(table)
    all_s = seconds_to_the_end(table, table.rows)
    family_s = seconds_to_the_end(table, one_per_algorithm(table))
    return {
        "schema": 3, "benchmark": "lazy", "network": table.network,
        "threads": table.head["threads"], "costs": len(table.rows),
        "measured": len(bench.measured), "equal": plan.cost == optimum.cost,
        "status": plan.status, "ticks": plan.cost, "optimum_ticks": optimum.cost,
        "seconds": round(bench.seconds, 3), "of_full": round(bench.seconds / all_s, 4),
        "of_one_per_algorithm": round(bench.seconds / family_s, 4),
        "bounds": bounds_held(table), "table": table.head["git"], "git": git_state(),
    }  # fmt: skip


def run_lazy(tables: Sequence[Table], out: Path) -> int:
    results = [record(out, lazy_result(table)) for table in tables]
    equal = sum(result["equal"] for result in results)
    for name in [result["network"] for result in results if not result["equal"]]:
        repro = script_line("bench_replay.py", "lazy", f"benchmarks/tables/{name}.json.gz")
        tell_failure(name, "the plan is not the optimum", repro)
    shares = [result["of_one_per_algorithm"] for result in results]
    print(
        f"the same optimum on {equal} of {len(results)}; of the time of one primitive per algorithm"
        f" and layouts: {min(shares):.0%} to {max(shares):.0%}"
    )
    return 0 if equal == len(results) else 1


# ---- predict: plans from predicted costs ---------------------------------------------------------

FEW = (
    ("resnet50",),
    ("mobilenet_v2", "resnet50"),
    ("googlenet", "mobilenet_v3_large", "resnet18"),
    ("efficientnet_b0", "googlenet", "mobilenet_v3_large", "regnet_y_400mf", "resnet50"),
)

Ranking = Callable[[Ticks, Sequence[Key], Peaks], Ticks]  # known, wanted


def by_roofline(known: Ticks, wanted: Sequence[Key], peaks: Peaks) -> Ticks:
    """Each at its bound."""
    return {key: known.get(key, features_of(key, peaks).floor_ticks) for key in wanted}


def by_nearest(known: Ticks, wanted: Sequence[Key], peaks: Peaks) -> Ticks:
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


def by_model(known: Ticks, wanted: Sequence[Key], peaks: Peaks) -> Ticks:
    """Predicts as mode="predict" does."""
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


def predict_result(table: Table, others: Sequence[Table]) -> Record:
    """The record of one table, learned from the others."""
    peaks = Peaks.probed(table.probes)
    optimum = paid_ticks(table, ticks_of(table))
    result: Record = {
        "schema": 1, "benchmark": "predict", "network": table.network,
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
    """Returns the cost of a network's plan over its optimum, learned from others without its
    problems."""
    known = costs_of(others, {key.problem for key in table.rows})
    believed = by_model(known, list(table.rows), Peaks.probed(table.probes))
    return paid_ticks(table, believed) / paid_ticks(table, ticks_of(table))


def few_result(names: Sequence[str], tables: Sequence[Table]) -> Record:
    """Records "left out" ratios if only the tables of `names` were measured."""
    few = [table for table in tables if table.network in names]
    others = [table for table in tables if table.network not in names]
    return {
        "schema": 1, "benchmark": "predict_few", "learned_from": list(names),
        "times_optimum": {t.network: round(left_out_ratio(t, few), 4) for t in others},
        "git": git_state(),
    }  # fmt: skip


def measured_lazily(table: Table) -> Table:
    """Returns the table with only the costs that optimize would have measured."""
    _, bench = tune(table)
    rows = {key: row for key, row in table.rows.items() if key in bench.measured}
    return dataclasses.replace(table, rows=rows)


def lazy_learned_result(tables: Sequence[Table]) -> Record:
    """Records "left out" ratios if the others were tuned, not measured in full."""
    lazy = [measured_lazily(table) for table in tables]
    ratios = {
        table.network: left_out_ratio(table, [t for t in lazy if t.network != table.network])
        for table in tables
    }
    return {
        "schema": 1, "benchmark": "predict_lazy",
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


def run_predict(tables: Sequence[Table], out: Path) -> int:
    results = [
        record(out, predict_result(table, [other for other in tables if other is not table]))
        for table in tables
    ]
    networks = {table.network for table in tables}
    some = [few_result(names, tables) for names in FEW if set(names) < networks]
    for result in [lazy_learned_result(tables), *some]:
        record(out, result)
        reached = result["times_optimum"].values()
        source = ", ".join(result.get("learned_from", ["what tuning measures"]))
        middle, worst = statistics.median(reached), max(reached)
        print(f"from {source}: median {middle:.3f}x the optimum, worst {worst:.3f}x")
    for name in ("left_out", "shared"):
        print("\n".join(summary(results, name)))
    return 0


# ---- anytime: the plan of a short budget ---------------------------------------------------------

PARTS = (0.05, 0.1, 0.2, 0.3, 0.5)


def anytime_result(table: Table, others: Sequence[Table]) -> Record:
    """The record of one table; the guide's model is learned from the others."""
    optimum, _ = _C.make_plan(table.graph, table.found, table.transforms, table.costs())

    def ended(budget_s: float | None, model: CostModel | None) -> tuple[float, float]:
        """Seconds, and what the plan costs by the table, relative to the optimum."""
        plan, bench = tune(table, budget_s, model)
        return bench.seconds, price(plan, ticks_of(table)) / optimum.cost

    known = costs_of(others, {key.problem for key in table.rows})
    model = learn(known, Peaks.probed(table.probes), is_quick=True)
    whole_s, last = ended(None, None)
    result: Record = {
        "schema": 2, "benchmark": "anytime", "network": table.network,
        "threads": table.head["threads"], "parts": PARTS, "seconds": round(whole_s, 3),
        "unlimited": round(last, 4),
    }  # fmt: skip
    for name, guide in (("unguided", None), ("guided", model)):
        ends = [ended(part * whole_s, guide) for part in PARTS]
        result[name] = {
            "times_optimum": [round(ratio, 4) for _, ratio in ends],
            "seconds": [round(seconds, 3) for seconds, _ in ends],
        }
    return {**result, "table": table.head["git"], "git": git_state()}


def run_anytime(tables: Sequence[Table], out: Path) -> int:
    results = [
        record(out, anytime_result(table, [other for other in tables if other is not table]))
        for table in tables
    ]
    for i, part in enumerate(PARTS):
        for name in ("unguided", "guided"):
            ratios = [r[name]["times_optimum"][i] for r in results]
            print(
                f"{part:4.0%} {name:>8}: median {statistics.median(ratios):.3f}x the optimum, worst"
                f" {max(ratios):.3f}x"
            )
    return 0 if all(r["unlimited"] == 1 for r in results) else 1


# ---- the command ---------------------------------------------------------------------------------


def run_globality(tables: Sequence[Table], args: argparse.Namespace) -> int:
    outcomes = [globality.outcome_of(table, args.draws, args.seed) for table in tables]
    args.page.write_text(globality.page(outcomes, args.draws))
    print(globality.summary(outcomes))
    return 0


RUNS = {"lazy": run_lazy, "anytime": run_anytime, "predict": run_predict}


def main() -> int:
    parser = make_parser(__doc__, has_records=True)
    parser.add_argument("what", choices=[*RUNS, "globality", "gpu"])
    parser.add_argument("tables", nargs="*", type=Path, help="default: all of benchmarks/tables")
    parser.add_argument("--out", type=Path, help="instead of benchmarks/results/NAME.jsonl")
    parser.add_argument("--draws", type=count, default=100, help="globality: for the intervals")
    parser.add_argument("--seed", type=int, default=1, help="globality: of the draws")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "records" / "globality.md")
    args = parser.parse_args()
    if args.what == "gpu":
        return run_gpu(args.out or RESULTS / "gpu.jsonl", *args.tables)
    try:
        tables = read_tables(args.tables)
    except (OSError, ValueError) as problem:
        parser.error(f"{problem}; expected tables as record_tables.py writes them")
    least = 1 if args.what in ("lazy", "globality") else 2  # the others are learned from
    if len(tables) < least:
        parser.error(f"expected at least {least} tables, got {len(tables)}")
    if args.what == "globality":
        return run_globality(tables, args)
    out = args.out or RESULTS / f"{args.what}.jsonl"
    try:
        return RUNS[args.what]([usable(table) for table in tables], out)
    except _C.Error as problem:
        raise SystemExit(f"bench_replay: {problem}; name more tables") from None


if __name__ == "__main__":
    run_script(main)
