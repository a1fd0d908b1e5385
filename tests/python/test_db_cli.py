# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo db` and `torchalgo doctor`."""

from __future__ import annotations

import functools
import io
import json
import sqlite3
import sys
from pathlib import Path

import pytest

import torchalgo
from support.command import run
from support.db_samples import many
from torchalgo import _C
from torchalgo._db import CostStore
from torchalgo._db.environment import Environment

Capsys = pytest.CaptureFixture[str]


def make(path: Path, count: int) -> Path:
    with CostStore.open(path) as store:
        store.append(many(count))
    return path


def count_rows(path: Path) -> int:
    with CostStore.open(path) as store:
        return len(store.rows())


def test_info_shows_the_users_own_database_or_that_there_is_none(capsys: Capsys) -> None:
    assert "there is none yet" in run(capsys, "db", "info")
    with CostStore.open() as store:
        store.append(many(3))
        assert str(store.path) in run(capsys, "db", "info")
    info = json.loads(run(capsys, "db", "info", "--json"))
    assert (info["rows"], info["access"], info["trouble"]) == (3, "read-write", "")
    assert info["algorithms"] == {"cpu.direct": 3}
    assert "(not this one)" in run(capsys, "db", "info")


def test_rows_travel_by_merge_and_by_export_and_import(capsys: Capsys, tmp_path: Path) -> None:
    a, b = make(tmp_path / "a.sqlite3", 5), make(tmp_path / "b.sqlite3", 3)
    before = a.read_bytes()
    out = run(capsys, "db", "merge", a, "--cost-db", b, "--json")
    assert json.loads(out) == {"source": str(a), "seen": 5, "taken": 2, "unsound": 0}
    assert (count_rows(b), a.read_bytes()) == (5, before)

    file, c = tmp_path / "rows.jsonl", tmp_path / "deep" / "c.sqlite3"
    assert "wrote 5 rows" in run(capsys, "db", "export", file, "--cost-db", a)
    assert run(capsys, "db", "export", "-", "--cost-db", a) == file.read_text()
    with file.open("a") as more:
        more.write("not a row\n")
    assert "6 rows, 5 taken, 1 damaged" in run(capsys, "db", "import", file, "--cost-db", c)
    assert count_rows(c) == 5


def test_verify_ends_with_3_and_gc_cleans(capsys: Capsys, tmp_path: Path) -> None:
    path = make(tmp_path / "costs.sqlite3", 50)
    assert "50 sound rows, 0 damaged: ok" in run(capsys, "db", "verify", "--cost-db", path)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE entries SET body = '[]' WHERE problem = 'fwd_f32_n1'")
    raw.close()
    found = json.loads(run(capsys, "db", "verify", "--cost-db", path, "--json", code=1))
    assert found == {
        "rows": 49, "refusals": 0, "checks": 0, "unsound": 1, "damages": [], "is_sound": False,
    }  # fmt: skip
    assert "dropped 1 rows; 49" in run(capsys, "db", "gc", "--cost-db", path)
    run(capsys, "db", "verify", "--cost-db", path)
    done = json.loads(run(capsys, "db", "gc", "--max-mib", "0", "--cost-db", path, "--json"))
    assert (done["dropped"], done["rows"]) == (49, 0)


def test_a_damaged_file_is_never_called_sound(capsys: Capsys, tmp_path: Path) -> None:
    path, export = make(tmp_path / "costs.sqlite3", 2000), tmp_path / "rows.jsonl"
    export.write_text("an older export\n")
    whole = path.read_bytes()
    for damaged in (b"garbage!" + whole[8:], whole[:8192] + b"\xff" * 4096 + whole[12288:]):
        path.write_bytes(damaged)
        for argv in (("verify",), ("export", export)):
            assert "TA3101" in run(capsys, "db", *argv, "--cost-db", path, code=1)
        merged = run(capsys, "db", "merge", path, "--cost-db", tmp_path / "b.sqlite3", code=1)
        assert "TA3101" in merged
        assert path.read_bytes() == damaged and export.read_text() == "an older export\n"
        for argv in (("gc",), ("forget", "--yes")):
            assert "TA3101" in run(capsys, "db", *argv, "--cost-db", path, code=1)
        assert path.read_bytes() == damaged


def test_what_could_not_be_deleted_is_an_error(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "costs.sqlite3", 5)
    open_store = CostStore.open
    monkeypatch.setattr(CostStore, "open", functools.partial(open_store, busy_s=0.1))
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    for argv in (("forget", "--yes"), ("gc", "--max-mib", "0")):
        assert "TA3101" in run(capsys, "db", *argv, "--cost-db", path, code=1)
    raw.close()
    assert count_rows(path) == 5


def test_bytes_that_are_no_text_are_no_rows(
    capsys: Capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n")))
    path = make(tmp_path / "costs.sqlite3", 1)
    assert "has no row" in run(capsys, "db", "import", "-", "--cost-db", path, code=1)


def test_here_is_every_environment_of_this_machine(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite3"
    trained = Environment.of(None, _C.CHANGED_WEIGHTS)
    for environment in (trained, Environment.of().for_energy("rapl")):
        with CostStore.open(path) as store:
            store.append(many(2, environment=environment.text_of("cpu.direct")))
        assert "(not this one)" not in run(capsys, "db", "info", "--cost-db", path)
        out = run(capsys, "db", "forget", "--environment", "here", "--yes", "--cost-db", path)
        assert "forgot 2 costs" in out
        assert count_rows(path) == 0


def test_every_error_is_one_line_with_exit_code_1(capsys: Capsys, tmp_path: Path) -> None:
    path = make(tmp_path / "costs.sqlite3", 1)
    text = tmp_path / "text.txt"
    text.write_text("hello\n")
    lines = tmp_path / "rows.jsonl"
    lines.write_text("{}\n")
    link = tmp_path / "link.sqlite3"
    link.symlink_to(path)
    for message, argv in (
        ("there is no database", ("merge", tmp_path / "none.sqlite3", "--cost-db", path)),
        ("there is no database", ("verify", "--cost-db", tmp_path / "none.sqlite3")),
        ("there is no database", ("export", tmp_path / "rows", "--cost-db", tmp_path / "none")),
        ("not a database", ("merge", text, "--cost-db", path)),
        ("db import reads lines of JSON", ("merge", lines, "--cost-db", path)),
        ("not a database", ("verify", "--cost-db", text)),
        ("not a database", ("export", tmp_path / "rows", "--cost-db", text)),
        ("not a database", ("gc", "--cost-db", text)),
        ("is a link", ("info", "--cost-db", link)),
        ("cannot read", ("import", tmp_path / "none.jsonl")),
        ("no row", ("import", text, "--cost-db", path)),
        ("cannot write", ("export", tmp_path / "no" / "rows", "--cost-db", path)),
        ("is no folder", ("import", text, "--cost-db", text / "costs.sqlite3")),
    ):
        assert message in run(capsys, "db", *argv, code=1)
    assert count_rows(path) == 1


def test_wrong_usage_ends_with_2(capsys: Capsys) -> None:
    for argv in ((), ("forgot",), ("merge",), ("export",), ("gc", "--max-mib", "-1"),
                 ("gc", "--max-mib", "nan"), ("info", "more")):  # fmt: skip
        run(capsys, "db", *argv, code=2)


def test_a_hostile_text_does_not_break_info(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite3"
    with CostStore.open(path) as store:
        for i, text in enumerate(("no json", "[1]", "[" * 4000)):
            store.append(many(1, environment=text, version=i))
    assert "no json" in run(capsys, "db", "info", "--cost-db", path)


def test_doctor_tells_versions_devices_database_and_what_is_missing(
    capsys: Capsys, tmp_path: Path
) -> None:
    found = json.loads(run(capsys, "doctor", "--json"))
    assert found["versions"]["torchalgo"] == torchalgo.__version__
    assert found["cpu"]["threads of torch"] >= 1
    assert "reason" in found["gpu"] or found["gpu"]["available"]
    assert "conv" in found["algorithms"]["aten"]
    assert found["cost database"]["state"] == "there is none yet"
    assert not (tmp_path / "cache").exists()
    with CostStore.open() as store:
        store.append(many(3))
    text = run(capsys, "doctor")
    assert all(topic in text for topic in ("versions", "cpu", "gpu", "cost database", "optional"))
    assert json.loads(run(capsys, "doctor", "--json"))["cost database"]["rows"] == 3
