# SPDX-License-Identifier: BSD-3-Clause
"""Predicted against measured: what a plan's costs say, and what its ops and calls take in the net.

    python benchmarks/bench_context.py                        # all networks, 1 thread
    python benchmarks/bench_context.py --networks resnet50 googlenet --cost-db costs.sqlite3

Each network runs in a process of its own. It is optimized as a user does it, which times the plan
inside the net and corrects its costs; then the result is timed afresh, with the recorder of ops
(parts of a call) and without it (whole calls, in two interleaved series as a control). One JSON
line per network: `alone_us` is the sum of the costs alone, `corrected_us` what was expected of a
call when tuning ended, `net_ops_us` and `net_rest_us` are a call's parts, `wall_us` is the call;
error_* are predicted / measured - 1. The recorder's own cost is `recorded_us / wall_us - 1`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

from harness import git_state, machine_state, record

SCHEMA = 1
RESULTS = Path(__file__).parent / "results" / "context.jsonl"
NETWORK_LIMIT_S = 240  # one that takes longer is left out, and named


def timed(optimized: Any, x: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Calls with and without the recorder, interleaved; us."""
    from torchalgo._base.stats import cost_of_samples, is_faster
    from torchalgo._measure.guard import time_interleaved
    from torchalgo._refine.net_times import time_in_net

    def call() -> Any:
        return optimized.scripted(x)

    net = time_in_net({"plan": call}, passes=args.passes, budget_s=args.budget_s)["plan"]
    plain = time_interleaved(
        {"plan": call, "again": call}, rounds=args.passes, budget_s=args.budget_s
    )
    again = is_faster(plain["plan"], plain["again"])
    return {
        "wall_us": cost_of_samples(plain["plan"])[0] / 1000,
        "wall_median_us": statistics.median(plain["plan"]) / 1000,
        "wall_noise_us": cost_of_samples(plain["plan"])[1] / 1000,
        "control_ratio": again.ratio,
        "control_verdict": again.verdict,
        "recorded_us": cost_of_samples(net.call)[0] / 1000,
        "net_ops_us": sum(cost_of_samples(ns)[0] for ns in net.ops.values()) / 1000,
        "net_rest_us": cost_of_samples(net.rest)[0] / 1000,
        "passes": len(plain["plan"]),
    }


def run_one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The record of one network in this process."""
    import torch

    import torchalgo
    from networks import random_input, random_network

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    start = time.perf_counter()
    x = random_input(name)
    cost_db: str | Literal[False] | None = False if args.cost_db == "none" else args.cost_db
    optimized = torchalgo.optimize(
        random_network(name), x, budget_s=float("inf"), cost_db=cost_db, progress=False
    )
    optimize_s = round(time.perf_counter() - start, 2)
    plan = optimized.plan
    line: dict[str, Any] = {
        "schema": SCHEMA,
        "network": name,
        "threads": args.threads,
        "optimize_s": optimize_s,
        "runs": optimized.runs,
    }
    if optimized.runs != "plan":
        return {**line, "failure": "the baseline runs"}
    line |= {
        "alone_us": plan.cost_us,
        **of_context(plan),
        "pairs": len(plan.pairs),
        **timed(optimized, x, args),
    }
    line["error_alone"] = line["alone_us"] / line["wall_us"] - 1
    if "corrected_us" in line:
        line["error_corrected"] = line["corrected_us"] / line["wall_us"] - 1
    return {key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()}


def of_context(plan: Any) -> dict[str, Any]:
    """What tuning saw inside the net; nothing if what was measured after it changed the plan."""
    context = plan.in_context
    if context is None:
        return {}
    return {
        "alone_us": context.alone_us,
        "corrected_us": context.corrected_us,
        "tuning_us": context.measured_us,
        "ops_us": context.ops_us,
        "rest_us": context.rest_us,
        "factors": context.factors,
        "call_us": context.call_us,
        "rounds": context.rounds,
        "kept": context.kept,
        "outcome": context.outcome,
        "ops": len(context.ops),
        "ops_beyond_5_percent": sum(
            abs(op.measured_us / op.expected_us - 1) > 0.05 for op in context.ops
        ),
    }


def in_process(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """run_one in a process of its own."""
    words = [sys.executable, __file__, "--one", name, "--threads", str(args.threads)]
    words += ["--passes", str(args.passes), "--budget-s", str(args.budget_s)]
    words += ["--cost-db", args.cost_db] if args.cost_db else []
    failed = {"schema": SCHEMA, "network": name, "threads": args.threads}
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=NETWORK_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {**failed, "failure": f"longer than {NETWORK_LIMIT_S} s"}
    if done.returncode or not done.stdout.strip():
        return {**failed, "failure": f"exit status {done.returncode}"}
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return line


def table(lines: list[dict[str, Any]]) -> str:
    """What was predicted and measured, in ms; Markdown."""
    rows = [
        "| network | costs alone | corrected | measured | alone / measured | corrected / measured"
        " | ops | rest | plans | kept |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        if "failure" in line:
            rows.append(f"| {line['network']} | {line['failure']} ||||||||| ")
            continue
        us = [line.get(key) for key in ("alone_us", "corrected_us", "wall_us")]
        errors = [line.get(key) for key in ("error_alone", "error_corrected")]
        parts = [line[key] for key in ("net_ops_us", "net_rest_us")]
        cells = ["-" if v is None else f"{v / 1000:.2f}" for v in us]
        cells += ["-" if e is None else f"{e + 1:.2f}" for e in errors]
        cells += [f"{v / 1000:.2f}" for v in parts]
        cells += [str(line.get(key, "-")) for key in ("rounds", "kept")]
        rows.append(f"| {line['network']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", nargs="*", help="by default all of networks.py that take a tensor"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=31)
    parser.add_argument("--budget-s", type=float, default=4.0, help="of each of the two timings")
    parser.add_argument("--total-s", type=float, default=840.0, help="no network begins later")
    parser.add_argument("--cost-db", help="a file of costs; none: without; default: the user's own")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run_one(args.one, args)), flush=True)
        return
    from networks import CLASSIFIERS, SEGMENTATION

    names = args.networks or [*CLASSIFIERS, *SEGMENTATION]
    state = {**git_state(), **machine_state()}
    started, lines = time.monotonic(), []
    for name in names:
        if time.monotonic() - started > args.total_s:
            print(f"out of time before {name}", file=sys.stderr)
            break
        lines.append(in_process(name, args))
        record(args.out, {**lines[-1], **state})
    print(table(lines))


if __name__ == "__main__":
    main()
