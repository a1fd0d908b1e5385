# SPDX-License-Identifier: BSD-3-Clause
"""Measures what a short tuning budget gives, and if it is kept, beside a tuning without end.

    python benchmarks/bench_budget.py --threads 2            # 12 networks, 15 s each: 25 minutes
    python benchmarks/bench_budget.py --quick                # two small networks: 3 minutes
    python benchmarks/bench_budget.py --table                # prints the records as a table

Each network is tuned twice in a process of its own, both times with an empty database: within
--budget seconds, and without end. Both plans are priced with the costs of the second tuning. Costs
of the first plan that these lack are measured then. Last, the plan of the short tuning is timed
beside eager, channels_last and frozen, whether it runs or not. It needs a machine on which nothing
else runs.

Goals: median of the prices' ratios at most 1.15, the worst at most 1.5; no plan slower, with 95 %
confidence, than the fastest baseline; the budget kept within 5 % or 1 s. Exit status 1 if a goal is
missed. Appends one JSON line per network to benchmarks/results/budget.jsonl.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import harness
import torchalgo
from compare import rounded
from networks import NAMES, network_name, random_input, random_network
from pages import table
from torchalgo import _C
from torchalgo._base.stats import is_faster
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.costs import Key, native_key
from torchalgo._ir.plan import Plan
from torchalgo._measure import baselines, guard
from torchalgo._measure.sampling import Bench, cold_bytes

SCHEMA = 2
RESULTS = harness.RESULTS / "budget.jsonl"
LIMIT_S = 1800.0  # of one network
NETWORKS = (
    "resnet18", "resnet50", "vgg16", "alexnet", "googlenet", "inception_v3", "squeezenet1_1",
    "densenet121", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "shufflenet_v2_x1_0",
)  # fmt: skip
QUICK = ("squeezenet1_1", "resnet18")
QUIET = torchalgo.Settings(progress=False)
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
    sampler = Bench.on(None).sampler(primitives, cold)
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
            model,
            (x,),
            budget_s=budget_s,
            settings=torchalgo.Settings(cost_db=Path(folder) / "costs.sqlite3", progress=False),
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
    """The plan beside the baselines. If a baseline runs in the module, its plan is applied."""
    calls = baselines.baseline_calls(model, freeze_model(model, (x,)), (x,))
    planned = fast
    if fast.runs == "baseline":
        plan = dataclasses.replace(fast.plan, guard=None)
        planned = torchalgo.optimize(model, (x,), plan=plan, settings=QUIET)
    calls[guard.PLAN] = lambda: planned(x)
    times = guard.time_interleaved(calls, rounds=25, budget_s=8.0)
    medians = {name: statistics.median(ns) / 1000 for name, ns in times.items()}
    baseline = min((n for n in medians if n != guard.PLAN), key=medians.__getitem__)
    result = is_faster(times[guard.PLAN], times[baseline])
    return {
        "us": {name: round(us, 1) for name, us in medians.items()}, "baseline": baseline,
        "timed": result.verdict, "is_plan": planned.runs != "baseline",
        "of_baseline": rounded(result),
    }  # fmt: skip


def run_one(name: str, budget_s: float, threads: int) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(threads)
    model, x = random_network(name), random_input(name)
    before = harness.machine_state()
    short, short_s = tuned(model, x, budget_s)
    whole, whole_s = tuned(model, x, float("inf"))
    graph = _C.import_graph(freeze_model(model, (x,))._c, (x,)).graph
    verdict = short.plan.guard
    return {
        "schema": SCHEMA, "benchmark": "budget", "threads": threads, **harness.git_state(),
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


def summary(lines: list[harness.Record]) -> bool:
    """Prints the goals, and for each network that misses one how to run it again.

    Returns true if all goals are met.
    """
    ratios = [line["ratio"] for line in lines]
    missed: dict[str, str] = {}
    for line in lines:
        found = {
            f"a ratio above {WORST_GOAL}": line["ratio"] > WORST_GOAL,
            "slower than a baseline": line["timed"] == "slower",
            "budget not kept": not line["is_kept"],
        }
        if any(found.values()):
            missed[line["network"]] = ", ".join(text for text, is_so in found.items() if is_so)
            words = (line["network"], "--budget", line["asked_s"], "--threads", line["threads"])
            repro = harness.script_line("bench_budget.py", *words)
            harness.tell_failure(line["network"], missed[line["network"]], repro)
    middle = statistics.median(ratios)
    print(
        f"networks: {len(lines)}; ratio of the prices: median {middle:.3f} (goal {MEDIAN_GOAL}),"
        f" worst {max(ratios):.3f} (goal {WORST_GOAL}); missed: {', '.join(missed) or 'none'}"
    )
    return middle <= MEDIAN_GOAL and not missed


def budget_table(lines: Iterable[harness.Record]) -> list[str]:
    """Returns the table of the last record of each network."""
    last = {line["network"]: line for line in lines}
    rows = []
    for name, line in sorted(last.items(), key=lambda item: item[1]["ratio"]):
        steps, (ratio, low, high) = line["steps_s"], line["of_baseline"]
        # Older records of such networks have the times of the baseline.
        is_plan = line.get("is_plan", line["runs"] != "baseline")
        rows.append([
            name, f"{line['ratio']:.2f}",
            f"{ratio:.2f} [{low:.2f}, {high:.2f}]" if is_plan else "a baseline ran",
            f"{line['taken_s']:.1f} s", f"{steps['read'] + steps['values']:.1f} s",
            f"{line['whole_s']:.1f} s",
        ])  # fmt: skip
    return table(HEAD, rows, "---", "--:")


HEAD = (
    "network", "cost, short / whole", "time / baseline", "took", "reading, comparing", "whole",
)  # fmt: skip


def main() -> int:
    parser = harness.make_parser(__doc__, RESULTS, can_resume=True)
    parser.add_argument(
        "networks", nargs="*", type=network_name, metavar="NETWORK", help=f"{NAMES}; default: 12"
    )
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--budget", type=harness.seconds, default=15.0, help="of the short tuning")
    parser.add_argument("--threads", type=harness.count, default=2, help="of each network")
    parser.add_argument("--table", action="store_true", help="print the records and run nothing")
    args = parser.parse_args()
    names = args.networks or (QUICK if args.quick else NETWORKS)
    same = {"schema": SCHEMA, "asked_s": args.budget, "threads": args.threads}
    if args.table:
        lines = harness.read_lines(args.out)
        own = (line for line in lines if all(line.get(k) == v for k, v in same.items()))
        print("\n".join(budget_table(own)))
        return 0
    outcome = harness.measure_each(
        run_one, {name: (name, args.budget, args.threads) for name in names}, out=args.out,
        limit_s=LIMIT_S, done=harness.done_before(args.out, "network", same) if args.resume else {},
    )  # fmt: skip
    return outcome.status or (0 if summary(outcome.records) else 1)


if __name__ == "__main__":
    harness.run_script(main)
