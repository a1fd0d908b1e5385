# SPDX-License-Identifier: BSD-3-Clause
"""Times whole calls of an optimized module beside calls of PyTorch."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torchalgo._base.overlap import quiet_jit
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._base.stats import Faster, is_faster, percentile_95
from torchalgo._C import Error
from torchalgo._capture.freeze import freeze_model, to_channels_last
from torchalgo._ir.plan import MOST_WAITING
from torchalgo._ir.plan.text_table import ShownAsText, text_table
from torchalgo._measure.baselines import BuiltOnCall, Call, drop_failing
from torchalgo._measure.guard import LEAST_ROUNDS, synchronizer, time_interleaved
from torchalgo._measure.machine_load import WaitWatch


@dataclass(frozen=True)
class CallTimes(ShownAsText):
    """Times of whole calls, which took turns in rounds. `print` shows a table.

    `Optimized.compare` and `CapturedCalls.compare` measure them.

        times = fast.compare()
        print(times.ratios["eager"].ratio)
    """

    ns: Mapping[str, Sequence[float]]  # by what ran, torchalgo first; the lists have equal lengths
    failures: Mapping[str, str] = field(default_factory=dict)  # what did not run, and why
    waited: float = 0.0  # the share of the time in which other programs had the processors
    wanted_rounds: int = 0  # there are fewer if the time ended before

    @property
    def ratios(self) -> Mapping[str, Faster]:
        """For each other way: its time divided by that of torchalgo, the median of the rounds.

        Above 1, torchalgo is faster.
        """
        own, *others = self.ns
        return {name: is_faster(self.ns[name], self.ns[own]) for name in others}

    def records(self) -> list[dict[str, Any]]:
        """Returns a dict for each line of the table, the shortest median first.

        `ratio` is that of `ratios`, with its 95 % interval from `low` to `high`.
        """
        ratios = self.ratios
        found = []
        for name, ns in sorted(self.ns.items(), key=lambda item: statistics.median(item[1])):
            record: dict[str, Any] = {
                "name": name,
                "median_ms": statistics.median(ns) / 1e6,
                "min_ms": min(ns) / 1e6,
                "p95_ms": percentile_95(ns) / 1e6,
            }
            if (it := ratios.get(name)) is not None:
                record |= {"ratio": it.ratio, "low": it.low, "high": it.high}
            found.append(record)
        return found

    def __str__(self) -> str:
        own = next(iter(self.ns))
        rows = [("what runs", "ms", "shortest", "95th perc.", f"over {own}", "95 % interval")]
        for it in self.records():
            ratios = ("", "")
            if "ratio" in it:
                ratios = f"{it['ratio']:.2f}x", f"{it['low']:.2f} to {it['high']:.2f}"
            times = (f"{it[key]:.3f}" for key in ("median_ms", "min_ms", "p95_ms"))
            rows.append((it["name"], *times, *ratios))
        lines = text_table(rows, right=(1, 2, 3, 4, 5))
        lines += [f"{name}: {why}" for name, why in self.failures.items()]
        rounds = len(self.ns[own])
        if rounds < min(self.wanted_rounds, LEAST_ROUNDS):
            round_s = sum(map(statistics.median, self.ns.values())) / 1e9
            lines.append(
                f"the time ended after {rounds} of {self.wanted_rounds} rounds, too few to compare:"
                " give compare() more time, such as"
                f" budget_s={math.ceil(2 * LEAST_ROUNDS * round_s)}"
            )
        if self.waited > MOST_WAITING:
            lines.append(
                f"other programs had the processors for {self.waited:.0%} of the time, so these"
                " times are too long: end them, or give torch fewer threads"
            )
        return "\n".join(lines)


def check_times(rounds: int, budget_s: float) -> None:
    """Raises torchalgo.Error unless `rounds` is an int and `budget_s` a number, both above 0."""
    if type(rounds) is not int or rounds < 1:
        raise Error(f"TA1001 compare: rounds={rounds!r}, expected a whole number above 0")
    if type(budget_s) not in (int, float) or not budget_s > 0:
        raise Error(
            f"TA1001 compare: budget_s={budget_s!r}, expected a number of seconds above 0, such as"
            " 20"
        )


def compare_calls(
    own: Mapping[str, Call],
    others: Mapping[str, Call],
    device: torch.device,
    *,
    rounds: int,
    budget_s: float,
) -> CallTimes:
    """Times calls by their names, all in the same rounds. A call of `others` may fail."""
    sound, failures = drop_failing(others)
    watch = WaitWatch()
    times = time_interleaved(
        {**own, **sound}, rounds=rounds, most_s=budget_s, least=1, synchronize=synchronizer(device)
    )
    return CallTimes(times, failures, watch.share(), rounds)


def optimized_for_inference(model: nn.Module, inputs: tuple[Any, ...]) -> Call:
    def build() -> Call:
        own = freeze_model(model, inputs)  # its own: optimize_for_inference changes it
        with quiet_jit():
            own = torch.jit.optimize_for_inference(own)
        return lambda: own(*inputs)

    return BuiltOnCall(build)


def compiled_call(model: nn.Module, inputs: tuple[Any, ...], mode: str | None = None) -> Call:
    """Returns a call of torch.compile(model), which compiles first and runs three times."""

    def build() -> Call:
        own = torch.compile(copy.deepcopy(model), mode=mode)
        for _ in range(3):  # "reduce-overhead" captures graphs in the second call
            own(*inputs)
        return lambda: own(*inputs)

    return BuiltOnCall(build)


def pytorchs_graphs(model: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Call]:
    """Returns launches of the CUDA graphs that PyTorch makes of a model.

    They are made with cuDNN's benchmark mode.
    """

    def last() -> Call:
        converted = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _graphed(converted, to_channels_last(inputs))

    ways: dict[str, Call] = {
        "make_graphed_callables": BuiltOnCall(lambda: _graphed(model, inputs)),
        "make_graphed_callables, channels_last": BuiltOnCall(last),
        "torch.compile(mode='reduce-overhead')": compiled_call(model, inputs, "reduce-overhead"),
    }
    return {name: BenchmarkedCall(call) for name, call in ways.items()}


def _graphed(model: nn.Module, inputs: tuple[Any, ...]) -> Call:
    """Captures a copy of `model` as a CUDA graph, and returns a call that launches it."""
    own = copy.deepcopy(model).requires_grad_(False)  # or the backward pass is captured too
    with torch.cuda.device(inputs[0].device):
        graphed = torch.cuda.make_graphed_callables(own, inputs)
    return lambda: graphed(*inputs)
