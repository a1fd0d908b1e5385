# SPDX-License-Identifier: BSD-3-Clause
"""Measures the memory of an optimized network, and the CPU time of choosing its plan.

    python benchmarks/bench_runtime.py dispatch                # CPU time of a call
    python benchmarks/bench_runtime.py memory vgg16 resnet50   # resident memory

dispatch: process CPU time of a call, on a network that computes nearly nothing. It times the
  TorchScript module of one plan, where nothing chooses, and Optimized with one plan and with three.
  It also times the TorchScript module that chooses among three plans, as torch.jit.load and C++ run
  it. Shapes with and without a plan are timed. Rounds are interleaved; the least time counts. Takes
  a minute. Appends one JSON line to benchmarks/results/dispatch.jsonl.
memory: each network is optimized in a process of its own, then loaded from its file in another one,
  as it is deployed. There, after some runs, resident memory is compared with that before the file
  was opened, and with the bytes of the model's weights. Linux only; nothing is timed. Takes one to
  five minutes per network. Appends one JSON line per network to benchmarks/results/memory.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import harness
import torchalgo
from compare import in_rounds
from networks import NAMES, network_name, random_input, random_network
from torchalgo._ir.costs import environment

PLANNED = ((1, 3, 4, 4), (2, 3, 4, 4), (4, 3, 4, 4))
UNSEEN = (1, 3, 5, 4)
LIMIT_S = 1800.0  # of one network

# ---- dispatch ------------------------------------------------------------------------------------


def planned_only(model: nn.Module, shapes: Sequence[tuple[int, ...]]) -> torchalgo.Optimized:
    """Runs its plans, whatever the guard says."""
    quiet = torchalgo.Settings(progress=False)
    tuned = torchalgo.optimize(model, shapes=shapes, budget_s=float("inf"), settings=quiet)
    plans = [dataclasses.replace(plan, guard=None) for plan in tuned.plans.values()]
    return torchalgo.optimize(model, shapes=shapes, plan=plans, settings=quiet)


def dispatch_calls() -> dict[str, Callable[[], Any]]:
    """The rows: each calls a module once."""
    model = nn.Conv2d(3, 4, 1).eval()
    three, one = planned_only(model, PLANNED), planned_only(model, PLANNED[:1])
    last, unseen = torch.rand(PLANNED[-1]), torch.rand(UNSEEN)
    x, alone, chooses = torch.rand(PLANNED[0]), one.scripted, three.scripted
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
    """CPU time of this process, per call."""
    started = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - started) / calls * 1e6


def run_dispatch(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "torchalgo: there is no plan")
    takers = {name: partial(cpu_us, call, args.calls) for name, call in dispatch_calls().items()}
    with torch.inference_mode():
        taken = in_rounds(takers, args.rounds)
    least = {name: min(times) for name, times in taken.items()}
    for name, us in least.items():
        print(f"{name:38} {us:7.2f} us of CPU time per call")
    out = args.out or harness.RESULTS / "dispatch.jsonl"
    harness.record(out, {"schema": 1, "environment": environment(), "cpu_us": least})
    return 0


# ---- memory --------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def save_optimized(network: str, path: str, threads: int, tune_s: float | None) -> dict[str, Any]:
    """Optimizes and saves. Returns what the plan says of memory."""
    torch.set_num_threads(threads)
    model, x = random_network(network), random_input(network)
    weights = sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))
    budget_s = float("inf") if tune_s is None else tune_s
    fast = torchalgo.optimize(
        model, x, budget_s=budget_s, settings=torchalgo.Settings(progress=False)
    )
    fast.save(path)
    return {
        "model_bytes": weights,
        "packed_bytes": fast.plan.weight_bytes,
        "workspace_bytes": fast.plan.workspace_bytes,
    }


def run_loaded(network: str, path: str, threads: int) -> dict[str, Any]:
    """Loads the file and runs it. Returns what that added to the process."""
    torch.set_num_threads(threads)
    x = random_input(network)
    small = torchalgo.optimize(
        torch.nn.Conv2d(3, 4, 3).eval(),
        torch.rand(1, 3, 8, 8),
        settings=torchalgo.Settings(progress=False, cost_db=None),
    )
    with torch.inference_mode():
        small(torch.rand(1, 3, 8, 8))  # what torch and torchalgo load at the first run
        before = resident_bytes()
        fast = torchalgo.load(path)
        for _ in range(5):
            fast(x)
        return {"resident_bytes": resident_bytes() - before}


def memory_of(network: str, threads: int, tune_s: float | None) -> harness.Record:
    """The record of one network; both steps run in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        path = str(Path(folder) / "network.pt")
        line: harness.Record = {
            "schema": 1, "benchmark": "memory", "network": network, "threads": threads,
        }  # fmt: skip
        for step in (
            harness.run_child(save_optimized, network, path, threads, tune_s, limit_s=LIMIT_S),
            harness.run_child(run_loaded, network, path, threads, limit_s=LIMIT_S),
        ):
            if step.failure:
                raise SystemExit(f"bench_runtime: {network}: {step.failure}")
            line |= step.values[-1]
    return {**line, "ratio": round(line["resident_bytes"] / line["model_bytes"], 2)}


def run_memory(args: argparse.Namespace) -> int:
    out = args.out or harness.RESULTS / "memory.jsonl"
    done = harness.done_before(out, "network", {"threads": args.threads}) if args.resume else {}
    cases = {name: (name, args.threads, args.tune_s) for name in args.networks}
    return harness.measure_each(memory_of, cases, out=out, limit_s=2 * LIMIT_S, done=done).status


def main() -> int:
    parser = harness.make_parser(__doc__, can_resume=True, has_records=True)
    parser.add_argument("what", choices=["dispatch", "memory"])
    parser.add_argument(
        "networks", nargs="*", type=network_name, metavar="NETWORK", help=f"memory: {NAMES}"
    )
    parser.add_argument("--threads", type=harness.count, default=1, help="memory: of each process")
    parser.add_argument("--rounds", type=harness.count, default=20, help="dispatch: of all rows")
    parser.add_argument("--calls", type=harness.count, default=2000, help="dispatch: per round")
    parser.add_argument("--out", type=Path, help="instead of dispatch.jsonl or memory.jsonl")
    parser.add_argument("--quick", action="store_true", help="few calls, tunings of 10 s")
    parser.set_defaults(tune_s=None)
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(rounds=7, calls=100, tune_s=10.0)
        args = parser.parse_args()
    if (args.what == "memory") != bool(args.networks):
        parser.error("expected networks after memory, and none after dispatch")
    return {"dispatch": run_dispatch, "memory": run_memory}[args.what](args)


if __name__ == "__main__":
    harness.run_script(main)
