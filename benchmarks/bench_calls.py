# SPDX-License-Identifier: BSD-3-Clause
"""Times calls of optimized networks beside those of another build of torchalgo.

    python benchmarks/bench_calls.py ../other/python                 # the whole board, 20 minutes
    python benchmarks/bench_calls.py ../other/python --networks timm/mobilenetv1_100

A short tuning of this build makes a plan for each network. A process of each build applies it, and
the two take turns, so that both see the same load. With one thread, batch 1 and f32. A ratio is the
other build's time over this one's: the median of the rounds, with its bootstrap 95 % interval. The
last line has the geometric mean and its 95 % interval over the networks. Appends one JSON line per
network to benchmarks/results/calls.jsonl.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch

import torchalgo
from board_networks import board, build, build_input
from compare import in_rounds, said
from harness import RESULTS, count, make_parser, record, run_script, seconds
from torchalgo._base.stats import is_faster

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


def measure(network: str, other: Path, rounds: int, budget_s: float) -> dict[str, list[float]]:
    """Returns the seconds of a call in each round, by "before" and "now"."""
    own = Path(torchalgo.__file__).resolve().parents[1]
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    tuned = torchalgo.optimize(
        build(network), build_input(network), budget_s=budget_s, settings=settings
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        plan = Path(folder) / "plan.json"
        tuned.plan.save(plan)
        servers = {
            name: opened.enter_context(Server(package, network, plan))
            for name, package in (("before", other), ("now", own))
        }
        for server in servers.values():
            server.wait()
        return in_rounds({name: partial(each.seconds) for name, each in servers.items()}, rounds)


def main() -> int:
    parser = make_parser(__doc__, has_records=True)
    parser.add_argument("other", type=Path, help="the folder that holds the other torchalgo")
    parser.add_argument("--networks", nargs="+", default=board(), metavar="NAME", help="not all")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--budget-s", type=seconds, default=2.0, help="of each tuning")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    git = ["git", "-C", str(args.other), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    ratios: list[float] = []
    for network in args.networks:
        try:
            taken = measure(network, args.other.resolve(), args.rounds, args.budget_s)
        except (torchalgo.Error, RuntimeError) as problem:
            print(f"{network}: {problem}", file=sys.stderr)
            continue
        result = is_faster(taken["before"], taken["now"])
        ratios.append(result.ratio)
        now_us = statistics.median(taken["now"]) * 1e6
        line = {
            "network": network, "other": commit, "ratio": round(result.ratio, 4),
            "low": round(result.low, 4), "high": round(result.high, 4), "now_us": round(now_us, 1),
            "rounds": len(taken["now"]), "threads": 1, "dtype": "float32",
        }  # fmt: skip
        record(RESULTS / "calls.jsonl", line, lambda _: None)
        print(f"{network:40} {now_us:10.1f} us {said(result)}", flush=True)
    if len(ratios) > 1:
        mean = statistics.geometric_mean(ratios)
        logs = [ratio / mean - 1 for ratio in ratios]
        half = 1.96 * statistics.stdev(logs) / len(logs) ** 0.5
        print(
            f"{len(ratios)} networks: {mean:.4f} [{mean * (1 - half):.4f}, {mean * (1 + half):.4f}]"
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(*sys.argv[2:])
    else:
        run_script(main)
