# SPDX-License-Identifier: BSD-3-Clause
"""A run that is killed at any moment and started again repeats at most one visit of candidates."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.fake_bench import Taken, spread
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts
from torchalgo._measure.sampling import ROUNDS, SETUPS, Bench
from torchalgo._measure.tuning import TuneSettings, Tuning

KILLS = 25
SEED = 11
FAILING = "cpu.im2col_gemm"
AGAIN = " again"


class LoggingBench:
    """Writes a line before and after each visit, and waits until it is on disk."""

    def __init__(self, log: Path, visit_s: float) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._visit_s = visit_s
        self._setups = 0  # of the visit so far

    def measure(
        self, tasks: Sequence[tuple[str, _C.Primitive]], *, rounds: int, **_: Any
    ) -> list[Any]:
        setups, when = (1, "") if rounds == ROUNDS else (SETUPS, AGAIN)
        names = [f"{problem} {p}{when}" for problem, p in tasks]
        if self._setups == 0:
            self._note("begin", names)
        time.sleep(self._visit_s / setups)
        self._setups = (self._setups + 1) % setups
        if self._setups == 0:
            self._note("end", names)
        failing = [p.name == FAILING for _, p in tasks]
        times = [
            [] if fails else [spread(*t)] * rounds for t, fails in zip(tasks, failing, strict=True)
        ]
        return [Taken(ns, "" if ns else "no such kernel") for ns in times]

    def check(
        self, _: str, primitives: Sequence[_C.Primitive], __: float
    ) -> list[tuple[float, str]]:
        return [(1e-7, "")] * len(primitives)

    def _note(self, what: str, names: list[str]) -> None:
        os.write(self._log, json.dumps([os.getpid(), what, names]).encode() + b"\n")
        os.fsync(self._log)


def await_lines(log: Path, pid: int, count: int) -> None:
    """Waits until a child has written so many lines or has ended: however busy the machine is, some
    children are killed late."""
    begin = f"[{pid}, ".encode()
    while not log.exists() or log.read_bytes().count(begin) < count:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_at_any_moment_it_repeats_at_most_one_visit(
    imported: _C.Imported, tmp_path: Path
) -> None:
    found, log, path = (
        _C.find_candidates(imported.graph),
        tmp_path / "log",
        tmp_path / "costs.sqlite3",
    )

    def tune() -> NoReturn:
        code = 1
        try:
            bench = LoggingBench(log, 0.03)
            with CostStore.open(path) as store:
                tuning = Tuning(
                    imported.graph, found, {}, TuneSettings(),
                    bench=Bench(bench.measure, bench.check), cost_file=DeviceCosts.of(store),
                )  # fmt: skip
                tuning.settle(_C.make_plan)
            code = 0
        finally:
            os._exit(code)

    rng, kills, is_done = random.Random(SEED), 0, False
    while not is_done:
        pid = os.fork()
        if not pid:
            tune()
        if kills < KILLS:  # then it may end
            await_lines(log, pid, rng.randrange(6))
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        is_done = os.WIFEXITED(status)
        kills += not is_done
        assert not is_done or os.WEXITSTATUS(status) == 0

    events = [json.loads(line) for line in log.read_text().splitlines()]
    runs = [[e[1:] for e in events if e[0] == pid] for pid in dict.fromkeys(e[0] for e in events)]
    assert kills >= 5 and sum(len(run) > 2 for run in runs) >= 3, "killed too early to tell"
    committed: set[str] = set()  # what a run had begun another visit after
    for run in runs:
        begun = [set(names) for what, names in run if what == "begin"]
        for i, names in enumerate(begun):
            assert not names & committed, f"seed {SEED}: measured twice: {names & committed}"
            committed |= begun[i - 1] if i else set()
    begins = [tuple(names) for _, what, names in events if what == "begin"]
    assert len(begins) - len(set(begins)) <= kills
    with CostStore.open(path) as store:
        kept = {
            f"{e.problem} {e.primitive} {e.src}->{e.dst}"
            for e in (*store.rows(), *store.refusals())
        }
    begun_names = {name.removesuffix(AGAIN) for names in begins for name in names}
    assert {name.removesuffix(AGAIN) for name in committed} <= kept <= begun_names
