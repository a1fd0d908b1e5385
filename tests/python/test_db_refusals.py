# SPDX-License-Identifier: BSD-3-Clause
"""Candidates that failed stay failed, in the file, in merges, in the next run; and ways back."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.command import run as run_cli
from support.db_samples import REFUSAL, ROW
from support.fake_bench import FakeBench, spread
from support.workers import faulty_command
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts, Environment, Refusal
from torchalgo._db.row import TRANSIENT_S, columns_of, entry_of, from_line, join, to_line
from torchalgo._ir.costs import Key
from torchalgo._ir.failures import MOST_OF_ONE, Failure
from torchalgo._ir.overrides import forced_primitives
from torchalgo._measure import process_bench
from torchalgo._measure.tuning import TuneSettings, Tuning

KEY = Key(ROW.problem, "cpu.direct", "nchw", "nchw")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.sqlite3"


def drawn(rng: random.Random, count: int) -> list[Refusal]:
    return [
        dataclasses.replace(
            REFUSAL, problem=f"p{rng.randrange(5)}", refused_at=rng.randrange(3),
            kind=rng.choice(("ended", "hung", "memory", "wrong")),
            bound=rng.choice((None, 1e-5, 1e-4)), reason=rng.choice("ab"),
        )
        for _ in range(count)
    ]  # fmt: skip


# ---- entries and files ---------------------------------------------------------------------------


def test_a_refusal_comes_back_from_its_values_and_its_line_and_nothing_else_does() -> None:
    assert from_line(to_line(REFUSAL)) == REFUSAL
    for i, name in enumerate(columns_of(Refusal)):
        for other in (123, "123", None, 1.5, -1):
            values = [*REFUSAL.values]
            if values[i] != other:
                values[i] = other
                assert entry_of(Refusal, values, REFUSAL.checksum) is None, name
    for change in ({"kind": "odd"}, {"bound": -1.0}, {"reason": "a\nb"}, {"refused_at": -1}):
        absurd = dataclasses.replace(REFUSAL, **change)  # type: ignore[arg-type]
        assert entry_of(Refusal, absurd.values, absurd.checksum) is None


def test_joining_refusals_is_commutative_associative_and_idempotent() -> None:
    rng = random.Random(4)
    for _ in range(300):
        a, b, c = (dataclasses.replace(r, problem="p") for r in drawn(rng, 3))
        assert join(a, b) == join(b, a)
        assert join(a, join(b, c)) == join(join(a, b), c)
        assert join(a, a) == a
        assert join(a, b).failure.is_transient == (
            a.failure.is_transient and b.failure.is_transient
        )


def test_merges_of_rows_and_refusals_in_any_order_are_equal(tmp_path: Path) -> None:
    rng = random.Random(6)
    for i in range(5):
        parts = [[*drawn(rng, 6), dataclasses.replace(ROW, ticks=j + 1)] for j in range(3)]
        wholes = set()
        for n, order in enumerate(itertools.permutations([*parts, parts[0]], 4)):
            with CostStore.open(tmp_path / f"{i}-{n % 6}.sqlite3") as store:
                store.gc(0)
                for part in order:
                    store.merge(part)
                wholes.add(tuple(store.export_lines()))
        assert len(wholes) == 1
        assert '"kind"' in wholes.pop()[-1]


def test_refusals_are_exported_verified_collected_and_forgotten(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = dataclasses.replace(REFUSAL, primitive="cpu.stem")
    with CostStore.open(path) as store:
        store.append([ROW, REFUSAL, other])
        assert store.rows() == [ROW]
        assert store.refusals() == [REFUSAL, other]
        lines = list(store.export_lines())
    with CostStore.open(tmp_path / "b.sqlite3") as b:
        assert b.import_lines(lines).taken == 3
        assert b.refusals() == [REFUSAL, other]
    text = run_cli(capsys, "db", "info", "--cost-db", path)
    assert "2 candidate(s) that failed" in text
    assert "failed: cpu.direct: SIGSEGV" in text
    with sqlite3.connect(path) as raw:
        raw.execute(
            "UPDATE entries SET body = replace(body, 'SIGSEGV', 'x') WHERE primitive = 'cpu.stem'"
        )
    raw.close()
    found = json.loads(run_cli(capsys, "db", "verify", "--cost-db", path, "--json", code=1))
    assert (found["rows"], found["refusals"], found["unsound"]) == (1, 1, 1)
    assert "dropped 1 rows" in run_cli(capsys, "db", "gc", "--cost-db", path)
    assert "0 candidates" in run_cli(capsys, "db", "retry", "aten.*", "--cost-db", path)
    assert "1 candidates" in run_cli(capsys, "db", "retry", "cpu.d*", "--cost-db", path)
    with CostStore.open(path) as store:
        assert (store.rows(), store.refusals()) == ([ROW], [])


# ---- what holds here and now ---------------------------------------------------------------------


def test_a_failure_holds_for_its_version_and_environment(path: Path) -> None:
    here = Environment.of()
    with CostStore.open(path) as store:
        failure = Failure("SIGSEGV", "ended")
        assert DeviceCosts(store, here).append_failures({KEY: failure})
        assert DeviceCosts.of(store).read_failures([KEY]) == {KEY: failure}
        newer = dataclasses.replace(here, versions={**here.versions, "cpu.direct": 99})
        elsewhere = dataclasses.replace(here, facts={**here.facts, "isa": "avx9"})
        for changed in (newer, elsewhere):
            assert DeviceCosts(store, changed).read_failures([KEY]) == {}


def test_what_the_machine_may_have_caused_holds_for_a_day(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1.7e9
    monkeypatch.setattr(time, "time", lambda: now)
    other = KEY._replace(primitive="cpu.stem")
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        costs.append_failures(
            {KEY: Failure("out of memory", "memory"), other: Failure("x", "hung")}
        )
        assert set(costs.read_failures([KEY, other])) == {KEY, other}
        for later in (now + TRANSIENT_S, now - 10):
            monkeypatch.setattr(time, "time", lambda later=later: later)
            assert set(costs.read_failures([KEY, other])) == {other}


def test_a_primitive_that_ended_its_process_often_is_not_tried_on_new_problems(path: Path) -> None:
    keys = [KEY._replace(problem=f"p{i}") for i in range(MOST_OF_ONE + 1)]
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        for n, key in enumerate(keys[:-1]):
            assert keys[-1] not in costs.read_failures(keys), n
            costs.append_failures({key: Failure("SIGSEGV", "ended")})
            # A second failure on the same problem, in another layout, does not count.
            costs.append_failures({key._replace(dst="nhwc"): Failure("SIGSEGV", "ended")})
        assert costs.read_failures(keys)[keys[-1]].reason.startswith("not run: ended the worker")
        assert costs.read_failures([KEY._replace(primitive="cpu.stem", problem="p0")]) == {}


def test_an_engine_that_hung_on_a_problem_is_not_tried_on_it_in_other_layouts(path: Path) -> None:
    """Each try would take as long as an endless loop may."""
    twins = [
        KEY._replace(dst="nhwc"),
        *(KEY._replace(primitive=f"{KEY.primitive}{end}") for end in (".krsc", "{TILE=1}")),
    ]
    others = [KEY._replace(problem="p2"), KEY._replace(primitive=f"{KEY.primitive}2")]
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        costs.append_failures({KEY: Failure("no answer in 20 s", "hung")})
        found = costs.read_failures([*twins, *others])
    reason = f"not run: {KEY.primitive} hung on this problem: no answer in 20 s"
    assert found == {twin: Failure(reason, "hung") for twin in twins}


def test_a_reason_names_no_user_and_is_one_line(path: Path) -> None:
    with CostStore.open(path) as store:
        DeviceCosts.of(store).append_failures(
            {KEY: Failure(f"in {Path.home()}/secret:\n boom\x1b[3m " + "x" * 9999, "failed")}
        )
        (refusal,) = store.refusals()
    assert refusal.reason.startswith("in ~/secret: boom?[3m xxx")
    assert len(refusal.reason) <= 500


# ---- the next run --------------------------------------------------------------------------------


Run = Callable[..., tuple[FakeBench, Tuning]]


@pytest.fixture
def tune(imported: _C.Imported, path: Path) -> Run:
    """One run of many on a database: the bench with its log, and what became of the tuning."""
    found = _C.find_candidates(imported.graph)

    def go(
        failures: dict[str, str] | None = None,
        check_errors: dict[str, float] | None = None,
        overrides: dict[str, str] | None = None,
        **settings: Any,
    ) -> tuple[FakeBench, Tuning]:
        fake = FakeBench(spread)
        fake.failures, fake.check_errors = failures or {}, check_errors or {}
        forced = forced_primitives(imported.graph, found, overrides)
        with CostStore.open(path) as store:
            tuning = Tuning(
                imported.graph, found, forced, TuneSettings(**settings),
                bench=fake.bench(), cost_file=DeviceCosts.of(store),
            )  # fmt: skip
            tuning.settle(_C.make_plan)
        return fake, tuning

    return go


def test_what_failed_is_not_run_again_and_is_told_again(tune: Run) -> None:
    first, before = tune({"aten.prepacked": "SIGSEGV"}, {"aten.conv": 0.5})
    assert {name for _, name, _ in first.measured} >= {"aten.prepacked"}
    again, after = tune()
    assert not again.measured
    assert "aten.conv" not in {name for _, name in again.checked}
    assert after.rules.quarantined.items() >= before.rules.quarantined.items()
    assert before.rules.quarantined


def test_a_looser_bound_checks_again_what_was_wrong(tune: Run) -> None:
    first, _ = tune(check_errors={"aten.conv": 5e-5})
    assert "aten.conv" not in {name for _, name in tune(max_error=1e-6)[0].checked}
    again, tuning = tune(max_error=1e-4)
    assert not set(first.measured) & set(again.measured)  # only what was not worth it before
    assert "aten.conv" in {name for _, name in again.checked}
    assert "aten.conv" not in {key.primitive for key in tuning.rules.quarantined}


def test_an_override_tries_what_it_names_and_success_is_remembered(tune: Run, path: Path) -> None:
    tune({"aten.prepacked": "SIGSEGV"})
    again, _ = tune(overrides={"layer1.*": "aten.prepacked"})
    tried = {(p, name) for p, name, _ in again.measured if name == "aten.prepacked"}
    assert tried
    with CostStore.open(path) as store:
        left = {(r.problem, r.primitive) for r in store.refusals()}
    assert left and not left & tried


def test_failures_that_leave_no_plan_are_tried_again(tune: Run, path: Path) -> None:
    """So that no file, however wrong, can end a run."""
    _, tuning = tune()
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        costs.append_failures({key: Failure("forged", "ended") for key in tuning.rules.primitives})
    again, _ = tune()
    assert not again.measured  # their costs are known
    with CostStore.open(path) as store:
        assert DeviceCosts.of(store).read_failures(tuning.rules.primitives)


def test_a_second_process_has_no_crash(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a worker in truth: what crashes, hangs or lies does so once."""
    starts: list[int] = []

    def command() -> list[str]:
        starts.append(1)
        return faulty_command(real="yes", **{"aten.prepacked": "segv"})()

    model, x = torch.nn.Conv2d(3, 8, 3, padding=1).eval(), torch.rand(1, 3, 8, 8)

    def optimize() -> tuple[int, list[tuple[str, str]]]:
        starts.clear()
        worker = process_bench.Worker(command)
        monkeypatch.setattr(process_bench, "worker", worker)
        monkeypatch.setattr(process_bench.ProcessBench.__init__, "__defaults__",
                            (None, worker, None, None))  # fmt: skip
        try:
            plan = torchalgo.optimize(
                model, x, settings=torchalgo.Settings(cost_db=path, progress=False)
            ).plan
        finally:
            worker.close()
        return len(starts), [(q.primitive, q.reason) for q in plan.quarantined]

    monkeypatch.setenv(process_bench.ISOLATE, "1")
    crashes, failed = optimize()
    assert crashes > 1 and failed
    assert optimize() == (0, failed)  # nothing is left to measure or to check
