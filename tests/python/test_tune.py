# SPDX-License-Identifier: BSD-3-Clause
"""Tuning by several ranks: one plan or one error on all of them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.nets import arguments
from support.ranks import SIZE, VICTIM, InventedBench, make_model
from torchalgo._distributed.distribute import Hardware, choose_measuring_ranks, divide_work
from torchalgo._distributed.ranks import interrupts_wait
from torchalgo._ir.plan import Plan
from torchalgo.tune import plan_hash, tune
from torchalgo_cli import main

TESTS = Path(__file__).resolve().parent


def run_ranks(case: str) -> list[dict[str, Any]]:
    """Returns what each rank told that ended by itself."""
    done = subprocess.run(
        [sys.executable, TESTS / "support" / "ranks.py", case],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_ranks_share_the_candidates_and_end_with_one_plan() -> None:
    told = run_ranks("agree")
    assert len(told) == SIZE
    assert len({rank["plan"] for rank in told}) == 1, told
    assert all(rank["calls"] for rank in told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("raises", f"TA6004 tune: rank {VICTIM}: measure: an invented fault"),
        ("another model", f"TA6004 tune: rank {VICTIM} on .* differs from rank 0 .* in model: "),
    ],
)
def test_all_ranks_raise_the_error_of_one(case: str, text: str) -> None:
    told = run_ranks(case)
    assert len(told) == SIZE
    assert len({rank["error"] for rank in told}) == 1, told
    assert re.match(text, told[0]["error"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["killed", "stopped"])
def test_a_rank_that_dies_ends_in_an_error_of_the_others(case: str) -> None:
    told = run_ranks(case)
    assert {rank["rank"] for rank in told} == set(range(SIZE)) - {VICTIM}
    for rank in told:
        assert rank["error"].startswith(f"TA6004 tune: rank {rank['rank']} lost another rank")


class Bar:
    """A progress display that cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def update(self, event: object) -> None:
        with self.lock:
            pass


def test_a_rank_alone_makes_the_plan_that_optimize_makes() -> None:
    kept = []
    bench = InventedBench(0).bench()
    x = torch.rand(1, 3, 24, 24)
    fast = tune(
        make_model(),
        x,
        keep=kept.append,
        bench=bench,
        settings=torchalgo.Settings(cost_db=False, progress=Bar().update),
    )
    assert kept == [fast]
    assert {"values", "read", "guard"} <= set(fast.timings)
    again = InventedBench(0).bench()
    one = Plan.from_json(fast.plan.to_json())
    assert plan_hash(one) == plan_hash(fast.plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchalgo._measure.sampling.Bench.on", lambda *_: again)
        other = torchalgo.optimize(
            make_model(), x, settings=torchalgo.Settings(cost_db=False, progress=False)
        ).plan
    # Samples of a visit are drawn in another order where rivals share it: costs, not choices.
    assert [n.primitive for n in other.nodes] == [n.primitive for n in one.nodes]


def test_costs_of_a_tuning_by_ranks_are_in_the_database(tmp_path: Path) -> None:
    options = arguments(cost_db=tmp_path / "costs.sqlite3")
    x = torch.rand(1, 3, 24, 24)
    first = tune(make_model(), x, bench=InventedBench(0).bench(), **options)
    # Another rank's noise: a cost that is measured again is another one.
    again = tune(make_model(), x, bench=InventedBench(1).bench(), **options)
    assert [(n.primitive, n.ticks) for n in again.plan.nodes] == [
        (n.primitive, n.ticks) for n in first.plan.nodes
    ]


def test_an_error_names_the_rank() -> None:
    with pytest.raises(torchalgo.Error, match=r"^TA1001 tune: rank 0: .*budget_s=-1"):
        tune(make_model(), torch.rand(1, 3, 24, 24), budget_s=-1)


def test_an_interrupt_waits_for_the_end_of_an_exchange(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        steps.append("after the signal")
    assert steps
    with pytest.raises(KeyboardInterrupt):  # the handler is the one of before
        signal.raise_signal(signal.SIGINT)


def test_of_ranks_that_share_cores_the_first_measures() -> None:
    hardware = [
        Hardware("a", ("core 0", "core 1")), Hardware("a", ("core 1", "core 2")),
        Hardware("a", ("core 2",)), Hardware("b", ("core 0", "core 1")), Hardware("b", ("core 1",)),
    ]  # fmt: skip
    assert choose_measuring_ranks(hardware) == [0, 2, 3]


def test_work_is_divided_within_4_thirds_of_the_best() -> None:
    pick = random.Random(1)
    for _ in range(200):
        work = [pick.choice((1.0, 2.0, 5.0, 9.0)) for _ in range(pick.randrange(1, 9))]
        hands = pick.randrange(1, 4)
        shares = divide_work(work, hands)
        assert sorted(i for share in shares for i in share) == list(range(len(work)))
        longest = max(sum(work[i] for i in share) for share in shares)
        assert longest <= _shortest(work, [0.0] * hands) * 4 / 3 + 1e-9


def _shortest(work: list[float], sums: list[float]) -> float:
    """By trying all ways."""
    if not work:
        return max(sums)
    ways = []
    for hand in range(len(sums)):
        given = [s + work[0] * (hand == i) for i, s in enumerate(sums)]
        ways.append(_shortest(work[1:], given))
    return min(ways)


def run(words: list[str]) -> int:
    """Runs `torchalgo tune` as one rank of this process, and returns its exit code."""
    return main(["tune", *words])


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The start of a command for one rank, which measures in this process."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHALGO_ISOLATE", "0")
    return ["--input", "1x3x16x16", "--quiet"]


def test_the_command_writes_a_plan_and_says_its_hash(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, module = tmp_path / "net.plan.json", tmp_path / "net.pt"
    assert (
        run([*command, "support.nets:net_factory", "--plan-out", str(out), "-o", str(module)]) == 0
    )
    plan = torchalgo.load_plan(out)
    assert plan == torchalgo.load_plan(module)
    assert f"plan {plan_hash(plan)} on all 1 ranks" in capsys.readouterr().out


def test_the_command_ends_with_one_line_for_what_cannot_be(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "support.nets:no_such_net"]) == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run([*command, "support.nets:net_factory"]) == 1
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert run([*command, "support.nets:net_factory"]) == 1
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("torchalgo: TA7104 tune: rank 0: cannot import")
    assert "support.nets:no_such_net" in first
    assert "WORLD_SIZE is 2, but the variables" in second
    assert "WORLD_SIZE='many'" in third
