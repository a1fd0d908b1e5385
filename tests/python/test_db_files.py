# SPDX-License-Identifier: BSD-3-Clause
"""Files of the store that are damaged, hostile, of others, or cannot be used."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import sqlite3
import stat
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from support.db_samples import ROW, many
from torchalgo._db import CostStore, Row, files
from torchalgo._db.connection import Database
from torchalgo._db.errors import Cause, StorageError
from torchalgo._db.row import Entry
from torchalgo._db.schema import make_tables


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
        raw.execute("UPDATE costs SET ticks = 1 WHERE problem = 'fwd_f32_n1'")
        raw.execute("UPDATE costs SET ticks = 'fast' WHERE problem = 'fwd_f32_n2'")
        raw.execute("UPDATE costs SET primitive = x'ff' WHERE problem = 'fwd_f32_n3'")
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


def test_a_damaged_file_is_set_aside_and_one_warning_says_where_it_is(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(500))
    data = damage(path)
    with CostStore.open(path) as store:
        with pytest.warns(UserWarning, match="was damaged .* a new one is begun") as told:
            assert store.rows() == []
        assert store.append(many(500))
        assert len(store.rows()) == 500
        assert store.verify().is_sound
        (aside,) = store.info().set_aside
    assert len(told) == 1 and str(told[0].message).endswith(f"the old one is kept as {aside}")
    assert re.search(r"costs\.sqlite3\.corrupt-\d{4}-\d\d-\d\d-", aside)
    assert Path(aside).read_bytes() == data


def test_damage_while_a_store_is_open_costs_no_row_that_it_writes_later(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(500))
    with CostStore.open(path) as store:
        assert len(store.read([ROW.environment], ["fwd_f32_n1"])) == 1
        damage(path)
        with pytest.warns(UserWarning, match="a new one is begun"):
            store.rows()
        assert store.append(many(3))
    with CostStore.open(path) as store:
        assert store.rows() == many(3)


def test_processes_that_meet_a_damaged_file_set_it_aside_once(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(3))
    with sqlite3.connect(path) as raw:
        raw.execute("DROP TABLE checks")
    raw.close()
    children = []
    for writer in range(1, 7):
        pid = os.fork()
        if not pid:
            warnings.simplefilter("ignore")
            with CostStore.open(path) as store:
                os._exit(0 if store.append(many(5, version=writer)) else 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
    with CostStore.open(path) as store:
        assert len(store.rows()) == 6 * 5
        assert store.verify().is_sound
        assert len(store.info().set_aside) == 1


def test_a_file_that_is_replaced_while_a_store_opens_it_gets_what_the_store_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.with_name("other.sqlite3")
    for file, count in ((path, 1), (other, 2)):
        with CostStore.open(file) as store:
            store.append(many(count))

    def replace_once(connection: sqlite3.Connection) -> None:
        make_tables(connection)
        if other.exists():  # another process
            other.replace(path)

    monkeypatch.setattr("torchalgo._db.connection.make_tables", replace_once)
    with CostStore.open(path) as store:
        assert store.rows() == many(2)
        assert store.append(many(3))
    assert rows_of(path) == many(3)


def test_a_disk_that_fails_for_a_moment_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CostStore.open(path) as store:
        store.append(many(3))
    read, times = Database.all_entries, itertools.count()

    def fail_once(database: Database, kind: type[Entry]) -> list[tuple[Entry, int]]:
        if next(times) == 0:
            raise StorageError(Cause.DAMAGED, "database disk image is malformed")
        return read(database, kind)

    monkeypatch.setattr(Database, "all_entries", fail_once)
    with CostStore.open(path) as store:
        assert store.rows() == many(3)
        assert store.info().set_aside == []


def test_a_file_of_another_program_or_of_a_newer_torchalgo_stays_as_it_is(tmp_path: Path) -> None:
    text, foreign, newer = (tmp_path / name for name in ("net.pt", "notes.db", "costs.sqlite3"))
    text.write_text("no database at all, but dear to somebody\n" * 100)
    with sqlite3.connect(foreign) as raw:
        raw.execute("CREATE TABLE notes (text)")
    raw.close()
    CostStore.open(newer).close()
    with sqlite3.connect(newer) as raw:
        raw.execute("PRAGMA user_version = 4")
    raw.close()
    for file, reason in ((text, "stays"), (foreign, "stays"), (newer, "schema 4")):
        before = file.read_bytes()
        with pytest.warns(UserWarning, match=reason):
            store = CostStore.open(file)
        assert store.is_in_memory
        assert not store.append(many(2))
        assert store.rows() == many(2)
        store.close()
        assert file.read_bytes() == before
        assert not list(tmp_path.glob("*.corrupt-*"))


def test_a_hostile_schema_is_not_run(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(2))
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TRIGGER t AFTER INSERT ON costs BEGIN DELETE FROM costs; END")
    raw.close()
    with pytest.warns(UserWarning, match="was damaged"):
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


def test_a_network_file_system_gets_a_rollback_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.file_system(Path("/proc")) == "proc"
    monkeypatch.setattr(files, "file_system", lambda _: "nfs4")
    with CostStore.open(path) as store:
        assert store.append(many(3))
        assert store.info().journal == "rollback"
    assert rows_of(path) == many(3)


def test_a_deleted_file_is_made_again(path: Path) -> None:
    with CostStore.open(path) as store:
        store.append(many(2))
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        assert store.append(many(1))
        assert rows_of(path) == many(1)


def test_one_warning_tells_however_much_goes_wrong(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = CostStore.open(tmp_path / "none" / "costs.sqlite3")
        for _ in range(5):
            store.append(many(2))
            store.read([ROW.environment])
            store.verify()
        store.close()
    assert len(caught) == 1
