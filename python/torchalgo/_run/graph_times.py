# SPDX-License-Identifier: BSD-3-Clause
"""Times the CUDA graphs of a plan beside those that PyTorch makes of the model."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._base.stats import Faster, is_faster
from torchalgo._capture.freeze import to_channels_last
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._measure.baselines import Call
from torchalgo._measure.guard import time_interleaved

GRAPHED = "plan, as a graph"
PLAIN = "plan, without graphs"
WARM_UPS = 3  # calls of a compiled model before it is timed: it captures in the second one


@dataclass(frozen=True)
class GraphTimes(ShownAsText):
    """Times of whole calls of a plan and of PyTorch, as CUDA graphs.

    `CapturedCalls.compare` measures them.

        print(fast.captured().compare(x))
    """

    ns: Mapping[str, Sequence[float]]  # by what ran; the lists have the same rounds
    failures: Mapping[str, str]  # the ways that did not run, and why

    @property
    def faster(self) -> Mapping[str, Faster]:
        """The times of the plan's graph over each other time: the median ratio of the rounds."""
        own = self.ns[GRAPHED]
        return {name: is_faster(own, ns) for name, ns in self.ns.items() if name != GRAPHED}

    def __str__(self) -> str:
        rows = [("what runs", "ms", "over the plan's graph", "95 % interval")]
        faster = self.faster
        for name, ns in sorted(self.ns.items(), key=lambda item: statistics.median(item[1])):
            ratio, interval = ("", "")
            if name in faster:
                it = faster[name]
                ratio, interval = f"{1 / it.ratio:.2f}x", f"{1 / it.high:.2f} to {1 / it.low:.2f}"
            rows.append((name, f"{statistics.median(ns) / 1e6:.3f}", ratio, interval))
        lines = text_table(rows, right=(1, 2, 3))
        return "\n".join([*lines, *(f"{name}: {why}" for name, why in self.failures.items())])


def graph_times(
    graphed: Call, plain: Call, model: nn.Module, inputs: Sequence[Tensor], budget_s: float
) -> GraphTimes:
    """Times both calls beside PyTorch's graphs of `model`, all in the same rounds.

    PyTorch's graphs are made with cuDNN's benchmark mode, in nchw and in channels_last, and by
    torch.compile(mode="reduce-overhead"). A way that fails is left out.
    """
    calls: dict[str, Call] = {GRAPHED: graphed, PLAIN: plain}
    failures: dict[str, str] = {}
    for name, make in _PYTORCHS.items():
        try:
            call = BenchmarkedCall(make(model, inputs))
            call()  # builds the graph, in the thread in which it is timed
        except Exception as problem:
            first, *_ = [*str(problem).strip().splitlines(), ""]
            failures[name] = f"{type(problem).__name__}: {first[:200]}"
        else:
            calls[name] = call
    return GraphTimes(
        time_interleaved(calls, budget_s=budget_s, synchronize=torch.cuda.synchronize), failures
    )


def _with_graph(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    """Returns a call of a copy of `model` as a CUDA graph. The first call captures it."""
    own = copy.deepcopy(model).requires_grad_(False)  # or the backward pass is captured too
    made: list[Callable[..., Any]] = []

    def call() -> Any:
        if not made:
            made.append(torch.cuda.make_graphed_callables(own, tuple(inputs)))
        return made[0](*inputs)

    return call


def _in_channels_last(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return _with_graph(last, to_channels_last(tuple(inputs)))


def _compiled(model: nn.Module, inputs: Sequence[Tensor]) -> Call:
    compiled = torch.compile(copy.deepcopy(model), mode="reduce-overhead")
    warm_ups = [WARM_UPS]

    def call() -> Any:
        while warm_ups[0]:
            warm_ups[0] -= 1
            compiled(*inputs)
        return compiled(*inputs)

    return call


_PYTORCHS = {
    "make_graphed_callables": _with_graph,
    "make_graphed_callables, channels_last": _in_channels_last,
    "torch.compile(mode='reduce-overhead')": _compiled,
}
