# SPDX-License-Identifier: BSD-3-Clause
"""What optimize takes when it is asked to take so many seconds, with an empty database.

    python benchmarks/bench_budget.py --threads 2

Appends a line per network and budget to benchmarks/results/budget.jsonl: seconds asked and taken,
by step, how much was measured and what the guard says. A budget is kept if what was taken is at
most 5 % or 1 s more. Ends with 1 if one was not. For a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import torchalgo
from networks import random_input, random_network
from records import git_state, record

RESULTS = Path(__file__).resolve().parent / "results" / "budget.jsonl"
BUDGETS_S = (20.0, 30.0, 60.0)
NETWORKS: dict[str, tuple[str, int | None]] = {
    "resnet50": ("resnet50", None),
    "googlenet": ("googlenet", None),
    "resnet50_512": ("resnet50", 512),
}


def run(name: str, budget_s: float) -> dict[str, Any]:
    network, size = NETWORKS[name]
    model, x = random_network(network), random_input(network, size)
    with tempfile.TemporaryDirectory(prefix="budget-") as folder:
        started = time.monotonic()
        fast = torchalgo.optimize(
            model, (x,), budget_s=budget_s, cost_db=Path(folder) / "costs.sqlite3", progress=False
        )
        taken_s = time.monotonic() - started
    guard = fast.plan.guard
    return {
        "network": name, "asked_s": budget_s, "taken_s": round(taken_s, 2),
        "is_kept": taken_s <= budget_s + max(0.05 * budget_s, 1.0),
        "steps_s": {step: round(time.wall_s, 2) for step, time in fast.timings.items()},
        "method": fast.plan.method, "verdict": None if guard is None else guard.verdict,
        "speedup": None if guard is None or not guard.rounds
        else round(guard.baseline_us / guard.plan_us, 3),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS_S))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    is_kept = True
    for name in args.networks:
        for budget_s in args.budgets:
            found = run(name, budget_s)
            is_kept = is_kept and bool(found["is_kept"])
            record(args.output, {"schema": 1, "benchmark": "budget", "threads": args.threads,
                                 **git_state(), **found})  # fmt: skip
    print(json.dumps({"is_kept": is_kept}))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
