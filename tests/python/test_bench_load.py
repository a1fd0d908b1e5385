# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of busy machines: its turns, its processes and its numbers, with fake engines."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import bench_load
import harness
import load_engines
import load_tables
import load_turns
import torchalgo
from bench_load import Load, loads_of, measure
from control_group import control_group
from load_tables import ratios, show
from support import fake_load
from support.processes import is_gone
from torchalgo._base.processor_load import used_s
from torchalgo_cli.child import Child
from torchalgo_cli.turns import answers, by_call

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setattr(bench_load, "serve", fake_load.serve)
    monkeypatch.setattr(bench_load, "tune", fake_load.tune)
    monkeypatch.setattr(bench_load, "PAUSE_S", 0.02)
    monkeypatch.setattr(bench_load, "TAIL_S", 0.05)


def run(folder: Path, loads: str, *engines: str, rounds: int = 2) -> harness.Record:
    args = argparse.Namespace(engines=engines, rounds=rounds, seconds=0.1, tune_s=7.0, plans=None)
    return measure(str(folder), loads_of(loads), args)


# ---- turns ---------------------------------------------------------------------------------------


def test_no_process_calls_while_another_engine_or_load_has_its_turn(tmp_path: Path) -> None:
    record = run(tmp_path, "1x2,2x1", "torchalgo", "eager")
    calls: dict[str, list[tuple[float, ...]]] = {}
    files = [*tmp_path.iterdir()]
    for file in files:
        times = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
        calls.setdefault(file.stem, []).extend(times)
    assert (len(files), {*calls}) == (6, {"eager.1", "eager.2", "torchalgo.1", "torchalgo.2"})
    for own, others in itertools.permutations(calls.values(), 2):
        assert all(end <= begin or stop <= start for start, end in own for begin, stop in others)
    for load, processes in (("1x2", 1), ("2x1", 2)):
        for engine, call_s in fake_load.CALL_S.items():
            turns = record["loads"][load][engine]
            assert len(turns) == 2
            for turn in turns:
                assert len(turn["median_ms"]) == len(turn["calls_per_s"]) == processes
                assert all(ms >= 1e3 * call_s for ms in turn["median_ms"])
                assert all(0 < rate <= 1 / call_s for rate in turn["calls_per_s"])


class FakeChild:
    pid = 0  # no process's: it uses no time

    def __init__(self, log: list[Any], name: str) -> None:
        self._log, self._name = log, name

    def send(self, value: Any) -> None:
        self._log.append((self._name, value))

    def receive(self, limit_s: float) -> Any:
        self._log.append((self._name, "answers"))
        return dict.fromkeys(load_tables.WHAT, 1.0)


def test_all_processes_of_a_load_begin_at_once_and_the_loops_go_on_to_the_end() -> None:
    log: list[Any] = []
    children: Any = {name: FakeChild(log, name) for name in ("a", "b", "loop", "idle")}
    before = time.monotonic()
    turn = bench_load.turn([children["a"], children["b"]], [children["loop"]], [], 1.5)
    assert [name for name, _ in log] == ["a", "b", "loop", "a", "b", "loop"]
    starts, seconds = zip(*[value for _, value in log[:3]], strict=True)
    assert len({*starts}) == 1 and starts[0] > before
    assert seconds == (1.5, 1.5, 1.5 + bench_load.TAIL_S)
    assert turn["p95_ms"] == [1.0, 1.0]


def test_a_loop_computes_in_its_turn_and_sleeps_afterwards() -> None:
    with Child(*harness.child_of(load_turns.loop)) as child:
        child.receive(60)
        before = used_s(child.pid)[0]
        child.send([time.monotonic(), 0.3])
        child.receive(60)
        after = used_s(child.pid)[0]
        assert after - before > 0.05
        time.sleep(0.2)
        assert used_s(child.pid)[0] - after < 0.05


def test_a_turn_gives_the_rate_the_median_and_the_time_that_19_of_20_calls_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    lasts = itertools.chain([0.5], itertools.cycle([0.01, 0.02, 0.03, 0.04]))

    def call() -> None:
        clock[0] += next(lasts)

    monkeypatch.setattr("torchalgo_cli.turns.monotonic", lambda: clock[0])
    monkeypatch.setattr("torchalgo_cli.turns.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(sys, "stdin", io.StringIO("[101.0, 2.3]\n"))
    (answer,) = answers(by_call(call))
    # The first call does not count. It ends at 101.5, and then 80 calls last until 103.5.
    assert answer == {"calls_per_s": 40.0, "median_ms": 25.0, "p95_ms": 40.0}


# ---- processes -----------------------------------------------------------------------------------


def test_a_plan_is_made_for_each_number_of_threads_and_all_processes_load_it(
    tmp_path: Path,
) -> None:
    record = run(tmp_path, "1x2,2x1", "torchalgo", "eager", rounds=1)
    plans = {load: facts["plan"] for load, facts in record["engines"]["torchalgo"].items()}
    assert plans == {"1x2": "2 threads, 7 s", "2x1": "1 threads, 7 s"}


def test_a_process_that_dies_hangs_or_does_not_start_costs_its_own_engine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_load, "ANSWER_LIMIT_S", 0.3)
    engines = fake_load.DIES, fake_load.HANGS, fake_load.NEVER_STARTS, "eager"
    record = run(tmp_path, "2x1", *engines)
    assert record["failures"] == {
        fake_load.DIES: "under 2x1, a process ended with exit status 3",
        fake_load.HANGS: "under 2x1, a process gave no answer within 0.4 s",
        fake_load.NEVER_STARTS: "a process ended with exit status 1",
    }
    assert [*record["loads"]["2x1"]] == ["eager"] and len(record["loads"]["2x1"]["eager"]) == 2
    errors = capsys.readouterr().err
    assert f"repro: python benchmarks/bench_load.py --engines {fake_load.DIES}" in errors
    show(record)
    assert "eager" in capsys.readouterr().out


def test_all_processes_end_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    code = (
        "import argparse, bench_load; from pathlib import Path; from support import fake_load\n"
        "bench_load.serve = fake_load.serve\n"
        "args = argparse.Namespace(engines=['eager'], rounds=1, seconds=600, plans=None)\n"
        f"bench_load.measure({str(tmp_path)!r}, bench_load.loads_of('2x1+1'), args)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        while len([*tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.01)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 3
    finally:
        parent.kill()
        parent.wait()
    assert all(is_gone(int(pid)) for pid in children)


def test_a_control_group_holds_its_processes_to_the_quota_and_is_removed() -> None:
    try:
        with control_group(0.25) as group, Child(*harness.child_of(load_turns.loop)) as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            child.receive(60)
            before = used_s(child.pid)[0]
            child.send([time.monotonic(), 0.8])
            child.receive(60)
            assert used_s(child.pid)[0] - before < 0.5  # without a quota it is 1 s
    except OSError as problem:
        assert str(problem) == "no control group with a quota can be made here"
        return
    assert not group.exists()


# ---- numbers -------------------------------------------------------------------------------------


def test_loads_are_read_and_spelled() -> None:
    text = "1x2,1x2+3,4x16@1,2x1+1@0.5"
    loads = loads_of(text + ",1x2")
    assert loads == [Load(1, 2), Load(1, 2, 3), Load(4, 16, 0, 1.0), Load(2, 1, 1, 0.5)]
    assert ",".join(map(str, loads)) == text
    for wrong in ("", "2", "0x1", "1x0", "1x2+", "1x2@"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected loads such as 1x2,"):
            loads_of(wrong)


def turns(rates: list[float], median_ms: float, p95_ms: float) -> list[harness.Record]:
    return [
        {"calls_per_s": rates, "median_ms": [median_ms * off] * len(rates),
         "p95_ms": [p95_ms * off] * len(rates), "idle_cpus": 0.01, "other_cpus": 0.2}
        for off in (1.0, 1.0, 1.25)
    ]  # fmt: skip


def test_ratios_are_those_of_threads_of_a_quota_and_of_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = {
        "4x1": {"torchalgo": turns([100.0] * 4, 10, 11), "eager": turns([50.0] * 4, 20, 22)},
        "4x2": {"torchalgo": turns([60.0, 60, 80, 0], 25, 30), "eager": turns([50.0] * 4, 40, 41)},
        "1x2@1": {"torchalgo": turns([200.0], 4, 6), "eager": turns([250.0], 2, 8)},
    }
    found = ratios(results)
    assert {title: {e: r[0] for e, r in of.items()} for title, of in found.items()} == {
        "4x2 over 4x1, calls per second in all": {"torchalgo": 0.5, "eager": 1.0},
        "4x1, calls per second in all, torchalgo over": {"eager": 2.0},
        "4x2, calls per second in all, torchalgo over": {"eager": 1.0},
        "1x2@1, 95 % ms over median ms": {"torchalgo": 1.5, "eager": 4.0},
        "1x2@1, median ms, torchalgo over": {"eager": 2.0},
        "1x2@1, 95 % ms, torchalgo over": {"eager": 0.75},
    }
    engines = {
        "torchalgo": {"4x2": {"runs": "baseline"}, "1x2@1": {"runs": "plan", "left": 0.0}},
        "eager": {"1x2": {"left": 0.0195}},
    }
    record = {
        "network": "net",
        "engines": engines,
        "loads": results,
        "ratios": found,
        "failures": {},
    }
    show(json.loads(json.dumps(record)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["net,", "calls", "per", "second", "in", "all", "torchalgo", "eager"]
    assert lines[1].split() == ["4x1", "400", "[400,", "400]", "200", "[200,", "200]"]
    (times,) = [line.split() for line in lines if line.startswith("4x2  ") and "31.2" in line]
    assert times == ["4x2", "25", "[25,", "31.2]", "40", "[40,", "50]"]
    assert "other programs used 0.20 processors in the median turn, at most 0.20" in lines
    assert [line[:9] for line in lines if "runs PyTorch" in line] == ["in 4x2, t"]
    assert [line for line in lines if "leaves" in line] == [
        "in 1x2, eager leaves 1.9% of the predicted time to PyTorch"
    ]


def test_a_plan_leaves_at_most_so_much_to_pytorch_and_the_rest_as_it_was(
    fast: torchalgo.Optimized,
) -> None:
    plan = fast.plan
    most = load_engines.leave(plan, 100)
    part = load_engines.part_left(most)
    left = [node.primitive for node in most.nodes if node.problem.startswith("fwd_")]
    assert {primitive.partition(".")[0] for primitive in left} <= {"aten", ""}
    assert part > 0.5
    less = load_engines.leave(plan, 99 * part)
    assert 0 < load_engines.part_left(less) <= 0.99 * part
    for before, after in zip(plan.nodes, less.nodes, strict=True):
        if before.primitive and not after.primitive.startswith("aten."):
            assert after.primitive == before.primitive
