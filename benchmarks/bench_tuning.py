#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long tuning takes from nothing, and what its noise costs: regret on a frozen table.

    python benchmarks/bench_tuning.py                        # ResNet-50, MobileNetV2, GoogLeNet
    python benchmarks/bench_tuning.py resnet18 --tunings 3 --passes 2

Needs a quiet machine. Per network: every candidate is measured in many passes, half of them before
and half after the tunings; all their samples together are the frozen table. Each pass is a process
of its own, since where its pages lie alone makes one primitive 10 to 30 % faster or slower in one
process than in the next. In between, fresh processes tune the network without a database. Each of
their plans is priced by the frozen table: its regret is what it costs above that table's optimum
(the last step of tuning, which prefers what is faster inside the net to what is cheaper alone, is
left out for that), its share of the exhaustive gain is how much of the way from PyTorch's own
primitives alone to the optimum it goes. The A/A interval beside it is the regret of the table
against itself: the optimum of every other pass, priced by the rest, and the other way round. One
JSON line per network.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import torchalgo
from harness import git_state, machine_state, record
from networks import random_input, random_network
from replay import keys_of
from torchalgo import _C
from torchalgo._base.stats import cost_of_setups
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import CALL_TICKS, family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of, native_key
from torchalgo._measure.allowed import grouped
from torchalgo._measure.sampling import cold_bytes
from torchalgo._plan.describe import native_plan
from torchalgo._plan.find import find_candidates
from torchalgo._refine.in_context import Refined, Search

SCHEMA = 1
RESULTS = Path(__file__).with_name("results") / "tuning.jsonl"
NETWORKS = ("resnet50", "mobilenet_v2", "googlenet")
ROUNDS = 7  # of a pass
SEED = 0


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
        (samples,) = run_here(self.name, self.threads, "--pass")
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
    """What a plan costs at these costs, with that of its calls, as the planner counts it."""
    calls = [key for key in keys_of(plan) if not _C.is_view(key.primitive)]
    return sum(ticks[key] + CALL_TICKS for key in calls)


def run_here(name: str, threads: int, *options: str) -> list[Any]:
    """What this script prints in a process of its own: JSON, one a line."""
    command = [sys.executable, __file__, name, "--threads", str(threads), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def tune_once(name: str, threads: int, in_net: bool) -> tuple[float, torchalgo.Plan]:
    """Seconds of optimize in a fresh process, and its plan; `in_net`: with the last step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        last = ["--in-net"] if in_net else []
        *_, seconds = run_here(name, threads, "--one", str(file), *last)
        return float(seconds), torchalgo.load_plan(file)


def tune_here(name: str, file: Path, in_net: bool) -> None:
    """The fresh process: prints the seconds, writes the plan."""
    network, x = random_network(name), random_input(name)
    if not in_net:
        Search.run = lambda _, first: Refined(first, {}, None)  # type: ignore[method-assign, assignment]
    start = time.perf_counter()
    fast = torchalgo.optimize(network, (x,), budget_s=float("inf"), cost_db=False, progress=False)
    seconds = time.perf_counter() - start
    fast.plan.save(file)
    print(json.dumps(seconds))


def result_of(name: str, tunings: int, passes: int, threads: int) -> dict[str, Any]:
    frozen = FrozenTable(name, threads)
    for _ in range(passes):
        frozen.measure()
    load_before = os.getloadavg()[0]
    tuned = [tune_once(name, threads, in_net=False) for _ in range(tunings)]
    whole_s = [tune_once(name, threads, in_net=True)[0] for _ in range(3)]
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
        "schema": SCHEMA, "benchmark": "tuning", "network": name, "threads": threads,
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
        "machine": machine_state(), "git": git_state(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--tunings", type=int, default=10)
    parser.add_argument("--passes", type=int, default=3, help="before, and as many after")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--in-net", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pass", dest="is_pass", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    if args.one is not None:
        tune_here(args.networks[0], args.one, args.in_net)
        return 0
    if args.is_pass:
        print(json.dumps(FrozenTable(args.networks[0], args.threads).measure_here()))
        return 0
    for name in args.networks:
        record(args.out, result_of(name, args.tunings, args.passes, args.threads))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
