# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts carry their day; fresh=True takes nothing from before; db forget drops what is named."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import torchalgo
from support.command import run
from support.db_samples import CHECK, REFUSAL, ROW
from torchalgo._cli.tuning_flags import tuning_arguments
from torchalgo._db import CostStore, DeviceCosts, Environment, Refusal, Row
from torchalgo._db.row import Check, PeakRates, Verdict
from torchalgo._ir.costs import Key
from torchalgo._ir.failures import Failure
from torchalgo._ir.plan import GuardVerdict, guard_line
from torchalgo._measure import process_bench
from torchalgo._report.texts import speed_line
from torchalgo_cli.parser import build_parser

Capsys = pytest.CaptureFixture[str]
VERDICT = GuardVerdict("faster", "plan", "frozen", 1.0, 2.0, 0.5, 0.4, 0.6, 25, "")
DAY_S = 86400
NOVEMBER_20 = 20_777 * DAY_S  # 2026-11-20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.sqlite3"


def small() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_stored_verdict_is_told_with_its_day(path: Path) -> None:
    model, x = small()
    first = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    assert first.plan.guard is not None and first.plan.guard.timed_on == ""
    assert "timed on" not in guard_line(first.plan.guard)
    told: list[str] = []
    second = torchalgo.optimize(
        model, x, settings=torchalgo.Settings(cost_db=path, progress=lambda e: told.append(e.text))
    )
    verdict = second.plan.guard
    assert verdict is not None and re.fullmatch(r"20\d\d-\d\d-\d\d", verdict.timed_on)
    when = f"timed on {verdict.timed_on}, Settings(fresh=True) or --fresh times it again"
    assert when in guard_line(verdict) and when in speed_line(verdict)
    assert when in " ".join(str(second.plan).split())
    assert any(when in text for text in told)


def test_the_day_is_in_the_plans_file_and_older_files_lack_it(path: Path) -> None:
    model, x = small()
    plan = torchalgo.optimize(
        model, x, settings=torchalgo.Settings(cost_db=path, progress=False)
    ).plan
    dated = dataclasses.replace(VERDICT, timed_on="2026-11-20", waited=0.25)
    stored = dataclasses.replace(plan, guard=dated)
    assert torchalgo.Plan.from_json(stored.to_json()).guard == dated
    data = json.loads(plan.to_json())
    assert not {"timed_on", "waited"} & set(data["guard"])


def test_a_verdict_without_a_day_is_timed_again(path: Path) -> None:
    with CostStore.open(path) as store:
        store.keep_text(Verdict, Environment.of().everything, "plan", VERDICT.to_json())
        assert DeviceCosts.of(store).read_verdict("plan") is None


# ---- fresh ---------------------------------------------------------------------------------------


def test_a_fresh_store_finds_only_what_it_wrote(path: Path) -> None:
    other = dataclasses.replace(ROW, src="nhwc")
    with CostStore.open(path) as store:
        store.append([ROW, other, REFUSAL, CHECK])
        store.keep_text(Verdict, "here", "plan", "old")
        store.keep_text(PeakRates, "here", "cpu", "old")
    with CostStore.open(path, is_fresh=True) as store:
        assert store.entries(Row, [ROW.environment]) == []
        assert store.text(Verdict, "here", "plan") is None
        assert store.text(PeakRates, "here", "cpu") is None
        faster = dataclasses.replace(ROW, ticks=5)
        store.append([faster])
        store.keep_text(Verdict, "here", "plan", "new")
        assert store.entries(Row, [ROW.environment]) == [faster]
        assert store.text(Verdict, "here", "plan") == "new"
        assert len(store.rows()) == 2  # the others stay until they are replaced
        assert store.forget_older([ROW.environment], ["another problem"]) == 0
        assert store.forget_older([ROW.environment], [ROW.problem]) == 3
        assert (store.rows(), store.refusals(), store.checks()) == ([faster], [], [])
    with CostStore.open(path) as store:
        assert store.rows() == [faster]
        assert store.text(Verdict, "here", "plan") == "new"


def test_fresh_measures_checks_and_times_again_and_replaces(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = small()
    torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    with CostStore.open(path) as store:
        slow = [dataclasses.replace(row, ticks=1000 * row.ticks) for row in store.rows()]
        foreign = dataclasses.replace(ROW, environment='{"cpu":"another"}')
        store.append([*slow, foreign])
        before = len(store.all_of(Verdict))
    poisoned = {row.row_key: row.ticks for row in slow}
    fast = torchalgo.optimize(
        model, x, settings=torchalgo.Settings(cost_db=path, fresh=True, progress=False)
    )
    assert {"probe", "measure", "check"} <= set(fast.timings)
    assert fast.plan.guard is not None and fast.plan.guard.timed_on == ""
    with CostStore.open(path) as store:
        after = {row.row_key: row.ticks for row in store.rows()}
        assert foreign.row_key in after
        assert len(store.all_of(Verdict)) >= before
    assert len(after) > 1
    assert all(ticks < poisoned[key] for key, ticks in after.items() if key in poisoned)
    again = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    assert not {"probe", "measure", "check"} & set(again.timings)
    assert again.plan.cost_ticks == fast.plan.cost_ticks


def test_fresh_tries_what_failed_before(path: Path) -> None:
    model, x = small()
    first = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    (node,) = [n for n in first.plan.nodes if n.problem.startswith("fwd_")]
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        key = Key(node.problem, node.primitive, node.src, node.dst)
        costs.append_failures({key: Failure("SIGSEGV", "ended")})
    fast = torchalgo.optimize(
        model, x, settings=torchalgo.Settings(cost_db=path, fresh=True, progress=False)
    )
    assert key.primitive not in {q.primitive for q in fast.plan.quarantined}
    with CostStore.open(path) as store:
        assert store.refusals() == []


def test_an_impossible_fresh_is_an_error() -> None:
    model, x = small()
    with pytest.raises(torchalgo.Error, match='mode="predict" takes all'):
        torchalgo.optimize(model, x, settings=torchalgo.Settings(fresh=True, mode="predict"))
    with pytest.raises(torchalgo.Error, match="fresh='yes', expected True or False"):
        torchalgo.optimize(model, x, settings=torchalgo.Settings(fresh="yes"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_where_nothing_is_measured_no_worker_starts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = small()
    starts: list[Any] = []
    real = process_bench.WorkerProcess

    def started(*args: Any) -> Any:
        starts.append(args)
        return real(*args)

    monkeypatch.setattr(process_bench, "WorkerProcess", started)
    process_bench.worker.close()
    torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    assert len(starts) == 1
    process_bench.worker.close()
    torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    assert len(starts) == 1
    torchalgo.optimize(
        model, x, settings=torchalgo.Settings(cost_db=path, fresh=True, progress=False)
    )
    assert len(starts) == 2


# ---- db forget -----------------------------------------------------------------------------------


@pytest.fixture
def filled(path: Path) -> Path:
    """Entries of two machines and two days."""
    old = {"environment": '{"cpu":"Old One"}', "problem": "add_f32", "primitive": "cpu.add"}
    rows = [dataclasses.replace(ROW, measured_at=NOVEMBER_20), dataclasses.replace(ROW, **old)]
    with CostStore.open(path) as store:
        store.append([*rows, REFUSAL, CHECK, Verdict.of(ROW.environment, "a", "{}", NOVEMBER_20)])
        store.append([Verdict.of(old["environment"], "b", "{}", NOVEMBER_20 - 86400)])
        store.keep_text(Verdict, old["environment"], "context:c", "no verdict")
    return path


def test_info_counts_other_records_apart_from_verdicts(capsys: Capsys, filled: Path) -> None:
    info = json.loads(run(capsys, "db", "info", "--json", "--cost-db", filled))
    assert (info["verdicts"], info["records"]) == (2, {"context": 1})
    text = run(capsys, "db", "info", "--cost-db", filled)
    assert "2 verdict(s) on plans, " in text


COUNTS = ("costs", "failures", "checks", "verdicts")


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ([], (2, 1, 1, 3)),
        (["--environment", "old one"], (1, 0, 0, 2)),
        (["--environment", "here"], (0, 0, 0, 0)),
        (["--problem", "fwd_*"], (1, 1, 1, 0)),
        (["--primitive", "cpu.a*"], (1, 0, 0, 0)),
        (["--verdicts"], (0, 0, 0, 3)),
        (["--verdicts", "--before", "2026-11-20"], (0, 0, 0, 1)),
        (["--since", "2026-11-20"], (1, 0, 0, 2)),
        (["--before", "2026-11-20"], (1, 1, 1, 1)),
    ],
)
def test_forget_counts_first_and_drops_what_it_counted(
    capsys: Capsys, filled: Path, arguments: list[str], counts: tuple[int, ...]
) -> None:
    names = dict(zip(COUNTS, counts, strict=True))
    command = ("db", "forget", *arguments, "--cost-db", filled)
    told = run(capsys, *command)
    assert f"would forget {', '.join(f'{n} {name}' for name, n in names.items())}; --yes" in told
    assert json.loads(run(capsys, *command, "--json")) == {**names, "forgotten": False}
    assert "forgot" in run(capsys, *command, "--yes")
    assert json.loads(run(capsys, *command, "--json")) == {
        **dict.fromkeys(COUNTS, 0), "forgotten": False,
    }  # fmt: skip
    with CostStore.open(filled) as store:
        kept = tuple(len(store.all_of(kind)) for kind in (Row, Refusal, Check, Verdict))
    assert kept == tuple(all - gone for all, gone in zip((2, 1, 1, 3), counts, strict=True))


def test_forget_means_this_machine_by_here(capsys: Capsys, path: Path) -> None:
    model, x = small()
    torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    with CostStore.open(path) as store:
        rows = len(store.rows())
        store.append([ROW])
    run(capsys, "db", "forget", "--environment", "here", "--cost-db", path, "--yes")
    with CostStore.open(path) as store:
        assert (store.rows(), store.checks(), store.all_of(Verdict)) == ([ROW], [], [])
    assert rows > 0


def test_a_day_that_is_none_and_globs_of_verdicts_are_errors(capsys: Capsys, filled: Path) -> None:
    run(capsys, "db", "forget", "--since", "yesterday", "--cost-db", filled, code=2)
    run(capsys, "db", "forget", "--verdicts", "--problem", "*", "--cost-db", filled, code=1)


def test_a_time_that_no_calendar_has_is_in_the_far_future(capsys: Capsys, path: Path) -> None:
    with CostStore.open(path) as store:
        store.append([dataclasses.replace(ROW, measured_at=(1 << 62) - 1)])
    command = ("db", "forget", "--since", "2026-11-20", "--cost-db", path, "--json")
    assert json.loads(run(capsys, *command))["costs"] == 1


def test_the_command_takes_fresh() -> None:
    arguments = ["optimize", "net.pt", "--input", "1x3x12x12", "-o", "out.pt"]
    for words, is_fresh in ((["--fresh"], True), ([], False)):
        args = build_parser().parse_args([*arguments, *words])
        assert tuning_arguments(args)["settings"].fresh is is_fresh
