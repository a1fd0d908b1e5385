# SPDX-License-Identifier: BSD-3-Clause
"""Whole networks: torchalgo beside PyTorch's own ways, Inductor, ONNX Runtime and OpenVINO.

    python benchmarks/bench_models.py resnet50 vgg16 --threads 1
    python benchmarks/bench_models.py resnet50 --threads 1 --batch 8
    python benchmarks/bench_models.py resnet50 --threads 2 --peers onnxruntime,onnxruntime_spinning
    python benchmarks/bench_models.py resnet50 --threads 1 --isa avx2 --peers eager,channels_last

Each (network, threads) runs in a process of its own. All engines are built first; then rounds: in
each, every engine runs once untimed and then `--inner` times timed, in an order that rotates, so
that a slow phase of the machine hits all alike. Beside torchalgo's plan run, from the same costs,
the plans it is compared with: ATen rows only, best single layout, local optimum; and the plan a
second time (A/A control). ONNX Runtime runs twice, with its idle threads spinning and asleep;
make_tables.py, which makes tables from the records, counts the faster of the two. There is one
JSON line per network and number of threads, with the samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from records import git_state

SCHEMA = 1
PAUSE_S = 0.005  # lets the other engines' spinning threads go to sleep
# What holds a process to vectors of 256 bits: torch with our kernels, and oneDNN in it.
ISA_LIMITS = {
    "": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
SPIN_S = 0.2  # after an engine whose threads spin: it takes longer until they sleep
ALL_PEERS = (
    "eager,channels_last,optimize_for_inference,inductor,onnxruntime,onnxruntime_spinning,openvino"
)


def build_peers(names: list[str], make: Callable[[], Any], x: Any) -> dict[str, dict[str, Any]]:
    """Engines that could be built, and for the others why not."""
    import engines

    built: dict[str, dict[str, Any]] = {}
    for name in names:
        start = time.perf_counter()
        try:
            run = engines.PEERS[name](make(), x)
            run()
        except Exception as error:  # a peer that cannot run a network is a result, not an end
            built[name] = {"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
            continue
        built[name] = {
            "run": run,
            "build_s": round(time.perf_counter() - start, 2),
            "version": engines.peer_version(name),
        }
        if name.startswith("onnxruntime"):
            built[name]["spinning"] = name.endswith("_spinning")
    return built


def build_own(make: Callable[[], Any], x: Any) -> dict[str, dict[str, Any]]:
    """torchalgo's plan twice, and the plans it is compared with."""
    import torchalgo

    start = time.perf_counter()
    optimized = torchalgo.optimize(make(), x, budget_s=float("inf"), progress=False)
    build_s = round(time.perf_counter() - start, 2)
    plan = optimized.plan
    plans = {"torchalgo": plan, "torchalgo_again": plan, **compared_plans(optimized)}
    own: dict[str, dict[str, Any]] = {}
    for name, each in plans.items():
        module = torchalgo.optimize(make(), x, plan=each, progress=False)
        own[name] = {
            "run": lambda module=module: module(x),
            "predicted_us": each.cost_us,
            "transforms": len(each.transforms),
        }
    own["torchalgo"] |= {
        "build_s": build_s,
        "status": plan.status,
        "method": plan.method,
        "runs": optimized.runs,
        "primitives": dict(Counter(n.primitive for n in plan.nodes if n.primitive)),
    }
    return own


def compared_plans(optimized: Any) -> dict[str, Any]:
    """ATen rows only, the best single layout, the local optimum: from the same costs."""
    plans = dict(optimized.alternatives)
    single = {name: plans.pop(name) for name in list(plans) if name.startswith("single_layout")}
    if single:
        plans["best_single_layout"] = min(single.values(), key=lambda plan: plan.cost_us)
    return plans


def sample(
    engines: dict[str, dict[str, Any]], rounds: int, inner: int, budget_s: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and process-CPU time of each engine, in us per run, paired by round."""
    names = [name for name, engine in engines.items() if "run" in engine]
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    start = time.monotonic()
    for turn in range(rounds):
        if turn >= 7 and time.monotonic() - start > budget_s:
            break
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            run = engines[name]["run"]
            time.sleep(PAUSE_S)
            run()
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(inner):
                run()
            wall[name].append((time.perf_counter() - wall_start) / inner * 1e6)
            cpu[name].append((time.process_time() - cpu_start) / inner * 1e6)
            if engines[name].get("spinning"):
                time.sleep(SPIN_S)
    return wall, cpu


def relative_error(network: Any, x: Any, run: Callable[[], Any]) -> float:
    """Relative L2 of `run`'s output to the network in f64."""
    import copy

    import torch

    with torch.no_grad():
        reference = copy.deepcopy(network).double()(x.double())
        result = run()
    if isinstance(reference, dict):
        reference, result = reference["out"], result["out"]
    return float((result.double() - reference).norm() / reference.norm())


def run_one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The record of one network in this process."""
    import copy

    import torch

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    import engines
    from networks import random_input, random_network

    network = random_network(name)
    x = random_input(name, batch=args.batch)
    load_before = os.getloadavg()[0]
    built = build_own(lambda: copy.deepcopy(network), x)
    built |= build_peers(args.peers.split(","), lambda: copy.deepcopy(network), x)
    error = relative_error(network, x, built["torchalgo"]["run"])
    wall, cpu = sample(built, args.rounds, args.inner, args.budget)
    return {
        "schema": SCHEMA,
        "benchmark": "models",
        "network": name,
        "input": "x".join(map(str, x.shape)),
        "dtype": "f32",
        "threads": args.threads,
        "isa_limit": args.isa,
        "rel_error": error,
        "engines": {n: {k: v for k, v in e.items() if k != "run"} for n, e in built.items()},
        "wall_us": {n: [round(t, 1) for t in ts] for n, ts in wall.items()},
        "cpu_us": {n: [round(t, 1) for t in ts] for n, ts in cpu.items()},
        "inner": args.inner,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "machine": engines.machine(),
        "git": git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--isa", default="", choices=[*ISA_LIMITS], help="the widest vectors of torch and torchalgo"
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--inner", type=int, default=2, help="timed runs per engine and round")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of rounds per network")
    parser.add_argument("--peers", default=ALL_PEERS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/models.jsonl"))
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    args = parse_args()
    if args.in_process:
        print(json.dumps(run_one(args.networks[0], args)))
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in args.networks:
        options = [
            f"--{key}={getattr(args, key)}"
            for key in ("threads", "batch", "isa", "rounds", "inner", "budget", "peers")
        ]
        command = [sys.executable, __file__, name, "--in-process", *options]
        threads = {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, **ISA_LIMITS[args.isa]},
        )
        if done.returncode != 0:
            print(f"{name}: failed with exit status {done.returncode}", file=sys.stderr)
            failed += 1
            continue
        line = done.stdout.strip().splitlines()[-1]
        with args.out.open("a") as out:
            out.write(line + "\n")
        print_summary(json.loads(line))
    return 1 if failed else 0


def print_summary(record: dict[str, Any]) -> None:
    """One line per engine: median, and how much slower than torchalgo with its interval."""
    import statistics

    from torchalgo._base.stats import is_faster

    own = record["wall_us"]["torchalgo"]
    print(
        f"{record['network']} {record['input']}, {record['threads']} thread(s),"
        f" relative L2 {record['rel_error']:.1e}"
    )
    for name, times in sorted(
        record["wall_us"].items(), key=lambda item: statistics.median(item[1])
    ):
        against = is_faster(times, own)
        print(
            f"  {name:24s} {statistics.median(times) / 1000:9.2f} ms   "
            f"{against.ratio:5.2f}x of torchalgo [{against.low:.2f}, {against.high:.2f}]",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
