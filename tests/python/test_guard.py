# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch

from torchalgo._base.compare_outputs import output_error
from torchalgo._base.own_thread import BenchmarkedCall
from torchalgo._measure.baselines import BENCHMARK, drop_failing
from torchalgo._measure.guard import guard_verdict, time_interleaved


def times(plan: float, **others: float) -> dict[str, list[float]]:
    return {
        name: [ns + 0.001 * ns * (i % 5) for i in range(25)]
        for name, ns in {"plan": plan, **others}.items()
    }


def test_the_plan_is_held_against_the_fastest_baseline() -> None:
    verdict = guard_verdict(times(80e3, eager=120e3, channels_last=90e3, frozen=110e3))
    assert (verdict.verdict, verdict.runs, verdict.baseline) == ("faster", "plan", "channels_last")
    assert verdict.ratio == pytest.approx(80 / 90)
    assert verdict.plan_us == pytest.approx(80, rel=0.01)


def test_a_slower_plan_gives_way() -> None:
    verdict = guard_verdict(times(100e3, eager=120e3, frozen=90e3))
    assert (verdict.verdict, verdict.runs, verdict.baseline) == ("slower", "baseline", "frozen")


def test_an_unclear_result_runs_the_plan() -> None:
    samples = {"plan": [100.0, 90.0] * 12, "eager": [90.0, 100.0] * 12}
    verdict = guard_verdict(samples)
    assert (verdict.verdict, verdict.runs) == ("unclear", "plan")


def test_rounds_are_interleaved_and_paired() -> None:
    order: list[str] = []
    clock = itertools.count(0, 1000)
    result = time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        rounds=10,
        warmup=1,
        now_ns=lambda: next(clock),
    )
    assert result == {"a": [1000.0] * 10, "b": [1000.0] * 10}
    rounds = [order[i : i + 2] for i in range(0, len(order), 2)]
    assert all(sorted(r) == ["a", "b"] for r in rounds)
    assert ["a", "b"] in rounds[1:]
    assert ["b", "a"] in rounds[1:]


def test_runs_before_a_timed_one_are_not_timed() -> None:
    order: list[str] = []
    clock = itertools.count(0, 1000)
    now = lambda: next(clock) + 10 * len(order)  # noqa: E731
    calls = {name: functools.partial(order.append, name) for name in "ab"}
    result = time_interleaved(calls, rounds=4, warmup=0, now_ns=now, untimed=2)
    assert result == {"a": [1010.0] * 4, "b": [1010.0] * 4}
    triples = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(triples) == 8 and all(len(set(each)) == 1 for each in triples)


def test_a_spent_budget_still_gives_seven_rounds() -> None:
    clock = itertools.count(0, 10**9)
    result = time_interleaved(
        {"a": lambda: None}, rounds=50, budget_s=1.0, now_ns=lambda: next(clock)
    )
    assert len(result["a"]) == 7


def test_output_error_looks_into_structures() -> None:
    want = OrderedDict(out=torch.ones(4), aux=[torch.ones(2), (torch.zeros(1),)])
    assert output_error(want, want) == 0
    off = OrderedDict(out=torch.ones(4), aux=[torch.full((2,), 1.25), (torch.zeros(1),)])
    assert output_error(off, want) == pytest.approx(0.25)


def test_output_error_is_infinite_where_outputs_cannot_be_compared() -> None:
    one = torch.ones(3)
    assert output_error([one], [one, one]) == float("inf")
    assert output_error(torch.ones(4), one) == float("inf")
    assert output_error(torch.tensor([1.0, float("nan"), 1.0]), one) == float("inf")
    assert output_error(one, torch.tensor([1.0, float("nan"), 1.0])) == float("inf")
    assert output_error(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")


def test_output_error_accepts_equal_nan_and_rare_label_flips() -> None:
    nan = torch.tensor([1.0, float("nan"), float("inf")])
    assert output_error(nan.clone(), nan) == 0
    labels = torch.zeros(5000, dtype=torch.int64)
    flipped = labels.clone()
    flipped[3] = 1
    assert output_error(flipped, labels) == 0


def test_waiting_for_the_device_is_part_of_the_time() -> None:
    order: list[str] = []
    clock = itertools.count(0, 1000)

    def tick() -> int:
        order.append("clock")
        return next(clock)

    time_interleaved(
        {"a": lambda: order.append("call")},
        rounds=1,
        warmup=1,
        now_ns=tick,
        synchronize=lambda: order.append("wait"),
    )
    assert order == ["call", "wait", "clock", "clock", "call", "wait", "clock"]


def test_a_baseline_that_needs_a_flag_sets_it_for_its_own_call_only() -> None:
    seen = []
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        BenchmarkedCall(lambda: seen.append(torch.backends.cudnn.benchmark))()
        assert seen == [True]
        assert not torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before


def test_a_verdict_for_a_baseline_with_a_flag_names_the_flag() -> None:
    verdict = guard_verdict(times(100e3, **{"eager": 120e3, "channels_last" + BENCHMARK: 90e3}))
    assert verdict.runs == "baseline"
    assert "cudnn.benchmark = True" in verdict.reason
    assert guard_verdict(times(80e3, **{"frozen" + BENCHMARK: 90e3})).reason == ""


def test_what_lasts_longer_than_there_is_time_for_is_broken_off() -> None:
    now, ran = [0], list[str]()

    def call(name: str) -> Callable[[], None]:
        def run() -> None:
            now[0] += int(1e9)
            ran.append(name)

        return run

    calls = {"plan": call("plan"), "frozen": call("frozen")}
    found = time_interleaved(calls, budget_s=0.0, now_ns=lambda: now[0], most_s=10.0)
    assert len(ran) == 3 * 2 + 2 * 2
    assert {name: len(ns) for name, ns in found.items()} == {"plan": 2, "frozen": 2}
    ran.clear()
    assert time_interleaved(calls, now_ns=lambda: now[0], most_s=3.0) == {"plan": [], "frozen": []}
    assert len(ran) == 3
    found = time_interleaved(calls, now_ns=lambda: now[0], most_s=3.0, least=1)
    assert {name: len(ns) for name, ns in found.items()} == {"plan": 1, "frozen": 1}


def test_a_baseline_that_fails_is_left_out_and_noted() -> None:
    def fail() -> None:
        raise RuntimeError("view size is not compatible\nsecond line")

    calls = {"eager": lambda: 1, "channels_last": fail, "frozen": lambda: 2}
    sound, failures = drop_failing(calls)
    assert sound == {"eager": calls["eager"], "frozen": calls["frozen"]}
    assert failures == {"channels_last": "RuntimeError: view size is not compatible"}
    assert drop_failing(sound) == (sound, {})


class TorchsPlans:
    """torch's cache of cuDNN plans in small: per thread, and looked at before the flag."""

    def __init__(self) -> None:
        self.cache = threading.local()

    def __call__(self) -> str:
        if not hasattr(self.cache, "plan"):
            is_benchmark = torch.backends.cudnn.benchmark
            self.cache.plan = "measured" if is_benchmark else "heuristic"
        return str(self.cache.plan)


def test_a_benchmark_baseline_runs_benchmarked_plans_whatever_ran_before() -> None:
    run, seen = TorchsPlans(), dict[str, set[str]]()
    calls = {
        name: lambda name=name, call=call: seen.setdefault(name, set()).add(call())
        for name, call in {"eager": run, "eager" + BENCHMARK: BenchmarkedCall(run)}.items()
    }
    assert run() == "heuristic"  # as after tuning
    time_interleaved(calls, rounds=9, budget_s=60)
    assert seen == {"eager": {"heuristic"}, "eager" + BENCHMARK: {"measured"}}
    assert not torch.backends.cudnn.benchmark


def test_a_benchmark_baseline_is_timed_inside_its_thread() -> None:
    clocks: dict[str, set[int]] = {"call": set(), "clock": set()}

    def call() -> None:
        clocks["call"].add(threading.get_ident())
        assert torch.backends.cudnn.benchmark and not torch.is_grad_enabled()

    def now_ns() -> int:
        clocks["clock"].add(threading.get_ident())
        return time.perf_counter_ns()

    time_interleaved({"+": BenchmarkedCall(call)}, rounds=7, budget_s=60, now_ns=now_ns)
    assert len(clocks["call"]) == 1 and threading.get_ident() not in clocks["call"]
    assert clocks["call"] < clocks["clock"]


def test_what_a_benchmark_baseline_raises_is_raised_and_the_flag_is_as_before() -> None:
    def fail() -> None:
        raise ValueError("no view")

    sound, failures = drop_failing({"eager" + BENCHMARK: BenchmarkedCall(fail)})
    assert not sound and failures == {"eager" + BENCHMARK: "ValueError: no view"}
    assert not torch.backends.cudnn.benchmark
