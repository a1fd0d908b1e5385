# SPDX-License-Identifier: BSD-3-Clause
"""A comparison with f64 that passed is kept: a later run does not make it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.db_samples import CHECK, ROW
from support.fake_bench import FakeBench, spread
from torchalgo import _C
from torchalgo._db import CostStore, DeviceCosts, Environment, device_costs
from torchalgo._db.row import Check, columns_of, entry_of, from_line, join, to_line
from torchalgo._ir.costs import Key, Passed
from torchalgo._measure.tuning import TuneSettings, Tuning

KEY = Key(ROW.problem, "cpu.direct", "nchw", "nchw")
Run = Callable[..., FakeBench]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.sqlite3"


@pytest.fixture
def tune(imported: _C.Imported, path: Path) -> Run:
    """One run of many on a database; returns the bench with what it was asked."""
    found = _C.find_candidates(imported.graph)

    def go(check_errors: dict[str, float] | None = None, **settings: Any) -> FakeBench:
        fake = FakeBench(spread)
        fake.check_errors = check_errors or {}
        fake.failures = {"aten.prepacked": "SIGSEGV"}  # so that plans rest on aten.conv
        with CostStore.open(path) as store:
            tuning = Tuning(
                imported.graph, found, {}, TuneSettings(**settings),
                bench=fake.bench(), cost_file=DeviceCosts.of(store),
            )  # fmt: skip
            tuning.settle(_C.make_plan)
        return fake

    return go


def test_a_check_comes_back_from_its_values_and_nothing_else_does() -> None:
    assert entry_of(Check, CHECK.values, CHECK.checksum) == CHECK
    for i, name in enumerate(columns_of(Check)):
        for other in (123, "123", None, 1.5, -1):
            values = [*CHECK.values]
            if values[i] != other:
                values[i] = other
                assert entry_of(Check, values, CHECK.checksum) is None, name
    above = dataclasses.replace(CHECK, rel_error=2e-5)
    assert entry_of(Check, above.values, above.checksum) is None


def test_of_two_checks_the_newer_comparison_and_the_tighter_bound_stay() -> None:
    tight, newer = dataclasses.replace(CHECK, bound=1e-6), dataclasses.replace(CHECK, gate=2)
    assert join(CHECK, tight) == join(tight, CHECK) == tight
    assert join(tight, newer) == newer


def test_checks_are_counted_collected_and_never_exchanged(path: Path, tmp_path: Path) -> None:
    """Somebody else's word that a candidate is right must not count here."""
    assert from_line(to_line(CHECK)) is None
    with CostStore.open(path) as a, CostStore.open(tmp_path / "b.sqlite3") as b:
        assert a.append([ROW, CHECK])
        assert list(a.export_lines()) == [to_line(ROW)]
        assert b.merge(a).taken == 1
        assert (b.rows(), b.checks()) == ([ROW], [])
        assert (a.info().checks, a.verify().checks) == (1, 1)
        assert a.gc(0) == 2


def test_a_check_holds_for_looser_bounds_its_version_its_gate_and_its_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Passed(1e-7, 1e-5).holds_for(1e-5)
    assert Passed(1e-7, 1e-5).holds_for(1e-3)
    assert not Passed(1e-7, 1e-5).holds_for(1e-6)  # single elements may miss their limits
    here = Environment.of()
    with CostStore.open(path) as store:
        passed = Passed(1e-7, 1e-5)
        assert DeviceCosts(store, here).append_checks({KEY: passed})
        assert DeviceCosts.of(store).read_checks([KEY]) == {KEY: passed}
        assert DeviceCosts.of(store).read_checks([KEY._replace(dst="nhwc")]) == {}
        newer = dataclasses.replace(here, versions={**here.versions, "cpu.direct": 99})
        elsewhere = dataclasses.replace(here, facts={**here.facts, "isa": "avx9"})
        for changed in (newer, elsewhere):
            assert DeviceCosts(store, changed).read_checks([KEY]) == {}
        monkeypatch.setattr(device_costs, "GATE", device_costs.GATE + 1)
        assert DeviceCosts.of(store).read_checks([KEY]) == {}


def test_a_second_run_checks_nothing_and_writes_nothing(tune: Run, path: Path) -> None:
    first = tune()
    assert first.checked
    before = path.read_bytes()
    second = tune()
    assert not second.checked
    assert not second.measured
    assert path.read_bytes() == before


def test_a_tighter_bound_is_checked_once_and_then_serves_the_looser_one(tune: Run) -> None:
    tune(max_error=1e-4)
    assert tune(max_error=1e-6).checked
    assert not tune(max_error=1e-6).checked
    assert not tune(max_error=1e-4).checked


def test_what_an_older_comparison_let_pass_is_checked_again(
    tune: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sorted(name for _, name in tune().checked)[0]
    monkeypatch.setattr(device_costs, "GATE", device_costs.GATE + 1)
    tune(check_errors={name: 0.5})
    with CostStore.open(path) as store:
        assert name in {refusal.primitive for refusal in store.refusals()}


def test_a_candidate_that_failed_has_no_check(tune: Run, path: Path) -> None:
    tune(check_errors={"aten.conv": 0.5})
    with CostStore.open(path) as store:
        wrong = {refusal.key for refusal in store.refusals()}
        assert wrong
        assert not wrong & {check.key for check in store.checks()}
