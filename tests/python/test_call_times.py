# SPDX-License-Identifier: BSD-3-Clause
"""Optimized.compare, `torchalgo bench` of a model, and the table of both."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchalgo
from support.command import run
from torchalgo._cli.processes import LoadTimes
from torchalgo._run.call_times import CallTimes, compare_calls

PYTORCH = {"eager", "channels_last", "frozen", "optimize_for_inference"}


def test_each_round_times_every_way_once(fast: torchalgo.Optimized) -> None:
    times = fast.compare(rounds=8)
    assert next(iter(times.ns)) == fast.runs and times.ns.keys() == {fast.runs} | PYTORCH
    assert {len(ns) for ns in times.ns.values()} == {8} and not times.failures
    assert times.ratios.keys() == PYTORCH


def test_the_table_has_the_fastest_first_and_says_what_failed() -> None:
    ns = {"plan": [2e6, 2e6, 2e6, 9e6], "eager": [4e6, 6e6, 4e6, 9e6], "frozen": [1e6] * 4}
    times = CallTimes(ns, {"channels_last": "RuntimeError: no view"})
    first, plan, last = times.records()
    assert [first["name"], plan["name"], last["name"]] == ["frozen", "plan", "eager"]
    assert plan == {"name": "plan", "median_ms": 2.0, "min_ms": 2.0, "p95_ms": 9.0}
    assert first["ratio"] == pytest.approx(0.5) and last["ratio"] == pytest.approx(2.0)
    assert last["low"] <= last["ratio"] <= last["high"]
    lines = str(times).splitlines()
    assert "over plan" in lines[0] and "2.00x" in lines[3]
    assert lines[-1] == "channels_last: RuntimeError: no view"
    busy = str(CallTimes(ns, waited=0.5)).splitlines()[-1]
    assert busy.startswith("other programs had the processors for 50% of the time")


def test_the_time_budget_holds_for_slow_calls_too_and_few_rounds_are_told() -> None:
    def slow() -> None:
        time.sleep(0.05)

    began = time.monotonic()
    times = compare_calls(
        {"plan": slow}, {"eager": slow}, torch.device("cpu"), rounds=25, budget_s=0.2
    )
    assert time.monotonic() - began < 0.7  # 7 rounds with their warm-up take 1 s
    rounds = len(times.ns["plan"])
    assert 1 <= rounds <= 2
    assert f"the time ended after {rounds} of 25 rounds, too few to compare" in str(times)
    assert "such as budget_s=2" in str(times)
    short = compare_calls({"plan": slow}, {}, torch.device("cpu"), rounds=1, budget_s=9)
    assert "rounds" not in str(short)


class NeedsNchw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).view(len(x), -1)


def test_a_way_that_cannot_run_is_left_out() -> None:
    settings = torchalgo.Settings(progress=False, cost_db=False)
    fast = torchalgo.optimize(NeedsNchw().eval(), torch.rand(1, 3, 8, 8), settings=settings)
    times = fast.compare(rounds=1)
    assert "channels_last" not in times.ns and "eager" in times.ns
    assert times.failures["channels_last"].startswith("RuntimeError: ")


def test_it_changes_nothing(fast: torchalgo.Optimized, x: torch.Tensor, tmp_path: Path) -> None:
    with torch.no_grad():
        before = fast(x)
        fast.compare(rounds=1)
        assert torch.equal(fast(x), before)
    fast.save(tmp_path / "portable.pt", portable=True)  # the module that was timed as "frozen"
    assert b"mkldnn" not in torch.jit.load(tmp_path / "portable.pt").code.encode()


@pytest.mark.parametrize(
    ("compare", "text"),
    [
        (lambda fast: fast.compare(rounds=0), "TA1001 compare: rounds=0, expected a whole number"),
        (lambda fast: fast.compare(rounds=True), "TA1001 compare: rounds=True"),
        (lambda fast: fast.compare(budget_s="9"), "TA1001 compare: budget_s='9', expected a num"),
        (lambda fast: fast.compare(budget_s=float("nan")), "TA1001 compare: budget_s=nan"),
    ],
)
def test_wrong_arguments_say_what_was_expected(
    fast: torchalgo.Optimized, compare: Callable[[torchalgo.Optimized], CallTimes], text: str
) -> None:
    with pytest.raises(torchalgo.Error, match=text):
        compare(fast)


def test_a_loaded_module_has_nothing_to_compare_with(
    fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.save(tmp_path / "net.pt")
    with pytest.raises(torchalgo.Error, match=r"^TA1403 compare: the original model"):
        torchalgo.load(tmp_path / "net.pt").compare()


# ---- the command ---------------------------------------------------------------------------------

NET = ("bench", "support.nets:net_factory", "--rounds", "2")
SHAPE = ("--input", "1x3x40x40")
CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1"


def test_bench_times_a_model_with_a_plan(
    capsys: pytest.CaptureFixture[str], fast: torchalgo.Optimized, tmp_path: Path
) -> None:
    fast.plan.save(tmp_path / "net.plan.json")
    plan = ("--plan", tmp_path / "net.plan.json")
    records = json.loads(run(capsys, *NET, *SHAPE, *plan, "--json"))
    assert {record["name"] for record in records} == {fast.runs} | PYTORCH
    assert "what runs" in run(capsys, *NET, *SHAPE, *plan)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (NET, "TA7201 bench: support.nets:net_factory is a model and needs its input"),
        ((*NET, "--processes", "2", "--plan", __file__), "net_factory is a model and needs its"),
        ((*NET, *SHAPE, "--layers", "--compile"), "--compile does not go with --layers"),
        ((*NET, *SHAPE, "--training", "--compile"), "--compile does not go with --training"),
        (("bench", CONV, *SHAPE), "--input does not go with a problem: leave --input out"),
        (("bench", CONV, "--compile"), "--compile does not go with a problem"),
        (("bench", CONV, "--processes", "2"), "--processes does not go with a problem"),
        ((*NET, *SHAPE, "--processes", "2", "--training"), "--training does not go with --proc"),
        (("explain", CONV, "-o", "r.html"), "-o does not go with a problem"),
        (("check", CONV, *SHAPE, "--primitive", "cpu.direct"), "--input does not go with a prob"),
        (("check", NET[1], *SHAPE, "--primitive", "cpu.direct"), "--primitive does not go with"),
    ],
)
def test_flags_that_do_not_go_together_are_named(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    assert text in run(capsys, *words, code=2)


def test_bench_times_several_processes(
    capsys: pytest.CaptureFixture[str],
    fast: torchalgo.Optimized,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    fast.plan.save(tmp_path / "net.plan.json")
    words = (*SHAPE, "--plan", tmp_path / "net.plan.json", "--processes", "2", "--rounds", "1")
    records = json.loads(run(capsys, *NET[:2], *words, "--json"))
    assert [(record["name"], record["processes"]) for record in records] == [
        ("torchalgo", 2), ("eager", 2),
    ]  # fmt: skip
    assert all(0 < it["median_ms"] <= it["p95_ms"] and it["calls_per_s"] > 0 for it in records)
    text = "TA7205 bench: a process ended with exit status 3"
    assert text in run(capsys, "bench", "support.processes:net_of_the_parent", *words, code=1)


def test_the_rates_of_processes_add_up() -> None:
    def turn(rates: list[float], ms: float) -> list[dict[str, float]]:
        return [{"calls_per_s": rate, "median_ms": ms, "p95_ms": 2 * ms} for rate in rates]

    turns = {"torchalgo": [turn([10.0, 5.0], 0.2)] * 2 + [turn([1.0, 1.0], 9)]}
    times = LoadTimes(2, 1, turns)
    (line,) = times.records()
    assert [line[key] for key in ("calls_per_s", "median_ms", "p95_ms")] == [15, 0.2, 0.4]
    assert "2 processes with 1 thread each" in str(times) and "15.0" in str(times)
