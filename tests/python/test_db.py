# SPDX-License-Identifier: BSD-3-Clause
"""The store: what comes back, from where, and what happens where files cannot be used."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sqlite3
import stat
import threading
import time
from pathlib import Path

import pytest
import torch

import torchalgo
from support.db_samples import ROW, many
from torchalgo._db import CostStore, Environment, Row, files
from torchalgo._db.device_costs import DeviceCosts
from torchalgo._db.row import Verdict
from torchalgo._ir.costs import Cost, Key, Passed, Samples
from torchalgo._ir.failures import Failure
from torchalgo._ir.plan import GuardVerdict
from torchalgo._measure import guard
from torchalgo._plan.learned_costs import costs_to_learn

KEY = Key("fwd_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1", "aten.conv", "nchw", "nchw")
OTHER = KEY._replace(primitive="cpu.direct")
COST = Cost(7, 1, Samples(9, 8, 7, 10), 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.sqlite3"


# ---- costs come back -----------------------------------------------------------------------------


def test_costs_come_back_and_a_later_one_replaces(path: Path) -> None:
    with CostStore.open(path) as store:
        assert DeviceCosts.of(store).read() == {}
        assert DeviceCosts.of(store).append({KEY: COST})
        assert DeviceCosts.of(store).append({KEY: Cost(5, 2), OTHER: Cost(9)})
    with CostStore.open(path) as store:
        assert DeviceCosts.of(store).read() == {KEY: Cost(5, 2), OTHER: Cost(9)}
        assert DeviceCosts.of(store).read([OTHER]) == {OTHER: Cost(9)}
        assert DeviceCosts.of(store).read([OTHER._replace(dst="nhwc")]) == {}


def test_costs_in_a_layout_that_is_gone_are_misses(path: Path) -> None:
    """Older files have costs in nChw8c. The planner cannot read the name."""
    problem = "transform_f32_n1c8h4w4_nchw_nChw8c"
    change = Key(problem, "layout.tiled", "nchw", "nChw8c")
    gone = [change, change._replace(src="nChw8c", dst="nchw"), KEY._replace(src="nChw8c")]
    passed = Passed(1e-7, 1e-5)
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        costs.append(dict.fromkeys([KEY, *gone], COST))
        costs.append_checks(dict.fromkeys([KEY, *gone], passed))
        costs.append_failures({key: Failure("a test", "wrong", 1e-5) for key in [KEY, *gone]})
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        assert len(store.rows()) == len(store.refusals()) == len(store.checks()) == 4
        assert costs.read() == costs.read([KEY, *gone]) == {KEY: COST}
        assert costs.read_checks([KEY, *gone]) == {KEY: passed}
        assert list(costs.read_failures([KEY, *gone])) == [KEY]
        assert costs_to_learn(store, None, 0) == {KEY: COST.estimate_ticks}
        assert store.import_lines(store.export_lines()).unsound == 0
        assert store.verify().unsound == 0


def test_costs_of_another_machine_version_or_model_size_are_misses(path: Path) -> None:
    here = Environment.of()
    versions = dict(here.versions)
    with CostStore.open(path) as store:
        DeviceCosts(store, here).append({KEY: COST, OTHER: COST})
        for facts in ({"threads": "99"}, {"isa": "avx9"}, {"weights": "memory"}):
            elsewhere = dataclasses.replace(here, facts={**here.facts, **facts})
            assert DeviceCosts(store, elsewhere).read() == {}
        newer = dataclasses.replace(here, versions={**versions, "cpu.direct": 99})
        assert DeviceCosts(store, newer).read() == {KEY: COST}
        upgraded = dataclasses.replace(here, facts={**here.facts, "torch": "9.9"})
        assert DeviceCosts(store, upgraded).read() == {OTHER: COST}
        # What others write beside takes nothing away.
        DeviceCosts(store, newer).append({OTHER: Cost(3)})
        assert DeviceCosts.of(store).read() == {KEY: COST, OTHER: COST}


def test_absurd_costs_and_unknown_algorithms_are_not_kept(path: Path) -> None:
    with CostStore.open(path) as store:
        costs = DeviceCosts.of(store)
        nan = float("nan")
        costs.append({KEY: Cost(0), OTHER: Cost(nan)})  # type: ignore[arg-type]
        costs.append({KEY: Cost(-5), KEY._replace(primitive="no.such"): Cost(5)})
        assert costs.read() == {}


def test_a_second_run_measures_nothing_and_reuses_the_verdict(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.rand(1, 3, 12, 12)
    first = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    written = path.read_bytes()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("timed again")

    monkeypatch.setattr(torchalgo._C, "measure", refuse)
    monkeypatch.setattr("torchalgo._measure.sampling.Bench.measure", refuse)
    monkeypatch.setattr(guard, "time_interleaved", refuse)
    second = torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=path, progress=False))
    assert path.read_bytes() == written
    assert second.plan.nodes == first.plan.nodes
    assert {"probe", "measure", "check"} <= set(first.timings)
    assert not {"probe", "measure", "check"} & set(second.timings)
    assert first.plan.guard is not None and second.plan.guard is not None
    assert dataclasses.replace(second.plan.guard, timed_on="") == first.plan.guard
    with CostStore.open(path) as store:
        assert {row.workspace_bytes is not None for row in store.rows()} == {True}
        assert all(row.samples >= 2 and row.p10_ticks <= row.p90_ticks for row in store.rows())


def test_the_default_database_is_in_the_cache_folder_and_false_means_none(tmp_path: Path) -> None:
    model, x = torch.nn.Conv2d(1, 1, 1).eval(), torch.rand(1, 1, 2, 2)
    torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=False, progress=False))
    assert not (tmp_path / "cache").exists()
    torchalgo.optimize(model, x, settings=torchalgo.Settings(progress=False))
    file = tmp_path / "cache" / "costs.sqlite3"
    assert file == files.default_path()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    for wrong in (True, 3, b"x"):
        with pytest.raises(torchalgo.Error, match="cost_db="):
            torchalgo.optimize(model, x, settings=torchalgo.Settings(cost_db=wrong))  # type: ignore[arg-type]


def test_a_verdict_comes_back_whole_or_not_at_all(path: Path) -> None:
    verdict = GuardVerdict("slower", "baseline", "frozen", 2.0, 1.0, 2.0, 1.9, 2.1, 25, "")
    with CostStore.open(path) as store:
        DeviceCosts.of(store).keep_verdict("plan", verdict)
        found = DeviceCosts.of(store).read_verdict("plan")
        assert found is not None
        assert dataclasses.replace(found, timed_on="") == verdict
        assert DeviceCosts.of(store).read_verdict("another") is None
        assert DeviceCosts.of(store, cold_bytes=1 << 30).read_verdict("plan") is None
        store.keep_text(Verdict, Environment.of().everything, "odd", '{"verdict": "faster"}')
        assert DeviceCosts.of(store).read_verdict("odd") is None
    with sqlite3.connect(path) as raw:
        raw.execute(
            "UPDATE entries SET body = replace(body, 'baseline', 'plan') WHERE kind = 'verdict'"
        )
    raw.close()
    with CostStore.open(path) as store:
        assert DeviceCosts.of(store).read_verdict("plan") is None


# ---- merging, size -------------------------------------------------------------------------------


def test_merge_is_commutative_associative_and_idempotent(tmp_path: Path) -> None:
    rng = random.Random(5)

    def merged(name: str, *parts: list[Row]) -> list[str]:
        with CostStore.open(tmp_path / f"{name}.sqlite3") as store:
            for part in parts:
                store.merge(part)
            return list(store.export_lines())

    for i in range(8):
        a, b, c = (
            [
                dataclasses.replace(
                    ROW, problem=f"p{rng.randrange(6)}", version=rng.randrange(2),
                    ticks=rng.randrange(1, 9), samples=rng.randrange(3),
                )
                for _ in range(10)
            ]
            for _ in range(3)
        )  # fmt: skip
        whole = merged(f"{i}abc", a, b, c)
        assert whole == merged(f"{i}cba", c, b, a)
        assert whole == merged(f"{i}aabbcc", a, a, b, b, c, c, a)
        with CostStore.open(tmp_path / f"{i}bc.sqlite3") as bc:
            bc.merge(b)
            bc.merge(c)
            assert whole == merged(f"{i}a-bc", a, bc.rows())


def test_exported_lines_carry_everything_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    with CostStore.open(tmp_path / "a.sqlite3") as a, CostStore.open(tmp_path / "b.sqlite3") as b:
        a.append(many(5))
        lines = list(a.export_lines())
        merged = b.import_lines([*lines, "", "no row", lines[0].replace("p90", "p99"), lines[1]])
        assert (merged.seen, merged.taken, merged.unsound) == (8, 5, 2)
        assert b.rows() == a.rows()
        assert b.import_lines(lines).taken == 0


def test_past_its_size_rows_that_were_not_used_for_longest_go(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CostStore.open(path, max_bytes=200_000) as store:
        monkeypatch.setattr(time, "time", lambda: 86400.0 * 100)
        store.append(many(300))
        monkeypatch.setattr(time, "time", lambda: 86400.0 * 101)
        used = {row.problem for row in many(10)}
        store.entries(Row, [ROW.environment], used)
        for i in range(20):
            store.append(many(100, version=i + 2))
            assert store.info().bytes <= 200_000
        left = {row.problem for row in store.rows() if row.version == 1}
        assert left <= used
        assert store.gc(0) > 0
        assert store.rows() == []


def test_reading_writes_once_a_day(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CostStore.open(path) as store:
        store.append(many(3))
        marked: list[int] = []
        assert store._file is not None
        monkeypatch.setattr(store._file, "mark_used", lambda keys, _: marked.append(len(keys)))
        store.entries(Row, [ROW.environment], ["fwd_f32_n1"])
        assert marked == []
        monkeypatch.setattr(time, "time", lambda: 86400.0)  # even if the clock fell back
        store.entries(Row, [ROW.environment], ["fwd_f32_n1"])
        assert marked == [1]


# ---- threads and processes -----------------------------------------------------------------------


def test_threads_may_share_a_store(path: Path) -> None:
    with CostStore.open(path) as store:

        def work(n: int) -> None:
            for i in range(20):
                store.append(many(3, version=100 * n + i))
                assert len(store.entries(Row, [ROW.environment], ["fwd_f32_n1"])) > i

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.rows()) == 6 * 20 * 3


def test_a_forked_child_opens_the_file_again(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(1))
        inherited = store._file
        pid = os.fork()
        if not pid:
            is_sound = store.append(many(2)) and store._file is not inherited
            os._exit(0 if is_sound and store.rows() == many(2) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert store._file is inherited
        assert store.append(many(3))
        assert store.rows() == many(3)


def test_the_file_holds_data_only(path: Path) -> None:
    """No pickle, and no text that could be a path, in any column."""
    with CostStore.open(path) as store:
        DeviceCosts.of(store).append({KEY: COST, OTHER: COST})
        for line in store.export_lines():
            fields = json.loads(line)
            assert str(Path.home()) not in line
            assert all(isinstance(v, (str, int, float, type(None))) for v in fields.values())
