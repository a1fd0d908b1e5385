# SPDX-License-Identifier: BSD-3-Clause
"""One open SQLite file. All its errors are raised as StorageError."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchalgo._db import files
from torchalgo._db.errors import Cause, StorageError
from torchalgo._db.row import KINDS_OF_ENTRY, E, Entry, RowKey, entry_of, join
from torchalgo._db.schema import (
    APPLICATION_ID,
    KEY,
    TABLE_OF,
    TEXTS,
    check_tables,
    columns_in_file,
    connect,
    execute,
    is_empty,
    make_tables,
    tables_of,
    trouble_of,
)

T = TypeVar("T")

SHORT_S = 0.1  # seconds to wait for other processes after a long wait has failed
MAGIC = b"SQLite format 3\x00"
# No database grows so large. A larger file may be sparse, so that a copy would fill the disk.
MOST_COPIED_BYTES = 1 << 30

_SYNC = {
    # If a process is killed, no commit is lost. A power cut may undo the last commits.
    "wal": "NORMAL",
    "rollback": "FULL",
}

MOST_NAMES = 200  # most names in one statement
_IS_KEY = " AND ".join(f"{name} = ?" for name in KEY)


class Database:
    """An open database file, for one thread at a time. Its methods raise only StorageError."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, journal: str, busy_s: float
    ) -> None:
        self._connection = connection
        self._busy_s = busy_s
        self.journal = journal  # wal | rollback | read-only
        self.file = files.identity(path)
        self._was_busy = False
        self._tables = tables_of(check_tables(connection))

    # ---- opening -------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, busy_s: float, *, has_log: bool = True) -> Database:
        """Opens or creates the file, with a write-ahead log if the file system supports that.

        Raises: StorageError if the file cannot be written.
        """
        before = files.identity(path)
        try:
            if not files.has_locks(path.parent):
                raise StorageError(Cause.LOCKLESS, "its file system has no locks")
        except OSError as problem:
            raise StorageError(Cause.UNUSABLE, f"cannot be written: {problem.strerror}") from None
        connection = connect(path, "rwc", busy_s)
        try:
            if before is None:
                path.chmod(0o600)
            if not is_empty(connection):
                check_tables(connection)  # before any change
            journal = _set_journal(connection, has_log and not files.is_network(path), busy_s)
            execute(connection, "PRAGMA synchronous = " + _SYNC[journal])
            make_tables(connection)
            if before is not None and before != files.identity(path):
                raise StorageError(Cause.BUSY, "another process put a file in its place")
            return cls(connection, path, journal, busy_s)
        except OSError as problem:
            connection.close()
            raise StorageError(Cause.UNUSABLE, str(problem)) from None
        except BaseException:
            connection.close()
            raise

    @classmethod
    def open_read_only(cls, path: Path, busy_s: float, *, has_locks: bool = True) -> Database:
        """Opens an existing file and changes nothing. Raises StorageError if that fails."""
        trouble = StorageError(Cause.UNUSABLE, "unable to open database file")
        for mode in ("ro", "ro&immutable=1")[not has_locks :]:
            connection = connect(path, mode, busy_s)
            try:
                return cls(connection, path, "read-only", busy_s)
            except StorageError as problem:
                connection.close()
                trouble = problem
        raise trouble

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    # ---- entries -------------------------------------------------------------------------------

    def entries(
        self, kind: type[E], environments: Iterable[str], problems: Iterable[str] | None = None
    ) -> list[tuple[E, int]]:
        """Returns the sound entries of some environments, with the day of each one's last use.

        `problems` restricts them to some problems; None stands for all.
        """
        found: list[tuple[E, int]] = []
        named = None if problems is None else sorted(set(problems))
        for environment in environments:
            if named is None:
                found += self._select(kind, "WHERE environment = ?", environment)
                continue
            for i in range(0, len(named), MOST_NAMES):
                part = named[i : i + MOST_NAMES]
                where = f"WHERE environment = ? AND problem IN ({', '.join('?' * len(part))})"
                found += self._select(kind, where, environment, *part)
        return found

    def has_any(self, environments: Sequence[str]) -> bool:
        """Returns whether there is a cost of one of the environments."""
        marks = ", ".join("?" * len(environments))
        sql = f"SELECT 1 FROM costs WHERE environment IN ({marks}) LIMIT 1"
        return bool(self._fetch(sql, *environments))

    def all_entries(self, kind: type[E]) -> list[tuple[E, int]]:
        """Returns every sound entry of a kind and the day of its last use, in the order of keys."""
        return self._select(kind, "")

    def unsound_keys(self, kind: type[Entry]) -> list[tuple[Any, ...]]:
        """Returns the keys of entries that are damaged, edited or have impossible values."""
        key = slice(0, len(KEY))
        raw = self._raw(kind, "")
        return [values[key] for values in raw if entry_of(kind, values[:-2], values[-2]) is None]

    def put(self, entries: Iterable[Entry], day: int, *, over: bool = True) -> None:
        """Writes entries in one transaction.

        Older entries with the same keys stay if `over` is False.
        """
        with self.transaction():
            self._put(entries, day, over)

    def join(self, entries: Iterable[Entry], day: int) -> int:
        """Merges entries with those of the same keys in one transaction.

        Returns the number of entries that changed the file.
        """
        taken: list[Entry] = []
        with self.transaction():
            for entry in entries:
                found = self._select(type(entry), f"WHERE {_IS_KEY}", *entry.row_key)
                if not found or join(found[0][0], entry) != found[0][0]:
                    taken.append(entry)
            self._put(taken, day, over=True)
        return len(taken)

    def mark_used(self, kind: type[Entry], keys: Iterable[RowKey], day: int) -> None:
        with self.transaction():
            change = f"UPDATE {TABLE_OF[kind]} SET last_used = ? WHERE {_IS_KEY}"
            self._many(change, [(day, *key) for key in keys])

    def drop(self, kind: type[Entry], keys: Iterable[tuple[Any, ...]]) -> None:
        with self.transaction():
            self._many(f"DELETE FROM {TABLE_OF[kind]} WHERE {_IS_KEY}", list(keys))

    def drop_oldest(self, share: float, today: int) -> int:
        """Drops a share of each table: the entries and texts with the oldest last use.

        Returns the number of dropped entries, without texts.
        """
        dropped = 0
        with self.transaction():
            for kind in KINDS_OF_ENTRY:
                dropped += self._drop_oldest(TABLE_OF[kind], KEY, share, today)
            for table, (name, _) in TEXTS.items():
                self._drop_oldest(table, (name, "environment"), share, today)
        return dropped

    def _drop_oldest(self, table: str, key: Sequence[str], share: float, today: int) -> int:
        count = math.ceil(share * self.count(table))
        names = ", ".join(key)
        order = "ORDER BY min(last_used, ?), checksum LIMIT ?"  # the future counts as today
        self._run(
            f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM {table} {order})",
            today,
            count,
        )
        dropped: int = self._run("SELECT changes()")[0][0]
        return dropped

    def _put(self, entries: Iterable[Entry], day: int, over: bool) -> None:
        for kind in KINDS_OF_ENTRY:
            values = [(*e.values, e.checksum, day) for e in entries if type(e) is kind]
            verb = f"INSERT OR {'REPLACE' if over else 'IGNORE'} INTO {TABLE_OF[kind]}"
            if values:
                marks = ", ".join("?" * len(values[0]))
                self._many(f"{verb} ({columns_in_file(kind)}) VALUES ({marks})", values)

    # ---- texts ---------------------------------------------------------------------------------

    def text(self, table: str, name: str, environment: str) -> tuple[Any, ...] | None:
        """Returns a text of a table of TEXTS, its checksum and the day of its last use.

        None of them is checked. Returns None if there is no such text.
        """
        if table not in self._tables:
            return None
        named, text = TEXTS[table]
        where = f"{named} = ? AND environment = ?"
        found = self._fetch(
            f"SELECT {text}, checksum, last_used FROM {table} WHERE {where}", name, environment
        )
        return found[0] if found else None

    def put_text(
        self, table: str, name: str, environment: str, text: str, checksum: str, day: int
    ) -> None:
        values = (name, environment, text, checksum, day)
        with self.transaction():
            self._run(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?)", *values)

    def texts(self, table: str) -> list[tuple[str, str, str, int]]:
        """Returns name, environment, text and day of last use of each text of a table.

        None of them is checked.
        """
        if table not in self._tables:
            return []
        name, text = TEXTS[table]
        found = self._fetch(f"SELECT {name}, environment, {text}, last_used FROM {table}")
        return [(str(n), str(e), str(t), day if type(day) is int else 0) for n, e, t, day in found]

    def drop_texts(self, table: str, keys: Iterable[tuple[str, str]]) -> None:
        name, _ = TEXTS[table]
        with self.transaction():
            self._many(
                f"DELETE FROM {table} WHERE {name} = ? AND environment = ?", [*map(list, keys)]
            )

    def count(self, table: str) -> int:
        number: int = self._fetch(f"SELECT count(*) FROM {table}")[0][0]
        return number

    # ---- the file ------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Returns the bytes of the file that are in use, without its free pages."""
        pages, free, size = (
            self._fetch(f"PRAGMA {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def shrink(self) -> None:
        """Returns free pages to the file system."""
        self._fetch("PRAGMA incremental_vacuum")
        if self.journal == "wal":
            self._fetch("PRAGMA wal_checkpoint(TRUNCATE)")

    def damages(self) -> list[str]:
        """Returns what SQLite's own check finds wrong with the file; an empty list if nothing."""
        found = [str(line) for (line,) in self._fetch("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Runs the block in one transaction.

        Rolls back if the block raises, and commits otherwise.
        """
        try:
            self._run("BEGIN IMMEDIATE")
            yield
            self._run("COMMIT")
        except BaseException as problem:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            if isinstance(problem, StorageError) and problem.cause is Cause.BUSY:
                self._wait(min(SHORT_S, self._busy_s))
            raise
        if self._was_busy:
            self._wait(self._busy_s)

    def _wait(self, busy_s: float) -> None:
        self._was_busy = busy_s < self._busy_s
        self._run(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")

    def _select(self, kind: type[E], where: str, *values: object) -> list[tuple[E, int]]:
        raw = self._raw(kind, where, *values)
        found = ((entry_of(kind, v[:-2], v[-2]), v[-1]) for v in raw)
        return [(e, day if type(day) is int else 0) for e, day in found if e is not None]

    def _raw(self, kind: type[Entry], where: str, *values: object) -> list[tuple[Any, ...]]:
        if TABLE_OF[kind] not in self._tables:  # a file of an older schema, opened for reading
            return []
        return self._fetch(f"SELECT {columns_in_file(kind)} FROM {TABLE_OF[kind]} {where}", *values)

    def _fetch(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return execute(self._connection, sql, values)

    def _run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return execute(self._connection, sql, values)

    def _many(self, sql: str, values: Sequence[Sequence[object]]) -> None:
        try:
            self._connection.executemany(sql, values)
        except sqlite3.Error as error:
            raise trouble_of(error) from None


def is_damaged(path: Path) -> bool:
    """Returns whether SQLite's own check fails, or some entry cannot be read.

    Checks a copy of the file, because SQLite calls it damage too when the disk fails to read.

    Raises: OSError if the file cannot be copied, which says nothing about it.
    """
    if path.stat().st_size > MOST_COPIED_BYTES:
        return True
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for suffix in ("", "-wal", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        try:
            with contextlib.closing(Database.open(copy, busy_s=1.0)) as database:
                for kind in KINDS_OF_ENTRY:
                    database.all_entries(kind)
                return bool(database.damages())
        except StorageError as trouble:
            return trouble.cause is Cause.DAMAGED


def looks_like_ours(path: Path) -> bool:
    """Returns whether an unreadable file is a database of torchalgo, by its name or its header."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    application = int.from_bytes(head[68:72], "big")
    is_sqlite = head.startswith(MAGIC)
    return path.name == files.FILE_NAME or (is_sqlite and application == APPLICATION_ID)


def _patiently(work: Callable[[], T], busy_s: float) -> T:
    """Repeats `work` while other processes use the file, for at most `busy_s` seconds.

    SQLite does not wait itself if waiting could be a deadlock, such as when the journal mode
    changes.

    Raises: StorageError if `work` still fails then.
    """
    deadline = time.monotonic() + busy_s
    while True:
        try:
            return work()
        except StorageError as trouble:
            if trouble.cause is not Cause.BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _set_journal(connection: sqlite3.Connection, has_log: bool, busy_s: float) -> str:
    """Sets a write-ahead log, or a rollback journal if the file system does not support that.

    Returns "wal" or "rollback".
    """

    def set_mode(mode: str) -> str:
        if not execute(connection, "PRAGMA page_count")[0][0]:
            execute(connection, "PRAGMA auto_vacuum = INCREMENTAL")
        is_wal = execute(connection, f"PRAGMA journal_mode = {mode}")[0][0] == "wal"
        return "wal" if is_wal else "rollback"

    if has_log:
        try:
            return _patiently(lambda: set_mode("WAL"), busy_s)
        except StorageError as trouble:
            if trouble.cause not in (Cause.UNUSABLE, Cause.LOCKLESS):
                raise
    return _patiently(lambda: set_mode("DELETE"), busy_s)
