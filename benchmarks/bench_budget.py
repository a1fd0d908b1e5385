# SPDX-License-Identifier: BSD-3-Clause
"""Measures what a short budget gives, and if it is kept, beside a tuning without end.

    python benchmarks/bench_budget.py --threads 2            # 12 networks, 15 s each: 25 minutes
    python benchmarks/bench_budget.py --short                # two small networks: 3 minutes
    python benchmarks/bench_budget.py --table                # prints the records as a table

Each network is tuned twice in a process of its own, both times with an empty database: within
--budget seconds, and without end. Both plans are priced with the costs of the second tuning; what
these lack of the first plan is measured then. At last the module that the short tuning returned is
timed beside eager, channels_last and frozen. One JSON line per network is appended to
benchmarks/results/budget.jsonl; a network that has a line of this commit, budget and number of
threads is not run again. For a machine on which nothing else runs.

Goals: median of the prices' ratios at most 1.15, the worst at most 1.5; none slower at 95 % than
the fastest baseline; the budget kept within 5 % or 1 s. Ends with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import torchalgo
from harness import git_state, machine_state, record
from networks import random_input, random_network
from torchalgo import _C
from torchalgo._base.stats import is_faster
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.costs import Key, native_key
from torchalgo._ir.plan import Plan
from torchalgo._measure import guard
from torchalgo._measure.sampling import Bench, cold_bytes

SCHEMA = 2
RESULTS = Path(__file__).resolve().parent / "results" / "budget.jsonl"
NETWORKS = (
    "resnet18", "resnet50", "vgg16", "alexnet", "googlenet", "inception_v3", "squeezenet1_1",
    "densenet121", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "shufflenet_v2_x1_0",
)  # fmt: skip
SHORT = ("squeezenet1_1", "resnet18")
MEDIAN_GOAL, WORST_GOAL = 1.15, 1.5


def keys_of(plan: Plan) -> list[Key]:
    """Lists the calls of a plan; views cost nothing and are left out."""
    keys = [Key(n.problem, n.primitive, n.src, n.dst) for n in plan.nodes if n.primitive]
    keys += [Key(t.problem, t.primitive, t.src, t.dst) for t in plan.transforms]
    return [key for key in keys if not _C.is_view(key.primitive)]


def measured_ticks(
    costs: _C.CostTable, keys: Iterable[Key], cold: int
) -> tuple[dict[Key, int], int]:
    """The costs of `keys` that were measured; those that were not are measured now. Also returns
    how many these were."""
    found = {key: costs.get(native_key(key)) for key in set(keys)}
    ticks = {k: cost[0] for k, cost in found.items() if cost is not None and cost[1] == "measured"}
    missing = sorted(set(found) - set(ticks))
    primitives = {key: _C.Primitive(key.primitive, key.src, key.dst) for key in missing}
    for key in missing:
        offered = _C.offers_of(key.problem)[0]
        fitting = (p for p in offered if (p.name, p.src, p.dst) == key[1:])
        primitives[key] = next(fitting, primitives[key])
    sampler = Bench.on(None).sampler(primitives, cold, 0)
    for key in missing:
        taken = sampler.take([key], 2.0, again=True)
        ticks |= {k: cost.ticks for k, cost in taken.items()}
    return ticks, len(missing)


def tuned(
    model: torch.nn.Module, x: torch.Tensor, budget_s: float
) -> tuple[torchalgo.Optimized, float]:
    with tempfile.TemporaryDirectory(prefix="budget-") as folder:
        started = time.monotonic()
        fast = torchalgo.optimize(
            model, (x,), budget_s=budget_s, cost_db=Path(folder) / "costs.sqlite3", progress=False
        )
        return fast, time.monotonic() - started


def priced(short: torchalgo.Optimized, whole: torchalgo.Optimized, cold: int) -> dict[str, Any]:
    best = whole.alternatives.get("optimum", whole.plan)
    ticks, added = measured_ticks(whole.costs, [*keys_of(short.plan), *keys_of(best)], cold)
    price = {
        name: sum(ticks[key] for key in keys_of(plan)) / 1024e3
        for name, plan in (("short", short.plan), ("whole", best))
    }
    return {
        "short_us": round(price["short"], 1), "whole_us": round(price["whole"], 1),
        "ratio": round(price["short"] / price["whole"], 4), "measured_for_the_price": added,
    }  # fmt: skip


def timed(model: torch.nn.Module, x: torch.Tensor, fast: torchalgo.Optimized) -> dict[str, Any]:
    """The module as the user calls it beside the baselines."""
    calls = guard.baseline_calls(model, freeze_model(model, (x,)), (x,))
    calls[guard.PLAN] = lambda: fast(x)
    times = guard.time_interleaved(calls, rounds=25, budget_s=8.0)
    medians = {name: statistics.median(ns) / 1000 for name, ns in times.items()}
    baseline = min((n for n in medians if n != guard.PLAN), key=medians.__getitem__)
    result = is_faster(times[guard.PLAN], times[baseline])
    return {
        "us": {name: round(us, 1) for name, us in medians.items()}, "baseline": baseline,
        "timed": result.verdict,
        "of_baseline": [round(v, 4) for v in (result.ratio, result.low, result.high)],
    }  # fmt: skip


def run(name: str, budget_s: float) -> dict[str, Any]:
    model, x = random_network(name), random_input(name)
    before = machine_state()
    short, short_s = tuned(model, x, budget_s)
    whole, whole_s = tuned(model, x, float("inf"))
    graph = _C.import_graph(freeze_model(model, (x,))._c, (x,)).graph
    verdict = short.plan.guard
    return {
        "network": name, "asked_s": budget_s, "taken_s": round(short_s, 2),
        "is_kept": short_s <= budget_s + max(0.05 * budget_s, 1.0), "whole_s": round(whole_s, 2),
        **priced(short, whole, cold_bytes(graph)), **timed(model, x, short),
        "runs": short.runs, "whole_runs": whole.runs,
        "verdict": None if verdict is None else verdict.verdict,
        "reason": None if verdict is None else verdict.reason,
        "method": short.plan.method, "whole_method": whole.plan.method,
        "steps_s": {step: round(time.wall_s, 2) for step, time in short.timings.items()},
        "machine": before,
    }  # fmt: skip


def lines_of(path: Path, budget_s: float, threads: int, commit: str) -> dict[str, dict[str, Any]]:
    """The last line of each network with these settings."""
    wanted = (SCHEMA, budget_s, threads, commit)
    fields = ("schema", "asked_s", "threads", "commit")
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    fitting = (line for line in lines if tuple(line.get(field) for field in fields) == wanted)
    return {line["network"]: line for line in fitting}


def summary(lines: list[dict[str, Any]]) -> bool:
    """Prints the goals; returns whether all are met."""
    ratios = [line["ratio"] for line in lines]
    slower = [line["network"] for line in lines if line["timed"] == "slower"]
    late = [line["network"] for line in lines if not line["is_kept"]]
    print(
        f"{len(lines)} networks: ratio of the prices: median {statistics.median(ratios):.3f} (goal"
        f" {MEDIAN_GOAL}), worst {max(ratios):.3f} (goal {WORST_GOAL}); slower than a baseline:"
        f" {slower or 'none'}; budget not kept: {late or 'none'}"
    )
    is_good = statistics.median(ratios) <= MEDIAN_GOAL and max(ratios) <= WORST_GOAL
    return is_good and not slower and not late


def print_table(path: Path, budget_s: float, threads: int) -> None:
    """Prints the last line of each network with these settings, of any commit, in Markdown."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    fitting = [line for line in lines if line.get("schema") == SCHEMA]
    last = {
        line["network"]: line
        for line in fitting
        if (line["asked_s"], line["threads"]) == (budget_s, threads)
    }
    print("| network | cost, short / whole | time / baseline | took | reading, comparing | whole |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, line in sorted(last.items(), key=lambda item: item[1]["ratio"]):
        steps, (ratio, low, high) = line["steps_s"], line["of_baseline"]
        print(
            f"| {name} | {line['ratio']:.2f} | {ratio:.2f} [{low:.2f}, {high:.2f}]"
            f" | {line['taken_s']:.1f} s | {steps['read'] + steps['values']:.1f} s"
            f" | {line['whole_s']:.1f} s |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}")
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the records and run nothing")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process
    args = parser.parse_args()
    names = list(SHORT) if args.short else args.networks
    if args.table:
        print_table(args.output, args.budget, args.threads)
        return 0
    if args.one:
        torch.set_num_threads(args.threads)
        (name,) = names
        state = {"threads": args.threads, "date": datetime.date.today().isoformat(), **git_state()}
        line = {"schema": SCHEMA, "benchmark": "budget", **state, **run(name, args.budget)}
        record(args.output, line)
        return 0
    settings = (args.output, args.budget, args.threads, git_state()["commit"])
    done, failed = lines_of(*settings), []
    for name in names:
        if name in done:
            continue
        own = ["--one", "--networks", name, "--budget", str(args.budget)]
        own += ["--threads", str(args.threads), "--output", str(args.output)]
        if subprocess.run([sys.executable, __file__, *own], check=False).returncode:
            failed.append(name)
    found = lines_of(*settings)
    if failed:
        print(f"failed: {', '.join(failed)}")
    chosen = [found[name] for name in names if name in found]
    return 0 if chosen and summary(chosen) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
