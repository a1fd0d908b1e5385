# SPDX-License-Identifier: BSD-3-Clause
"""Times calls of an optimized module beside calls of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from torchalgo._base.quiet_jit import quiet_jit
from torchalgo._capture.freeze import ScriptModule, device_of, freeze_model
from torchalgo._measure.baselines import BuiltOnCall, Call, baseline_calls, drop_failing
from torchalgo._measure.guard import synchronizer, time_interleaved
from torchalgo._measure.machine_load import WaitWatch
from torchalgo._run.call_times import CallTimes


def compare_calls(
    name: str,
    own: Call,
    model: nn.Module,
    frozen: ScriptModule,
    inputs: tuple[Any, ...],
    *,
    rounds: int,
    budget_s: float,
    is_compiled: bool,
    why_not_last: str = "",
) -> CallTimes:
    """Times `own` beside the baselines of `model`. A baseline that fails has no times.

    Args:
        name: the name of `own` in the result.
        is_compiled: also time torch.compile(model).
        why_not_last: why the model must not run in channels_last; "" if it may.
    """
    others = baseline_calls(model, frozen, inputs, not why_not_last)
    device = device_of(model, inputs)
    if device.type == "cpu":
        others["optimize_for_inference"] = BuiltOnCall(lambda: _for_inference(model, inputs))
    if is_compiled:
        others["torch.compile"] = BuiltOnCall(lambda: _compiled(model, inputs))
    others, failures = drop_failing(others)
    if why_not_last:
        failures["channels_last"] = why_not_last
    watch = WaitWatch()
    times = time_interleaved(
        {name: own, **others}, rounds=rounds, budget_s=budget_s, synchronize=synchronizer(device)
    )
    return CallTimes(times, failures, watch.share())


def _for_inference(model: nn.Module, inputs: tuple[Any, ...]) -> Call:
    own = freeze_model(model, inputs)  # its own: optimize_for_inference changes it
    with quiet_jit():
        own = torch.jit.optimize_for_inference(own)
    return lambda: own(*inputs)


def _compiled(model: nn.Module, inputs: tuple[Any, ...]) -> Call:
    compiled = torch.compile(copy.deepcopy(model))
    compiled(*inputs)
    return lambda: compiled(*inputs)
