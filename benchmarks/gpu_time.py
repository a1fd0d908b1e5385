# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: how fast layers, layout changes and networks are."""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchalgo
from gpu_graphs import geomean
from gpu_problems import (
    BOUND,
    LAYERS,
    Rows,
    live,
    offers,
    spell,
    spelled,
)
from gpu_stage import Context, Outcome
from torchalgo import _C


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
                failing += check_and_time(problem, primitives, 0.0, rows, context)
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


def check_and_time(
    problem: str, primitives: list[_C.Primitive], most: float, rows: Rows, context: Context
) -> list[str]:
    """Appends the samples of each primitive to `rows`, in ns by name. Returns what is wrong."""
    checks = _C.check_primitives(problem, primitives, most, context.seed, live())
    failing = [
        f"{spelled(p)} on {problem}: {failure or error}"
        for p, (error, failure) in zip(primitives, checks, strict=True)
        if failure or error > 0 == most
    ]
    if context.left_s() > 0:
        taken = _C.measure(
            [(problem, p) for p in primitives], rounds=9, budget_s=0.5, device=live()
        )
        rows.append((problem, {p.name: s.ns for p, s in zip(primitives, taken, strict=True)}))
    return failing


# Operations of GoogLeNet, U-Net, MobileNetV2, RegNet, DenseNet and ConvNeXt that own kernels run.
KERNEL_PROBLEMS = (
    "maxpool_{}_n8c64h112w112_r3s3_st2x2_pad1x1_dil1x1",
    "maxpool_{}_n8c480h14w14_r3s3_st1x1_pad1x1_dil1x1",
    "maxpool_{}_n8c64h128w128_r2s2_st2x2_pad0x0_dil1x1",
    "avgpool_{}_n8c128h56w56_r2s2_st2x2_pad0x0", "avgpool_{}_n8c2048h7w7_p1q1",
    "avgpool_{}_n8c104h56w56_p1q1", "relu_{}_n8c256h56w56", "silu_{}_n8c96h112w112",
    "add_{}_n8c256h56w56+relu", "mul_{}_n8c208h28w28_channelwise",
    "scaleshift_{}_n8c256h56w56+relu", "concat_{}_n8c64x64h128w128",
    "concat_{}_n8c192x208x48x64h14w14", "slice_{}_n8c116h28w28_k58from58",
    "fwd_{}_n8c144h56w56_k144r3s3_st1x1_pad1x1_dil1x1_g144+bias+relu6",
    "fwd_{}_n8c144h56w56_k144r3s3_st2x2_pad1x1_dil1x1_g144+bias+relu6",
    "fwd_{}_n8c672h14w14_k672r5s5_st1x1_pad2x2_dil1x1_g672+bias+silu",
    "fwd_{}_n8c96h56w56_k96r7s7_st1x1_pad3x3_dil1x1_g96+bias",
    "layernorm_{}_n8c96h56w56_eps1e-06", "layernorm_{}_n8c384h14w14_eps1e-06",
)  # fmt: skip


def kernels(context: Context) -> Outcome:
    """Own kernels agree with f64, and how fast they are beside ATen's."""
    outcome, rows, failing = Outcome(), Rows(context), list[str]()
    texts = [p.format(dtype) for dtype in ("f16", "f32", "bf16") for p in KERNEL_PROBLEMS]
    if context.quick:
        texts = [text for text in texts if re.search(r"_f16_.*h(\d|1\d|28)w", text)]
    for text in texts:
        if context.left_s() <= 0:
            break
        problem = _C.parse_problem(text)
        found = [
            p
            for prefix in ("cuda.", "aten.")
            for p, _ in offers(problem, live(), prefix)
            if p.src == p.dst == "nhwc"
        ]
        outcome.expect(len(found) >= 1 and found[0].name.startswith("cuda."), f"{problem}: none")
        failing += check_and_time(problem, found, BOUND, rows, context)
    ratios: dict[str, list[float]] = {}
    for _, ns in rows:
        us = {name: statistics.median(each) for name, each in ns.items() if each}
        own_us = us.pop(own := next(iter(ns)), None)
        if own_us and us:
            ratios.setdefault(own, []).append(min(us.values()) / own_us)
    outcome.data = {"rows": rows}
    outcome.summary = ", ".join(f"{name} {geomean(r):.2f}x" for name, r in ratios.items())
    outcome.failures += failing[:10]
    return outcome


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
