# SPDX-License-Identifier: BSD-3-Clause
"""Files of the store that are damaged, hostile, of others, or cannot be used."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sqlite3
import stat
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.db_samples import CHECK, REFUSAL, ROW, many, old_file
from torchalgo._db import CostStore, Row, cost_file
from torchalgo._db.cost_file import OLD_TABLES, SCHEMA, CostFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "costs.sqlite3"


def rows_of(path: Path) -> list[Row]:
    with CostStore.open(path) as store:
        return store.rows()


def test_an_edited_row_is_a_miss_and_verify_and_gc_find_it(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(4))
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE entries SET body = '[1' || substr(body, 3) WHERE problem LIKE '%n1'")
        raw.execute("UPDATE entries SET body = 'fast' WHERE problem LIKE '%n2'")
        raw.execute("UPDATE entries SET primitive = x'ff' WHERE problem LIKE '%n3'")
    raw.close()
    with CostStore.open(path) as store:
        assert store.rows() == many(1)
        assert store.verify() == dataclasses.replace(store.verify(), rows=1, unsound=3)
        assert not store.verify().is_sound
        assert store.gc() == 3
        assert store.verify().is_sound


def damage(path: Path) -> bytes:
    """Overwrites a page with zeros and returns the bytes of the file."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 8192 * 4096
    data[middle : middle + 4096] = bytes(4096)
    path.write_bytes(data)
    return bytes(data)


def test_a_damaged_file_stays_as_it_is_and_one_warning_tells(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(500))
    data = damage(path)
    with pytest.warns(UserWarning) as told, CostStore.open(path) as store:
        assert store.rows() == []
        assert not store.append(many(3))
        assert store.rows() == many(3)
        assert store.is_in_memory
    (warning,) = told
    assert str(path) in str(warning.message) and "delete it" in str(warning.message)
    assert path.read_bytes() == data


def test_damage_while_a_store_is_open_costs_no_row_that_it_writes_later(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(500))
    with CostStore.open(path) as store:
        assert len(store.entries(Row, [ROW.environment], ["fwd_f32_n1"])) == 1
        damage(path)
        with pytest.warns(UserWarning, match="kept in memory"):
            store.rows()
        store.append(many(3))
        assert store.rows() == many(3)


def test_a_file_that_is_moved_deleted_or_replaced_is_not_used_any_more(path: Path) -> None:
    moved, other = path.with_name("moved"), path.with_name("other.sqlite3")
    for is_replaced in (False, True):
        with CostStore.open(path) as store:
            store.append(many(2))
            path.replace(moved)
            if is_replaced:
                with CostStore.open(other) as another:
                    another.append(many(1))
                other.replace(path)
            with pytest.warns(UserWarning, match="moved or deleted"):
                assert not store.append(many(3))
            assert store.rows() == many(3)
        assert path.exists() == is_replaced
    assert rows_of(path) == many(1)


def test_a_file_that_fails_to_write_is_still_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CostStore.open(path) as store:
        store.append(many(2))
        monkeypatch.setattr(CostFile, "put", Mock(side_effect=OSError("disk full")))
        with pytest.warns(UserWarning, match="cannot be written: disk full"):
            assert not store.append(many(1, version=2))
        assert store.rows() == sorted([*many(2), *many(1, version=2)], key=lambda r: r.row_key)
        assert store.unwritten == 1
        monkeypatch.undo()
        store.close()
        assert not store.append(many(3, version=3))  # nor is it written later
    assert rows_of(path) == many(2)


def test_a_file_without_locks_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CostStore.open(path) as store:
        store.append(many(2))
    monkeypatch.setattr("fcntl.lockf", Mock(side_effect=OSError("no locks available")))
    with pytest.warns(UserWarning, match="can only be read: its file system has no locks"):
        store = CostStore.open(path)
    assert store.rows() == many(2)
    assert not store.append(many(3))
    assert store.rows() == many(3)
    store.close()


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_a_file_of_an_older_schema_is_read_and_its_entries_move_to_the_new_table(
    path: Path, schema: int
) -> None:
    entries = old_file(path, schema)
    before = path.read_bytes()

    def all_of(store: CostStore) -> list[object]:
        return [entry for kind, _ in OLD_TABLES.values() for entry in store.all_of(kind)]

    with CostStore.open(path, read_only=True) as store:
        assert all_of(store) == entries
    assert path.read_bytes() == before
    with CostStore.open(path) as store:
        assert all_of(store) == entries
        assert store.append([REFUSAL, CHECK])
        assert store.verify().is_sound
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("entries",)]
        days = raw.execute("SELECT DISTINCT last_used FROM entries WHERE kind = 'cost'").fetchall()
    raw.close()
    assert days == [(7,)]


def test_a_log_of_an_older_torchalgo_is_read(path: Path, tmp_path: Path) -> None:
    """Older releases used a write-ahead log, which a kill leaves beside the file."""
    other = tmp_path / "other.sqlite3"
    with CostStore.open(other) as store:
        store.append(many(2))
    raw = sqlite3.connect(other)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("DELETE FROM entries WHERE problem LIKE '%n1'")
    raw.commit()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{other}{suffix}", f"{path}{suffix}")
    raw.close()
    assert rows_of(path) == many(1)
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    raw.close()


def test_a_file_whose_entries_another_process_moves_meanwhile_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_file(path, 2)
    make_table = cost_file._make_table

    def make_late(connection: sqlite3.Connection) -> None:
        monkeypatch.undo()
        assert len(rows_of(path)) == 3
        make_table(connection)

    monkeypatch.setattr(cost_file, "_make_table", make_late)
    with CostStore.open(path) as store:
        assert store.append(many(4))
        assert not store.trouble


def test_processes_that_meet_an_old_file_move_its_entries_once(path: Path) -> None:
    old_file(path, 1)
    children = []
    for writer in range(1, 7):
        pid = os.fork()
        if not pid:
            warnings.simplefilter("ignore")
            with CostStore.open(path) as store:
                os._exit(0 if store.append(many(5, version=writer + 1)) else 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
    with CostStore.open(path) as store:
        assert len(store.rows()) == 3 + 6 * 5
        assert store.verify().is_sound


def test_a_file_of_another_program_or_of_a_newer_torchalgo_stays_as_it_is(tmp_path: Path) -> None:
    text, foreign, newer = (tmp_path / name for name in ("net.pt", "notes.db", "costs.sqlite3"))
    text.write_text("no database at all, but dear to somebody\n" * 100)
    with sqlite3.connect(foreign) as raw:
        raw.execute("CREATE TABLE notes (text)")
    raw.close()
    CostStore.open(newer).close()
    with sqlite3.connect(newer) as raw:
        raw.execute("PRAGMA user_version = 5")
    raw.close()
    reasons = {text: "not a database", foreign: "no database of torchalgo", newer: "schema 5"}
    for file, reason in reasons.items():
        before = file.read_bytes()
        with pytest.warns(UserWarning, match=reason):
            store = CostStore.open(file)
        assert store.is_in_memory
        assert not store.append(many(2))
        assert store.rows() == many(2)
        store.close()
        assert file.read_bytes() == before


def test_a_hostile_schema_is_not_run(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(2))
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END")
    raw.close()
    with pytest.warns(UserWarning, match="tables are not those"):
        store = CostStore.open(path)
    assert store.rows() == []
    store.append(many(3))
    assert store.rows() == many(3)
    store.close()


def test_links_and_files_that_everybody_can_write_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real.sqlite3"
    CostStore.open(real).close()
    link, wide = tmp_path / "link.sqlite3", tmp_path / "wide.sqlite3"
    link.symlink_to(real)
    CostStore.open(wide).close()
    wide.chmod(0o666)
    log = tmp_path / "log.sqlite3"
    Path(f"{log}-wal").symlink_to(real)
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    cases = {
        link: "is a link", wide: "everybody may write", log: "is a link",
        open_folder / "costs.sqlite3": "everybody may write", tmp_path: "no regular file",
        tmp_path / "none" / "costs.sqlite3": "No such file",
    }  # fmt: skip
    for path, reason in cases.items():
        with pytest.warns(UserWarning, match=reason):
            store = CostStore.open(path)
        store.append(many(1))
        assert store.rows() == many(1)
        store.close()
    assert rows_of(real) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_folders_of_another_user_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite3"
    CostStore.open(path).close()
    for place in (path, tmp_path):
        os.chown(path, 0, 0)
        os.chown(place, 12345, -1)
        with pytest.warns(UserWarning, match="belongs to another user"):
            assert CostStore.open(path).is_in_memory


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mask in (0, 0o777):
        monkeypatch.setenv("TORCHALGO_CACHE_DIR", str(tmp_path / f"{mask}" / "deep"))
        before = os.umask(mask)
        try:
            with CostStore.open() as store:
                assert store.append(many(1))
                assert store.path is not None
                for file in store.path.parent.iterdir():
                    assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
                for folder in (store.path.parent, store.path.parent.parent):
                    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        finally:
            os.umask(before)


def test_a_home_that_is_missing_gives_a_store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHALGO_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("no such user")))
    with pytest.warns(UserWarning, match="no place for it: .* home directory"):
        store = CostStore.open()
    assert not store.append(many(1))
    assert store.rows() == many(1)


def test_without_platformdirs_the_store_is_in_memory_or_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """platformdirs is missing if torchalgo was installed with `pip install --no-deps`."""
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with CostStore.open() as store:
        assert not store.is_in_memory
    monkeypatch.delenv("TORCHALGO_CACHE_DIR")
    with pytest.warns(UserWarning, match="no place for it: .*platformdirs"):
        assert CostStore.open().is_in_memory


def test_one_warning_tells_however_much_goes_wrong(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = CostStore.open(tmp_path / "none" / "costs.sqlite3")
        for _ in range(5):
            store.append(many(2))
            store.entries(Row, [ROW.environment])
            store.verify()
        store.close()
    assert len(caught) == 1
