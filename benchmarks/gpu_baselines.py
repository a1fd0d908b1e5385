# SPDX-License-Identifier: BSD-3-Clause
"""The stage of gpu_check.py that compares plans of networks with PyTorch and with Inductor.

Each of them runs as a bare CUDA graph. In all of them batch norms are folded into convolutions, and
images are channels_last. Inductor needs minutes for a network. So it comes last, in cases of its
own, which time the plans once more beside it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import nn

import torchalgo
from gpu_graphs import Call, geomean, graph_us, in_graph, median_us
from gpu_stage import Context, Outcome, Row, each_case, free_gpu, outcome_of, result_of
from gpu_tables import Case, on_gpu, planned_call, table_of
from harness import read_lines
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import freeze_model

CASES: tuple[Case, ...] = (
    ("resnet50", "f16", 8), ("efficientnet_v2_s", "f16", 1), ("convnext_tiny", "f16", 8),
    ("unet", "f16", 1), ("mobilenet_v2", "f16", 8), ("resnet50", "f16", 1),
    ("efficientnet_v2_s", "f16", 8), ("convnext_tiny", "f16", 1), ("unet", "f16", 8),
    ("mobilenet_v2", "f16", 1),
)  # fmt: skip
CACHE = "inductor_cache.bin"
MOST_CACHE_BYTES = 15 << 20  # larger files do not come back from the GPU machine
TUNING_S = 15.0
MOST_ERROR = 2e-2
MOST_NODES = 12  # whose costs are recorded: those that cost most

INDUCTOR = "max-autotune"
PLANS = ("frozen", "table", "optimize", "captured()")
BESIDE_INDUCTOR = ("frozen", "table", "optimize", INDUCTOR)


def name_of(case: Case) -> str:
    return " ".join(map(str, case))


# ---- Inductor ------------------------------------------------------------------------------------


def compiled_call(model: nn.Module, x: torch.Tensor) -> Call:
    """Returns a call of the model compiled by Inductor, with its weights frozen."""
    import torch._inductor.config as config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    # Inductor's worker processes compile with the ptxas of torch, and this process with that of
    # Triton. The ptxas is part of the key of Triton's cache. Without this line, this process does
    # not find what the workers have compiled, and compiles all of it again, one after the other.
    _set_triton_ptxas_path()
    AsyncCompile.wait_pool_ready()  # before that, threads of this process would compile
    config.freezing = True
    torch._dynamo.reset()
    module = torch.compile(model, mode="max-autotune-no-cudagraphs")
    return lambda: module(x)


def inductor_counts() -> dict[str, int]:
    """Returns how many kernels Inductor has compiled and timed so far, by its own counters."""
    from torch._dynamo.utils import counters

    words = ("select_algorithm", "async_compile")
    return {k: n for k, n in counters["inductor"].items() if any(word in k for word in words)}


def load_cache(context: Context) -> bool:
    """Gives Inductor what an earlier call has compiled. Returns whether there was any."""
    path = context.out / CACHE
    return path.exists() and torch.compiler.load_cache_artifacts(path.read_bytes()) is not None


def save_cache(context: Context) -> int:
    """Writes what Inductor has compiled, unless it is too large. Returns its bytes."""
    saved = torch.compiler.save_cache_artifacts()
    if saved is None:
        return 0
    if len(saved[0]) <= MOST_CACHE_BYTES:
        part = Path(context.out / f"{CACHE}.part")
        part.write_bytes(saved[0])
        part.replace(context.out / CACHE)
    return len(saved[0])


def compiled_before(context: Context) -> set[str]:
    """Returns the names of the cases that this stage has run with Inductor, for other stages."""
    rows = read_lines(context.out / "baselines.jsonl")
    return {row["network"] for row in rows if INDUCTOR in row.get("us", ())}


# ---- plans ---------------------------------------------------------------------------------------


def optimized(
    model: nn.Module, x: torch.Tensor, context: Context
) -> tuple[torchalgo.Optimized, Row]:
    """Returns a module with the plan of a short tuning, whatever the guard says, and the facts."""
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    budget_s = 3.0 if context.quick else TUNING_S
    tuned = torchalgo.optimize(model, (x,), budget_s=budget_s, settings=settings)
    return without_guard(tuned, model, x), tuning_facts(tuned)


def tuning_facts(tuned: torchalgo.Optimized) -> Row:
    """Returns what tells why a plan is fast or slow: what was measured, and what it expects."""
    plan = tuned.plan
    nodes = [node for node in plan.nodes if node.primitive]
    costliest = sorted(nodes, key=lambda node: -node.predicted_us)[:MOST_NODES]
    return {
        "method": plan.method, "notes": plan.notes, "status": plan.status, "runs": tuned.runs,
        "cost_us": plan.cost_us, "lower_bound_us": plan.lower_bound_us,
        "comparisons": plan.comparisons, "ties": plan.ties, "unmeasured": plan.unmeasured,
        "sources": Counter(node.cost_source for node in nodes),
        "transforms_us": round(sum(each.predicted_us for each in plan.transforms), 3),
        "seconds": {step: round(spent.wall_s, 2) for step, spent in tuned.timings.items()},
        "guard": None if plan.guard is None else dataclasses.asdict(plan.guard),
        "quarantined": Counter(each.reason[:100] for each in plan.quarantined),
        "costliest": [
            [node.problem, node.primitive, node.src, node.dst, node.predicted_us, node.cost_source]
            for node in costliest
        ],
    }  # fmt: skip


def without_guard(
    tuned: torchalgo.Optimized, model: nn.Module, x: torch.Tensor
) -> torchalgo.Optimized:
    """Returns a module that runs the plan, whatever the guard said."""
    return with_plan(dataclasses.replace(tuned.plan, guard=None), model, x)


def with_plan(plan: torchalgo.Plan, model: nn.Module, x: torch.Tensor) -> torchalgo.Optimized:
    return torchalgo.optimize(model, (x,), plan=plan, settings=torchalgo.Settings(progress=False))


def plan_path(context: Context, case: Case) -> Path:
    """Returns the file of the short tuning's plan, with which Inductor is compared."""
    return context.out / f"{'_'.join(map(str, case))}_plan.json"


class Rivals:
    """The ways to run a network. Each of them makes a call, and what replays its graph.

    "table" is the plan of the costs that the stage tables has recorded, if it has. "optimize" is
    that of a short tuning, which `tuning` describes. With `tunes=False` it is the plan of an
    earlier tuning, if there was one.
    """

    def __init__(
        self, case: Case, model: nn.Module, x: torch.Tensor, context: Context, *, tunes: bool
    ) -> None:
        self._case, self._model, self._x, self._context = case, model, x, context
        self._tunes = tunes
        self._table = table_of(case, context)
        self.tuning: Row = {}

    def ways(self) -> dict[str, Callable[[], tuple[Call, Call]]]:
        found = {"frozen": self._frozen}
        if self._table is not None:
            found["table"] = self._planned
        found["optimize"] = lambda: as_graph(functools.partial(self._tuned.scripted, self._x))
        found["captured()"] = self._captured
        found[INDUCTOR] = lambda: as_graph(compiled_call(self._model, self._x))
        return found

    def _frozen(self) -> tuple[Call, Call]:
        module = freeze_model(self._model, (self._x,))
        call = lambda: module(self._x)  # noqa: E731
        # In a thread in which cudnn.benchmark was never off.
        return call, BenchmarkedCall(lambda: in_graph(call))()

    def _planned(self) -> tuple[Call, Call]:
        assert self._table is not None
        return as_graph(planned_call(self._table, self._model, self._x)[0])

    @functools.cached_property
    def _tuned(self) -> torchalgo.Optimized:
        path = plan_path(self._context, self._case)
        if path.exists() and not self._tunes:
            return with_plan(torchalgo.Plan.load(path), self._model, self._x)
        fast, self.tuning = optimized(self._model, self._x, self._context)
        fast.plan.save(path)
        return fast

    def _captured(self) -> tuple[Call, Call]:
        module = self._tuned.captured()
        return lambda: module(self._x), lambda: module(self._x)


def as_graph(call: Call) -> tuple[Call, Call]:
    return call, in_graph(call)


# ---- the stage -----------------------------------------------------------------------------------


@torch.no_grad()
def compare(case: Case, names: Collection[str], context: Context) -> Row:
    """Times a network's plans and its baselines. One that fails costs no other."""
    model, x = on_gpu(case, context)
    exact = copy.deepcopy(model).float()(x.float())
    replays: dict[str, Call] = {}
    seconds: dict[str, float] = {}
    made: dict[str, Row] = {}
    rivals = Rivals(case, model, x, context, tunes=INDUCTOR not in names)

    def add(name: str, make: Callable[[], tuple[Call, Call]]) -> Row:
        call, replay = make()
        error = output_error(call().float(), exact)
        replays[name] = replay
        return {"error": error}

    for name, make in rivals.ways().items():
        if name not in names:
            continue
        start = time.monotonic()
        made[name] = result_of(functools.partial(add, name, make))
        seconds[name] = round(time.monotonic() - start, 1)
        print(f"{name_of(case)}: {name} in {seconds[name]} s {made[name]}", flush=True)
    us = graph_us(replays)
    best = min((median_us(us[n]) for n in ("frozen", INDUCTOR) if n in us), default=math.nan)
    ratios = {n: round(best / median_us(us[n]), 3) for n in ("table", "optimize") if n in us}
    return {
        "network": name_of(case), "us": us, "seconds": seconds, "ratios": ratios,
        "errors": {n: row["error"] for n, row in made.items() if "error" in row},
        "missing": {n: row["failure"] for n, row in made.items() if "failure" in row},
        "tuning": rivals.tuning,
    }  # fmt: skip


def compare_inductor(case: Case, context: Context) -> Row:
    """Times Inductor's network, beside the plans and the frozen network once more."""
    row = compare(case, BESIDE_INDUCTOR, context)
    return {**row, "inductor": inductor_counts(), "cache_bytes": save_cache(context)}


def baselines(context: Context) -> Outcome:
    """Hypothesis: a plan is >= 1.2x as fast as the better one of both baselines."""
    had_cache = load_cache(context)
    cases = CASES[:1] if context.quick else CASES
    plans = {name_of(case): functools.partial(compare, case, PLANS, context) for case in cases}
    inductors = {
        f"{name_of(case)} {INDUCTOR}": functools.partial(compare_inductor, case, context)
        for case in cases
    }
    least_s = 15.0 if context.quick else 40.0
    rows, left = each_case(context, plans, needs_s=least_s, clean=free_gpu)
    more, more_left = each_case(context, inductors, needs_s=3 * least_s, clean=free_gpu)
    outcome = outcome_of(rows, left + more_left)
    # A library that is not ready in time is no failure of the plans.
    outcome.findings += [f"{name}: {row['failure']}" for name, row in more.items()
                         if row.get("failure")]  # fmt: skip
    rows |= more
    outcome.data = {"rows": list(rows.values()), "had_cache": had_cache}
    best: dict[str, float] = {}  # by network; what was timed beside Inductor comes last
    for name, row in rows.items():
        outcome.findings += [f"{name}: {k}: {why}" for k, why in row.get("missing", {}).items()]
        for kind, error in row.get("errors", {}).items():
            outcome.expect(error < MOST_ERROR, f"{name}: error of {kind} is {error:.1e}")
        if row.get("ratios"):
            best[row["network"]] = max(row["ratios"].values())
    beside = sum(INDUCTOR in row.get("us", ()) for row in more.values())
    ratio = geomean(list(best.values()))
    outcome.summary = (
        f"{len(best)} networks, {beside} of them beside Inductor, geomean {ratio:.2f}x;"
        f" {len(outcome.left)} left"
    )
    outcome.suppose(not best or ratio >= 1.2, "hypothesis missed: geomean below 1.2x")
    return outcome
