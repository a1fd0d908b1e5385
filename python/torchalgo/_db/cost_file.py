# SPDX-License-Identifier: BSD-3-Clause
"""The file of the cost database: one SQLite table with a column for the kind of each entry."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchalgo._db import files
from torchalgo._db.row import (
    DAY_S,
    KINDS_OF_ENTRY,
    Check,
    E,
    Entry,
    PeakRates,
    Refusal,
    Row,
    Text,
    Verdict,
    checksum_of,
    columns_of,
    entry_of,
)

APPLICATION_ID = 0x746F616C
SCHEMA = 4  # stored as user_version
KEY = ("kind", *columns_of(Entry))
# `body` is a JSON list of the values that are not in a column of their own.
TABLE = (
    "CREATE TABLE entries (kind TEXT NOT NULL, environment TEXT NOT NULL, problem TEXT NOT NULL,"
    " primitive TEXT NOT NULL, src TEXT NOT NULL, dst TEXT NOT NULL, version INTEGER NOT NULL,"
    " body TEXT NOT NULL, checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
    f" PRIMARY KEY ({', '.join(KEY)})) WITHOUT ROWID"
)
# The tables of schemas 1 to 3: the kind of their entries, and the first schema that has them.
OLD_TABLES: dict[str, tuple[type[Entry], int]] = {
    "costs": (Row, 1), "verdicts": (Verdict, 1), "refusals": (Refusal, 2), "peaks": (PeakRates, 2),
    "checks": (Check, 3),
}  # fmt: skip
MOST_NAMES = 200  # most names in one statement
_IS_KEY = " AND ".join(f"{name} = ?" for name in KEY)
_OF_NAME = {kind.NAME: kind for kind in KINDS_OF_ENTRY}

RowKeys = Iterable[Sequence[Any]]  # values of KEY
Found = list[tuple[E, int]]  # entries, and the day of each one's last use


class CostFile:
    """An open database file, for one thread at a time. Its methods raise only OSError."""

    def __init__(self, connection: sqlite3.Connection, path: Path, why_read_only: str) -> None:
        self._connection, self._path = connection, path
        self._identity = files.identity(path)
        self.why_read_only = why_read_only  # "" if the file can be written

    @staticmethod
    def open(path: Path, busy_s: float, *, read_only: bool = False) -> CostFile:
        """Opens the file, or creates it. If it cannot be written, opens it for reading.

        Raises: OSError if it cannot be read either, or is no database that this torchalgo reads.
        """
        if read_only:
            return CostFile(_open_to_read(path, busy_s), path, "it is opened for reading")
        reason = files.write_trouble(path.parent)
        try:
            if not reason:
                return CostFile(_open_to_write(path, busy_s), path, "")
        except OSError as problem:
            reason = problem.strerror or str(problem)
        try:
            return CostFile(_open_to_read(path, busy_s), path, reason)
        except OSError:
            raise OSError(reason) from None

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @property
    def is_current(self) -> bool:
        """Returns whether the file is still at its path."""
        return files.identity(self._path) == self._identity

    # ---- reading -------------------------------------------------------------------------------

    def entries(
        self,
        kind: type[E],
        environments: Iterable[str] | None = None,
        problems: Iterable[str] | None = None,
    ) -> Found[E]:
        """Returns the sound entries of a kind, of some environments and problems; None is all."""
        where, values = "kind = ?", [kind.NAME]
        if environments is not None:
            named = sorted(set(environments))
            where, values = f"{where} AND environment IN ({_marks(named)})", [*values, *named]
        if problems is None:
            return self._select(kind, where, values)
        found: Found[E] = []
        wanted = sorted(set(problems))
        for i in range(0, len(wanted), MOST_NAMES):
            part = wanted[i : i + MOST_NAMES]
            found += self._select(
                kind, f"{where} AND problem IN ({_marks(part)})", [*values, *part]
            )
        return found

    def _known(self, entry: Entry) -> Entry | None:
        """Returns the sound entry with the same kind and key."""
        found = self._select(type(entry), _IS_KEY, entry.row_key)
        return found[0][0] if found else None

    def has_any(self, kind: type[Entry], environments: Sequence[str]) -> bool:
        """Returns whether there is an entry of one of the environments, sound or not."""
        where = f"kind = ? AND environment IN ({_marks(environments)})"
        return bool(
            self._run(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", kind.NAME, *environments)
        )

    def unsound_keys(self) -> list[tuple[Any, ...]]:
        """Returns the keys of entries that are damaged, edited or have impossible values."""
        raw = self._run(f"SELECT {', '.join(KEY)}, body, checksum FROM entries")
        return [r[:7] for r in raw if r[0] not in _OF_NAME or _entry(_OF_NAME[r[0]], r[1:]) is None]

    def size_bytes(self) -> int:
        """Returns the bytes of the file that are in use, without its free pages."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._run(f"PRAGMA {name}")[0][0] for name in names)
        return int((pages - free) * size)

    def damages(self) -> list[str]:
        """Returns what SQLite's own check finds wrong with the file; an empty list if nothing."""
        found = [str(line) for (line,) in self._run("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def _select(self, kind: type[E], where: str, values: Sequence[object]) -> Found[E]:
        columns = ", ".join((*KEY[1:], "body", "checksum", "last_used"))
        raw = self._run(f"SELECT {columns} FROM entries WHERE {where}", *values)
        found = ((_entry(kind, r[:-1]), _day(r[-1])) for r in raw)
        return [(entry, day) for entry, day in found if entry is not None]

    # ---- writing -------------------------------------------------------------------------------

    def put(self, entries: Iterable[Entry], day: int) -> None:
        """Writes entries in one transaction, in place of those with the same keys."""
        with _transaction(self._connection):
            _insert(self._connection, [(*_raw(entry), day) for entry in entries])

    def put_changed(
        self, entries: Iterable[Entry], is_better: Callable[[Entry, Entry | None], bool], day: int
    ) -> int:
        """Writes the entries that are better than those with the same keys, in one transaction.

        Returns the number of written entries.
        """
        with _transaction(self._connection):
            new = [e for e in entries if is_better(e, self._known(e))]
            _insert(self._connection, [(*_raw(entry), day) for entry in new])
        return len(new)

    def mark_used(self, keys: RowKeys, day: int) -> None:
        with _transaction(self._connection):
            change = f"UPDATE entries SET last_used = ? WHERE {_IS_KEY}"
            self._connection.executemany(change, [(day, *key) for key in keys])

    def drop(self, keys: RowKeys) -> None:
        with _transaction(self._connection):
            self._connection.executemany(f"DELETE FROM entries WHERE {_IS_KEY}", list(keys))

    def shrink(self, most_bytes: int, today: int) -> int:
        """Drops entries that were not used for the longest time until the file fits `most_bytes`.

        Returns the number of dropped entries. The file keeps its free pages for new entries.
        """
        dropped, names = 0, ", ".join(KEY)
        # A last use in the future counts as today.
        oldest = f"SELECT {names} FROM entries ORDER BY min(last_used, ?), checksum LIMIT ?"
        while (size := self.size_bytes()) > most_bytes:
            count = self._run("SELECT count(*) FROM entries")[0][0]
            if not count:
                break
            limit = math.ceil(count * (1 - most_bytes / size))
            with _transaction(self._connection):
                self._run(f"DELETE FROM entries WHERE ({names}) IN ({oldest})", today, limit)
            dropped += limit
        return dropped

    def vacuum(self) -> None:
        """Returns free pages to the file system."""
        self._run("VACUUM")

    def _run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with _as_os_errors():
            return self._connection.execute(sql, values).fetchall()


# ---- entries as tuples ---------------------------------------------------------------------------


def _raw(entry: Entry) -> tuple[Any, ...]:
    """Returns the values of the columns of an entry, without its last use."""
    values = entry.values
    body = json.dumps(values[6:], separators=(",", ":"))
    return (entry.NAME, *values[:6], body, entry.checksum)


def _entry(kind: type[E], raw: Sequence[Any]) -> E | None:
    """Makes an entry from the six values of its key, its body and its checksum."""
    *key, body, checksum = raw
    try:
        rest = json.loads(body)
        return entry_of(kind, [*key, *rest], checksum)
    except (TypeError, ValueError, RecursionError):
        return None


def _day(value: object) -> int:
    return value if type(value) is int else 0


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _insert(connection: sqlite3.Connection, raw: Sequence[Sequence[Any]]) -> None:
    connection.executemany(
        f"INSERT OR REPLACE INTO entries VALUES ({_marks((*KEY, 1, 2, 3))})", raw
    )


# ---- opening -------------------------------------------------------------------------------------


def _open_to_write(path: Path, busy_s: float) -> sqlite3.Connection:
    is_new = not path.exists()
    connection = _connect(path, "rwc", busy_s)
    try:
        if is_new:
            path.chmod(0o600)
        with _as_os_errors():
            if _schema_of(connection) != SCHEMA:
                _make_table(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            with contextlib.suppress(sqlite3.Error):  # an older torchalgo left a write-ahead log
                connection.execute("PRAGMA journal_mode = DELETE")
        return connection
    except BaseException:
        connection.close()
        raise


def _open_to_read(path: Path, busy_s: float) -> sqlite3.Connection:
    """Opens the file and changes nothing. The entries of an older schema are copied to memory."""
    problem = OSError("unable to open database file")
    modes = ["ro&immutable=1"] if files.write_trouble(path.parent) == files.NO_LOCKS else ["ro"]
    if not Path(f"{path}-journal").exists():  # without a lock, an unfinished write would be read
        modes.append("ro&immutable=1")
    for mode in modes:
        connection = _connect(path, mode, busy_s)
        try:
            with _as_os_errors():
                schema = _schema_of(connection)
                if schema == SCHEMA:
                    return connection
                copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                copy.execute(TABLE)
                _insert(copy, list(_old_rows(connection, schema)))
            connection.close()
            return copy
        except OSError as found:
            connection.close()
            problem = found
    raise problem


def _connect(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    with _as_os_errors():
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # A damaged text must not raise an error here: its checksum differs, so it is ignored.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # These protect from hostile files, which may have functions in the schema or cells that
        # overlap.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
    return connection


def _schema_of(connection: sqlite3.Connection) -> int:
    """Returns the schema of the file, 0 if it is empty.

    Raises: OSError unless the file has exactly the tables of its schema: no view and no trigger.
    """
    application, schema = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    if not tables and not application:
        return 0
    if application != APPLICATION_ID:
        raise OSError("it is no database of torchalgo")
    if schema > SCHEMA:
        raise OSError(f"it has schema {schema}, this torchalgo reads {SCHEMA}")
    old = {("table", name) for name, (_, first) in OLD_TABLES.items() if first <= schema}
    is_sound = tables == [("table", "entries", TABLE)]
    if schema < SCHEMA:
        is_sound = schema > 0 and sorted(t[:2] for t in tables) == sorted(old)
    if not is_sound:
        raise OSError(f"its tables are not those of schema {schema}")
    return int(schema)


def _make_table(connection: sqlite3.Connection) -> None:
    """Makes the table in an empty file, or moves the entries of an older schema into it."""
    with _transaction(connection):
        schema = _schema_of(connection)
        if schema == SCHEMA:  # another process was faster
            return
        raw = list(_old_rows(connection, schema))
        for name, (_, first) in OLD_TABLES.items():
            if first <= schema:
                connection.execute(f"DROP TABLE {name}")
        connection.execute(TABLE)
        _insert(connection, raw)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _old_rows(connection: sqlite3.Connection, schema: int) -> Iterator[tuple[Any, ...]]:
    """Yields the values of the columns of the sound entries of a file of an older schema."""
    for table, (kind, first) in OLD_TABLES.items():
        if first > schema:
            continue
        is_text = issubclass(kind, Text)
        names = "*" if is_text else ", ".join((*columns_of(kind), "checksum", "last_used"))
        for *values, checksum, last_used in connection.execute(f"SELECT {names} FROM {table}"):
            entry, day = None, _day(last_used)
            with contextlib.suppress(TypeError, ValueError):  # of damaged values
                if not issubclass(kind, Text):
                    entry = entry_of(kind, values, checksum)
                elif checksum == checksum_of(values):
                    name, environment, text = values
                    entry = kind.of(environment, name, text, day * DAY_S)
            if entry is not None:
                yield (*_raw(entry), day)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Runs the block in one transaction. Rolls back if the block raises."""
    with _as_os_errors():
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as problem:
        raise OSError(str(problem)) from None
