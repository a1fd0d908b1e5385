# SPDX-License-Identifier: BSD-3-Clause
"""Compares the speed of two builds of torchalgo on the same saved plans.

    python benchmarks/bench_builds.py --before ../old --after . resnet18 mobilenet_v2 --threads 2

`--before` and `--after` are checkouts with a build in them (`make build`). The older one tunes each
network and saves it. Both load that file, each in a process of its own, and run it in turns: one
block of inferences each per round. One JSON line per network is appended to
benchmarks/results/builds.jsonl, with the ratio of the medians (before / after: above 1 the newer
build is faster), its 95 % interval over the rounds, and an A/A control: the older build's even
rounds over its odd ones.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "builds.jsonl"
BLOCK_S = 0.25  # of inferences, per build and round


class Build:
    """A process that runs saved models with one build."""

    def __init__(self, checkout: Path, threads: int) -> None:
        # Its own script: the modules that this one imports may not be in an older build.
        script = (checkout / "benchmarks" / "bench_builds.py").resolve()
        paths = [checkout / "python", checkout / "benchmarks"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--serve", "--threads", str(threads)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, *words: str) -> Any:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"bench_builds: a build ended while it was asked for {words}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(threads: int) -> None:
    """Answers requests on stdin: tune NETWORK FILE, load NETWORK FILE, run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import torch

    import torchalgo
    from networks import random_input, random_network

    torch.set_num_threads(threads)
    module, x = None, None
    for line in sys.stdin:
        verb, *words = json.loads(line)
        if verb == "tune":
            database = Path(words[1]).with_suffix(".sqlite3")
            torchalgo.optimize(
                random_network(words[0]), (random_input(words[0]),), budget_s=float("inf"),
                cost_db=database, progress=False,
            ).save(words[1])  # fmt: skip
            answer: Any = "tuned"
        elif verb == "load":
            module, x = torchalgo.load(words[1]), random_input(words[0])
            with torch.no_grad():
                answer = [float(module(x).double().sum()) for _ in range(5)][-1]
        else:
            assert module is not None
            times: list[int] = []
            ends = time.monotonic() + BLOCK_S
            with torch.no_grad():
                while time.monotonic() < ends or len(times) < 3:
                    start = time.perf_counter_ns()
                    module(x)
                    times.append(time.perf_counter_ns() - start)
            answer = statistics.median(times)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compare(name: str, before: Build, after: Build, rounds: int) -> dict[str, Any]:
    from torchalgo._base.stats import is_faster

    with tempfile.TemporaryDirectory(prefix="builds-") as folder:
        file = str(Path(folder) / f"{name}.pt")
        before.ask("tune", name, file)
        sums = [build.ask("load", name, file) for build in (before, after)]
    times: dict[str, list[int]] = {"before": [], "after": []}
    for turn in range(rounds):
        order = [("before", before), ("after", after)]
        for key, build in order if turn % 2 == 0 else reversed(order):
            times[key].append(build.ask("run"))
    result = is_faster(times["before"], times["after"])
    half = min(len(times["before"][0::2]), len(times["before"][1::2]))
    control = is_faster(times["before"][0::2][:half], times["before"][1::2][:half])
    return {
        "network": name,
        "before_us": round(statistics.median(times["before"]) / 1000, 1),
        "after_us": round(statistics.median(times["after"]) / 1000, 1),
        "ratio": [round(v, 4) for v in (result.ratio, result.low, result.high)],
        "control": [round(v, 4) for v in (control.ratio, control.low, control.high)],
        "rounds": rounds, "sums_differ_by": abs(sums[0] - sums[1]),
    }  # fmt: skip


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.threads)
        return 0
    if args.before is None or not args.networks:
        parser.error("give --before, a checkout with the older build, and networks")
    from harness import machine_state, record

    before, after = Build(args.before, args.threads), Build(args.after, args.threads)
    ratios = []
    for name in args.networks:
        state = machine_state()
        line = {
            "schema": 1, "benchmark": "builds", "date": datetime.date.today().isoformat(),
            "before": commit_of(args.before), "after": commit_of(args.after),
            "threads": args.threads, **compare(name, before, after, args.rounds), "machine": state,
        }  # fmt: skip
        ratios.append(line["ratio"][0])
        record(args.output, line)
    before.close()
    after.close()
    print(f"geometric mean of before / after: {statistics.geometric_mean(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
