# SPDX-License-Identifier: BSD-3-Clause
"""Layer by layer: where our kernels lose time to ATen, to OpenVINO and to the machine's limits.

    python benchmarks/bench_layers.py mobilenet_v2 resnet50 --threads 1
    python benchmarks/bench_layers.py squeezenet1_1 --quick     # to see that it works: a minute
    python benchmarks/bench_layers.py timm/dpn68 --threads 2 --out results/board_layers.jsonl
    python benchmarks/make_tables.py layers          # docs/layers.md from the records

An operation is a node of the imported graph with all that a candidate of ours fuses to it: bias,
residual, activation. Equal operations are timed once. First all candidates race. Then each round
times the fastest primitive of every algorithm, and OpenVINO. Buffers and weights are set up anew
for each round, so that the place of a page or a slow phase does not favour one engine. Ratios are
paired by round.

Each operation has two times. Cold: the weights are as far from the core as in the network, between
two uses of a weight (MeasureOptions.cold_bytes). OpenVINO's caches are swept by as much. Warm: the
weights are where the run before left them. Inputs are written just before in both. These times
cannot be compared in full:

- OpenVINO's time comes from its performance counters (openvino_layers.py), is known to about 1 us
  and leaves out the call. Alone it may choose another layout than inside a network. Our time
  includes the call and the allocation of the result.
- Our runs are cold in their weights only. Sweeping OpenVINO's weights out of the caches also
  sweeps out the memory of its result, which a network would have used just before. So operations
  are compared cold if most of their bytes are weights, otherwise warm. With several threads, a
  sweep reaches the caches near the threads that sweep, which need not be OpenVINO's.
- A concatenation that is a view, or that OpenVINO computes in place, takes 0. Only a plan tells
  whether its neighbours allow this.
- ATen is its fastest algorithm for the same fused problem. If none fuses, ATen is missing.

The roofline is the least time of a direct algorithm: multiply-adds that do not meet padding over
the probed peak, all bytes over the bandwidth probed at that size, weights over the bandwidth at the
size of the network's weights. Winograd and Strassen need fewer multiply-adds, and may pass it.

Takes less than 3 minutes per network. Appends one JSON line per network to
benchmarks/results/layers.jsonl. It holds the samples and, of a plan that is tuned first
(--plan-budget-s), the times that the plan expects. Prints the worst operations. docs/board.md shows
the records of board_layers.jsonl, of networks of the board that lose.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import board_networks
import harness
import torchalgo
from layer_lines import roofline
from layer_page import network_section
from networks import NAMES, network_name, random_input, random_network
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples
from torchalgo._ir.bounds import Peaks
from torchalgo._measure.sampling import cold_bytes as weights_of
from torchalgo._plan.preparation import best_capture

SCHEMA = 1
LIMIT_S = 1800.0  # of one network
PAUSE_S = 0.002  # lets the other engine's spinning threads go to sleep
RACE_ROUNDS, RACE_S = 5, 0.5  # of all candidates, per operation
SAMPLES = 3  # of one set-up
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Operation:
    """A piece of a network that one kernel can compute, used once or several times."""

    problem: str
    names: list[str]  # of the layers, one per use
    primitives: list[Any]  # _C.Primitive: those that the planner may choose


@dataclass
class Row:
    """An operation's engines with their samples in us, one per round."""

    operation: Operation
    finalists: list[Any]  # _C.Primitive
    openvino: Any = None  # openvino_layers.Layer
    openvino_failure: str = ""
    cold: dict[str, list[float]] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def algorithm_of(primitive: str) -> str:
    """ "cpu.winograd_f4x4_3x3" of "cpu.winograd_f4x4_3x3.t14"."""
    return ".".join(primitive.partition("{")[0].split(".")[:2])


def operations_of(graph: Any, candidates: Any) -> list[Operation]:
    """The distinct operations that cover the graph, in its order: each node takes in what it can,
    those that can take in most first."""
    by_anchor = candidates.by_anchor
    order = sorted(
        (i for i, own in enumerate(by_anchor) if own),
        key=lambda i: (-max(len(c.covers) for c in by_anchor[i]), -i),
    )
    covered: set[int] = set()
    chosen: dict[int, str] = {}
    for anchor in order:
        free = [c for c in by_anchor[anchor] if not covered.intersection(c.covers)]
        if free:
            most = max(free, key=lambda c: len(c.covers))
            covered.update(most.covers)
            chosen[anchor] = most.problem
    found: dict[str, Operation] = {}
    for anchor, problem in sorted(chosen.items()):
        own = [c.primitive for c in by_anchor[anchor] if c.problem == problem]
        found.setdefault(problem, Operation(problem, [], own)).names.append(
            graph.nodes[anchor].name
        )
    return list(found.values())


# ---- measuring -----------------------------------------------------------------------------------


def taken(tasks: Sequence[Any], cold_bytes: int, **options: Any) -> list[Any]:
    """_C.measure, as the planner's sampler calls it."""
    return _C.measure(list(tasks), warmup=1, cold_bytes=cold_bytes, **options)


def race(operation: Operation, cold_bytes: int) -> tuple[list[Any], dict[str, str]]:
    """The fastest primitive of every algorithm; why others failed. Views cost nothing and do not
    run."""
    run = [p for p in operation.primitives if not _C.is_view(p.name)]
    tasks = [(operation.problem, p) for p in run]
    samples = taken(tasks, cold_bytes, rounds=RACE_ROUNDS, budget_s=RACE_S, race=True)
    fastest: dict[str, tuple[float, Any]] = {}
    failures = {}
    for primitive, result in zip(run, samples, strict=True):
        if result.failure or not result.ns:
            failures[primitive.name] = result.failure or "gave no samples"
            continue
        ns, algorithm = cost_of_samples(result.ns)[0], algorithm_of(primitive.name)
        if algorithm not in fastest or ns < fastest[algorithm][0]:
            fastest[algorithm] = ns, primitive
    return [primitive for _, primitive in fastest.values()], failures


def make_row(operation: Operation, cold_bytes: int, *, with_openvino: bool) -> Row:
    """Everything that the rounds need."""
    finalists, failures = race(operation, cold_bytes)
    row = Row(operation, finalists, failures=failures)
    if not with_openvino:
        row.openvino_failure = "not run"
        return row
    try:
        import openvino_layers

        row.openvino = openvino_layers.build(operation.problem)
        openvino_layers.time_once(row.openvino, cold_bytes)
    except Exception as error:  # what a peer cannot run is a result, not an end
        row.openvino = None
        row.openvino_failure = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return row


def take_round(row: Row, cold_bytes: int) -> None:
    """One more sample of everything in the row."""
    tasks = [(row.operation.problem, primitive) for primitive in row.finalists]
    for times, cold in ((row.cold, cold_bytes), (row.warm, 0)):
        for primitive, result in zip(
            row.finalists, taken(tasks, cold, rounds=SAMPLES, budget_s=RACE_S), strict=True
        ):
            if result.failure or not result.ns:
                row.failures[primitive.name] = result.failure or "gave no samples"
                continue
            times.setdefault(primitive.name, []).append(cost_of_samples(result.ns)[0] / 1000)
    if row.openvino is not None:
        import openvino_layers

        time.sleep(PAUSE_S)
        pairs = [openvino_layers.time_once(row.openvino, cold_bytes) for _ in range(SAMPLES)]
        row.cold.setdefault("openvino", []).append(cost_of_samples([t.cold for t in pairs])[0])
        row.warm.setdefault("openvino", []).append(cost_of_samples([t.warm for t in pairs])[0])
        time.sleep(PAUSE_S)


def take_rounds(
    rows: Sequence[Row],
    cold_bytes: int,
    rounds: int,
    budget_s: float,
    now_s: Callable[[], float] = time.monotonic,
) -> int:
    """Returns the number of rounds that were taken: fewer if they last longer than `budget_s`."""
    started = now_s()
    for turn in range(rounds):
        elapsed_s = now_s() - started
        if turn >= LEAST_ROUNDS and elapsed_s * (turn + 1) / turn > budget_s:
            return turn
        for row in rows:
            take_round(row, cold_bytes)
    return rounds


# ---- the record ----------------------------------------------------------------------------------


def row_record(row: Row, peaks: Any, cold_bytes: int) -> dict[str, Any]:
    """A row as JSON; views take 0."""
    operation = row.operation
    engines: dict[str, dict[str, Any]] = {}
    for primitive in row.finalists:
        if primitive.name in row.failures:
            continue
        engines[algorithm_of(primitive.name)] = {
            "primitive": primitive.name,
            "layouts": f"{primitive.src}->{primitive.dst}",
            **samples_of(row, primitive.name),
        }
    for primitive in operation.primitives:
        if _C.is_view(primitive.name):
            layouts = f"{primitive.src}->{primitive.dst}"
            engines[algorithm_of(primitive.name)] = {
                "primitive": primitive.name, "layouts": layouts, "cold_us": [], "warm_us": [],
            }  # fmt: skip
    if row.openvino is not None:
        engines["openvino"] = {"primitive": row.openvino.kernel, **samples_of(row, "openvino")}
    else:
        engines["openvino"] = {"failure": row.openvino_failure}
    return {
        "problem": operation.problem,
        "layers": operation.names,
        "roofline": roofline(operation.problem, operation.primitives, peaks, cold_bytes),
        "engines": engines,
        "failures": row.failures,
    }


def samples_of(row: Row, name: str) -> dict[str, list[float]]:
    """Rounded, by where the weights lay."""
    return {
        key: [round(us, 2) for us in times.get(name, [])]
        for key, times in (("cold_us", row.cold), ("warm_us", row.warm))
    }


def plan_record(network: Any, x: Any, budget_s: float) -> dict[str, Any]:
    """Tunes a plan. Returns the times that it expects of its nodes and layout changes."""
    optimized = torchalgo.optimize(
        network, x, settings=torchalgo.Settings(cost_db=False, progress=False), budget_s=budget_s
    )
    plan = optimized.plan
    return {
        "status": plan.status,
        "method": plan.method,
        "cost_us": plan.cost_us,
        "nodes": [
            [n.name, n.problem, n.primitive, round(n.predicted_us, 2)]
            for n in plan.nodes
            if n.primitive
        ],
        "transforms": [[t.value, t.problem, round(t.predicted_us, 2)] for t in plan.transforms],
    }


def probe() -> Any:
    """The rates of now: what else runs lowers all of a probe, so that several are taken."""
    return Peaks.probed(_C.probe_peaks())


def measure_network(network: Any, x: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The record of one network, but for its name and the machine."""
    started = time.monotonic()
    graph = _C.import_graph(best_capture(network, (x,)).frozen._c, (x,)).graph
    cold_bytes = weights_of(graph)
    plan = plan_record(network, x, args.plan_budget_s) if args.plan_budget_s > 0 else None
    probes = [probe()]
    rows = [
        make_row(operation, cold_bytes, with_openvino=not args.no_openvino)
        for operation in operations_of(graph, _C.find_candidates(graph))
    ]
    probes.append(probe())
    rounds = take_rounds(rows, cold_bytes, args.rounds, args.budget_s)
    peaks = functools.reduce(lambda a, b: a.raised_by(b), [*probes, probe()])
    return {
        "isa": _C.cpu_device().isa,
        "cold_bytes": cold_bytes,
        "weights_in": _C.weights_in(cold_bytes, _C.cpu_device()),
        "peaks": [peaks.flops_per_ns, [list(rate) for rate in peaks.bytes_per_ns]],
        "rounds": rounds,
        "rows": [row_record(row, peaks, cold_bytes) for row in rows],
        "plan": plan,
        "seconds": round(time.monotonic() - started, 1),
    }


def layer_network(text: str) -> str:
    """The type of an argument: a network of networks.py or of the board."""
    return text if text in board_networks.board() else network_name(text)


def run_one(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    load_before = os.getloadavg()[0]
    args = argparse.Namespace(**options)
    on_board = name in board_networks.board()
    network = board_networks.build(name) if on_board else random_network(name)
    x = board_networks.build_input(name) if on_board else random_input(name)
    measured = measure_network(network, x, args)
    peers = () if args.no_openvino else ("openvino",)
    return {
        "schema": SCHEMA,
        "benchmark": "layers",
        "network": name,
        "threads": args.threads,
        **measured,
        "load_before": round(load_before, 2),
        "versions": {
            "torch": torch.__version__,
            "torchalgo": torchalgo.__version__,
            **harness.versions_of(*peers),
        },
        "date": time.strftime("%Y-%m-%d"),
    }


# ---- the command ---------------------------------------------------------------------------------


def parse_args(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = harness.make_parser(__doc__, harness.RESULTS / "layers.jsonl", can_resume=True)
    parser.add_argument("networks", nargs="+", type=layer_network, metavar="NETWORK", help=NAMES)
    parser.add_argument("--threads", type=harness.count, default=1, help="of each engine")
    parser.add_argument("--rounds", type=harness.count, default=11, help="per network")
    parser.add_argument(
        "--budget-s", type=harness.seconds, default=80.0, help="of the rounds of a network"
    )
    parser.add_argument(
        "--plan-budget-s", type=harness.seconds, default=40.0, help="of tuning a plan; 0: no plan"
    )
    parser.add_argument("--no-openvino", action="store_true", help="leave it out")
    parser.add_argument("--worst", type=harness.count, default=20, help="rows that are printed")
    parser.add_argument("--quick", action="store_true", help="three rounds, no plan, no OpenVINO")
    args = parser.parse_args(words)
    if args.quick:
        parser.set_defaults(rounds=3, plan_budget_s=0.0, no_openvino=True)
        args = parser.parse_args(words)
    return args


def main() -> int:
    """Each network in a fresh process; its record is appended to --out, its table printed."""
    args = parse_args()
    options = harness.settings_of(
        args, "threads", "rounds", "budget_s", "plan_budget_s", "no_openvino"
    )
    same = {"threads": args.threads}
    outcome = harness.measure_each(
        run_one, {name: (name, options) for name in args.networks}, out=args.out, limit_s=LIMIT_S,
        env=harness.thread_env(args.threads),
        done=harness.done_before(args.out, "network", same) if args.resume else {},
        show=lambda line: print("\n".join(["", *network_section(line, args.worst)]), flush=True),
    )  # fmt: skip
    return outcome.status


if __name__ == "__main__":
    harness.run_script(main)
