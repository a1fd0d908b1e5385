# SPDX-License-Identifier: BSD-3-Clause
"""Measures what a tuning loses to noise, and how well its costs predict the whole network.

    python benchmarks/bench_tuning.py regret                        # three networks
    python benchmarks/bench_tuning.py regret resnet18 --tunings 3 --passes 2
    python benchmarks/bench_tuning.py context --threads 1           # all networks
    python benchmarks/bench_tuning.py context resnet50 googlenet --cost-db costs.sqlite3
    python benchmarks/bench_tuning.py regret squeezenet1_1 --quick  # to see that it works

Both need a quiet machine.

regret: every candidate is measured in many passes, half of them before and half after the tunings.
  All samples together are the frozen table. Each pass is a process of its own, since the place of
  its pages alone makes a primitive 10 to 30 % faster or slower than in another process. In between,
  fresh processes tune the network without a database. The frozen table prices each of their plans:
  the regret is what a plan costs above the table's optimum. These tunings leave out the last step,
  which prefers what is faster inside the network. The share of the gain is the part of the way from
  PyTorch's own primitives to the optimum. The A/A interval is the regret of the table against
  itself: the optimum of every other pass, priced by the rest, and the other way round. Takes 20 to
  60 minutes per network, --quick one or two. Appends one JSON line per network to
  benchmarks/results/tuning.jsonl.
context: each network is optimized as a user does it, which times the plan inside the network and
  corrects its costs. The result is then timed afresh, with the recorder of ops (parts of a call)
  and without it (whole calls, in two interleaved series as a control). In a record, `alone_us` is
  the sum of the costs alone, and `corrected_us` is the expected time of a call when tuning ended.
  `net_ops_us` and `net_rest_us` are a call's parts, and `wall_us` is the call. `error_*` are
  predicted / measured - 1. Takes one to four minutes per network. Appends one JSON line per network
  to benchmarks/results/context.jsonl and prints a table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

import harness
import torchalgo
from networks import (
    CLASSIFIERS,
    NAMES,
    SEGMENTATION,
    network_name,
    random_input,
    random_network,
)
from pages import table
from replay import keys_of
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples, cost_of_setups, is_faster
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import family_of
from torchalgo._ir.call_overhead import CALL_TICKS
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of, native_key
from torchalgo._measure.allowed import grouped
from torchalgo._measure.guard import time_interleaved
from torchalgo._measure.sampling import cold_bytes
from torchalgo._plan.describe import native_plan
from torchalgo._plan.find import find_candidates
from torchalgo._refine.in_context import Refined, Search
from torchalgo._refine.net_times import time_in_net

REGRET_NETWORKS = ("resnet50", "mobilenet_v2", "googlenet")
CONTEXT_LIMIT_S = 240.0  # a network that takes longer is left out, and named
LIMIT_S = 3600.0  # of one pass or one tuning
ROUNDS = 7  # of a pass
SEED = 0

# ---- regret --------------------------------------------------------------------------------------


class FrozenTable:
    """All candidates of a network, measured in passes that are kept apart."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        network, x = random_network(name), random_input(name)
        self.graph = _C.import_graph(freeze_model(network, (x,))._c, (x,)).graph
        self.found = find_candidates(self.graph, 1 << 30, None)
        self.transforms = _C.transform_candidates(self.graph, self.found)
        every = [*(c for own in self.found.by_anchor for c in own), *self.transforms]
        primitives = {key_of(c.problem, c.primitive): c.primitive for c in every}
        self.primitives = {k: p for k, p in primitives.items() if not _C.is_view(k.primitive)}
        self.passes: list[dict[Key, list[float]]] = []

    def measure(self) -> None:
        """One more pass, in a process of its own."""
        samples = in_child(samples_of, self.name, self.threads)
        self.passes.append({k: ns for k, ns in zip(self.primitives, samples, strict=True) if ns})

    def measure_here(self) -> list[list[float]]:
        """The samples of each of `primitives`, in ns; none of what fails."""
        taken: dict[Key, list[float]] = {}
        for keys in grouped(self.primitives, family_of).values():
            results = _C.measure(
                [(key.problem, self.primitives[key]) for key in keys],
                warmup=1, rounds=ROUNDS, budget_s=60.0, cold_bytes=cold_bytes(self.graph),
                seed=SEED,
            )  # fmt: skip
            taken.update((key, r.ns) for key, r in zip(keys, results, strict=True))
        return [taken[key] for key in self.primitives]

    def ticks(self, passes: Iterable[int]) -> dict[Key, int]:
        """Costs from the samples of some passes, each of which is a set-up."""
        chosen = [self.passes[i] for i in passes]
        ticks = {}
        for key in self.primitives:
            if all(key in one for one in chosen):
                cost, _ = cost_of_setups([one[key] for one in chosen])
                ticks[key] = round(cost * TICKS_PER_NS)
        return ticks

    def optimum(self, ticks: Mapping[Key, int], is_aten_only: bool = False) -> _C.Plan:
        """The cheapest plan at these costs."""
        table = _C.CostTable()
        for key, value in ticks.items():
            table.set(native_key(key), value + CALL_TICKS, "measured")

        def allow(c: _C.Candidate) -> bool:
            is_own = not c.primitive.name.startswith(("aten.", "layout.aten", "view."))
            is_known = key_of(c.problem, c.primitive) in ticks or _C.is_view(c.primitive.name)
            return is_known and not (is_aten_only and is_own)

        transforms = [c for c in self.transforms if allow(c)]
        plan, wanted = _C.make_plan(self.graph, self.found, transforms, table, allow=allow)
        assert not wanted
        return plan


def price(plan: _C.Plan, ticks: Mapping[Key, int]) -> int:
    """Prices a plan with these costs and its call overhead, as the planner does."""
    calls = [key for key in keys_of(plan) if not _C.is_view(key.primitive)]
    return sum(ticks[key] + CALL_TICKS for key in calls)


def in_child(function: Any, *arguments: Any) -> Any:
    """Calls a function in a process of its own. Raises: SystemExit if that fails."""
    answer = harness.run_child(function, *arguments, limit_s=LIMIT_S)
    if answer.failure:
        harness.tell_failure(
            function.__name__, answer.failure, harness.repro_line(function, *arguments)
        )
        raise SystemExit(1)
    return answer.values[-1]


def set_up(threads: int) -> None:
    """Sets up the process that measures."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def samples_of(name: str, threads: int) -> list[list[float]]:
    """One pass: the samples of each candidate, in ns."""
    set_up(threads)
    return FrozenTable(name, threads).measure_here()


def tune_once(name: str, threads: int, in_net: bool, budget_s: float | None) -> tuple[float, Any]:
    """Seconds of optimize in a fresh process, and its plan; `in_net`: with the last step."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "plan.json")
        seconds = in_child(tune_here, name, threads, file, in_net, budget_s)
        return float(seconds), torchalgo.load_plan(file)


def tune_here(name: str, threads: int, file: str, in_net: bool, budget_s: float | None) -> float:
    """The fresh process: returns the seconds, writes the plan."""
    set_up(threads)
    network, x = random_network(name), random_input(name)
    if not in_net:
        Search.run = lambda _, first: Refined(first, {}, None)  # type: ignore[method-assign, assignment]
    start = time.perf_counter()
    fast = torchalgo.optimize(
        network,
        (x,),
        budget_s=float("inf") if budget_s is None else budget_s,
        settings=torchalgo.Settings(cost_db=False, progress=False),
    )
    seconds = time.perf_counter() - start
    fast.plan.save(file)
    return seconds


def regret_of(name: str, options: harness.Record) -> harness.Record:
    """The record of one network."""
    threads, passes, budget_s = options["threads"], options["passes"], options["tune_s"]
    set_up(threads)
    frozen = FrozenTable(name, threads)
    for _ in range(passes):
        frozen.measure()
    load_before = os.getloadavg()[0]
    tuned = [tune_once(name, threads, False, budget_s) for _ in range(options["tunings"])]
    whole_s = [tune_once(name, threads, True, budget_s)[0] for _ in range(options["whole_tunings"])]
    for _ in range(passes):
        frozen.measure()
    ticks = frozen.ticks(range(2 * passes))
    optimum = frozen.optimum(ticks)
    aten = price(frozen.optimum(ticks, is_aten_only=True), ticks)
    costs = [price(native_plan(plan), ticks) for _, plan in tuned]
    halves = [frozen.ticks(range(first, 2 * passes, 2)) for first in (0, 1)]
    itself = [
        price(frozen.optimum(one), other) / frozen.optimum(other).cost - 1
        for one, other in (halves, halves[::-1])
    ]
    regrets = [cost / optimum.cost - 1 for cost in costs]
    seconds = [s for s, _ in tuned]
    return {
        "schema": 1, "benchmark": "tuning", "network": name, "threads": threads,
        "candidates": len(frozen.primitives), "samples_per_candidate": 2 * passes * ROUNDS,
        "seconds": {"median": statistics.median(whole_s), "most": max(whole_s)},
        "seconds_without_last_step": {"median": statistics.median(seconds), "most": max(seconds)},
        "regret": {"median": statistics.median(regrets), "most": max(regrets), "all": regrets},
        "a_a": sorted(itself),
        "share_of_gain": {
            "median": statistics.median((aten - c) / (aten - optimum.cost) for c in costs),
            "least": min((aten - c) / (aten - optimum.cost) for c in costs),
        },
        "predicted_ms": [round(plan.cost_us / 1e3, 3) for _, plan in tuned],
        "optimum_ms": round(optimum.cost / TICKS_PER_NS / 1e6, 3),
        "aten_only_ms": round(aten / TICKS_PER_NS / 1e6, 3),
        "measured_ms": [
            round(plan.guard.plan_us / 1e3, 3) for _, plan in tuned if plan.guard is not None
        ],
        "load_before_tuning": round(load_before, 2), "torch": torch.__version__,
        "machine": harness.machine_state(), "git": harness.git_state(),
    }  # fmt: skip


# ---- context -------------------------------------------------------------------------------------


def timed(optimized: Any, x: Any, options: harness.Record) -> dict[str, Any]:
    """Calls with and without the recorder, interleaved; us."""

    def call() -> Any:
        return optimized.scripted(x)

    net = time_in_net({"plan": call}, passes=options["passes"], budget_s=options["budget_s"])[
        "plan"
    ]
    plain = time_interleaved(
        {"plan": call, "again": call}, rounds=options["passes"], budget_s=options["budget_s"]
    )
    again = is_faster(plain["plan"], plain["again"])
    return {
        "wall_us": cost_of_samples(plain["plan"])[0] / 1000,
        "wall_median_us": statistics.median(plain["plan"]) / 1000,
        "wall_noise_us": cost_of_samples(plain["plan"])[1] / 1000,
        "control_ratio": again.ratio,
        "control_verdict": again.verdict,
        "recorded_us": cost_of_samples(net.call)[0] / 1000,
        "net_ops_us": sum(cost_of_samples(ns)[0] for ns in net.ops.values()) / 1000,
        "net_rest_us": cost_of_samples(net.rest)[0] / 1000,
        "passes": len(plain["plan"]),
    }


def context_of(name: str, options: harness.Record) -> harness.Record:
    """The record of one network in this process."""
    set_up(options["threads"])
    start = time.perf_counter()
    x = random_input(name)
    cost_db: str | Literal[False] | None = options["cost_db"]
    tune_s = float("inf") if options["tune_s"] is None else options["tune_s"]
    settings = torchalgo.Settings(progress=False, cost_db=False if cost_db == "none" else cost_db)
    optimized = torchalgo.optimize(random_network(name), x, budget_s=tune_s, settings=settings)
    optimize_s = round(time.perf_counter() - start, 2)
    plan = optimized.plan
    line: harness.Record = {
        "schema": 1,
        "network": name,
        "threads": options["threads"],
        "optimize_s": optimize_s,
        "runs": optimized.runs,
    }
    if optimized.runs != "plan":
        return {**line, "failure": "the baseline runs"}
    line |= {
        "alone_us": plan.cost_us,
        **of_context(plan),
        "pairs": len(plan.pairs),
        **timed(optimized, x, options),
    }
    line["error_alone"] = line["alone_us"] / line["wall_us"] - 1
    if "corrected_us" in line:
        line["error_corrected"] = line["corrected_us"] / line["wall_us"] - 1
    return {key: round(v, 4) if isinstance(v, float) else v for key, v in line.items()}


def of_context(plan: Any) -> dict[str, Any]:
    """Returns what tuning saw inside the network, or nothing if the plan changed after it."""
    context = plan.in_context
    if context is None:
        return {}
    return {
        "alone_us": context.alone_us,
        "corrected_us": context.corrected_us,
        "tuning_us": context.measured_us,
        "ops_us": context.ops_us,
        "rest_us": context.rest_us,
        "factors": context.factors,
        "call_us": context.call_us,
        "rounds": context.rounds,
        "kept": context.kept,
        "outcome": context.outcome,
        "ops": len(context.ops),
        "ops_beyond_5_percent": sum(
            abs(op.measured_us / op.expected_us - 1) > 0.05 for op in context.ops
        ),
    }


def context_row(line: harness.Record) -> list[str]:
    """Returns the row of the table: predicted and measured times in ms."""
    if "failure" in line:
        return [line["network"], line["failure"], *[""] * 8]
    us = [line.get(key) for key in ("alone_us", "corrected_us", "wall_us")]
    errors = [line.get(key) for key in ("error_alone", "error_corrected")]
    cells = ["-" if v is None else f"{v / 1000:.2f}" for v in us]
    cells += ["-" if e is None else f"{e + 1:.2f}" for e in errors]
    cells += [f"{line[key] / 1000:.2f}" for key in ("net_ops_us", "net_rest_us")]
    return [line["network"], *cells, *(str(line.get(key, "-")) for key in ("rounds", "kept"))]


CONTEXT_HEAD = (
    "network", "costs alone", "corrected", "measured", "alone / measured", "corrected / measured",
    "ops", "rest", "plans", "kept",
)  # fmt: skip


# ---- the command ---------------------------------------------------------------------------------


def run_regret(args: argparse.Namespace) -> int:
    out = args.out or harness.RESULTS / "tuning.jsonl"
    names = args.networks or REGRET_NETWORKS
    same = {"threads": args.threads, "samples_per_candidate": 2 * args.passes * ROUNDS}
    done = harness.done_before(out, "network", same) if args.resume else {}
    options = harness.settings_of(args, "threads", "tunings", "passes", "whole_tunings", "tune_s")
    limit_s = LIMIT_S * (args.tunings + args.whole_tunings + 2 * args.passes)
    return harness.measure_each(
        regret_of, {name: (name, options) for name in names}, out=out, limit_s=limit_s, done=done
    ).status


def run_context(args: argparse.Namespace) -> int:
    out = args.out or harness.RESULTS / "context.jsonl"
    names = args.networks or [*CLASSIFIERS, *SEGMENTATION]
    same = {"threads": args.threads, "schema": 1}
    done = harness.done_before(out, "network", same) if args.resume else {}
    options = {**harness.settings_of(args, "threads", "budget_s", "cost_db", "tune_s"),
               "passes": args.timings}  # fmt: skip
    outcome = harness.measure_each(
        context_of, {name: (name, options) for name in names}, out=out, limit_s=CONTEXT_LIMIT_S,
        done=done, total_s=args.total_s,
    )  # fmt: skip
    failed = [
        harness.record(out, {"schema": 1, "network": name, "threads": args.threads, "failure": why})
        for name, why in outcome.failures.items()
    ]
    print("\n".join(table(CONTEXT_HEAD, map(context_row, [*outcome.records, *failed]))))
    return outcome.status


def main() -> int:
    parser = harness.make_parser(__doc__, can_resume=True, has_records=True)
    parser.add_argument("what", choices=["regret", "context"])
    parser.add_argument("networks", nargs="*", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument(
        "--threads", type=harness.count, help="of each process; default: regret all, context 1"
    )
    parser.add_argument("--out", type=Path, help="instead of tuning.jsonl or context.jsonl")
    parser.add_argument("--tunings", type=harness.count, default=10, help="regret: how many")
    parser.add_argument(
        "--passes", type=harness.count, default=3, help="regret: before, and as many after"
    )
    parser.add_argument("--timings", type=harness.count, default=31, help="context: passes")
    parser.add_argument(
        "--budget-s", type=harness.seconds, default=4.0, help="context: of each of two timings"
    )
    parser.add_argument(
        "--total-s", type=harness.seconds, default=840.0, help="context: no network begins later"
    )
    parser.add_argument(
        "--cost-db", help="context: a file of costs; none: without; default: the user's own"
    )
    parser.add_argument("--quick", action="store_true", help="few passes, tunings of 10 s")
    parser.set_defaults(tune_s=None, whole_tunings=3)
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(tune_s=10.0, whole_tunings=1, tunings=2, passes=1, timings=7)
        args = parser.parse_args()
    if args.threads is None:
        args.threads = torch.get_num_threads() if args.what == "regret" else 1
    return {"regret": run_regret, "context": run_context}[args.what](args)


if __name__ == "__main__":
    harness.run_script(main)
