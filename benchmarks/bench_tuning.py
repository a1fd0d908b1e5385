# SPDX-License-Identifier: BSD-3-Clause
"""Measures what a tuning loses to noise.

    python benchmarks/bench_tuning.py                        # three networks
    python benchmarks/bench_tuning.py resnet18 --tunings 3 --passes 2
    python benchmarks/bench_tuning.py squeezenet1_1 --quick  # to see that it works

Needs a quiet machine.

Every candidate is measured in many passes, half of them before and half after the tunings. All
samples together are the frozen table. Each pass is a process of its own, since the place of its
pages alone makes a primitive 10 to 30 % faster or slower than in another process. In between, fresh
processes tune the network without a database. The frozen table prices each of their plans: the
regret is what a plan costs above the table's optimum. The share of the gain is the part of the way
from PyTorch's own primitives to the optimum. The A/A interval is the regret of the table against
itself: the optimum of every other pass, priced by the rest, and the other way round. Takes 20 to 60
minutes per network, --quick one or two. Appends one JSON line per network to
benchmarks/results/tuning.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import harness
import torchalgo
from networks import NAMES, network_name, random_input, random_network
from replay import keys_of
from torchalgo import _C
from torchalgo._base.stats import cost_of_setups
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import family_of
from torchalgo._ir.call_overhead import CALL_TICKS
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of, native_key
from torchalgo._ir.native_plan import native_plan
from torchalgo._measure.allowed import grouped
from torchalgo._measure.sampling import cold_bytes

NETWORKS = ("resnet50", "mobilenet_v2", "googlenet")
LIMIT_S = 3600.0  # of one pass or one tuning
ROUNDS = 7  # of a pass
SEED = 0


class FrozenTable:
    """All candidates of a network, measured in passes that are kept apart."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        network, x = random_network(name), random_input(name)
        self.graph = _C.import_graph(freeze_model(network, (x,))._c, (x,)).graph
        self.found = _C.find_candidates(self.graph, drop_dominated=True)
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


def tune_once(name: str, threads: int, budget_s: float | None) -> tuple[float, Any]:
    """Seconds of optimize in a fresh process, and its plan."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "plan.json")
        seconds = in_child(tune_here, name, threads, file, budget_s)
        return float(seconds), torchalgo.load_plan(file)


def tune_here(name: str, threads: int, file: str, budget_s: float | None) -> float:
    """The fresh process: returns the seconds, writes the plan."""
    set_up(threads)
    network, x = random_network(name), random_input(name)
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
    tuned = [tune_once(name, threads, budget_s) for _ in range(options["tunings"])]
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
        "seconds": {"median": statistics.median(seconds), "most": max(seconds)},
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


# ---- the command ---------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    out = args.out or harness.RESULTS / "tuning.jsonl"
    names = args.networks or NETWORKS
    same = {"threads": args.threads, "samples_per_candidate": 2 * args.passes * ROUNDS}
    done = harness.done_before(out, "network", same) if args.resume else {}
    options = harness.settings_of(args, "threads", "tunings", "passes", "tune_s")
    limit_s = LIMIT_S * (args.tunings + 2 * args.passes)
    return harness.measure_each(
        regret_of, {name: (name, options) for name in names}, out=out, limit_s=limit_s, done=done
    ).status


def main() -> int:
    parser = harness.make_parser(__doc__, can_resume=True, has_records=True)
    parser.add_argument("networks", nargs="*", type=network_name, metavar="NETWORK", help=NAMES)
    parser.add_argument(
        "--threads",
        type=harness.count,
        default=torch.get_num_threads(),
        help="of each process; default: all",
    )
    parser.add_argument("--out", type=Path, help="instead of tuning.jsonl")
    parser.add_argument("--tunings", type=harness.count, default=10, help="how many")
    parser.add_argument("--passes", type=harness.count, default=3, help="before, and as many after")
    parser.add_argument("--quick", action="store_true", help="few passes, tunings of 10 s")
    parser.set_defaults(tune_s=None)
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(tune_s=10.0, tunings=2, passes=1)
        args = parser.parse_args()
    return run(args)


if __name__ == "__main__":
    harness.run_script(main)
