# SPDX-License-Identifier: BSD-3-Clause
"""The stage of gpu_check.py that compares plans of networks with PyTorch and with Inductor.

Each of them runs as a bare CUDA graph. In all of them batch norms are folded into convolutions, and
images are channels_last.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchalgo
from gpu_graphs import Call, geomean, graph_us, in_graph, median_us
from gpu_stage import Context, Outcome, Row, each_case, free_gpu, outcome_of, result_of
from gpu_tables import Case, on_gpu, planned_call, table_of
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


def compiled_call(model: nn.Module, x: torch.Tensor) -> Call:
    """Returns a call of the model compiled by Inductor, with its weights frozen."""
    import torch._inductor.config as config

    config.freezing = True
    torch._dynamo.reset()
    module = torch.compile(model, mode="max-autotune-no-cudagraphs")
    return lambda: module(x)


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


def rivals(
    case: Case, model: nn.Module, x: torch.Tensor, context: Context
) -> dict[str, Callable[[], tuple[Call, Call]]]:
    """Returns the ways to run a network. Each of them makes a call, and what replays its graph.

    "table" is the plan of the costs that the stage tables has recorded, if it has. "optimize" is
    that of a short tuning.
    """
    table = table_of(case, context)

    def as_graph(call: Call) -> tuple[Call, Call]:
        return call, in_graph(call)

    def frozen() -> tuple[Call, Call]:
        module = freeze_model(model, (x,))
        call = lambda: module(x)  # noqa: E731
        # In a thread in which cudnn.benchmark was never off.
        return call, BenchmarkedCall(lambda: in_graph(call))()

    @functools.cache
    def fast() -> torchalgo.Optimized:
        return optimized(model, x, context)

    def captured() -> tuple[Call, Call]:
        module = fast().captured()
        return lambda: module(x), lambda: module(x)

    ways = {"frozen": frozen}
    if table is not None:
        ways["table"] = lambda: as_graph(planned_call(table, model, x)[0])
    ways["optimize"] = lambda: as_graph(functools.partial(fast().scripted, x))
    ways["captured()"] = captured
    ways["max-autotune"] = lambda: as_graph(compiled_call(model, x))
    return ways


@torch.no_grad()
def compare(case: Case, context: Context) -> Row:
    """Times a network's plans and its baselines. One that fails costs no other."""
    model, x = on_gpu(case, context)
    exact = copy.deepcopy(model).float()(x.float())
    replays: dict[str, Call] = {}
    seconds: dict[str, float] = {}
    made: dict[str, Row] = {}

    def add(name: str, make: Callable[[], tuple[Call, Call]]) -> Row:
        call, replay = make()
        error = output_error(call().float(), exact)
        replays[name] = replay
        return {"error": error}

    for name, make in rivals(case, model, x, context).items():
        start = time.monotonic()
        made[name] = result_of(functools.partial(add, name, make))
        seconds[name] = round(time.monotonic() - start, 1)
        print(f"{' '.join(map(str, case))}: {name} in {seconds[name]} s {made[name]}", flush=True)
    us = graph_us(replays)
    best = min((median_us(us[n]) for n in ("frozen", "max-autotune") if n in us), default=math.nan)
    ratios = {n: round(best / median_us(us[n]), 3) for n in ("table", "optimize") if n in us}
    return {
        "us": us, "seconds": seconds, "ratios": ratios, "cache_bytes": save_cache(context),
        "errors": {n: row["error"] for n, row in made.items() if "error" in row},
        "missing": {n: row["failure"] for n, row in made.items() if "failure" in row},
    }  # fmt: skip


def optimized(model: nn.Module, x: torch.Tensor, context: Context) -> torchalgo.Optimized:
    """Returns a module with the plan of a short tuning, whatever the guard says."""
    settings = torchalgo.Settings(progress=False, run_untimed=True)
    budget_s = 3.0 if context.quick else TUNING_S
    tuned = torchalgo.optimize(model, (x,), budget_s=budget_s, settings=settings)
    return without_guard(tuned, model, x)


def without_guard(
    tuned: torchalgo.Optimized, model: nn.Module, x: torch.Tensor
) -> torchalgo.Optimized:
    """Returns a module that runs the plan, whatever the guard said."""
    plan = dataclasses.replace(tuned.plan, guard=None)
    return torchalgo.optimize(model, (x,), plan=plan, settings=torchalgo.Settings(progress=False))


def baselines(context: Context) -> Outcome:
    """Hypothesis: a plan is >= 1.2x as fast as the better one of both baselines."""
    had_cache = load_cache(context)
    cases = CASES[:1] if context.quick else CASES
    rows, left = each_case(
        context,
        {" ".join(map(str, case)): functools.partial(compare, case, context) for case in cases},
        needs_s=15.0 if context.quick else 60.0,
        clean=free_gpu,
    )
    outcome = outcome_of(rows, left)
    ratios = []
    for name, row in rows.items():
        outcome.findings += [f"{name}: {k}: {why}" for k, why in row.get("missing", {}).items()]
        for kind, error in row.get("errors", {}).items():
            outcome.expect(error < MOST_ERROR, f"{name}: error of {kind} is {error:.1e}")
        ratios += [max(row["ratios"].values())] if row.get("ratios") else []
    outcome.summary = f"{len(ratios)} networks, geomean {geomean(ratios):.2f}x; {len(left)} left"
    outcome.data["had_cache"] = had_cache
    outcome.suppose(not ratios or geomean(ratios) >= 1.2, "hypothesis missed: geomean below 1.2x")
    return outcome
