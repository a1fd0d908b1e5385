# SPDX-License-Identifier: BSD-3-Clause
"""Measures the full cost table of networks: every candidate, every layout change, no screening.

    python benchmarks/record_tables.py                       # all that benchmarks/tables lacks
    python benchmarks/record_tables.py resnet18 --budget-s 60 --out /tmp/tables

Needs a quiet machine. Each candidate is looked at alone first (LOOK_ROUNDS runs, warm weights),
which also tells what setting it up takes. Then all candidates of one operation, with whatever is
fused to it, run in the same interleaved rounds. A network that has a table is skipped, so the
command can be repeated until all are there. What is left of --budget-s is divided among the
networks to come: one that would need more gets fewer rounds, never fewer candidates.

Takes about --budget-s seconds. Writes one file per network, each in a process of its own, to
benchmarks/tables.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import harness
from cost_tables import FOLDER, Row, Table, write_table
from engines import machine
from networks import NAMES, network_name, random_input, random_network
from torchalgo import _C
from torchalgo._base.stats import cost_of_samples
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._measure.sampling import Bench, cold_bytes

NETWORKS = (
    "squeezenet1_1", "mnasnet1_0", "mobilenet_v2", "shufflenet_v2_x1_0", "resnet18",
    "mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf", "alexnet", "googlenet", "resnet50",
    "inception_v3", "convnext_tiny", "vgg16", "densenet121",
)  # fmt: skip
LIMIT_S = 1800.0  # of one network beyond its budget: fewest rounds, set-up
LEAST_ROUNDS, MOST_ROUNDS = 5, 15
LOOK_ROUNDS = 2  # of a quick look
LOOK_SPREAD = 1.25  # where runs of a look differ by more, two more are taken
REPEATS = 3
NOISE_RATIO = 0.05  # a cost with a wider interval is taken again: something else ran meanwhile


@dataclass
class Measured:
    """The samples of one key so far."""

    candidate: _C.Candidate
    look_ns: float = 0.0
    setup_s: float = 0.0
    spent_s: float = 0.0
    ns: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def task(self) -> tuple[str, _C.Primitive]:
        return self.candidate.problem, self.candidate.primitive


def look(bench: Bench, one: Measured) -> None:
    """A few runs of one candidate alone, and what else the call took."""
    start = time.perf_counter()
    (result,) = bench.measure(
        [one.task], warmup=1, rounds=LOOK_ROUNDS, budget_s=1.0, cold_bytes=0, seed=0
    )
    wall_s = time.perf_counter() - start
    if result.failure or not result.ns:
        one.failure = result.failure or "gave no samples"
        return
    times = list(result.ns)
    if max(times) > LOOK_SPREAD * min(times):
        (again,) = bench.measure(
            [one.task], warmup=1, rounds=LOOK_ROUNDS, budget_s=1.0, cold_bytes=0, seed=0
        )
        times += again.ns
    one.look_ns = min(times)
    one.setup_s = max(wall_s - (LOOK_ROUNDS + 1) * statistics.mean(result.ns) * 1e-9, 0.0)


def take(bench: Bench, family: Sequence[Measured], rounds: int, cold_bytes: int) -> None:
    """Interleaved rounds; the wall time is charged by what each set up and ran."""
    start = time.perf_counter()
    results = bench.measure(
        [one.task for one in family],
        warmup=1, rounds=rounds, budget_s=600.0, cold_bytes=cold_bytes, seed=0,
    )  # fmt: skip
    wall_s = time.perf_counter() - start
    shares = []
    for one, result in zip(family, results, strict=True):
        if result.failure or not result.ns:
            one.failure = result.failure or "gave no samples"
        one.ns += result.ns
        runs_s = (len(result.ns) + 1) * statistics.mean(result.ns or [0.0]) * 1e-9
        shares.append(one.setup_s + runs_s)
    for one, share in zip(family, shares, strict=True):
        one.spent_s += wall_s * share / max(sum(shares), 1e-9)


def is_noisy(samples: Sequence[float]) -> bool:
    """True if the samples should be taken again."""
    cost, noise = cost_of_samples(samples)
    return noise > NOISE_RATIO * cost


def measure_all(bench: Bench, every: dict[Key, Measured], cold_bytes: int, budget_s: float) -> int:
    """Fills in `every`; the rounds that the budget allowed."""
    start = time.perf_counter()
    for one in every.values():
        look(bench, one)
    round_s = sum(one.look_ns for one in every.values()) * 1e-9
    setup_s = sum(one.setup_s for one in every.values())
    left_s = budget_s - (time.perf_counter() - start) - setup_s
    # A third for what is noisy and taken again.
    rounds = int(0.66 * left_s / max(round_s, 1e-9)) - 1
    rounds = min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS)
    families: dict[str, list[Measured]] = {}
    for key, one in every.items():
        if not one.failure:
            families.setdefault(family_of(key), []).append(one)
    for family in families.values():
        take(bench, family, rounds, cold_bytes)
        for _ in range(REPEATS - 1):
            noisy = [one for one in family if not one.failure and is_noisy(one.ns)]
            if not noisy or time.perf_counter() - start > budget_s:
                break
            take(bench, noisy, rounds, cold_bytes)
    return rounds


def row_of(one: Measured) -> Row:
    cost_ns, noise_ns = cost_of_samples(one.ns)
    ticks = [round(ns * TICKS_PER_NS) for ns in (cost_ns, noise_ns, one.look_ns)]
    return Row(ticks[0], ticks[1], len(one.ns), ticks[2], one.setup_s, one.spent_s)


def record_network(name: str, size: int | None, budget_s: float) -> Table:
    """The table of one network."""
    network, x = random_network(name), random_input(name, size)
    graph = _C.import_graph(freeze_model(network, (x,))._c, (x,)).graph
    found = _C.find_candidates(graph, drop_dominated=True)
    transforms = _C.transform_candidates(graph, found)
    every: dict[Key, Measured] = {}
    for c in [*(c for own in found.by_anchor for c in own), *transforms]:
        if not _C.is_view(c.primitive.name):
            every.setdefault(key_of(c.problem, c.primitive), Measured(c))
    head = {
        "network": name, "input": "x".join(map(str, x.shape)), "dtype": "f32",
        "threads": torch.get_num_threads(), "machine": machine(), "git": harness.git_state(),
        "date": time.strftime("%Y-%m-%d"), "load_before": os.getloadavg()[0],
    }  # fmt: skip
    probes = _C.probe_peaks()
    start = time.perf_counter()
    head["rounds"] = measure_all(Bench(), every, cold_bytes(graph), budget_s)
    head["seconds"] = round(time.perf_counter() - start, 1)
    head["load_after"] = os.getloadavg()[0]
    return Table(
        head, probes, graph, found, transforms,
        {key: row_of(one) for key, one in every.items() if not one.failure},
        {key: one.failure for key, one in every.items() if one.failure},
    )  # fmt: skip


def record_one(name: str, size: int | None, budget_s: float, threads: int, path: str) -> str:
    """Writes the table of one network, in this process. Returns what it holds."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    table = record_network(name, size, budget_s)
    write_table(table, Path(path))
    return (
        f"{len(table.rows)} costs, {len(table.failures)} failed, {table.head['rounds']} rounds,"
        f" {table.head['seconds']} s, {Path(path).stat().st_size / 1000:.0f} KB"
    )


def main() -> int:
    parser = harness.make_parser(__doc__, has_records=True)
    parser.add_argument(
        "networks", nargs="*", type=network_name, metavar="NETWORK", help=f"{NAMES}; default: 15"
    )
    parser.add_argument("--budget-s", type=harness.seconds, default=2400.0, help="for all together")
    parser.add_argument(
        "--threads", type=harness.count, default=torch.get_num_threads(), help="of each process"
    )
    parser.add_argument("--size", type=harness.count, help="of images; default: each network's own")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of the tables")
    args = parser.parse_args()
    args.out = harness.place_of(args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    start, failures = time.perf_counter(), 0
    paths = {name: args.out / f"{name}.json.gz" for name in args.networks or NETWORKS}
    todo = [name for name, path in paths.items() if not path.exists()]
    for i, name in enumerate(todo):
        left_s = args.budget_s - (time.perf_counter() - start)
        budget_s = max(left_s, 0.0) / (len(todo) - i)
        words = (name, args.size, budget_s, args.threads, str(paths[name].resolve()))
        answer = harness.run_child(record_one, *words, limit_s=LIMIT_S + 2 * budget_s)
        if answer.failure:
            failures += 1
            harness.tell_failure(name, answer.failure, harness.repro_line(record_one, *words))
        else:
            print(f"{name}: {answer.values[-1]}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    harness.run_script(main)
