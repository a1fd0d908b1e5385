# SPDX-License-Identifier: BSD-3-Clause
"""The stages of gpu_check.py: what each runs, and what it expects."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import random
import re
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchalgo
from gpu_check import Context, Outcome, Stage
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._ir.devices import list_devices, named_device
from torchalgo._measure.guard import time_interleaved

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DIRECTIONS = ("fwd", "bwd_data", "bwd_filter")
BOUND = 1e-5  # of float; the others have bounds of their own

# n of the problem is set by the stage: c, h, k, r, stride, pad, groups.
LAYERS = {
    "stem": (3, 224, 64, 7, 2, 3, 1),
    "3x3_56": (64, 56, 64, 3, 1, 1, 1),
    "1x1_56": (64, 56, 256, 1, 1, 0, 1),
    "1x1_28": (512, 28, 128, 1, 1, 0, 1),
    "3x3_28_s2": (128, 56, 128, 3, 2, 1, 1),
    "3x3_14": (256, 14, 256, 3, 1, 1, 1),
    "1x1_14": (1024, 14, 256, 1, 1, 0, 1),
    "3x3_7": (512, 7, 512, 3, 1, 1, 1),
    "1x1_7": (2048, 7, 512, 1, 1, 0, 1),
    "dw7x7_28": (192, 28, 192, 7, 1, 3, 192),
    "dw3x3_56": (96, 56, 96, 3, 1, 1, 96),
    "grouped": (256, 28, 256, 3, 1, 1, 32),
    "odd": (63, 30, 65, 3, 1, 1, 1),
    "5x5_28": (32, 28, 96, 5, 1, 2, 1),
}


def spell(layer: str, dtype: str, n: int, direction: str = "fwd") -> str:
    c, h, k, r, stride, pad, groups = LAYERS[layer]
    return _C.parse_problem(
        f"{direction}_{dtype}_n{n}c{c}h{h}w{h}_k{k}r{r}s{r}_st{stride}x{stride}_pad{pad}x{pad}"
        f"_dil1x1_g{groups}"
    )


def live() -> _C.Device:
    return _C.cuda_device(torch.cuda.current_device())


def offers(problem: str, device: _C.Device, prefix: str) -> list[tuple[_C.Primitive, _C.Traits]]:
    primitives, traits, _ = _C.offers_of(problem, device=device)
    pairs = zip(primitives, traits, strict=True)
    return [(p, t) for p, t in pairs if p.name.startswith(prefix)]


class Rows(list[Any]):
    """A stage's results, each of which is on disk as soon as it is known."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._emit = context.emit

    def append(self, row: Any) -> None:
        super().append(row)
        self._emit(row)


def spelled(p: _C.Primitive) -> str:
    return f"{p.name} {p.src}->{p.dst}"


def command_output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"unknown: {problem}"
    return done.stdout.strip()


# ---- 0-2: what is here -------------------------------------------------------------------------


def env(context: Context) -> Outcome:
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,temperature.gpu"
    data: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torchalgo": torchalgo.__version__,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "git": command_output("git", "rev-parse", "HEAD"),
        "dirty": bool(command_output("git", "status", "--porcelain")),
        "cpu": _C.cpu_device().name,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "nvidia_smi": command_output("nvidia-smi", f"--query-gpu={query}", "--format=csv"),
        "allow_tf32": torch.backends.cudnn.allow_tf32,
    }
    gpu = ", ".join(data["gpus"]) or "no GPU"
    return Outcome(f"torch {data['torch']}, cuDNN {data['cudnn']}, {gpu}", data=data)


def deviceprop(context: Context) -> Outcome:
    device = live()
    properties = json.loads(device.properties)
    described = {
        "name": device.name,
        "isa": device.isa,
        "provenance": f"dumped by gpu_check, torch {torch.__version__}",
        "cudnn_properties": properties,
    }
    path = context.out / "live_device.json"
    path.write_text(json.dumps(described, indent=2) + "\n")
    outcome = Outcome(data={"device": described})
    fixture = fixture_of(device)
    if fixture is None:
        outcome.summary = f"{device.name}, {device.isa}: no description of it yet ({path})"
        return outcome
    expected = json.loads(named_device(fixture).properties)
    different = {
        key: (expected.get(key), properties.get(key))
        for key in expected.keys() | properties.keys()
        if expected.get(key) != properties.get(key)
    }
    outcome.data["different"] = different
    outcome.summary = f"{device.name}: {len(different)} fields differ from share/devices/{fixture}"
    outcome.expect(
        not expected.keys() - properties.keys(),
        f"the live properties lack {sorted(expected.keys() - properties.keys())}",
    )
    return outcome


def fixture_of(device: _C.Device) -> str | None:
    """The description of the same GPU: by its name, else by ISA and number of multiprocessors."""
    words = re.findall(r"\w+", device.name.lower())
    for name in list_devices():  # H100 and H200 have the same ISA and 132 multiprocessors
        if name in words and named_device(name).isa == device.isa:
            return name
    count = json.loads(device.properties)["multiProcessorCount"]
    for name in list_devices():
        known = named_device(name)
        if known.isa == device.isa and json.loads(known.properties)["multiProcessorCount"] == count:
            return name
    return None


def import_(context: Context) -> Outcome:
    rows = dict(_C.algorithms())
    library = Path(torchalgo.__file__).with_name("libtorchalgo_cuda.so")
    h100 = named_device("h100")
    transform = "transform_f16_n8c64h56w56_nchw_nhwc"
    listed = offers(spell("3x3_56", "f16", 8), h100, "cudnn9.")
    outcome = Outcome(
        f"{len(rows)} rows, {len(listed)} cuDNN primitives for a 3x3 on a described H100",
        data={"rows": rows, "cuda_library": library.exists()},
    )
    if torch.version.cuda:
        outcome.expect(bool(listed), "cuDNN offers nothing for a described H100")
    if library.exists() and torch.version.cuda:
        names = [p.name for p, _ in offers(transform, h100, "layout.")]
        outcome.expect("layout.cuda_tiled" in names, f"layout.cuda_tiled is missing among {names}")
    return outcome


# ---- 3-7: cuDNN ------------------------------------------------------------------------------


def legacy(context: Context) -> Outcome:
    """Which legacy numbers run, and how fast: the table of support."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    for direction in DIRECTIONS:
        for dtype in ("f32", "tf32", "f16", "bf16"):
            if context.left_s() < 0:
                break
            problem = spell("3x3_56", dtype, 8, direction)
            pairs = offers(problem, device, "cudnn_legacy.")
            primitives = [p for p, _ in pairs]
            checks = _C.check_primitives(problem, primitives, BOUND, context.seed, device)
            samples = _C.measure(
                [(problem, p) for p in primitives], rounds=5, budget_s=1.0, device=device
            )
            for (p, t), (error, failure), taken in zip(pairs, checks, samples, strict=True):
                rows.append({
                    "problem": problem, "primitive": p.name, "src": p.src, "dst": p.dst,
                    "workspace_bytes": p.workspace_bytes, "deterministic": t.is_deterministic,
                    "rel_error": error, "failure": failure or taken.failure, "ns": taken.ns,
                })  # fmt: skip
    failing = [row for row in rows if row["failure"]]
    outcome.data["rows"] = rows
    outcome.summary = f"{len(rows) - len(failing)} of {len(rows)} offered legacy algorithms run"
    outcome.expect(bool(rows), "no legacy algorithm is offered")
    outcome.failures += [
        f"{r['primitive']} {r['src']}->{r['dst']} on {r['problem']}: {r['failure']}"
        for r in failing[:10]
    ]
    return outcome


def smoke(context: Context) -> Outcome:
    """One small convolution in each direction and type, by each kind of row, against f64."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    for dtype in ("f32", "tf32", "f16", "bf16"):
        for direction in DIRECTIONS:
            fused = ["", "+bias", "+bias+relu"] if direction == "fwd" else [""]
            for ops in fused:
                problem = spell("3x3_14", dtype, 2, direction) + ops
                for prefix in ("cudnn9.", "cudnn_legacy."):
                    found = offers(problem, device, prefix)
                    chosen = [p for p, t in found if not runtime_compiled(t) and "{" not in p.name][
                        :3
                    ]
                    checks = _C.check_primitives(problem, chosen, BOUND, context.seed, device)
                    for p, (error, failure) in zip(chosen, checks, strict=True):
                        rows.append((problem, spelled(p), error, failure))
    failing = [row for row in rows if row[3]]
    outcome.data = {"rows": rows}
    outcome.summary = f"{len(rows) - len(failing)} of {len(rows)} agree with f64"
    outcome.failures += [f"{name} on {problem}: {why}" for problem, name, _, why in failing[:10]]
    outcome.expect(bool(rows), "nothing ran")
    return outcome


def problems(context: Context, dtypes: tuple[str, ...], n: int = 4) -> Iterator[str]:
    layers = list(LAYERS)[:4] if context.quick else list(LAYERS)
    for layer in layers:
        for dtype in dtypes:
            for direction in DIRECTIONS:
                yield spell(layer, dtype, n, direction)


def deviceless(context: Context) -> Outcome:
    """The described device offers what the live one offers, of cuDNN's graph engines.

    Both are asked by a description in JSON. That a handle is told the same is not shown here.
    """
    device, outcome = live(), Outcome()
    fixture = fixture_of(device)
    described = (
        named_device(fixture)
        if fixture
        else _C.Device(
            kind="cuda", name=device.name, isa=device.isa, l2_bytes=device.l2_bytes,
            properties=device.properties, provenance="live, without its index",
        )
    )  # fmt: skip
    asked, different = 0, Rows(context)
    for problem in problems(context, ("f32", "f16")):
        if context.left_s() < 0:
            break
        asked += 1
        here = {
            spelled(p) for p, t in offers(problem, device, "cudnn9.") if not runtime_compiled(t)
        }
        there = {
            spelled(p) for p, t in offers(problem, described, "cudnn9.") if not runtime_compiled(t)
        }
        if here != there:
            different.append({
                "problem": problem, "live_only": sorted(here - there),
                "described_only": sorted(there - here),
            })  # fmt: skip
    outcome.data = {"described": described.provenance, "different": different}
    outcome.summary = f"{asked - len(different)} of {asked} problems: the same set as described"
    outcome.failures += [f"{d['problem']}: the sets differ" for d in different[:10]]
    outcome.expect(asked > 0, "nothing was asked")
    return outcome


def runtime_compiled(traits: _C.Traits) -> bool:
    """Engines that a machine without a driver cannot list."""
    return traits.is_runtime_compiled


SAMPLED = 8  # plans of each problem in one pass over all problems


def plans(context: Context) -> Outcome:
    """Sampled plans run and agree with f64: a few of each layer, type and direction in turn."""
    device, outcome, rows = live(), Outcome(), Rows(context)
    rng = random.Random(context.seed)
    left: dict[str, list[_C.Primitive]] = {}
    order = list(problems(context, ("f16", "f32", "tf32", "bf16"), n=2))
    rng.shuffle(order)
    while context.left_s() > 0 and order:
        problem = order.pop(0)
        if problem not in left:
            found = offers(problem, device, "cudnn")
            left[problem] = [p for p, t in found if not runtime_compiled(t)]
            rng.shuffle(left[problem])
        chunk, left[problem] = left[problem][:SAMPLED], left[problem][SAMPLED:]
        checks = _C.check_primitives(problem, chunk, BOUND, context.seed, device)
        for p, (error, failure) in zip(chunk, checks, strict=True):
            rows.append((problem, spelled(p), error, failure))
        if left[problem]:
            order.append(problem)
    ran, failing = len(rows), [row for row in rows if row[3]]
    skipped = sum(map(len, left.values()))
    outcome.data = {
        "rows": rows,
        "skipped": skipped,
        "problems_not_asked": len(set(order) - left.keys()),
    }
    outcome.summary = f"{ran - len(failing)} of {ran} plans agree with f64; {skipped} not reached"
    outcome.failures += [f"{name} on {problem}: {why}" for problem, name, _, why in failing[:10]]
    outcome.expect(ran > 0, "no plan ran")
    return outcome


def notes(context: Context) -> Outcome:
    """What is called deterministic gives the same bits each time."""
    device, outcome = live(), Outcome()
    times = 5 if context.quick else 20
    asked, loose, seen_nondeterministic = 0, Rows(context), 0
    for direction in DIRECTIONS:
        problem = spell("3x3_14", "f16", 4, direction)
        for p, traits in offers(problem, device, "cudnn"):
            if context.left_s() < 0:
                break
            if runtime_compiled(traits) or "{" in p.name:
                continue
            first = _C.run_primitive(problem, p, context.seed, device)
            same = all(
                torch.equal(first, _C.run_primitive(problem, p, context.seed, device))
                for _ in range(times - 1)
            )
            asked += 1
            seen_nondeterministic += not same
            if traits.is_deterministic and not same:
                loose.append(f"{spelled(p)} on {problem}")
    outcome.data = {"times": times, "loose": loose, "nondeterministic": seen_nondeterministic}
    outcome.summary = f"{asked} primitives x {times} runs; {seen_nondeterministic} gave other bits"
    outcome.failures += [f"{name} is called deterministic and is not" for name in loose]
    outcome.expect(asked > 0, "nothing ran")
    return outcome


# Kernels by which cuDNN changes a layout or pads channels.
CONVERSION = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|AddPadding|convertTensor|transposeTensor"
    r"|tensorTransform|nhwcToFolded|foldedNhwc|ToKrsc|kcrsTo",
    re.IGNORECASE,
)


def kernel_names(run: Callable[[], object]) -> list[str]:
    run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() or []]


def hidden(context: Context) -> Outcome:
    """Primitives with hidden copies, by workspace arithmetic, are those whose kernels convert."""
    device, outcome = live(), Outcome()
    asked, wrong, rows = 0, [], Rows(context)
    for dtype in ("f16", "tf32"):
        for layer in ("3x3_56", "1x1_14", "dw3x3_56"):
            problem = spell(layer, dtype, 4)
            for p, traits in offers(problem, device, "cudnn9."):
                if context.left_s() < 0:
                    break
                if "{" in p.name or runtime_compiled(traits) or traits.hidden_bytes is None:
                    continue
                names = kernel_names(lambda: _C.run_primitive(problem, p, context.seed, device))  # noqa: B023
                converts = any(CONVERSION.search(name) for name in names)
                asked += 1
                rows.append((problem, spelled(p), traits.hidden_bytes, names))
                if converts != (traits.hidden_bytes > 0):
                    wrong.append(f"{spelled(p)} on {problem}: {traits.hidden_bytes} bytes, {names}")
    outcome.data = {"rows": rows}
    outcome.summary = f"{asked - len(wrong)} of {asked}: the kernels do what was proved"
    outcome.failures += wrong[:10]
    outcome.expect(asked > 0, "nothing ran")
    return outcome


# ---- own kernels -------------------------------------------------------------------------------


def transforms(context: Context) -> Outcome:
    """Own layout changes are exact, and how fast they are beside ATen's."""
    device, outcome = live(), Outcome()
    sizes = [
        (1, 3, 224, 224), (8, 3, 224, 224), (8, 64, 56, 56), (2, 63, 7, 7), (3, 65, 1, 9),
        (1, 2048, 7, 7), (64, 512, 14, 14), (5, 24, 33, 31), (1, 1, 17, 19), (4, 7, 1, 1),
        (2, 4099, 3, 5),
    ]  # fmt: skip
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


# ---- 8-9: time ---------------------------------------------------------------------------------


def control(context: Context) -> Outcome:
    """The same primitive timed twice must read 1.00."""
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
    ratios = [row[1] for row in rows if row[1] > 0]
    worst = max((abs(ratio - 1) for ratio in ratios), default=math.inf)
    outcome.data = {"rows": rows}
    outcome.summary = f"{len(ratios)} layers, worst deviation {100 * worst:.1f} %"
    outcome.failures += [f"{row[0]}: {row[4]}" for row in rows if row[4]]
    outcome.expect(worst <= 0.02, f"A/A differs by {100 * worst:.1f} %, expected at most 2 %")
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
    names = ("resnet50", "unet", "convnext_tiny", "efficientnet_v2_s", "densenet121")
    return [(name, batch) for batch in (1, 8, 64) for name in names]


def time_net(name: str, batch: int, dtype: str, context: Context, compiled: bool) -> dict[str, Any]:
    from gpu_nets import make_net

    generator = torch.Generator().manual_seed(context.seed)
    x = torch.rand(batch, 3, 224, 224, generator=generator).to("cuda", DTYPES[dtype])
    model = make_net(name, context.seed).to("cuda", DTYPES[dtype])
    last_x = x.contiguous(memory_format=torch.channels_last)
    budget_s = max(5.0, min(60.0, context.left_s() / 3))
    tuned = torchalgo.optimize(model, (last_x,), budget_s=budget_s, progress=False)
    fast = without_guard(model, tuned, last_x)
    last = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    calls: dict[str, Callable[[], Any]] = {
        "plan": in_graph(lambda: fast.scripted(last_x)),
        # Warmed up and captured in a thread in which the flag was never off; replayed here.
        "benchmark": BenchmarkedCall(lambda: in_graph(lambda: last(last_x)))(),
    }
    if compiled:
        module = torch.compile(last, mode="max-autotune")
        calls["max-autotune"] = BenchmarkedCall(lambda: module(last_x))
    limit_s = max(1.0, min(8.0, context.left_s()))
    times = time_interleaved(
        calls, rounds=40, budget_s=limit_s, warmup=5, synchronize=torch.cuda.synchronize
    )
    medians = {key: statistics.median(ns) for key, ns in times.items()}
    best = min(ns for key, ns in medians.items() if key != "plan")
    return {
        "net": name, "batch": batch, "dtype": dtype, "runs": tuned.runs, "ns": times,
        "ratio": best / medians["plan"], "predicted_us": fast.plan.cost_us,
    }  # fmt: skip


def time_nets(context: Context, compiled: bool) -> Outcome:
    """Hypothesis: >= 1.2x over the best of benchmark + channels_last + CUDA graphs, and, if
    `compiled`, torch.compile(mode="max-autotune")."""
    outcome = Outcome()
    rows = Rows(context)
    missing: list[str] = []
    for name, batch in net_cases(context):
        for dtype in ("f16",) if context.quick else ("f16", "bf16"):
            if context.left_s() < 10:
                missing.append(f"{name} {batch} {dtype}: no time left")
                continue
            try:
                rows.append(time_net(name, batch, dtype, context, compiled))
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


# ---- 10-11: capture, threads, a fresh process --------------------------------------------------


def small_net(seed: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1, groups=64),
    )  # fmt: skip
    x = torch.rand(4, 3, 64, 64).to("cuda", torch.float16)
    return net.eval().to("cuda", torch.float16), x


def planned_small_net(context: Context) -> tuple[nn.Module, torchalgo.Optimized, torch.Tensor]:
    net, x = small_net(context.seed)
    tuned = torchalgo.optimize(net, (x,), budget_s=10.0, progress=False)
    return net, without_guard(net, tuned, x), x


def without_guard(
    model: nn.Module, tuned: torchalgo.Optimized, x: torch.Tensor
) -> torchalgo.Optimized:
    """A module that runs the plan, whatever the guard said."""
    plan = dataclasses.replace(tuned.plan, guard=None)
    return torchalgo.optimize(model, (x,), plan=plan, progress=False)


def capture(context: Context) -> Outcome:
    """A plan in a CUDA graph, on other streams and in several threads gives the same bits."""
    outcome = Outcome()
    net, fast, x = planned_small_net(context)
    with torch.no_grad():
        expected = fast(x).clone()
        error = output_error(expected, net(x))
        outcome.expect(error < 1.6e-2, f"the plan differs from the model by {error:.1e}")
        kept: list[torch.Tensor] = []
        replay = in_graph(lambda: kept.append(fast.scripted(x)))
        kept[-1].zero_()
        replay()
        torch.cuda.synchronize()
        outcome.expect(torch.equal(kept[-1], expected), "a replayed graph gives other bits")
    wrong: list[str] = []

    def work(index: int) -> None:
        stream = torch.cuda.Stream()
        for turn in range(20):
            with torch.cuda.stream(stream), torch.no_grad():
                result = fast(x)
            stream.synchronize()
            if not torch.equal(result, expected):
                wrong.append(f"thread {index}, turn {turn}")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.failures += [f"other bits in {where}" for where in wrong[:5]]
    outcome.summary = "graph replay and 8 threads on 8 streams agree" if not wrong else "threads"
    return outcome


REPLAY = """
import sys, torch, torchalgo
model, tensors = torchalgo.load(sys.argv[1]), torch.load(sys.argv[2])
with torch.no_grad():
    result = model(tensors["x"].cuda())
fallbacks = torchalgo.fallbacks()
print("fallbacks", fallbacks)
sys.exit(0 if torch.equal(result.cpu(), tensors["expected"]) and not fallbacks else 1)
"""


def replay(context: Context) -> Outcome:
    """A saved module gives the same bits in a fresh process."""
    _, fast, x = planned_small_net(context)
    with torch.no_grad():
        expected = fast(x)
    model, tensors = context.out / "replay.pt", context.out / "replay_tensors.pt"
    fast.save(model)
    torch.save({"x": x.cpu(), "expected": expected.cpu()}, tensors)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(model), str(tensors)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    outcome = Outcome("the same bits in a fresh process", data={"stdout": done.stdout})
    outcome.expect(
        done.returncode == 0, f"a fresh process: {done.stdout[-300:]} {done.stderr[-600:]}"
    )
    return outcome


# In the order that loses least if time ends: what is here and whether it works; what it is worth;
# what cuDNN says. Each part is useful alone, and its budgets add up to less than 9 minutes.
STAGES = (
    Stage("env", "versions and clocks", 1, 20, env, needs_gpu=False),
    Stage("deviceprop", "the live device in JSON, beside its description", 1, 20, deviceprop),
    Stage("import", "the build, its rows, cuDNN without a device", 1, 20, import_, needs_gpu=False),
    Stage("smoke", "each kind of row in each direction and type", 1, 60, smoke),
    Stage("capture", "CUDA graphs, streams and threads", 1, 60, capture),
    Stage("transforms", "own layout changes: exact, and how fast", 1, 40, transforms),
    Stage("control", "A/A timing", 2, 30, control),
    Stage("layers", "per layer beside benchmark=True", 2, 150, layers),
    Stage("nets", "networks beside benchmark + channels_last + CUDA graphs", 2, 200, nets),
    Stage("replay", "a saved module in a fresh process", 2, 60, replay),
    Stage("deviceless", "the described device offers what the live one does", 3, 60, deviceless),
    Stage("plans", "sampled plans run and agree with f64", 3, 150, plans),
    Stage("notes", "deterministic ones give the same bits", 3, 60, notes),
    Stage("legacy", "the legacy numbers: which run, how fast", 3, 60, legacy),
    Stage("hidden", "hidden copies as proved", 3, 60, hidden),
    Stage(
        "compile", "networks beside torch.compile(max-autotune) too", 2, 480, compiled_nets,
        is_default=False,
    ),
)  # fmt: skip
