# SPDX-License-Identifier: BSD-3-Clause
"""The stage of gpu_check.py that measures the candidates of networks, for bench_replay.py gpu.

Its first question is whether the sum of costs is the time of a CUDA graph. A cost is measured cold
(nothing is in a cache) and warm (all of it is in L2, if it fits). If the cold sum of the first
network is wrong by more than TOLERANCE, the warm costs of each network are measured first.
"""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import gpu_nets
from cost_tables import Row, Table, candidates_of, read_table, usable, write_table
from gpu_graphs import graph_us, in_graph, median_us
from gpu_problems import DTYPES, live
from gpu_stage import Context, Outcome, OutOfTimeError, each_case, free_gpu, outcome_of
from replay import keys_of, plan_of
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import ScriptModule, freeze_model
from torchalgo._ir.bounds import GpuPeaks, family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._ir.failures import failure_of
from torchalgo._measure.process_bench import ProcessBench
from torchalgo._refine.binding import rewrite

NETWORKS = (
    "resnet50", "mobilenet_v2", "efficientnet_v2_s", "convnext_tiny", "unet", "regnet_y_400mf",
    "densenet121", "resnet18", "googlenet", "efficientnet_b0", "vgg16",
)  # fmt: skip
# In the order in which they are measured, and whether plans are run.
JOBS = (("f16", 8, True), ("f16", 1, True), ("f16", 64, False), ("tf32", 8, False),
        ("tf32", 1, False))  # fmt: skip
CHECKED = ("resnet50", "bf16", 8)  # has about 20 distinct problems

TOLERANCE = 0.15
NEAR = 1.5  # a candidate that takes longer than this times the fastest one gets a single sample
MORE_ROUNDS = 4  # for the others
CHUNK = 64  # candidates of a request: each has copies of its weights on the GPU
HANG_S = 5.0  # engines compiled when they first run took at most 3.6 s on an H100
WARM_BYTES = 4 << 20
MOST_FINDINGS = 20
MOST_ERROR = 2e-2  # of a plan in f16

Case = tuple[str, str, int]  # network, type, batch


# ---- costs ---------------------------------------------------------------------------------------


@dataclass
class Known:
    """The samples of a candidate, in ns."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0  # of the request, for this candidate's share


class Costs:
    """Measures candidates that have no samples yet, and writes each group's samples at once."""

    def __init__(self, context: Context, device: _C.Device) -> None:
        self.known: dict[Key, Known] = {}
        self.first = "cold"
        for row in context.earlier:
            for key, values in row.get("costs", ()):
                self.known[Key(*key)] = Known(*values)
            self.first = row.get("decided", self.first)
        fields = ("kind", "name", "isa", "threads", "properties", "provenance", "index")
        facts: dict[str, Any] = {name: getattr(device, name) for name in fields}
        # Buffers rotate through twice the memory of L2, and as much is flushed. With this small L2,
        # all of it stays in the real one. The flush still hides the launch of the graph.
        warm = _C.Device(**facts, l2_bytes=WARM_BYTES)
        self._benches = {
            "cold": ProcessBench(device, least_limit_s=HANG_S),
            "warm": ProcessBench(warm, least_limit_s=HANG_S),
        }
        self._benches["cold"].start()
        self._emit = context.emit

    @property
    def second(self) -> str:
        return "warm" if self.first == "cold" else "cold"

    def measure(self, primitives: Mapping[Key, _C.Primitive]) -> None:
        """Takes one sample of each candidate, and more of those that are near the fastest one."""
        before = {key: self._count(key) for key in primitives}
        self._take(self.first, primitives, rounds=1)
        best: dict[str, float] = {}
        for key in primitives:
            best[key.problem] = min(self.ns(key), best.get(key.problem, float("inf")))
        near = {k: p for k, p in primitives.items() if self.ns(k) <= NEAR * best[k.problem]}
        near = {k: p for k, p in near.items() if not self.known[k].failure}
        self._take(self.first, near, rounds=MORE_ROUNDS, at_most=1)
        self._take(self.second, near, rounds=MORE_ROUNDS)
        self._write(
            key for key, count in before.items()
            if self._count(key) != count and not self.known[key].failure
        )  # fmt: skip

    def ns(self, key: Key, column: str = "") -> float:
        """Returns the median of a column, the first one if none is named; inf without samples."""
        known = self.known.get(key, Known())
        samples = getattr(known, column or self.first)
        return statistics.median(samples) if samples and not known.failure else float("inf")

    def row(self, key: Key) -> Row:
        """Returns a row of a table, in which the fastest warm sample is the quick look."""
        known = self.known[key]
        ticks = sorted(round(TICKS_PER_NS * ns) for ns in getattr(known, self.first))
        warm = round(TICKS_PER_NS * min(known.warm, default=0.0))
        middle = round(statistics.median(ticks))
        return Row(middle, ticks[-1] - ticks[0], len(ticks), warm, known.seconds, known.seconds)

    def _count(self, key: Key) -> int:
        known = self.known.get(key)
        return 0 if known is None else len(known.cold) + len(known.warm) + bool(known.failure)

    def _write(self, keys: Iterable[Key]) -> None:
        rows = [
            (key, [[round(ns) for ns in k.cold], [round(ns) for ns in k.warm], k.failure,
                   round(k.seconds, 5)])
            for key in keys
            for k in (self.known[key],)
        ]  # fmt: skip
        if rows:
            self._emit({"costs": rows})

    def _take(
        self, column: str, primitives: Mapping[Key, _C.Primitive], rounds: int, at_most: int = 0
    ) -> None:
        """Measures those that have at most `at_most` samples in the column."""
        keys = [
            key for key in primitives
            if not (known := self.known.setdefault(key, Known())).failure
            and len(getattr(known, column)) <= at_most
        ]  # fmt: skip
        for chunk in (keys[i : i + CHUNK] for i in range(0, len(keys), CHUNK)):
            start = time.monotonic()
            taken = self._benches[column].measure(
                [(key.problem, primitives[key]) for key in chunk], warmup=1, rounds=rounds,
                budget_s=30.0, cold_bytes=0, seed=0,
            )  # fmt: skip
            each_s = (time.monotonic() - start) / len(chunk)
            for key, one in zip(chunk, taken, strict=True):
                known = self.known[key]
                known.seconds += each_s
                getattr(known, column).extend(one.ns)
                if one.failure or not one.ns:
                    known.failure = one.failure or "gave no samples"
            # At once: a stage that is ended later must not wait for an engine that hangs again.
            self._write(key for key in chunk if self.known[key].failure)


# ---- candidates ----------------------------------------------------------------------------------


@functools.cache
def network(name: str, seed: int) -> nn.Module:
    """Returns a network in eval mode on the CPU, to be copied."""
    return gpu_nets.make_net(name, seed)


def image(batch: int, dtype: str, context: Context) -> torch.Tensor:
    side = 64 if context.quick else 224
    generator = torch.Generator().manual_seed(context.seed)
    x = torch.rand(batch, 3, side, side, generator=generator).to(DTYPES[dtype])
    return x.contiguous(memory_format=torch.channels_last)


def imported_of(frozen: ScriptModule, x: torch.Tensor, dtype: str) -> _C.Imported:
    imported = _C.import_graph(frozen._c, (x,))
    return _C.with_tf32_convolutions(imported) if dtype == "tf32" else imported


def list_candidates(case: Case, device: _C.Device, context: Context) -> Table:
    """Returns a table without costs. All of it happens on the CPU."""
    name, dtype, batch = case
    x = image(batch, dtype, context)
    model = copy.deepcopy(network(name, context.seed)).to(DTYPES[dtype])
    graph = imported_of(freeze_model(model, (x[:1],)), x, dtype).graph
    all_knobs = not context.quick
    every = _C.find_candidates(graph, 1 << 30, device, False, True, False, all_knobs)
    found = _C.Candidates([without_twins(own) for own in every.by_anchor])
    transforms = _C.transform_candidates(graph, found, device)
    head = {"network": name, "input": "x".join(map(str, x.shape)), "dtype": dtype}
    return Table(head, (0.0, []), graph, found, transforms, {}, {})


def without_twins(candidates: Iterable[_C.Candidate]) -> list[_C.Candidate]:
    """Leaves out the engines that also exist with weights in krsc, which take the same time."""
    own = list(candidates)
    names = {(c.problem, c.primitive.name, c.primitive.src, c.primitive.dst) for c in own}

    def has_twin(c: _C.Candidate) -> bool:
        engine, brace, knobs = c.primitive.name.partition("{")
        twin = f"{engine}.krsc{brace}{knobs}"
        return (c.problem, twin, c.primitive.src, c.primitive.dst) in names

    return [c for c in own if not has_twin(c)]


def groups_of(table: Table, device: _C.Device) -> list[dict[Key, _C.Primitive]]:
    """Returns the candidates by operation. What takes most of the network's time comes first."""
    groups: dict[str, dict[Key, _C.Primitive]] = {}
    for c in candidates_of(table):
        key = key_of(c.problem, c.primitive)
        if not _C.is_view(key.primitive):
            groups.setdefault(family_of(key), {})[key] = c.primitive
    uses = Counter(
        family_of(key_of(own[0].problem, own[0].primitive)) for own in table.found.by_anchor if own
    )
    peaks = GpuPeaks.of(device)

    def share(family: str) -> float:
        key, primitive = next(iter(groups[family].items()))
        ns = peaks.roofline_ns(key.problem, primitive) if peaks else 1.0
        return uses[family] * ns

    return [groups[family] for family in sorted(groups, key=share, reverse=True)]


# ---- a network -----------------------------------------------------------------------------------


def table_path(context: Context, case: Case) -> Any:
    name, dtype, batch = case
    return context.out / f"{name}_{dtype}_{batch}_table.json.gz"


def with_costs(listed: Table, costs: Costs) -> Table:
    """Returns the table with all known costs."""
    keys = {key_of(c.problem, c.primitive) for c in candidates_of(listed)}
    keys = {key for key in keys if not _C.is_view(key.primitive)}
    rows = {key: costs.row(key) for key in keys if costs.ns(key) < float("inf")}
    why = {key: costs.known.get(key, Known()).failure for key in keys - rows.keys()}
    failures = {key: text or "was not reached" for key, text in why.items()}
    return replace(listed, rows=rows, failures=failures)


def planned_call(
    table: Table, model: nn.Module, x: torch.Tensor
) -> tuple[Callable[[], Any], Callable[[], Any], _C.Plan]:
    """Returns calls of the table's plan and of the frozen model, and the plan."""
    known = usable(table)
    native = plan_of(known, known.costs())
    frozen = freeze_model(model, (x,))
    planned = rewrite(imported_of(frozen, x, str(table.head["dtype"])), native)
    return lambda: planned(x), lambda: frozen(x), native


def on_gpu(case: Case, context: Context) -> tuple[nn.Module, torch.Tensor]:
    """Returns a network and its input on the GPU, in channels_last."""
    name, dtype, batch = case
    model = copy.deepcopy(network(name, context.seed)).to("cuda", DTYPES[dtype])
    last: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return last, image(batch, dtype, context).to("cuda")


@torch.no_grad()
def run_plan(case: Case, table: Table, costs: Costs, context: Context) -> dict[str, Any]:
    """Runs the plan in a graph, beside the sum of its costs and a frozen baseline."""
    model, x = on_gpu(case, context)
    plan, frozen, native = planned_call(table, model, x)
    error = output_error(plan(), frozen())
    # In a thread in which cudnn.benchmark was never off.
    graphs = {"plan": in_graph(plan), "frozen": BenchmarkedCall(lambda: in_graph(frozen))()}
    us = graph_us(graphs)
    keys = [key for key in keys_of(native) if not _C.is_view(key.primitive)]
    sums = {column: 1e-3 * sum(costs.ns(k, column) for k in keys) for column in ("cold", "warm")}
    return {
        "sum_us": {c: round(us, 1) for c, us in sums.items() if us < float("inf")},
        "graph_us": us["plan"], "frozen_us": us["frozen"], "error": error,
        "of_sum": round(sums[costs.first] / median_us(us["plan"]), 3),
        "ratio": round(median_us(us["frozen"]) / median_us(us["plan"]), 3),
    }  # fmt: skip


class Networks:
    """Measures networks one by one, while threads list the candidates of the next ones."""

    def __init__(self, cases: Iterable[tuple[Case, bool]], context: Context) -> None:
        self.context, self.device = context, live()
        self.costs = Costs(context, self.device)
        self._is_run = dict(cases)
        self._is_decided = any("decided" in row for row in context.earlier)
        threads = ThreadPoolExecutor(2)
        done = {row.get("case") for row in context.earlier}
        self._listed: dict[Case, Future[Table]] = {
            case: threads.submit(list_candidates, case, self.device, context)
            for case in self._is_run
            if " ".join(map(str, case)) not in done
        }
        self._threads = threads

    def cases(self) -> dict[str, Callable[[], dict[str, Any]]]:
        return {
            " ".join(map(str, case)): functools.partial(self.measure, case) for case in self._is_run
        }

    def measure(self, case: Case) -> dict[str, Any]:
        """Measures all candidates of a network, and writes its table. Runs its plan."""
        listed = self._listed[case].result()
        groups = groups_of(listed, self.device)
        is_whole = self._measure(groups)
        table = with_costs(listed, self.costs)
        row: dict[str, Any] = {"candidates": sum(map(len, groups)), "known": len(table.rows)}
        if is_whole and self._is_run[case]:
            row |= run_plan(case, table, self.costs, self.context)
            if not self._is_decided:
                row |= self._decide(row, groups, case, listed)
                table = with_costs(listed, self.costs)
        write_table(table, table_path(self.context, case))
        if not is_whole:
            raise OutOfTimeError
        return row

    def _measure(self, groups: Iterable[dict[Key, _C.Primitive]]) -> bool:
        """Measures groups of candidates. Returns False if time ended before all were measured."""
        for group in groups:
            if self.context.left_s() < 3:
                return False
            self.costs.measure(group)
        return True

    def _decide(
        self, row: dict[str, Any], groups: list[dict[Key, _C.Primitive]], case: Case, listed: Table
    ) -> dict[str, Any]:
        """Decides which costs come first, by the first network. Returns what to add to its row."""
        self._is_decided = True
        more: dict[str, Any] = {}
        if abs(row["of_sum"] - 1) > TOLERANCE:
            self.costs.first = "warm"
            self._measure(groups)
            table = with_costs(listed, self.costs)
            more = {"with_warm_costs": run_plan(case, table, self.costs, self.context)}
        self.context.emit({"decided": self.costs.first})
        print(f"the cold sum is {row['of_sum']} of the graph: {self.costs.first} first", flush=True)
        return more

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def table_cases(context: Context) -> Iterator[tuple[Case, bool]]:
    if context.quick:
        yield ("resnet50", "f16", 1), True
        return
    for dtype, batch, is_run in JOBS:
        for name in NETWORKS:
            yield (name, dtype, batch), is_run
        if (dtype, batch) == ("f16", 1):
            yield CHECKED, True


def tables(context: Context) -> Outcome:
    """Measures the candidates of networks; for some, runs the plan beside the sum of its costs."""
    networks = Networks(table_cases(context), context)
    try:
        rows, left = each_case(context, networks.cases(), needs_s=10.0, clean=free_gpu)
    finally:
        networks.close()
    return tables_outcome(rows, left, networks.costs)


def tables_outcome(rows: Mapping[str, Any], left: list[str], costs: Costs) -> Outcome:
    outcome = outcome_of(rows, left)
    run = [row for row in rows.values() if "of_sum" in row]
    for row in run:
        outcome.expect(row["error"] < MOST_ERROR, f"{row['case']}: error {row['error']:.1e}")
        off = abs(row["of_sum"] - 1)
        outcome.suppose(
            off <= TOLERANCE, f"{row['case']}: the sum of costs is {row['of_sum']} of the graph"
        )
        outcome.suppose(row["ratio"] >= 1.0, f"{row['case']}: {row['ratio']}x the frozen baseline")
    count = sum(1 for known in costs.known.values() if not known.failure)
    middle = statistics.median([row["of_sum"] for row in run]) if run else float("nan")
    failed = {key: known.failure for key, known in costs.known.items() if known.failure}
    hung = sorted({
        f"{key.primitive} on {key.problem}: {why}"
        for key, why in failed.items()
        if (failure := failure_of(why)) is not None and failure.kind == "hung"
    })  # fmt: skip
    outcome.findings += hung[:MOST_FINDINGS]
    outcome.data["failed"] = [[*key, why] for key, why in failed.items()]
    outcome.data["first"] = costs.first
    outcome.summary = (
        f"{count} costs, {len(failed)} candidates failed, {len(hung)} of them hung; {len(rows)}"
        f" networks, {len(left)} left; {costs.first} costs first, their"
        f" sum is {middle:.2f} of the graph"
    )
    outcome.expect(count > 0, "nothing was measured")
    return outcome


def table_of(case: Case, context: Context) -> Table | None:
    """Returns the table that an earlier stage has written, if it has one."""
    path = table_path(context, case)
    return read_table(path) if path.exists() else None
