# SPDX-License-Identifier: BSD-3-Clause
"""Times a plan beside the plans of simpler choices, for the bars of a report."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from torchalgo._base.stats import Faster, is_faster
from torchalgo._C import Error
from torchalgo._ir.plan import Plan
from torchalgo._measure.guard import PLAN, synchronizer, time_interleaved
from torchalgo._run.original import Original

ROUNDS = 25
BINDING_SHARE = 0.6  # of the time, for building the modules

# Returns the module that runs a plan.
Bind = Callable[[Plan], Callable[..., Any]]


def measure_bars(
    plan: Plan, others: dict[str, Plan], bind: Bind, original: Original, limit_s: float
) -> dict[str, tuple[float, Faster]]:
    """Times whole calls of `plan` and of the other plans, in rounds.

    Plans for which there is no time, or that cannot run here, are left out.

    Args:
        others: plans by their names in plan.comparisons.
        original: the model, with the example call.
        limit_s: when a part of it is over, no further module is built. When it is over, no further
            round begins, once LEAST_ROUNDS of guard.py were run.

    Returns: the medians in us, and how they compare with the plan, by name. The plan is "plan".
    """
    began = time.monotonic()
    arguments, keywords = original.calls[0]
    calls: dict[str, Callable[[], Any]] = {}
    for name, each in {PLAN: plan, **others}.items():
        if name != PLAN and time.monotonic() - began > BINDING_SHARE * limit_s:
            break
        try:  # without a verdict, which might let PyTorch run
            module = bind(dataclasses.replace(each, guard=None))
        except Error:
            continue
        calls[name] = lambda module=module: module(*arguments, **keywords)  # type: ignore[misc]
    if PLAN not in calls:
        return {}
    left_s = max(limit_s - (time.monotonic() - began), 0.0)
    device = next((t.device for t in arguments if isinstance(t, torch.Tensor)), torch.device("cpu"))
    times = time_interleaved(
        calls, rounds=ROUNDS, budget_s=left_s, synchronize=synchronizer(device)
    )
    found = {}
    for name, ns in times.items():
        found[name] = statistics.median(ns) / 1000, is_faster(ns, times[PLAN])
    return found
