# SPDX-License-Identifier: BSD-3-Clause
"""Times the CUDA graphs of a plan beside those that PyTorch makes of the model."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._capture.freeze import to_channels_last
from torchalgo._measure.baselines import BuiltOnCall, Call, drop_failing
from torchalgo._measure.guard import time_interleaved
from torchalgo._run.call_times import CallTimes

GRAPHED = "plan, as a graph"
PLAIN = "plan, without graphs"
WARM_UPS = 3  # calls of a compiled model before it is timed: it captures in the second one


def graph_times(
    graphed: Call,
    plain: Call,
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    rounds: int,
    budget_s: float,
) -> CallTimes:
    """Times both calls beside PyTorch's graphs of `model`, all in the same rounds.

    PyTorch's graphs are made with cuDNN's benchmark mode, in nchw and in channels_last, and by
    torch.compile(mode="reduce-overhead"). A way that fails has no times.
    """
    device = inputs[0].device
    others, failures = drop_failing(
        {
            name: BenchmarkedCall(BuiltOnCall(lambda make=make: make(model, inputs)))  # type: ignore[misc]
            for name, make in _PYTORCHS.items()
        }
    )
    times = time_interleaved(
        {GRAPHED: graphed, PLAIN: plain, **others},
        rounds=rounds,
        budget_s=budget_s,
        synchronize=lambda: torch.cuda.synchronize(device),
    )
    return CallTimes(times, failures)


def _with_graph(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """Captures a copy of `model` as a CUDA graph, and returns a call that launches it."""
    own = copy.deepcopy(model).requires_grad_(False)  # or the backward pass is captured too
    with torch.cuda.device(inputs[0].device):
        graphed = torch.cuda.make_graphed_callables(own, tuple(inputs))
    return lambda: graphed(*inputs)


def _in_channels_last(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _with_graph(last, to_channels_last(tuple(inputs)))


def _compiled(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    compiled = torch.compile(copy.deepcopy(model), mode="reduce-overhead")
    for _ in range(WARM_UPS):
        compiled(*inputs)
    return lambda: compiled(*inputs)


_PYTORCHS = {
    "make_graphed_callables": _with_graph,
    "make_graphed_callables, channels_last": _in_channels_last,
    "torch.compile(mode='reduce-overhead')": _compiled,
}
