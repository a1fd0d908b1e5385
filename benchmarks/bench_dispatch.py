# SPDX-License-Identifier: BSD-3-Clause
"""What choosing a plan by shape costs a call: process CPU time on a net that computes nothing much.

    python benchmarks/bench_dispatch.py --json dispatch.jsonl

Rows: the TorchScript module of one plan (nothing chooses), Optimized with one plan and with three,
for shapes that have a plan and for one that has none, and the TorchScript module that chooses
among three, as torch.jit.load and C++ run it. Rounds are interleaved; the least counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchalgo
from torchalgo._ir.costs import environment

PLANNED = ((1, 3, 4, 4), (2, 3, 4, 4), (4, 3, 4, 4))
UNSEEN = (1, 3, 5, 4)


def planned_only(model: nn.Module, sets: list[tuple[torch.Tensor]]) -> torchalgo.Optimized:
    """Runs its plans, whatever the guard says."""
    tuned = torchalgo.optimize(model, sets, budget_s=float("inf"), progress=False)
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    return torchalgo.optimize(model, sets, plan=plans, progress=False)


def rows() -> dict[str, Callable[[], Any]]:
    model = nn.Conv2d(3, 4, 1).eval()
    sets = [(torch.rand(sizes),) for sizes in PLANNED]
    three, one = planned_only(model, sets), planned_only(model, sets[:1])
    last, unseen = sets[-1][0], torch.rand(UNSEEN)
    x, alone, chooses = sets[0][0], one.scripted, three.scripted
    return {
        "one plan, TorchScript": lambda: alone(x),
        "one plan, Optimized": lambda: one(x),
        "three plans, Optimized": lambda: three(x),
        "one plan, Optimized, unseen": lambda: one(unseen),
        "three plans, Optimized, unseen": lambda: three(unseen),
        "three plans, TorchScript, the first": lambda: chooses(x),
        "three plans, TorchScript, the last": lambda: chooses(last),
        "three plans, TorchScript, unseen": lambda: chooses(unseen),
    }


def cpu_us(call: Callable[[], Any], calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - started) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2000, help="per round")
    parser.add_argument("--json", type=Path, help="append a record to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "torchalgo: there is no plan")
    calls = rows()
    least = dict.fromkeys(calls, float("inf"))
    with torch.inference_mode():
        for _ in range(args.rounds):
            for name, call in calls.items():
                least[name] = min(least[name], cpu_us(call, args.calls))
    for name, us in least.items():
        print(f"{name:38} {us:7.2f} us of CPU time per call")
    if args.json is not None:
        record = {"schema": 1, "environment": environment(), "cpu_us": least}
        with args.json.open("a") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
