# SPDX-License-Identifier: BSD-3-Clause
"""One database file: opened when needed, set aside if damaged, not used if that fails."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchalgo._db import files
from torchalgo._db.errors import Cause, StorageError

if TYPE_CHECKING:  # Python may lack SQLite, so this is imported when it is used
    from torchalgo._db.connection import Database

T = TypeVar("T")

DAY_S = 86400

# Databases of a parent process. They stay open here: closing one would disturb the parent's file.
_inherited: list[object] = []


def today() -> int:
    """Returns the days since 1970."""
    return max(0, int(time.time() // DAY_S))


class StoreFile:
    """A database file for several threads. It never raises an error of the file.

    If the file cannot be used, it gives one warning, and a call returns the value for that case.
    """

    def __init__(self, path: Path | None, busy_s: float, read_only: bool) -> None:
        self._path, self._busy_s, self._read_only = path, busy_s, read_only
        self._database: Database | None = None
        self._gave_up = ""  # why nothing is read or written any more
        self._trouble = ""
        self._has_warned = False
        self._mutex = threading.RLock()
        self._pid = os.getpid()

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def trouble(self) -> str:
        """Returns why the costs are not on disk; empty if they are."""
        return self._gave_up or self._trouble

    @property
    def is_in_memory(self) -> bool:
        """Returns whether there is no file, so that nothing outlives this store."""
        with self._locked():
            return self._connected() is None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if os.getpid() != self._pid:  # a forked process: another thread may have held the mutex
            _inherited.append(self._database)
            self._database, self._mutex, self._pid = None, threading.RLock(), os.getpid()
        with self._mutex:
            yield

    @property
    def _can_write(self) -> bool:
        database = self._connected()
        return database is not None and database.journal != "read-only"

    def _run(self, work: Callable[[Database], T], otherwise: T) -> T:
        """Returns the result of `work`; `otherwise` if it fails or there is no database."""
        for _ in range(3):
            database = self._connected()
            if database is None:
                return otherwise
            try:
                result = work(database)
            except StorageError as trouble:
                if trouble.cause is not Cause.DAMAGED:
                    if database.journal != "read-only" and not self._is_current(database):
                        continue  # the file was moved or deleted
                    self._warn(f"cannot be used: {trouble}")
                    if trouble.cause is Cause.LOCKLESS:
                        self._give_up(self._trouble)
                        self._database = None
                        database.close()
                    return otherwise
                self._set_aside(trouble, database.file)
                continue
            # Another process may have set the file aside while this one wrote to it.
            if database.journal == "read-only" or self._is_current(database):
                return result
        return otherwise

    def _is_current(self, database: Database) -> bool:
        return self._path is not None and files.identity(self._path) == database.file

    def _connected(self) -> Database | None:
        """Returns the open database, opened if needed; None if this store is in memory."""
        if self._gave_up or self._path is None:
            return None
        database = self._database
        if database is not None:
            if database.journal == "read-only" or self._is_current(database):
                return database
            database.close()  # the file was moved or deleted
            self._database = None
        try:
            self._database = self._open(self._path)
        except ImportError as problem:
            self._give_up(f"this Python has no SQLite: {problem}")
        except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
            self._give_up(f"cannot be used: {problem}")
        return self._database

    def _open(self, path: Path) -> Database | None:
        from torchalgo._db.connection import Database

        for _ in range(3):
            file = files.identity(path)
            reason = files.refusal(path)
            if reason:
                self._give_up(f"is refused: {reason}")
                return None
            try:
                if self._read_only:
                    return Database.open_read_only(path, self._busy_s)
                return Database.open(path, self._busy_s)
            except StorageError as trouble:
                if trouble.cause is Cause.DAMAGED and not self._read_only:
                    self._set_aside(trouble, file)
                    if self._gave_up:
                        return None
                    continue
                if file != files.identity(path) and file is not None:
                    continue  # the file was moved or deleted
                is_readable = trouble.cause in (Cause.UNUSABLE, Cause.LOCKLESS)
                if not is_readable or self._read_only:
                    self._give_up(f"cannot be used: {trouble}")
                    return None
                return self._open_for_reading(path, trouble)
        self._give_up("cannot be read again and again")
        return None

    def _open_for_reading(self, path: Path, reason: StorageError) -> Database | None:
        from torchalgo._db.connection import Database

        try:
            has_locks = reason.cause is not Cause.LOCKLESS
            database = Database.open_read_only(path, self._busy_s, has_locks=has_locks)
        except StorageError:
            self._give_up(f"cannot be used: {reason}")
            return None
        self._warn(f"can only be read: {reason}")
        return database

    def _set_aside(self, trouble: StorageError, damaged: tuple[int, int] | None) -> None:
        """Renames a damaged file, so that the next call makes a new one."""
        from torchalgo._db.connection import is_damaged, looks_like_ours

        path, database = self._path, self._database
        assert path is not None
        if database is not None:
            self._database = None
            database.close()
            if database.journal == "read-only":
                self._give_up(f"is damaged: {trouble}")
                return
        if not looks_like_ours(path):
            self._give_up(f"stays as it is: {trouble}")
            return
        try:
            aside = files.set_aside(path, damaged) if is_damaged(path) else None
        except FileNotFoundError:  # another process was faster
            return
        except OSError as problem:
            self._give_up(f"seems damaged ({trouble}) and cannot be set aside: {problem}")
            return
        if aside is not None:
            self._warn(
                f"was damaged ({trouble}): a new one is begun, and the old one is kept as {aside}"
            )

    def _give_up(self, reason: str) -> None:
        self._gave_up = reason
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        self._trouble = reason
        if not self._has_warned:
            self._has_warned = True
            place = f"the cost database {self._path or ''}".strip()
            kept = "" if "a new one is begun" in reason else "; new costs are kept in memory"
            warnings.warn(f"torchalgo: {place} {reason}{kept}", stacklevel=2)
