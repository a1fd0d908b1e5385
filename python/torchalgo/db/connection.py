# SPDX-License-Identifier: BSD-3-Clause
"""SQLite: one open file. Everything it can fail with leaves here as StorageError."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchalgo.db import files
from torchalgo.db.row import COLUMNS, Row, RowKey, join, row_of
from torchalgo.db.trouble import Cause, StorageError

T = TypeVar("T")

APPLICATION_ID = 0x746F616C
SCHEMA = 1  # user_version
SHORT_S = 0.1  # how long to wait for other processes once a long wait was in vain
MAGIC = b"SQLite format 3\x00"

_SYNC = {
    # No commit is lost when processes are killed; a power cut may take the last ones back.
    "wal": "NORMAL",
    "rollback": "FULL",
}

_KEY = RowKey._fields
_TABLES = {
    "costs": (
        "CREATE TABLE costs (environment TEXT NOT NULL, problem TEXT NOT NULL,"
        " primitive TEXT NOT NULL, src TEXT NOT NULL, dst TEXT NOT NULL, version INTEGER NOT NULL,"
        " ticks INTEGER NOT NULL, noise_ticks INTEGER NOT NULL, samples INTEGER NOT NULL,"
        " median_ticks INTEGER NOT NULL, p10_ticks INTEGER NOT NULL, p90_ticks INTEGER NOT NULL,"
        " workspace_bytes INTEGER, rel_error REAL, provenance TEXT NOT NULL,"
        " measured_at INTEGER NOT NULL, checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
        f" PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
    ),
    "verdicts": (
        "CREATE TABLE verdicts (plan TEXT NOT NULL, environment TEXT NOT NULL,"
        " verdict TEXT NOT NULL, checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
        " PRIMARY KEY (plan, environment)) WITHOUT ROWID"
    ),
}
_ALL = ", ".join((*COLUMNS, "checksum", "last_used"))
_IS_KEY = " AND ".join(f"{name} = ?" for name in _KEY)
_PUT = f"INTO costs ({_ALL}) VALUES ({', '.join('?' * (len(COLUMNS) + 2))})"


_DAMAGED = ("malformed", "not a database", "no such table", "no such column", "file format")


def _trouble_of(error: sqlite3.Error) -> StorageError:
    # By its text: SQLite's number is in the exception since Python 3.11 only.
    text = str(error)
    if any(words in text for words in _DAMAGED):
        return StorageError(Cause.DAMAGED, text)
    if "locking protocol" in text:
        return StorageError(Cause.LOCKLESS, text)
    return StorageError(Cause.BUSY if "is locked" in text else Cause.UNUSABLE, text)


class Database:
    """An open database file; raises StorageError only. Not for several threads at a time."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, journal: str, busy_s: float
    ) -> None:
        self._connection = connection
        self._busy_s = busy_s
        self.journal = journal  # wal | rollback | read-only
        self.file = files.identity(path)
        self._was_busy = False

    # ---- opening -------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: Path, busy_s: float, *, has_log: bool = True) -> Database:
        """Opens or makes the file, with a write-ahead log beside it where that can be.

        Raises: StorageError if it cannot be written.
        """
        before = files.identity(path)
        try:
            if not files.has_locks(path.parent):
                raise StorageError(Cause.LOCKLESS, "its file system has no locks")
        except OSError as problem:
            raise StorageError(Cause.UNUSABLE, f"cannot be written: {problem.strerror}") from None
        connection = _connect(path, "rwc", busy_s)
        try:
            if before is None:
                path.chmod(0o600)
            if not _is_empty(connection):
                _check_tables(connection)  # before anything is changed
            journal = _set_journal(connection, has_log and not files.is_network(path), busy_s)
            _execute(connection, "PRAGMA synchronous = " + _SYNC[journal])
            _make_tables(connection)
            if before is not None and before != files.identity(path):
                raise StorageError(Cause.BUSY, "another process put a file in its place")
        except OSError as problem:
            connection.close()
            raise StorageError(Cause.UNUSABLE, str(problem)) from None
        except BaseException:
            connection.close()
            raise
        return cls(connection, path, journal, busy_s)

    @classmethod
    def open_read_only(cls, path: Path, busy_s: float, *, has_locks: bool = True) -> Database:
        """Opens a file that exists, and changes nothing."""
        trouble = StorageError(Cause.UNUSABLE, "unable to open database file")
        for mode in ("ro", "ro&immutable=1")[not has_locks :]:
            connection = _connect(path, mode, busy_s)
            try:
                _check_tables(connection)
                return cls(connection, path, "read-only", busy_s)
            except StorageError as problem:
                connection.close()
                trouble = problem
        raise trouble

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    # ---- rows ----------------------------------------------------------------------------------

    def rows(self, environments: Iterable[str], problems: Iterable[str]) -> list[tuple[Row, int]]:
        """The sound rows of some environments and problems, with the day each was last used."""
        found: list[tuple[Row, int]] = []
        environments = list(environments)
        for problem in sorted(set(problems)):
            for environment in environments:
                found += self._select("WHERE environment = ? AND problem = ?", environment, problem)
        return found

    def rows_of(self, environments: Iterable[str]) -> list[tuple[Row, int]]:
        """The same for every problem."""
        found: list[tuple[Row, int]] = []
        for environment in environments:
            found += self._select("WHERE environment = ?", environment)
        return found

    def all_rows(self) -> list[tuple[Row, int]]:
        """Every sound row, in the order of its key."""
        return self._select("")

    def unsound_keys(self) -> list[tuple[Any, ...]]:
        """The keys of rows that are damaged, edited or absurd."""
        key = slice(0, len(_KEY))
        raw = self._fetch(f"SELECT {_ALL} FROM costs")
        return [values[key] for values in raw if row_of(values[:-2], values[-2]) is None]

    def put(self, rows: Iterable[Row], day: int, *, over: bool = True) -> None:
        """Writes rows in one transaction, `over` older ones of their keys."""
        values = [(*row.values, row.checksum, day) for row in rows]
        with self.transaction():
            self._many(f"INSERT OR {'REPLACE' if over else 'IGNORE'} {_PUT}", values)

    def join(self, rows: Iterable[Row], day: int) -> int:
        """Joins rows with those of their keys in one transaction; how many changed the file."""
        taken = []
        with self.transaction():
            for row in rows:
                found = self._select(f"WHERE {_IS_KEY}", *row.row_key)
                if not found or join(found[0][0], row) != found[0][0]:
                    taken.append((*row.values, row.checksum, day))
            self._many(f"INSERT OR REPLACE {_PUT}", taken)
        return len(taken)

    def mark_used(self, keys: Iterable[RowKey], day: int) -> None:
        with self.transaction():
            change = f"UPDATE costs SET last_used = ? WHERE {_IS_KEY}"
            self._many(change, [(day, *key) for key in keys])

    def drop(self, keys: Iterable[tuple[Any, ...]]) -> None:
        with self.transaction():
            self._many(f"DELETE FROM costs WHERE {_IS_KEY}", list(keys))

    def drop_oldest(self, count: int, today: int) -> int:
        """Drops rows and verdicts that were not used for longest; how many rows it was."""
        order = "ORDER BY min(last_used, ?), checksum LIMIT ?"  # a day to come counts as today
        key = ", ".join(_KEY)
        with self.transaction():
            self._run(
                f"DELETE FROM costs WHERE ({key}) IN (SELECT {key} FROM costs {order})",
                today,
                count,
            )
            dropped: int = self._run("SELECT changes()")[0][0]
            where = "(plan, environment) IN (SELECT plan, environment FROM verdicts"
            self._run(f"DELETE FROM verdicts WHERE {where} {order})", today, count)
        return dropped

    # ---- verdicts ------------------------------------------------------------------------------

    def verdict(self, plan: str, environment: str) -> tuple[Any, ...] | None:
        """verdict, checksum and the day of its last use, unchecked."""
        found = self._fetch(
            "SELECT verdict, checksum, last_used FROM verdicts WHERE plan = ? AND environment = ?",
            plan,
            environment,
        )
        return found[0] if found else None

    def put_verdict(
        self, plan: str, environment: str, verdict: str, checksum: str, day: int
    ) -> None:
        with self.transaction():
            self._run(
                "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?)",
                plan,
                environment,
                verdict,
                checksum,
                day,
            )

    def count(self, table: str) -> int:
        number: int = self._fetch(f"SELECT count(*) FROM {table}")[0][0]
        return number

    # ---- the file ------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """What is used of the file; freed pages do not count."""
        pages, free, size = (
            self._fetch(f"PRAGMA {name}")[0][0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def shrink(self) -> None:
        """Gives freed pages back to the file system."""
        self._fetch("PRAGMA incremental_vacuum")
        if self.journal == "wal":
            self._fetch("PRAGMA wal_checkpoint(TRUNCATE)")

    def damages(self) -> list[str]:
        """What SQLite's own check of the file finds."""
        found = [str(line) for (line,) in self._fetch("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing. It is committed when the block has ended without StorageError."""
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

    def _select(self, where: str, *values: object) -> list[tuple[Row, int]]:
        raw = self._fetch(f"SELECT {_ALL} FROM costs {where}", *values)
        found = ((row_of(v[:-2], v[-2]), v[-1]) for v in raw)
        return [(row, day if type(day) is int else 0) for row, day in found if row is not None]

    def _fetch(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return _execute(self._connection, sql, values)

    def _run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return _execute(self._connection, sql, values)

    def _many(self, sql: str, values: Sequence[Sequence[object]]) -> None:
        try:
            self._connection.executemany(sql, values)
        except sqlite3.Error as error:
            raise _trouble_of(error) from None


def is_sound(path: Path, rows: int = 0) -> bool:
    """Whether SQLite finds nothing wrong with a file of at least so many rows."""
    try:
        with contextlib.closing(Database.open_read_only(path, busy_s=1.0)) as database:
            return not database.damages() and len(database.all_rows()) >= rows
    except StorageError:
        return False


def salvage(path: Path) -> list[Row]:
    """The sound rows of a damaged file, as far as SQLite can still reach them.

    Raises: StorageError if the file may be sound and only cannot be read now.
    """
    rows: dict[RowKey, Row] = {}
    for mode in ("rw", "ro&immutable=1"):
        for order in ("", "ORDER BY " + ", ".join(f"{name} DESC" for name in _KEY)):
            try:
                _salvage_into(rows, path, mode, order)
            except StorageError as problem:
                if problem.cause is not Cause.DAMAGED and mode == "rw":
                    raise
        if rows:
            break
    return list(rows.values())


def _salvage_into(rows: dict[RowKey, Row], path: Path, mode: str, order: str) -> None:
    connection = _connect(path, mode, busy_s=1.0)
    try:
        for values in connection.execute(f"SELECT {_ALL} FROM costs {order}"):
            row = row_of(values[:-2], values[-2])
            if row is not None:
                rows.setdefault(row.row_key, row)
    except sqlite3.Error as error:
        raise _trouble_of(error) from None
    finally:
        connection.close()


def looks_like_ours(path: Path) -> bool:
    """Whether a file that SQLite cannot read is a damaged database and not something else."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return False
    application = int.from_bytes(head[68:72], "big")
    is_sqlite = head.startswith(MAGIC)
    return path.name == files.FILE_NAME or (is_sqlite and application == APPLICATION_ID)


def _connect(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # A damaged text is a row without a matching checksum, hence a miss, and no error.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # What a hostile file could bring along: functions in its schema, cells that overlap.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
    except sqlite3.Error as error:
        raise _trouble_of(error) from None
    return connection


def _execute(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise _trouble_of(error) from None


def _patiently(work: Callable[[], T], busy_s: float) -> T:
    """SQLite does not wait by itself where waiting could mean a deadlock, as for the log's mode."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            return work()
        except StorageError as trouble:
            if trouble.cause is not Cause.BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _set_journal(connection: sqlite3.Connection, has_log: bool, busy_s: float) -> str:
    """A write-ahead log where the file system can, else a rollback journal."""

    def set_mode(mode: str) -> str:
        if not _execute(connection, "PRAGMA page_count")[0][0]:
            _execute(connection, "PRAGMA auto_vacuum = INCREMENTAL")
        is_wal = _execute(connection, f"PRAGMA journal_mode = {mode}")[0][0] == "wal"
        return "wal" if is_wal else "rollback"

    if has_log:
        try:
            return _patiently(lambda: set_mode("WAL"), busy_s)
        except StorageError as trouble:
            if trouble.cause not in (Cause.UNUSABLE, Cause.LOCKLESS):
                raise
    return _patiently(lambda: set_mode("DELETE"), busy_s)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty file."""
    if not _is_empty(connection):
        return
    _execute(connection, "BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):  # no other process was faster
            for sql in _TABLES.values():
                _execute(connection, sql)
            _execute(connection, f"PRAGMA application_id = {APPLICATION_ID}")
            _execute(connection, f"PRAGMA user_version = {SCHEMA}")
        _execute(connection, "COMMIT")
    except StorageError:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    _check_tables(connection)


def _is_empty(connection: sqlite3.Connection) -> bool:
    is_ours = _execute(connection, "PRAGMA application_id")[0][0] == APPLICATION_ID
    return not is_ours and not _execute(connection, "SELECT 1 FROM sqlite_master LIMIT 1")


def _check_tables(connection: sqlite3.Connection) -> None:
    """Raises StorageError unless the file has our tables and nothing else: no view, no trigger."""
    application = _execute(connection, "PRAGMA application_id")[0][0]
    version = _execute(connection, "PRAGMA user_version")[0][0]
    if application != APPLICATION_ID:
        raise StorageError(Cause.DAMAGED, "it is no database of torchalgo")
    if version > SCHEMA:
        raise StorageError(Cause.NEWER, f"it has schema {version}, this torchalgo reads {SCHEMA}")
    found = dict(_execute(connection, "SELECT name, sql FROM sqlite_master"))
    if version != SCHEMA or found != _TABLES:
        raise StorageError(Cause.DAMAGED, "its tables are not those of schema 1")
