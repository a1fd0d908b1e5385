# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py for what had never run on a GPU before: engines that are compiled at run
time, training, a plan whose engine is refused, energy, and torchalgo.profile."""

from __future__ import annotations

import copy
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import gpu_nets
import torchalgo
from gpu_baselines import INDUCTOR, Rivals, compiled_before, load_cache, name_of, optimized
from gpu_cudnn import engine_of, sort_failures
from gpu_graphs import Call, graph_us, in_graph, median_us
from gpu_problems import BOUND, live, offers, spell, spelled
from gpu_stage import Context, Outcome, Row, each_case, free_gpu, outcome_of, result_of
from gpu_tables import Case, on_gpu
from torchalgo import _C
from torchalgo._base.compare_outputs import output_error
from torchalgo._measure.guard import time_interleaved
from torchalgo._measure.meters import Meter, NvmlMeter

# ---- fused engines -------------------------------------------------------------------------------

FUSED = ("+bias+add", "+bias+add+relu", "+bias+relu", "+bias+silu", "+bias+gelu")
FUSED_LAYERS = ("3x3_56", "1x1_28", "3x3_14", "dw3x3_56")
MOST_OF_A_KIND = 6  # engines that are compiled at run time, and others


def fused(context: Context) -> Outcome:
    """Compares fused engines with f64, and times how long their first run takes."""
    layers = FUSED_LAYERS[:1] if context.quick else FUSED_LAYERS
    cases = {
        problem: functools.partial(run_fused, problem, context)
        for ops in FUSED
        for layer in layers
        for problem in (spell(layer, "f16", 8) + ops,)
    }
    rows, left = each_case(context, cases, clean=free_gpu)
    outcome = outcome_of(rows, left)
    ran = [engine for row in rows.values() for engine in row.get("engines", ())]
    # An engine that is refused has no time.
    compiled = [e["first_s"] for e in ran if e["compiled"] and e["first_s"] is not None]
    failing = [(engine_of(e["primitive"]), e["failure"]) for e in ran if e["failure"]]
    sort_failures(outcome, failing)
    outcome.summary = f"{len(ran) - len(failing)} of {len(ran)} agree with f64"
    if compiled:
        middle = statistics.median(compiled)
        outcome.summary += (
            f"; {len(compiled)} compile in {middle:.2f} s, at most {max(compiled):.1f} s"
        )
    return outcome


def run_fused(problem: str, context: Context) -> Row:
    device = live()
    found = [(p, t) for p, t in offers(problem, device, "") if not p.name.startswith("aten.")]
    chosen = []
    for is_compiled in (True, False):
        kind = [p for p, t in found if t.is_runtime_compiled == is_compiled and "{" not in p.name]
        chosen += [(p, is_compiled) for p in kind[:MOST_OF_A_KIND]]
    engines = []
    for primitive, is_compiled in chosen:
        times = []
        failure, error = "", 0.0
        try:
            for _ in range(2):
                start = time.monotonic()
                _C.run_primitive(problem, primitive, context.seed, device)
                torch.cuda.synchronize()
                times.append(round(time.monotonic() - start, 4))
            [(error, failure)] = _C.check_primitives(
                problem, [primitive], BOUND, context.seed, device
            )
        except _C.Error as refused:
            failure = str(refused).splitlines()[0][:300]
        engines.append({
            "primitive": spelled(primitive), "compiled": is_compiled, "error": error,
            "first_s": times[0] if times else None, "second_s": times[-1] if times else None,
            "failure": failure,
        })  # fmt: skip
    return {"engines": engines}


# ---- training, refused engines, profile ----------------------------------------------------------


def step_of(model: nn.Module, x: torch.Tensor) -> Call:
    @torch.enable_grad()
    def step() -> None:
        model.zero_grad()
        model(x).float().square().mean().backward()

    return step


def train(name: str, batch: int, context: Context) -> Row:
    """Trains one step by a plan. Returns the errors of its gradients, and the times of steps."""
    model = gpu_nets.make_net(name, context.seed).train().to("cuda")
    exact, given = copy.deepcopy(model).double(), copy.deepcopy(model)
    x = torch.rand(batch, 3, 64, 64, device="cuda")
    planned = torchalgo.optimize_training(
        model, (x,), budget_s=5.0 if context.quick else 40.0,
        settings=torchalgo.Settings(progress=False, run_untimed=True),
    )  # fmt: skip
    for each, image in ((planned, x), (given, x), (exact, x.double())):
        step_of(each, image)()
    errors = {
        kind: max(
            float((ours.grad.double() - right.grad).norm() / right.grad.norm().clamp_min(1e-30))
            for ours, right in zip(module.parameters(), exact.parameters(), strict=True)
            if right.grad is not None and ours.grad is not None
        )
        for kind, module in (("plan", planned), ("eager", given))
    }
    calls = {"plan": step_of(planned, x), "eager": step_of(given, x)}
    times = time_interleaved(calls, rounds=15, budget_s=3.0, synchronize=torch.cuda.synchronize)
    return {"errors": errors, "ns": times, "runs": planned.runs, "planned": planned.planned_runs}


def training(context: Context) -> Outcome:
    """A training step by a plan has gradients as near to f64 as eager's."""
    sizes = {"resnet50": 8} if context.quick else {"resnet50": 32, "mobilenet_v2": 32}
    cases = {name: functools.partial(train, name, batch, context) for name, batch in sizes.items()}
    rows, left = each_case(context, cases, needs_s=5.0, clean=free_gpu)
    outcome = outcome_of(rows, left)
    for name, row in rows.items():
        if "errors" in row:
            plan, eager = row["errors"]["plan"], row["errors"]["eager"]
            outcome.expect(plan < 1e-3 + 10 * eager, f"{name}: {plan:.1e}, eager's {eager:.1e}")
            ratio = statistics.median(row["ns"]["eager"]) / statistics.median(row["ns"]["plan"])
            outcome.summary += f"{name}: {ratio:.2f}x eager, {plan:.0e} (eager {eager:.0e})  "
    return outcome


def refused_name(problem: str) -> str:
    """Returns the name of an engine that no GPU has, for the operations of a problem."""
    _, plus, ops = problem.partition("+")
    return f"cudnn9.conv{'_' * bool(plus)}{ops.replace('+', '_')}.e9999"


@torch.no_grad()
def refused_engine(context: Context) -> Row:
    """Runs a plan in which this GPU refuses the engine of every convolution."""
    model, x = on_gpu(("resnet50", "f16", 8), context)
    fast, tuning = optimized(model, x, context)
    nodes = [
        dataclasses.replace(n, primitive=refused_name(n.problem))
        if n.primitive and n.problem.startswith("fwd_") else n
        for n in fast.plan.nodes
    ]  # fmt: skip
    plan = dataclasses.replace(fast.plan, nodes=nodes, guard=None)
    other = torchalgo.optimize(model, (x,), plan=plan, settings=torchalgo.Settings(progress=False))
    replays = {
        "plan": in_graph(lambda: fast.scripted(x)),
        "refused": in_graph(lambda: other.scripted(x)),
    }
    us = {name: median_us(times) for name, times in graph_us(replays).items()}
    changed = sum(a is not b for a, b in zip(nodes, fast.plan.nodes, strict=True))
    return {
        "us": us, "ratio": us["refused"] / us["plan"], "changed": changed, "tuning": tuning,
        "error": output_error(other.scripted(x), model(x)),
        "fallbacks": [str(each)[:200] for each in torchalgo.fallbacks()][:5],
    }  # fmt: skip


def refused(context: Context) -> Outcome:
    """A plan with engines that are refused here runs others that are not much slower."""
    rows, left = each_case(
        context, {"resnet50": functools.partial(refused_engine, context)}, clean=free_gpu
    )
    outcome = outcome_of(rows, left)
    row = rows.get("resnet50", {})
    if "ratio" in row:
        outcome.summary = f"{row['changed']} engines refused: {row['ratio']:.2f}x the plan's time"
        outcome.suppose(row["ratio"] <= 1.5, outcome.summary)
        outcome.expect(row["changed"] > 0, "the plan has no convolution")
        outcome.expect(row["error"] < 2e-2, f"the results differ by {row['error']:.1e}")
    return outcome


def profile(context: Context) -> Outcome:
    """Prints torchalgo.profile of three layers."""
    layers = ("3x3_56",) if context.quick else ("3x3_56", "1x1_28", "dw3x3_56")
    budget_s = 0.2 if context.quick else 3.0

    def case(problem: str) -> Row:
        text = str(
            torchalgo.profile(problem, device="cuda", directions="forward", budget_s=budget_s)
        )
        print(text, flush=True)
        return {"lines": len(text.splitlines()), "text": text}

    cases = {p: functools.partial(case, p) for p in (spell(name, "f16", 8) for name in layers)}
    rows, left = each_case(context, cases, clean=free_gpu)
    outcome = outcome_of(rows, left)
    outcome.summary = f"{sum(row.get('lines', 0) for row in rows.values())} lines; see the log"
    return outcome


# ---- energy --------------------------------------------------------------------------------------

LOOP_S = 2.0
ROTATED = 20  # inputs of the convolution: more than L2 holds
ENERGY_CASES: tuple[Case, ...] = (
    ("resnet50", "f16", 8), ("mobilenet_v2", "f16", 8), ("efficientnet_v2_s", "f16", 1),
)  # fmt: skip


def meter_here() -> Meter:
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return NvmlMeter(f"GPU-{uuid}")


def spent(replay: Call, meter: Meter, seconds: float, runs: int = 1) -> Row:
    """Returns the power, and the time and energy of a run, while graphs of `runs` runs repeat.

    Nothing is flushed, and nothing is subtracted: the GPU's idle power is part of it.
    """
    count = max(1, round(1e4 / max(graph_us({"it": replay}, rounds=1)["it"][0], 1.0)))
    replays, before, start = 0, meter.read_uj(), time.monotonic()
    while time.monotonic() - start < seconds:
        for _ in range(count):
            replay()
        torch.cuda.synchronize()
        replays += count
    taken_s, uj = time.monotonic() - start, meter.read_uj() - before
    total = replays * runs
    return {
        "watts": round(1e-6 * uj / taken_s, 1), "mj": 1e-3 * uj / total,
        "ms": 1e3 * taken_s / total,
    }  # fmt: skip


@torch.no_grad()
def legacy_energy(number: int, meter: Meter, context: Context) -> Row:
    """Returns a row of the fork's table: time, memory, support, error and energy of a number.

    It is strict and in f32: otherwise another algorithm would run where this one is refused.
    """
    torch.backends.cudnn.allow_tf32 = False
    was_strict = torchalgo.set_strict(True)
    try:
        return legacy_row(number, meter, context)
    finally:
        torchalgo.set_strict(was_strict)
        torch.backends.cudnn.allow_tf32 = True


def legacy_row(number: int, meter: Meter, context: Context) -> Row:
    layout = torch.contiguous_format
    size = (8, 64, 9, 9) if context.quick else (8, 64, 56, 56)
    xs = [torch.randn(size, device="cuda").to(memory_format=layout) for _ in range(ROTATED)]
    w = torch.randn(64, 64, 3, 3, device="cuda") / 24
    convolve = functools.partial(torchalgo.conv2d, padding=1, forward=number)
    exact = nn.functional.conv2d(xs[0].double(), w.double(), padding=1)
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        result = convolve(xs[0], w)
    except RuntimeError as why:
        return {"supported": False, "why": str(why).splitlines()[0][:200]}
    memory = torch.cuda.max_memory_allocated() - before_bytes - result.nbytes
    replay = in_graph(lambda: [convolve(x, w) for x in xs])
    return {
        "supported": True, "memory_bytes": memory, "layout": "nchw",
        "error": float((result.double() - exact).norm() / exact.norm()),
        **spent(replay, meter, 0.1 if context.quick else LOOP_S, ROTATED),
    }  # fmt: skip


@torch.no_grad()
def net_energy(case: Case, meter: Meter, has_inductor: bool, context: Context) -> Row:
    """Returns what a run of a plan, of the frozen network and of Inductor's takes."""
    model, x = on_gpu(case, context)
    ways = Rivals(case, model, x, context, tunes=False).ways()
    plan = "table" if "table" in ways else "optimize"
    seconds = 0.1 if context.quick else LOOP_S

    def spent_by(name: str) -> Row:
        return spent(ways[name]()[1], meter, seconds)

    names = (plan, "frozen", *([INDUCTOR] if has_inductor else []))
    return {name: result_of(functools.partial(spent_by, name)) for name in names}


def energy(context: Context) -> Outcome:
    """Energy of the legacy algorithms on one convolution, and of networks."""
    meter = meter_here()
    # Without its cache, Inductor would need more time than this stage has.
    compiled = compiled_before(context) if load_cache(context) else set()
    numbers = [number for number, _ in _C.legacy_algorithms("fwd")]
    cases: dict[str, Callable[[], Row]] = {
        f"legacy {number}": functools.partial(legacy_energy, number, meter, context)
        for number in numbers
    }
    for case in ENERGY_CASES[:1] if context.quick else ENERGY_CASES:
        name = name_of(case)
        cases[name] = functools.partial(net_energy, case, meter, name in compiled, context)
    rows, left = each_case(context, cases, clean=free_gpu)
    outcome = outcome_of(rows, left)
    print(fork_table(rows, numbers), flush=True)
    counted = [row for row in rows.values() if row.get("mj")]
    outcome.summary = f"{len(counted)} legacy algorithms by {meter.name}"
    for name, row in rows.items():
        kinds = {k: f"{v['mj']:.2f}" for k, v in row.items() if isinstance(v, dict) and "mj" in v}
        if kinds:
            outcome.summary += f"; {name}: " + ", ".join(f"{k} {mj} mJ" for k, mj in kinds.items())
    outcome.expect(bool(counted), "the meter counted nothing")
    return outcome


def fork_table(rows: Mapping[str, Row], numbers: list[int]) -> str:
    """Returns the fork's table, with the error and the energy as further columns."""
    lines = ["algo  supported        ms      memory    error       mJ"]
    for number in numbers:
        row: dict[str, Any] = dict(rows.get(f"legacy {number}", {}))
        if row.get("supported"):
            numbers_of = f"{row['ms']:9.4f} {row['memory_bytes']:11} {row['error']:8.1e}"
            lines.append(f"{number:4}  yes       {numbers_of} {row['mj']:8.3f}")
        else:
            lines.append(f"{number:4}  no        {row.get('why') or row.get('failure', '')}")
    return "\n".join(lines)
