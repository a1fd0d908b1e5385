# SPDX-License-Identifier: BSD-3-Clause
"""Whole networks: torchalgo beside PyTorch's own ways, Inductor, ONNX Runtime and OpenVINO.

    python benchmarks/bench_models.py resnet50 vgg16 --threads 1
    python benchmarks/bench_models.py resnet50 --threads 1 --batch 8
    python benchmarks/bench_models.py resnet50 --threads 2 --peers onnxruntime,onnxruntime_spinning
    python benchmarks/bench_models.py resnet50 --threads 1 --isa avx2 --peers eager,channels_last
    python benchmarks/bench_models.py squeezenet1_1 --quick     # to see that it works: a minute

Each network runs in a process of its own. All engines are built first, then they are timed in
rounds. In each round every engine runs once untimed and then `--inner` times timed. The order
rotates, so that a slow phase of the machine hits all alike. Beside torchalgo's plan run the plans
that it is compared with, made from the same costs: ATen's algorithms only, the best single layout,
the local optimum. The plan runs a second time as well (A/A control). ONNX Runtime runs twice, with
its idle threads spinning and asleep; make_tables.py counts the faster of the two.

Takes 3 to 10 minutes per network, most of them for tuning and building. Appends one JSON line per
network, with the samples, to benchmarks/results/models.jsonl, and prints a summary.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

import engines
import harness
import torchalgo
from compare import in_rounds, said
from networks import NAMES, network_name, random_input, random_network
from peer_engines import reason_of
from torchalgo._base.stats import is_faster

SCHEMA = 1
LIMIT_S = 3600.0  # of one network
PAUSE_S = 0.005  # lets the other engines' spinning threads go to sleep
SPIN_S = 0.2  # after an engine whose threads spin: it takes longer until they sleep
# These hold a process to vectors of 256 bits: torch with our kernels, and oneDNN in it.
ISA_LIMITS = {
    "": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
QUICK = {"rounds": 7, "inner": 1, "peers": ["eager", "channels_last"], "tune_s": 10.0}


def build_peers(names: list[str], make: Callable[[], Any], x: Any) -> dict[str, dict[str, Any]]:
    """Engines that could be built, and for the others why not."""
    built: dict[str, dict[str, Any]] = {}
    for name in names:
        start = time.perf_counter()
        try:
            run = engines.PEERS[name](make(), x)
            run()
        except Exception as error:  # a peer that cannot run a network is a result, not an end
            built[name] = {"failure": reason_of(error)}
            continue
        built[name] = {
            "run": run,
            "build_s": round(time.perf_counter() - start, 2),
            "version": engines.peer_version(name),
        }
        if name.startswith("onnxruntime"):
            built[name]["spinning"] = name.endswith("_spinning")
    return built


def tuned(
    make: Callable[[], Any], x: Any, tune_s: float, max_error: float = 1e-5, **settings: Any
) -> tuple[Any, Any]:
    """Optimizes the network. Returns the module, and what a record says of its plan."""
    start = time.perf_counter()
    rare = torchalgo.Settings(progress=False, **settings)
    optimized = torchalgo.optimize(make(), x, budget_s=tune_s, max_error=max_error, settings=rare)
    build_s = round(time.perf_counter() - start, 2)
    plan = optimized.plan
    return optimized, {
        "predicted_us": plan.cost_us,
        "transforms": len(plan.transforms),
        "build_s": build_s,
        "status": plan.status,
        "method": plan.method,
        "runs": optimized.runs,
        "primitives": dict(Counter(n.primitive for n in plan.nodes if n.primitive)),
    }


def build_own(make: Callable[[], Any], x: Any, tune_s: float) -> dict[str, dict[str, Any]]:
    """torchalgo's plan twice, and the plans it is compared with."""
    optimized, said_of_plan = tuned(make, x, tune_s)
    plan = optimized.plan
    plans = {"torchalgo": plan, "torchalgo_again": plan, **compared_plans(optimized)}
    own: dict[str, dict[str, Any]] = {}
    for name, each in plans.items():
        module = torchalgo.optimize(
            make(), x, plan=each, settings=torchalgo.Settings(progress=False)
        )
        own[name] = {
            "run": lambda module=module: module(x),
            "predicted_us": each.cost_us,
            "transforms": len(each.transforms),
        }
    own["torchalgo"] |= said_of_plan
    return own


def compared_plans(optimized: Any) -> dict[str, Any]:
    """ATen rows only, the best single layout, the local optimum: from the same costs."""
    plans = dict(optimized.alternatives)
    single = {name: plans.pop(name) for name in list(plans) if name.startswith("single_layout")}
    if single:
        plans["best_single_layout"] = min(single.values(), key=lambda plan: plan.cost_us)
    return plans


class Taken(NamedTuple):
    """The times of one engine in one round, in us."""

    calls_us: list[float]  # wall time of each timed call
    cpu_us: float  # CPU time of the process per call


def sample(
    built: dict[str, dict[str, Any]], rounds: int, inner: int, budget_s: float
) -> dict[str, list[Taken]]:
    """Times `inner` single calls of each engine per round, paired by round."""

    def take(engine: dict[str, Any]) -> Taken:
        run = engine["run"]
        time.sleep(PAUSE_S)
        run()
        cpu_start = time.process_time()
        calls_us = []
        for _ in range(inner):
            start = time.perf_counter()
            run()
            calls_us.append((time.perf_counter() - start) * 1e6)
        cpu_s = time.process_time() - cpu_start
        if engine.get("spinning"):
            time.sleep(SPIN_S)
        return Taken(calls_us, cpu_s / inner * 1e6)

    takers = {name: partial(take, engine) for name, engine in built.items() if "run" in engine}
    return in_rounds(takers, rounds, budget_s)


def wall_us(taken: dict[str, list[Taken]]) -> dict[str, list[float]]:
    """Returns the mean time of a call by engine and round, as records keep it."""
    return {
        name: [round(statistics.fmean(each.calls_us), 1) for each in rounds]
        for name, rounds in taken.items()
    }


def relative_error(network: Any, x: Any, run: Callable[[], Any]) -> float:
    """Relative L2 of `run`'s output to the network in f64."""
    with torch.no_grad():
        reference = copy.deepcopy(network).double()(x.double())
        result = run()
    if isinstance(reference, dict):
        reference, result = reference["out"], result["out"]
    return float((result.double() - reference).norm() / reference.norm())


def run_one(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    network = random_network(name)
    x = random_input(name, batch=options["batch"])
    load_before = os.getloadavg()[0]
    tune_s = float("inf") if options["tune_s"] is None else options["tune_s"]
    built = build_own(lambda: copy.deepcopy(network), x, tune_s)
    built |= build_peers(options["peers"], lambda: copy.deepcopy(network), x)
    error = relative_error(network, x, built["torchalgo"]["run"])
    taken = sample(built, options["rounds"], options["inner"], options["budget"])
    return {
        "schema": SCHEMA,
        "benchmark": "models",
        "network": name,
        "input": "x".join(map(str, x.shape)),
        "dtype": "f32",
        "threads": options["threads"],
        "isa_limit": options["isa"],
        "rel_error": error,
        "engines": {n: {k: v for k, v in e.items() if k != "run"} for n, e in built.items()},
        "wall_us": wall_us(taken),
        "cpu_us": {n: [round(each.cpu_us, 1) for each in ts] for n, ts in taken.items()},
        "inner": options["inner"],
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "machine": engines.machine(),
        "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def show(record: harness.Record) -> None:
    """Prints a line per engine: median, and its time over torchalgo's with the interval."""
    own = record["wall_us"]["torchalgo"]
    print(
        f"{record['network']} {record['input']}, {record['threads']} thread(s),"
        f" relative L2 {record['rel_error']:.1e}"
    )
    medians = {name: statistics.median(times) for name, times in record["wall_us"].items()}
    for name, us in sorted(medians.items(), key=lambda item: item[1]):
        against = said(is_faster(record["wall_us"][name], own))
        print(f"  {name:24s} {us / 1000:9.2f} ms   {against} over torchalgo", flush=True)


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "models.jsonl", can_resume=True)
    parser.add_argument("networks", nargs="+", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument("--threads", type=harness.count, default=1, help="of each engine")
    parser.add_argument("--batch", type=harness.count, default=1, help="images per run")
    parser.add_argument(
        "--isa", default="", choices=[*ISA_LIMITS], help="the widest vectors of torch and torchalgo"
    )
    parser.add_argument(
        "--rounds", type=harness.count, default=21, help="if --budget does not end first"
    )
    parser.add_argument("--inner", type=harness.count, default=2, help="runs per engine and round")
    parser.add_argument(
        "--budget", type=harness.seconds, default=60.0, help="seconds of rounds per network"
    )
    parser.add_argument(
        "--peers", type=engines.peer_names,
        default=[name for name in engines.PEERS if name not in engines.RARE],
        help=f"comma-separated: {', '.join(engines.PEERS)}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few rounds, two peers, short tuning")
    parser.add_argument(
        "--tune-s", type=harness.seconds, help="for tuning; without end if left out"
    )
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    options = harness.settings_of(
        args, "threads", "batch", "isa", "rounds", "inner", "budget", "peers", "tune_s"
    )
    same = {"threads": args.threads, "isa_limit": args.isa, "inner": args.inner}
    done = harness.done_before(args.out, "network", same) if args.resume else {}
    fitting = {
        name: line for name, line in done.items() if line["input"].startswith(f"{args.batch}x")
    }
    outcome = harness.measure_each(
        run_one, {name: (name, options) for name in args.networks}, out=args.out, limit_s=LIMIT_S,
        env={**harness.thread_env(args.threads), **ISA_LIMITS[args.isa]}, done=fitting, show=show,
    )  # fmt: skip
    return outcome.status


if __name__ == "__main__":
    harness.run_script(main)
