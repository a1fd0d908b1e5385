# SPDX-License-Identifier: BSD-3-Clause
"""The tables of a database file, and the conversion of SQLite's errors to StorageError."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchalgo._db.errors import Cause, StorageError
from torchalgo._db.row import Check, Entry, Refusal, Row, RowKey, columns_of

APPLICATION_ID = 0x746F616C
SCHEMA = 3  # stored as user_version

# The table of each kind of entry.
TABLE_OF: dict[type[Entry], str] = {Row: "costs", Refusal: "refusals", Check: "checks"}
KEY = RowKey._fields
# Tables with one text per name and environment: the columns of the name and of the text.
TEXTS = {"verdicts": ("plan", "verdict"), "peaks": ("device", "rates")}
_KEY_COLUMNS = (
    "environment TEXT NOT NULL, problem TEXT NOT NULL,"
    " primitive TEXT NOT NULL, src TEXT NOT NULL, dst TEXT NOT NULL, version INTEGER NOT NULL,"
)
_LAST_COLUMNS = (
    " checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
    f" PRIMARY KEY ({', '.join(KEY)})) WITHOUT ROWID"
)
TABLES = {
    "costs": (
        f"CREATE TABLE costs ({_KEY_COLUMNS}"
        " ticks INTEGER NOT NULL, noise_ticks INTEGER NOT NULL, samples INTEGER NOT NULL,"
        " median_ticks INTEGER NOT NULL, p10_ticks INTEGER NOT NULL, p90_ticks INTEGER NOT NULL,"
        " workspace_bytes INTEGER, rel_error REAL, provenance TEXT NOT NULL,"
        f" measured_at INTEGER NOT NULL,{_LAST_COLUMNS}"
    ),
    "verdicts": (
        "CREATE TABLE verdicts (plan TEXT NOT NULL, environment TEXT NOT NULL,"
        " verdict TEXT NOT NULL, checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
        " PRIMARY KEY (plan, environment)) WITHOUT ROWID"
    ),
    "peaks": (
        "CREATE TABLE peaks (device TEXT NOT NULL, environment TEXT NOT NULL,"
        " rates TEXT NOT NULL, checksum TEXT NOT NULL, last_used INTEGER NOT NULL,"
        " PRIMARY KEY (device, environment)) WITHOUT ROWID"
    ),
    "refusals": (
        f"CREATE TABLE refusals ({_KEY_COLUMNS}"
        " kind TEXT NOT NULL, reason TEXT NOT NULL, bound REAL, provenance TEXT NOT NULL,"
        f" refused_at INTEGER NOT NULL,{_LAST_COLUMNS}"
    ),
    "checks": (
        f"CREATE TABLE checks ({_KEY_COLUMNS}"
        " gate INTEGER NOT NULL, rel_error REAL NOT NULL, bound REAL NOT NULL,"
        f" provenance TEXT NOT NULL, checked_at INTEGER NOT NULL,{_LAST_COLUMNS}"
    ),
}
# The tables that each newer schema adds to the one before.
ADDED_IN = {2: ("refusals", "peaks"), 3: ("checks",)}


def tables_of(schema: int) -> dict[str, str]:
    """Returns the tables of a schema, by name."""
    later = {name for version, names in ADDED_IN.items() if version > schema for name in names}
    return {name: sql for name, sql in TABLES.items() if name not in later}


def columns_in_file(kind: type[Entry]) -> str:
    """Returns an SQL list of the columns of an entry: its values, its checksum, its last use."""
    return ", ".join((*columns_of(kind), "checksum", "last_used"))


def connect(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # A damaged text must not raise an error here. Its row is ignored, because the checksum
        # differs.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        # These protect from hostile files, which may have functions in the schema or cells that
        # overlap.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA mmap_size = 0")
    except sqlite3.Error as error:
        raise trouble_of(error) from None
    return connection


def execute(
    connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.Error as error:
        raise trouble_of(error) from None


_DAMAGED = ("malformed", "not a database", "no such table", "no such column", "file format")


def trouble_of(error: sqlite3.Error) -> StorageError:
    # Reads the text of the error: the exception has SQLite's error number only since Python 3.11.
    text = str(error)
    if any(words in text for words in _DAMAGED):
        return StorageError(Cause.DAMAGED, text)
    if "locking protocol" in text:
        return StorageError(Cause.LOCKLESS, text)
    return StorageError(Cause.BUSY if "is locked" in text else Cause.UNUSABLE, text)


def make_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables in an empty file, or the missing ones in a file of an older schema."""
    if not is_empty(connection) and _schema_of(connection) == SCHEMA:
        return
    execute(connection, "BEGIN IMMEDIATE")
    try:
        if is_empty(connection):  # another process may have made them meanwhile
            there: dict[str, str] = {}
            execute(connection, f"PRAGMA application_id = {APPLICATION_ID}")
        else:
            there = tables_of(_schema_of(connection))
        for name, sql in TABLES.items():
            if name not in there:
                execute(connection, sql)
        execute(connection, f"PRAGMA user_version = {SCHEMA}")
        execute(connection, "COMMIT")
    except StorageError:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    check_tables(connection)


def is_empty(connection: sqlite3.Connection) -> bool:
    is_ours = execute(connection, "PRAGMA application_id")[0][0] == APPLICATION_ID
    return not is_ours and not execute(connection, "SELECT 1 FROM sqlite_master LIMIT 1")


def check_tables(connection: sqlite3.Connection) -> int:
    """Returns the schema of the file, this one or an older one.

    Raises: StorageError unless the file has exactly its tables: no view and no trigger.
    """
    application = execute(connection, "PRAGMA application_id")[0][0]
    version = _schema_of(connection)
    if application != APPLICATION_ID:
        raise StorageError(Cause.DAMAGED, "it is no database of torchalgo")
    if version > SCHEMA:
        raise StorageError(Cause.NEWER, f"it has schema {version}, this torchalgo reads {SCHEMA}")
    found = dict(execute(connection, "SELECT name, sql FROM sqlite_master"))
    if version < 1 or found != tables_of(version):
        raise StorageError(Cause.DAMAGED, f"its tables are not those of schema {version}")
    return version


def _schema_of(connection: sqlite3.Connection) -> int:
    version: int = execute(connection, "PRAGMA user_version")[0][0]
    return version
