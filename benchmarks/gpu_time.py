# SPDX-License-Identifier: BSD-3-Clause
"""Stages of gpu_check.py: how fast layers, layout changes and networks are."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchalgo
from gpu_graphs import geomean
from gpu_problems import (
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
