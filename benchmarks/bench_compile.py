# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile(backend="torchalgo") and torch.export beside optimize, Inductor and OpenVINO.

    python benchmarks/bench_compile.py resnet18 mobilenet_v2 --threads 2
    python benchmarks/bench_compile.py squeezenet1_1 --quick      # to see that it works: a minute

Each network runs in a process of its own. It is tuned once. Its plan is then applied through
torch.compile and through torch.export, and saved as .pt and .pt2. A record says whether layer
names, structure hash and the bits of the outputs are the same, and how long it takes to pack
changed weights again. The programs of examples/ run the files too, if `make example` has built
them. All modules are timed in interleaved rounds, like those of bench_models.py.
"compile_unguarded" skips the checks that torch.compile makes in each call
(torch.compiler.set_stance). "openvino_compile" is OpenVINO's backend of torch.compile.

Takes 1 to 3 minutes per network. Appends one JSON line per network to
benchmarks/results/compile.jsonl.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch

import engines
import harness
import torchalgo
from bench_models import build_peers, sample, tuned, wall_us
from compare import said
from networks import NAMES, network_name, random_input, random_network
from torchalgo import dynamo
from torchalgo._base.stats import is_faster

LIMIT_S = 1200.0  # of one network
OWN = "torchalgo"
BUILD = Path(__file__).parents[1] / "build"
PROGRAMS = {"cpp_pt": BUILD / "cpp_deploy/cpp_deploy", "cpp_pt2": BUILD / "cpp_pt2/cpp_pt2"}
QUICK = {"rounds": 5, "inner": 1, "budget": 5.0, "tune_s": 8.0, "peers": []}


def openvino_compile(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """OpenVINO's backend of torch.compile, in f32 on as many threads as torch."""
    import openvino.torch  # noqa: F401  registers the backend

    options: Any = {"device": "CPU", "config": engines.openvino_config()}
    compiled = torch.compile(model, backend="openvino", options=options)
    return lambda: compiled(x)


engines.PEERS["openvino_compile"] = openvino_compile


def doors(network: torch.nn.Module, optimized: Any, x: torch.Tensor) -> tuple[Any, harness.Record]:
    """Applies the plan through torch.compile and torch.export.

    Returns the compiled network, and what a record says of both.
    """
    settings, plan = torchalgo.Settings(progress=False), optimized.plan
    start = time.perf_counter()
    options: Any = {"plan": plan}
    compiled: Any = torch.compile(network, backend="torchalgo", options=options)
    from_compile = compiled(x)
    compile_s = time.perf_counter() - start
    report = dynamo.report(compiled)
    (of_compile,) = [each for graph in report.graphs for each in graph.plans.values()]
    start = time.perf_counter()
    exported = torchalgo.optimize(torch.export.export(network, (x,)), plan=plan, settings=settings)
    export_s = time.perf_counter() - start
    applied = torchalgo.optimize(network, x, plan=plan, settings=settings)
    want, names = applied(x), [node.name for node in plan.nodes]
    from_export, from_files = exported(x), files(applied, x)
    start = time.perf_counter()
    next(network.parameters()).add_(0.0)
    compiled(x)
    repack_s = time.perf_counter() - start
    return compiled, {
        "graphs": len(report.graphs),
        "not_planned": dict(report.original_runs),
        "same_names": [[n.name for n in p.nodes] == names for p in (of_compile, exported.plan)],
        "same_hash": [p.structure_hash == plan.structure_hash for p in (of_compile, exported.plan)],
        "same_bits": {
            "compile": torch.equal(from_compile, want),
            "export": torch.equal(from_export, want),
            **from_files,
        },
        "compile_s": round(compile_s, 2),
        "export_s": round(export_s, 2),
        "repack_s": round(repack_s, 2),
    }


def files(optimized: Any, x: torch.Tensor) -> dict[str, bool]:
    """Saves the module, loads each file, and returns whether it gives the bits of `optimized`."""
    x = torch.linspace(-1, 1, prod(x.shape)).reshape(x.shape)  # as examples/input.h makes it
    want = optimized(x)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: Path(folder, f"model.{kind}") for kind in ("pt", "pt2")}
        for path in paths.values():
            optimized.save(path)
        found["pt"] = torch.equal(torchalgo.load(paths["pt"])(x), want)
        found["pt2"] = torch.equal(torch.export.load(paths["pt2"]).module()(x), want)
        for program, executable in PROGRAMS.items():
            if executable.exists():
                file = str(paths[program.removeprefix("cpp_")])
                said = subprocess.run(
                    [executable, file, "x".join(map(str, x.shape))],
                    check=True, capture_output=True, text=True,
                ).stdout  # fmt: skip
                found[program] = said.split("bits ")[1].strip() == str(sum_of_bits(want))
    return found


def sum_of_bits(y: torch.Tensor) -> int:
    """Returns the sum that the programs of examples/ print."""
    y = y.flatten()
    return int((y.view(torch.int32).long() * torch.arange(1, y.numel() + 1)).sum())


def run_one(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    network = random_network(name)
    x = random_input(name)
    optimized, entry = tuned(lambda: copy.deepcopy(network), x, options["tune_s"])
    compiled, said_of_doors = doors(network, optimized, x)
    # A module of the same plan, packed as late as the compiled one, so that both lie alike.
    settings = torchalgo.Settings(progress=False)
    own = torchalgo.optimize(network, x, plan=optimized.plan, settings=settings)

    def run_unguarded() -> Any:
        # The call itself sets the stance for the process, and the end of the block resets it.
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            return compiled(x)

    built: dict[str, Any] = {
        OWN: {"run": lambda: own(x), **entry},
        "compile": {"run": lambda: compiled(x)},
        "compile_unguarded": {"run": run_unguarded},
    }
    built |= build_peers(options["peers"], lambda: copy.deepcopy(network), x)
    taken = sample(built, options["rounds"], options["inner"], options["budget"])
    return {
        "schema": 1,
        "benchmark": "compile",
        "network": name,
        "input": "x".join(map(str, x.shape)),
        "threads": options["threads"],
        "doors": said_of_doors,
        "engines": {n: {k: v for k, v in e.items() if k != "run"} for n, e in built.items()},
        "wall_us": wall_us(taken),
        "load_after": os.getloadavg()[0],
        "machine": engines.machine(),
        "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def show(record: harness.Record) -> None:
    """Prints a line per engine: its median, and its time over that of optimize's module."""
    own = record["wall_us"][OWN]
    print(f"{record['network']}, {record['threads']} thread(s), {record['doors']}")
    for name, times in record["wall_us"].items():
        extra = statistics.median(a - b for a, b in zip(times, own, strict=True))
        against = said(is_faster(times, own))
        print(
            f"  {name:20s} {statistics.median(times) / 1000:9.3f} ms   {against} over optimize,"
            f" {extra:+.0f} us",
            flush=True,
        )


def main() -> int:
    """Each network in a fresh process; its record is appended to --out."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "compile.jsonl")
    parser.add_argument("networks", nargs="+", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument("--threads", type=harness.count, default=2, help="of each engine")
    parser.add_argument("--rounds", type=harness.count, default=25, help="if --budget is not over")
    parser.add_argument("--inner", type=harness.count, default=3, help="calls per engine and round")
    parser.add_argument(
        "--budget", type=harness.seconds, default=20.0, help="seconds of rounds per network"
    )
    parser.add_argument("--tune-s", type=harness.seconds, default=60.0, help="seconds of tuning")
    parser.add_argument(
        "--peers", type=engines.peer_names, default=["inductor", "openvino_compile"],
        help=f"comma-separated: {', '.join(engines.PEERS)}",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few rounds, no peers, short tuning")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    options = harness.settings_of(args, "threads", "rounds", "inner", "budget", "tune_s", "peers")
    outcome = harness.measure_each(
        run_one, {name: (name, options) for name in args.networks}, out=args.out, limit_s=LIMIT_S,
        env=harness.thread_env(args.threads), show=show,
    )  # fmt: skip
    return outcome.status


if __name__ == "__main__":
    harness.run_script(main)
