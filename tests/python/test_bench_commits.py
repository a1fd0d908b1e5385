# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of two commits: its turns, ratios and records, with servers that are made up."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bench_commits
import harness
from bench_commits import RefusedError, apart, one_start, only_in, record_of, summary
from commit_calls import median_us, read_plan
from compare import geometric_interval, ratio_of_starts
from support.plans import make_plan

ROOT = Path(__file__).resolve().parents[2]


class FakeServer:
    """Needs `us` for each image, and gives outputs that are `off` from 1."""

    def __init__(self, us: float, off: float, log: list[Any], fallen: dict[str, str]) -> None:
        self._us, self._off, self._log, self._fallen = us, off, log, fallen

    def ask(self, batch: int, outputs: str = "") -> Any:
        self._log.append((self._us, batch, bool(outputs)))
        if not outputs:
            return self._us * batch
        torch.save([torch.tensor([1.0, -2.0]) + self._off], outputs)
        return self._fallen


def taken(folder: Path, log: list[Any]) -> dict[int, Any]:
    servers = {
        "before": FakeServer(90.0, 0.5, log, {"fc": "cpu.linear refuses it"}),
        "now": FakeServer(100.0, 0.0, log, {}),
        "again": FakeServer(101.0, 0.0, log, {}),
    }
    return one_start(servers, [1, 8], 6, folder)


def test_each_round_asks_all_servers_and_the_outputs_come_first(tmp_path: Path) -> None:
    log: list[Any] = []
    taken(tmp_path, log)
    assert log[:3] == [(us, 1, True) for us in (90.0, 100.0, 101.0)]
    first = [us for us, batch, is_output in log if batch == 8 and not is_output]
    assert [sorted(first[i : i + 3]) for i in range(0, 18, 3)] == [[90.0, 100.0, 101.0]] * 6
    assert first[:6] == [90.0, 100.0, 101.0, 100.0, 101.0, 90.0]


def test_a_record_has_ratios_of_times_before_over_now_and_what_fell_back(tmp_path: Path) -> None:
    starts = [taken(tmp_path, [])[8] for _ in range(3)]
    record = record_of(starts)
    assert record["us"] == {"before": 720.0, "now": 800.0, "again": 808.0}
    assert record["ratio"] == [0.9, 0.9, 0.9] and record["control"] == [1.01, 1.01, 1.01]
    assert (record["starts"], record["rounds"]) == (3, 6)
    assert record["difference"] == pytest.approx(0.25)  # 0.5 of the largest number, 2
    assert record["fallbacks"] == {"before": {"fc": "cpu.linear refuses it"}, "now": {}}


def test_an_output_that_is_lost_is_no_small_difference() -> None:
    x = torch.ones(2)
    assert apart([x, x], [x, x]) == 0
    with pytest.raises(ValueError, match="argument 2"):
        apart([x], [x, x])


def test_a_turn_has_one_untimed_call_and_its_median() -> None:
    clock, lasts = [0.0], iter([9.0, 0.03, 0.01, 0.02, 7.0])

    def call() -> None:
        clock[0] += next(lasts)

    assert median_us(call, lambda: clock[0]) == pytest.approx(0.02e6)


def test_an_interval_is_as_wide_as_the_starts_differ() -> None:
    now = [[1.0] * 15] * 5
    steady = ratio_of_starts([[1.0 + 0.001 * i for i in range(15)]] * 5, now)
    assert steady[0] == 1.007 and steady[2] - steady[1] < 0.008
    # Each start keeps its own ratio: 15 rounds of it say no more than one.
    unsteady = ratio_of_starts([[1.0 + 0.02 * i] * 15 for i in range(5)], now)
    assert unsteady == [1.04, 1.0, 1.08]


def test_a_mean_has_students_interval() -> None:
    ratios = [0.98, 0.99, 1.0, 1.01, 1.02, 1.0, 1.0, 1.0, 0.97, 1.03]
    mean, low, high = geometric_interval(ratios)
    logs = torch.tensor(ratios, dtype=torch.float64).log()
    half = float(2.2622 * logs.std() / 10**0.5)  # the quantile with 9 degrees of freedom
    assert mean == pytest.approx(float(logs.mean().exp()))
    assert (low, high) == pytest.approx(
        [float((logs.mean() + x).exp()) for x in (-half, half)], rel=1e-5
    )


def test_a_summary_names_the_least_ratio_and_leaves_out_plans_that_were_refused() -> None:
    records = [
        {"network": name, "batch": 1, "ratio": [ratio, 0, 2], "control": [1.0, 0, 2]}
        for name, ratio in (("a", 1.02), ("b", 0.95), ("c", 1.01))
    ]
    lines = [*summary([*records, {"network": "d", "batch": 1, "refused": "now: it is new"}])]
    assert lines[0].startswith("batch 1, 3 networks: ratio 0.99") and "0.950 (b)" in lines[0]
    assert lines[1].startswith("batch 1, 3 networks: control 1.0000 [1.0000, 1.0000]")


def test_a_refused_plan_is_a_record_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> harness.Record:
        raise RefusedError("before: TA2101 plan: has an unknown field 'x'")

    monkeypatch.setattr(bench_commits, "all_starts", refuse)
    args = argparse.Namespace(
        names=["dqn"], threads=1, tuned_by="now", batches=[1, 8], out=tmp_path / "a.jsonl"
    )
    assert bench_commits.run_calls({}, {"other": {"commit": "0123abc"}}, args) == 1
    lines = harness.read_lines(args.out)
    assert [line["batch"] for line in lines] == [1, 8]
    assert {line["refused"] for line in lines} == {"before: TA2101 plan: has an unknown field 'x'"}


def test_a_plan_of_a_newer_commit_is_read_without_what_it_adds(tmp_path: Path) -> None:
    plan = make_plan()
    assert plan.guard is not None  # the guard of one commit may not decide what the other runs
    data = {**json.loads(plan.to_json()), "of_next_year": 1}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert read_plan(str(path)) == dataclasses.replace(plan, guard=None)


def test_primitives_are_counted_where_only_one_commit_has_the_line() -> None:
    def line(primitive: str, size: int) -> str:
        return f"(Key(problem='relu_f32_n1c{size}', primitive='{primitive}', src='nchw'), [1], [0])"

    before = [line("cpu.eltwise", 1), line("cpu.eltwise", 2), line("aten.relu", 1)]
    now = [line("cpu.eltwise", 1), line("aten.relu", 1), line("aten.relu", 1)]
    assert only_in(before, now) == {"cpu.eltwise": 1}
    assert only_in(now, before) == {"aten.relu": 1}


def test_networks_differ_in_columns_or_are_new() -> None:
    before = {"a": {"graph": "1", "plan": "2"}, "b": {"graph": "1", "plan": "2"}}
    now = {"a": {"graph": "1", "plan": "3"}, "b": {"graph": "1", "plan": "2"}, "c": {"graph": "1"}}
    assert bench_commits.differences(before, now) == {"a": ["plan"], "c": ["is new"]}


@pytest.mark.slow
def test_two_processes_of_one_commit_give_the_same_outputs(tmp_path: Path) -> None:
    out = tmp_path / "commits.jsonl"
    options = {"--batches": "1 33", "--tune-s": "1", "--starts": "1", "--rounds": "6"}
    words = " ".join(f"{name} {value}" for name, value in options.items()).split()
    script = ROOT / "benchmarks" / "bench_commits.py"
    command = [sys.executable, str(script), "calls", str(ROOT), "linear", "view_slice", *words]
    command += ["--draft", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = harness.read_lines(out)
    assert [(line["network"], line["batch"]) for line in lines] == [
        ("linear", 1), ("linear", 33), ("view_slice", 1), ("view_slice", 33),
    ]  # fmt: skip
    for line in lines:
        assert line["difference"] == 0 and line["fallbacks"] == {"before": {}, "now": {}}
        assert line["other"]["commit"] == harness.git_state()["commit"]
        assert all(us > 0 for us in line["us"].values()) and line["rounds"] == 6
    assert any(name.startswith("cpu.linear") for name in lines[0]["primitives"])
    assert "view.slice" in lines[2]["primitives"]
