# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: how fast layers, layout changes and networks are."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchalgo
from cost_tables import Row, Table, candidates_of, write_table
from gpu_problems import (
    DTYPES,
    LAYERS,
    Rows,
    live,
    offers,
    spell,
    spelled,
)
from gpu_stage import Context, Outcome
from torchalgo import _C
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import freeze_model
from torchalgo._ir.bounds import family_of
from torchalgo._ir.costs import TICKS_PER_NS, Key, key_of
from torchalgo._measure.guard import time_interleaved
from torchalgo._measure.sampling import cold_bytes
from torchalgo._plan.find import find_candidates


def transforms(context: Context) -> Outcome:
    """Own layout changes are exact, and how fast they are beside ATen's."""
    device, outcome = live(), Outcome()
    sizes = [
        (1, 3, 224, 224), (8, 3, 224, 224), (8, 64, 56, 56), (2, 63, 7, 7), (3, 65, 1, 9),
        (1, 2048, 7, 7), (64, 512, 14, 14), (5, 24, 33, 31), (1, 1, 17, 19), (4, 7, 1, 1),
        (2, 4099, 3, 5),
    ]  # fmt: skip
    if context.quick:
        sizes = sizes[3:]
        sizes.remove((64, 512, 14, 14))
    failing, rows = [], Rows(context)
    for n, c, h, w in sizes:
        for dtype in ("f32", "f16", "bf16"):
            for pair in ("nchw_nhwc", "nhwc_nchw"):
                problem = _C.parse_problem(f"transform_{dtype}_n{n}c{c}h{h}w{w}_{pair}")
                primitives = [p for p, _ in offers(problem, device, "layout.")]
                outcome.expect(len(primitives) == 2, f"{problem}: {list(map(spelled, primitives))}")
                checks = _C.check_primitives(problem, primitives, 0.0, context.seed, device)
                for p, (error, failure) in zip(primitives, checks, strict=True):
                    if failure or error > 0:
                        failing.append(f"{spelled(p)} on {problem}: {failure or error}")
                if context.left_s() > 0:
                    taken = _C.measure(
                        [(problem, p) for p in primitives], rounds=9, budget_s=0.5, device=device
                    )
                    rows.append(
                        (problem, {p.name: s.ns for p, s in zip(primitives, taken, strict=True)})
                    )
    large = [
        statistics.median(ns["layout.aten"]) / statistics.median(ns["layout.cuda_tiled"])
        for problem, ns in rows
        if all(ns.values()) and {"layout.aten", "layout.cuda_tiled"} <= ns.keys()
    ]
    speedup = geomean(large)
    outcome.data = {"rows": rows}
    outcome.summary = f"exact; {speedup:.2f}x ATen (geomean of {len(large)})" if large else ""
    outcome.failures += failing[:10]
    return outcome


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def control(context: Context) -> Outcome:
    """Times a primitive beside itself. The ratio of its two times must be near 1."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    for layer in LAYERS:
        if context.left_s() < 0:
            break
        problem = spell(layer, "f16", 8)
        nhwc = _C.Primitive("aten.conv", "nhwc", "nhwc")
        taken = _C.measure([(problem, nhwc)], rounds=25, budget_s=2.0, device=device, control=True)[
            0
        ]
        rows.append((problem, taken.control_ratio, taken.method, taken.ns, taken.failure))
    off = sorted((abs(row[1] - 1), row[0]) for row in rows if row[1] > 0)
    worst = off[-1][0] if off else math.inf
    outcome.data = {"rows": rows}
    outcome.summary = f"{len(off)} layers, worst deviation {100 * worst:.1f} %"
    outcome.failures += [f"{row[0]}: {row[4]}" for row in rows if row[4]]
    # A kernel may have two speeds, by the addresses of its memory.
    for deviation, problem in off:
        outcome.suppose(deviation <= 0.02, f"A/A of {problem} differs by {100 * deviation:.1f} %")
    middle = off[len(off) // 2][0] if off else math.inf
    outcome.expect(middle <= 0.01, f"half of the layers differ by {100 * middle:.1f} % or more")
    return outcome


def worth_measuring(pairs: list[tuple[_C.Primitive, _C.Traits]]) -> list[_C.Primitive]:
    """Engines with native layouts, all knobs; nothing that compiles when it runs."""
    return [p for p, t in pairs if t.hidden_bytes == 0 and not t.is_runtime_compiled]


def layers(context: Context) -> Outcome:
    """Hypothesis: per layer >= 1.10x over benchmark=True in geomean, never below 0.98x."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    names = list(LAYERS)[:5] if context.quick else list(LAYERS)

    def time_all() -> None:
        for n in (1, 8) if context.quick else (1, 8, 64):
            for name in names:
                if context.left_s() >= 5:
                    rows.append(race(spell(name, "f16", n), device, context))

    # The flag is for aten.conv. In this thread it is on from the first convolution.
    BenchmarkedCall(time_all)()
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    outcome.data = {"rows": rows}
    if ratios:
        outcome.summary = (
            f"{len(ratios)} layers: geomean {geomean(ratios):.2f}x, least {min(ratios):.2f}x"
        )
    outcome.expect(bool(ratios), "no layer was timed")
    outcome.suppose(not ratios or geomean(ratios) >= 1.10, "hypothesis missed: geomean below 1.10x")
    outcome.suppose(not ratios or min(ratios) >= 0.98, "hypothesis missed: a layer below 0.98x")
    return outcome


def race(problem: str, device: _C.Device, context: Context) -> dict[str, Any]:
    """The best cuDNN primitive of a quick round beside ATen's choice, in shared rounds."""
    found = worth_measuring(offers(problem, device, "cudnn9."))
    quick = _C.measure(
        [(problem, p) for p in found], warmup=1, rounds=3, budget_s=3.0, device=device
    )
    timed = [(min(s.ns), p) for p, s in zip(found, quick, strict=True) if s.ns]
    best = [p for _, p in sorted(timed, key=lambda pair: pair[0])[:3]]
    baselines = [_C.Primitive("aten.conv", layout, layout) for layout in ("nhwc", "nchw")]
    tasks = [(problem, p) for p in [*baselines, *best]]
    taken = _C.measure(tasks, rounds=25, budget_s=2.0, device=device, control=True)
    medians = [statistics.median(s.ns) if s.ns else math.inf for s in taken]
    mine, theirs = min(medians[2:], default=math.inf), min(medians[:2])
    return {
        "problem": problem,
        "ratio": theirs / mine if math.isfinite(theirs) and math.isfinite(mine) else None,
        "control": taken[0].control_ratio,
        "samples": {spelled(p): s.ns for (_, p), s in zip(tasks, taken, strict=True)},
        "methods": {spelled(p): s.method for (_, p), s in zip(tasks, taken, strict=True)},
        "failures": [s.failure for s in taken if s.failure],
        "candidates": len(found),
    }


HOST_OPS, HOST_CALLS = 32, 50


def host(context: Context) -> Outcome:
    """Times how long the CPU needs to start a convolution: for each engine, and for PyTorch.

    The convolution is so small that the GPU waits for the CPU.
    """
    torch.manual_seed(context.seed)
    x, w = (
        torch.randn(size, device="cuda", dtype=torch.float16).contiguous(
            memory_format=torch.channels_last
        )
        for size in ((1, 64, 7, 7), (64, 64, 3, 3))
    )
    problem = "fwd_f16_n1c64h7w7_k64r3s3_st1x1_pad1x1_dil1x1_g1"
    found = offers(problem, live(), "cudnn9.")
    names = [p.name for p, t in found if not t.is_runtime_compiled and p.src == p.dst == "nhwc"]
    calls: dict[str, Callable[[], Any]] = {
        "torch": functools.partial(nn.functional.conv2d, x, w, padding=1)
    }
    for name in ("aten.conv", *dict.fromkeys(name for name in names if "{" not in name)):
        calls[name] = functools.partial(torchalgo.conv2d, x, w, padding=1, forward=name)
    rows, found_us = Rows(context), {}
    for name, call in calls.items():
        if context.left_s() > 0:
            found_us[name] = host_us(call)
            rows.append((name, found_us[name]))
    torch_us = found_us.pop("torch")
    us, fastest = min((us, name) for name, us in found_us.items())
    most = max(found_us.values())
    outcome = Outcome(f"{us:.1f} us by {fastest}, at most {most:.1f} us; torch {torch_us:.1f} us")
    outcome.data = {"rows": rows, "problem": problem}
    return outcome


@torch.no_grad()
def host_us(call: Callable[[], Any]) -> float:
    """Returns the microseconds in which the host starts `call`."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(HOST_CALLS):
        begin = time.perf_counter()
        for _ in range(HOST_OPS):
            call()
        times.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times) / HOST_OPS


def in_graph(call: Callable[[], Any], warmup: int = 3) -> Callable[[], Any]:
    """`call` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        call()
    return graph.replay


def net_cases(context: Context) -> list[tuple[str, int]]:
    if context.quick:
        return [("resnet50", 1), ("unet", 1)]
    return [
        ("resnet50", 1), ("unet", 1), ("resnet50", 64), ("convnext_tiny", 8),
        ("efficientnet_v2_s", 1), ("densenet121", 8), ("unet", 8), ("efficientnet_v2_s", 64),
        ("convnext_tiny", 64), ("resnet50", 8),
    ]  # fmt: skip


def time_net(name: str, batch: int, dtype: str, context: Context, compiled: bool) -> dict[str, Any]:
    from gpu_nets import make_net

    generator = torch.Generator().manual_seed(context.seed)
    x = torch.rand(batch, 3, 224, 224, generator=generator).to("cuda", DTYPES[dtype])
    model = make_net(name, context.seed).to("cuda", DTYPES[dtype])
    last_x = x.contiguous(memory_format=torch.channels_last)
    budget_s = 3.0 if context.quick else max(5.0, min(30.0, context.left_s() / 3))
    tuned = torchalgo.optimize(
        model, (last_x,), budget_s=budget_s, settings=torchalgo.Settings(progress=False)
    )
    fast = without_guard(model, tuned, last_x)
    with (context.out / "nets_plans.jsonl").open("a") as plans:
        plans.write(json.dumps({"net": name, "batch": batch, "plan": tuned.plan.to_json()}) + "\n")
    last = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    calls: dict[str, Callable[[], Any]] = {
        "plan": in_graph(lambda: fast.scripted(last_x)),
        # Warmed up and captured in a thread in which the flag was never off; replayed here.
        "benchmark": BenchmarkedCall(lambda: in_graph(lambda: last(last_x)))(),
    }
    if compiled:
        module = torch.compile(last, mode="max-autotune")
        calls["max-autotune"] = BenchmarkedCall(lambda: module(last_x))
    limit_s = max(1.0, min(2.0 if context.quick else 8.0, context.left_s()))
    times = time_interleaved(
        calls, rounds=40, budget_s=limit_s, warmup=5, synchronize=torch.cuda.synchronize
    )
    medians = {key: statistics.median(ns) for key, ns in times.items()}
    best = min(ns for key, ns in medians.items() if key != "plan")
    return {
        "net": name, "batch": batch, "dtype": dtype, "runs": tuned.runs, "ns": times,
        "ratio": best / medians["plan"], "predicted_us": fast.plan.cost_us,
        "seconds": {step: round(spent.wall_s, 2) for step, spent in tuned.timings.items()},
        "budget_s": budget_s, "guard": tuned.plan.guard and dataclasses.asdict(tuned.plan.guard),
    }  # fmt: skip


def time_nets(context: Context, compiled: bool) -> Outcome:
    """Hypothesis: >= 1.2x over the best of benchmark + channels_last + CUDA graphs, and, if
    `compiled`, torch.compile(mode="max-autotune")."""
    outcome = Outcome()
    rows = Rows(context)
    missing: list[str] = []
    for name, batch in net_cases(context):
        if context.left_s() < 10:
            missing.append(f"{name} {batch}: no time left")
            continue
        try:
            rows.append(time_net(name, batch, "f16", context, compiled))
        except ImportError as problem:
            missing.append(f"{name}: {problem}")
        finally:
            torch.cuda.empty_cache()
    ratios = [row["ratio"] for row in rows]
    outcome.data = {"rows": rows, "missing": missing}
    outcome.summary = (
        f"{len(rows)} nets, geomean {geomean(ratios):.2f}x; {len(missing)} not reached"
    )
    outcome.expect(bool(rows), f"no network was timed: {missing[:3]}")
    outcome.suppose(not ratios or geomean(ratios) >= 1.2, "hypothesis missed: geomean below 1.2x")
    return outcome


def nets(context: Context) -> Outcome:
    return time_nets(context, compiled=False)


def compiled_nets(context: Context) -> Outcome:
    return time_nets(context, compiled=True)


def table(context: Context) -> Outcome:
    """Records the time of every candidate of a ResNet-50, for bench_replay.py.

    The operations with the fewest candidates come first. Those for which there is no time are
    missing in the table.
    """
    from gpu_nets import make_net

    device, began = live(), time.monotonic()
    model = make_net("resnet50", context.seed).to("cuda", torch.float16)
    size = (8, 3, 64, 64) if context.quick else (8, 3, 224, 224)
    x = torch.rand(size).to("cuda", torch.float16).contiguous(memory_format=torch.channels_last)
    graph = _C.import_graph(freeze_model(model, (x,))._c, (x,)).graph
    found = find_candidates(graph, 1 << 30, device, False, False)
    transforms = _C.transform_candidates(graph, found, device)
    head = {"network": "resnet50", "input": "x".join(map(str, size)), "dtype": "f16"}
    empty = Table(head, (0.0, []), graph, found, transforms, {}, {})
    families: dict[str, dict[Key, _C.Primitive]] = {}
    for c in candidates_of(empty):
        key = key_of(c.problem, c.primitive)
        if not _C.is_view(key.primitive):
            families.setdefault(family_of(key), {})[key] = c.primitive
    rows: dict[Key, Row] = {}
    failures: dict[Key, str] = {}
    for own in sorted(families.values(), key=len):
        if context.left_s() < 0 or (context.quick and len(rows) >= 50):
            break
        start = time.monotonic()
        taken = _C.measure(
            [(key.problem, primitive) for key, primitive in own.items()], warmup=1, rounds=3,
            budget_s=30.0, cold_bytes=cold_bytes(graph), device=device,
        )  # fmt: skip
        each_s = (time.monotonic() - start) / len(own)
        for key, one in zip(own, taken, strict=True):
            if one.failure or not one.ns:
                failures[key] = one.failure or "gave no samples"
                continue
            ticks = sorted(round(TICKS_PER_NS * ns) for ns in one.ns)
            middle = ticks[len(ticks) // 2]
            rows[key] = Row(middle, ticks[-1] - ticks[0], len(ticks), ticks[0], each_s, each_s)
    path = context.out / "resnet50_8_f16_table.json.gz"
    write_table(dataclasses.replace(empty, rows=rows, failures=failures), path)
    count = sum(map(len, families.values()))
    outcome = Outcome(f"{len(rows)} of {count} costs in {time.monotonic() - began:.0f} s: {path}")
    outcome.expect(bool(rows), "nothing was measured")
    return outcome


def without_guard(
    model: nn.Module, tuned: torchalgo.Optimized, x: torch.Tensor
) -> torchalgo.Optimized:
    """A module that runs the plan, whatever the guard said."""
    plan = dataclasses.replace(tuned.plan, guard=None)
    return torchalgo.optimize(model, (x,), plan=plan, settings=torchalgo.Settings(progress=False))
