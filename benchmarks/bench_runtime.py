# SPDX-License-Identifier: BSD-3-Clause
"""Measures the memory of an optimized network, the CPU time of choosing its plan, and of calls.

    python benchmarks/bench_runtime.py dispatch                # CPU time of a call
    python benchmarks/bench_runtime.py calls timm/starnet_s050 --other ../other/python
    python benchmarks/bench_runtime.py memory vgg16 resnet50   # resident memory

dispatch: process CPU time of a call, on a network that computes nearly nothing. It times the
  TorchScript module of one plan, where nothing chooses, and Optimized with one plan and with three.
  It also times the TorchScript module that chooses among three plans, as torch.jit.load and C++ run
  it. Shapes with and without a plan are timed. Rounds are interleaved; the least time counts. Takes
  a minute. Appends one JSON line to benchmarks/results/dispatch.jsonl.
calls: times calls beside those of another build. A short tuning of this build makes a plan for each
  network. A process of each build applies it, and the two take turns, so that both see the same
  load. Where its memory lies makes a process faster or slower by some percent as long as it lives,
  so each network has several pairs of processes. With one thread, batch 1 and f32. A ratio is the
  other build's time over this one's: the median of all rounds, with a bootstrap 95 % interval. The
  last line has the geometric mean and its interval over the networks. A build compared with itself
  shows the noise. Without networks, it takes those of the board, for an hour. Appends one JSON line
  per network to benchmarks/results/calls.jsonl.
memory: each network is optimized in a process of its own, then loaded from its file in another one,
  as it is deployed. There, after some runs, resident memory is compared with that before the file
  was opened, and with the bytes of the model's weights. Linux only; nothing is timed. Takes one to
  five minutes per network. Appends one JSON line per network to benchmarks/results/memory.jsonl.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import subprocess
import sys
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
from board_networks import board, build, build_input
from compare import in_rounds, said
from networks import NAMES, network_name, random_input, random_network
from torchalgo._base.stats import is_faster
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


# ---- calls ---------------------------------------------------------------------------------------

SERVE = "--serve"  # NETWORK PLAN: the process of one build
TURN_S = 0.05  # of calls in one turn


def serve(network: str, plan: str) -> None:
    """Answers each line of stdin with the seconds of a call, the mean of TURN_S seconds."""
    torch.set_num_threads(1)
    quiet = torchalgo.Settings(progress=False)
    chosen = dataclasses.replace(torchalgo.load_plan(plan), guard=None)
    x = build_input(network)
    fast = torchalgo.optimize(build(network), x, plan=chosen, settings=quiet)
    with torch.inference_mode():
        for _ in range(3):
            fast(x)
        print("ready", flush=True)
        for _ in sys.stdin:
            calls, start = 0, time.perf_counter()
            while (seconds := time.perf_counter() - start) < TURN_S or not calls:
                fast(x)
                calls += 1
            print(seconds / calls, flush=True)


class Server:
    """A process with one build of torchalgo. It is used in a with block."""

    def __init__(self, package: Path, network: str, plan: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, SERVE, network, str(plan)],
            env={**os.environ, "PYTHONPATH": str(package)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> str:
        if not (line := self._answers.readline()):
            raise RuntimeError("a build did not run the plan")
        return line

    def seconds(self) -> float:
        self._requests.write("\n")
        self._requests.flush()
        return float(self.wait())


def paired_times(
    network: str, other: Path, starts: int, rounds: int, budget_s: float
) -> dict[str, list[float]]:
    """Returns the seconds of a call in each round, by "before" and "now"."""
    own = Path(torchalgo.__file__).resolve().parents[1]
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    tuned = torchalgo.optimize(
        build(network), build_input(network), budget_s=budget_s, settings=settings
    )
    taken: dict[str, list[float]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        tuned.plan.save(plan)
        for _ in range(starts):
            with Server(other, network, plan) as before, Server(own, network, plan) as now:
                before.wait()
                now.wait()
                found = in_rounds({"before": before.seconds, "now": now.seconds}, rounds)
            for name, seconds_ in found.items():
                taken[name] += seconds_
    return taken


def run_calls(args: argparse.Namespace) -> int:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    git = ["git", "-C", str(args.other), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    ratios: list[float] = []
    for network in args.networks or board():
        try:
            taken = paired_times(
                network, args.other.resolve(), args.starts, args.rounds, args.tune_s or 2.0
            )
        except (torchalgo.Error, RuntimeError) as problem:
            print(f"{network}: {problem}", file=sys.stderr)
            continue
        result = is_faster(taken["before"], taken["now"])
        ratios.append(result.ratio)
        now_us = statistics.median(taken["now"]) * 1e6
        line = {
            "network": network, "other": commit, "ratio": round(result.ratio, 4),
            "low": round(result.low, 4), "high": round(result.high, 4), "now_us": round(now_us, 1),
            "starts": args.starts, "rounds": len(taken["now"]), "threads": 1, "dtype": "float32",
        }  # fmt: skip
        harness.record(harness.RESULTS / "calls.jsonl", line, lambda _: None)
        print(f"{network:40} {now_us:10.1f} us {said(result)}", flush=True)
    if len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        logs = [ratio / mean - 1 for ratio in ratios]
        half = 1.96 * statistics.stdev(logs) / len(logs) ** 0.5
        print(
            f"{len(ratios)} networks: {mean:.4f} [{mean * (1 - half):.4f}, {mean * (1 + half):.4f}]"
        )
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
    parser.add_argument("what", choices=["dispatch", "calls", "memory"])
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"memory: {NAMES}; calls: of the board"
    )
    parser.add_argument("--other", type=Path, help="calls: the folder with the other torchalgo")
    parser.add_argument("--starts", type=harness.count, default=5, help="calls: pairs of processes")
    parser.add_argument("--threads", type=harness.count, default=1, help="memory: of each process")
    parser.add_argument(
        "--rounds",
        type=harness.count,
        default=20,
        help="dispatch: of all rows; calls: of each pair",
    )
    parser.add_argument("--calls", type=harness.count, default=2000, help="dispatch: per round")
    parser.add_argument("--out", type=Path, help="instead of dispatch.jsonl or memory.jsonl")
    parser.add_argument("--quick", action="store_true", help="few calls, tunings of 10 s")
    parser.set_defaults(tune_s=None)
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(rounds=7, calls=100, tune_s=10.0)
        args = parser.parse_args()
    if args.what != "calls" and (args.what == "memory") != bool(args.networks):
        parser.error("expected networks after memory, and none after dispatch")
    if (args.what == "calls") != (args.other is not None):
        parser.error("calls, and nothing else, needs --other")
    if args.what == "memory":
        args.networks = [network_name(name) for name in args.networks]
    return {"dispatch": run_dispatch, "calls": run_calls, "memory": run_memory}[args.what](args)


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(*sys.argv[2:])
    else:
        harness.run_script(main)
