# SPDX-License-Identifier: BSD-3-Clause
"""The store of costs: a file if possible, otherwise memory. It never fails a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torchalgo._db import files
from torchalgo._db.counts import Info, Merged, Verified
from torchalgo._db.errors import StorageError
from torchalgo._db.row import (
    KINDS_OF_ENTRY,
    Check,
    E,
    Entry,
    Refusal,
    Row,
    RowKey,
    checksum_of,
    from_line,
    join,
    to_line,
)
from torchalgo._db.store_file import StoreFile, today

if TYPE_CHECKING:  # Python may lack SQLite, so this is imported when it is used
    from torchalgo._db.connection import Database

MAX_BYTES = 128 << 20  # largest size of the file: about 300,000 rows
SHRINK_TO = 0.75  # part of the limit that is left after the file exceeded it
BUSY_S = 10.0  # seconds to wait for other processes


class CostStore(StoreFile):
    """A store of costs, refusals, checks and the guard's verdicts, for several threads.

    It never raises an error of the file. Unreadable entries are ignored. Entries that cannot be
    written stay in memory until they can. One warning is given.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int = MAX_BYTES,
        busy_s: float = BUSY_S,
        read_only: bool = False,
        is_fresh: bool = False,
    ) -> None:
        super().__init__(path, busy_s, read_only)
        self._max_bytes = max_bytes
        self._kept: dict[tuple[type[Entry], RowKey], Entry] = {}  # entries that are not on disk
        self._kept_texts: dict[tuple[str, str, str], str] = {}
        # With is_fresh, entries() and _text() find only what this store wrote itself.
        self._is_fresh = is_fresh
        self._written: set[tuple[type[Entry], RowKey] | tuple[str, str, str]] = set()

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        busy_s: float = BUSY_S,
        read_only: bool = False,
        is_fresh: bool = False,
    ) -> CostStore:
        """Opens the store in the file `path`, at once. If that fails, the store is in memory.

        Then it gives a warning: missing rights, disk space, locks or SQLite raise no error.

        Args:
            path: None is the user's own file, which is created if missing.
            max_bytes: limit of the file. Above it, the rows that were not used for the longest time
                are dropped.
            busy_s: seconds that a call waits for other processes.
            read_only: if True, writes nothing, not even repairs by SQLite.
            is_fresh: if True, reads by environment find only what this store wrote.
        """
        try:
            place = files.default_path() if path is None else Path(path).absolute()
        except (ImportError, OSError, RuntimeError) as problem:
            store = cls(None, is_fresh=is_fresh)
            store._give_up(f"there is no place for it: {problem}")
            return store
        store = cls(
            place, max_bytes=max_bytes, busy_s=busy_s, read_only=read_only, is_fresh=is_fresh
        )
        with store._locked():
            if path is None and not read_only:
                with contextlib.suppress(OSError, ValueError):  # _connected refuses the file
                    files.make_folder(place.parent)
            store._connected()
        return store

    @classmethod
    def of_call(cls, cost_db: str | Path | Literal[False] | None, *, is_fresh: bool) -> CostStore:
        """Opens the store that the argument `cost_db` of optimize names.

        False is one in memory: the costs that one plan has measured are there for the next one.
        """
        return cls(None) if cost_db is False else cls.open(cost_db, is_fresh=is_fresh)

    def __del__(self) -> None:
        if os.getpid() == self._pid:
            self.close()

    def __enter__(self) -> CostStore:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    @property
    def unwritten(self) -> int:
        """Returns the number of rows, refusals and checks that are only in memory."""
        return len(self._kept)

    # ---- rows, refusals and checks -------------------------------------------------------------

    def read(
        self, environments: Iterable[str], problems: Iterable[str] | None = None
    ) -> dict[RowKey, Row]:
        """Returns the sound rows of some environments; `problems` restricts them to some problems.

        Rows of given problems count as used today.
        """
        return self.entries(Row, environments, problems)

    def entries(
        self,
        kind: type[E],
        environments: Iterable[str],
        problems: Iterable[str] | None = None,
        *,
        has_older: bool = False,
    ) -> dict[RowKey, E]:
        """Returns the sound entries of a kind and of some environments.

        `problems` restricts them to some problems. Entries of given problems, and all refusals,
        count as used today.

        Args:
            has_older: if True, a fresh store returns the entries of other stores too.
        """
        wanted = set(environments)
        named = None if problems is None else set(problems)
        with self._locked():
            nothing: list[tuple[E, int]] = []
            found = self._run(lambda d: d.entries(kind, sorted(wanted), named), nothing)
            entries = {entry.row_key: entry for entry, _ in found}
            if named is not None or kind is Refusal:
                self._mark_used(kind, [e.row_key for e, day in found if day != today()])
            for key, entry in self._kept_of(kind).items():
                if key.environment in wanted and (named is None or key.problem in named):
                    entries[key] = entry
            if self._is_fresh and not has_older:
                return {k: e for k, e in entries.items() if (kind, k) in self._written}
        return entries

    def _kept_of(self, kind: type[E]) -> dict[RowKey, E]:
        return {entry.row_key: entry for entry in self._kept.values() if isinstance(entry, kind)}

    def has_any(self, environments: Iterable[str]) -> bool:
        """Returns whether the file has a row of one of the environments, sound or not."""
        wanted = sorted(set(environments))
        with self._locked():
            return self._run(lambda database: database.has_any(wanted), False)

    def append(self, entries: Iterable[Entry]) -> bool:
        """Stores entries in one transaction, in place of those with the same kinds and keys.

        Leaves out entries with impossible values. Returns True if all entries are on disk.
        """
        with self._locked():
            self._kept.update({(type(e), e.row_key): e for e in entries if e.is_sane})
            self._written.update(self._kept)
            return self._flush()

    def forget(self, kind: type[Entry], keys: Iterable[RowKey]) -> int:
        """Drops the entries of a kind with these keys. Returns the number of keys."""
        dropped = set(keys)
        with self._locked():
            for key in dropped:
                self._kept.pop((kind, key), None)
                self._written.discard((kind, key))
            if dropped and self._can_write:
                self._run(lambda database: database.drop(kind, dropped), None)
        return len(dropped)

    def forget_older(self, environments: Iterable[str], problems: Iterable[str]) -> int:
        """Drops the entries of some environments and problems that this store did not write.

        Returns the number of dropped entries.
        """
        dropped, environments, problems = 0, list(environments), list(problems)
        with self._locked():
            for kind in KINDS_OF_ENTRY:
                found = self.entries(kind, environments, problems, has_older=True)
                older = [key for key in found if (kind, key) not in self._written]
                dropped += self.forget(kind, older)
        return dropped

    def rows(self) -> list[Row]:
        """Returns every sound row, in the order of keys."""
        return self.all_of(Row)

    def refusals(self) -> list[Refusal]:
        """Returns every sound refusal, in the order of keys."""
        return self.all_of(Refusal)

    def checks(self) -> list[Check]:
        """Returns every sound check, in the order of keys."""
        return self.all_of(Check)

    def all_of(self, kind: type[E]) -> list[E]:
        """Returns every sound entry of a kind, in the order of keys."""
        with self._locked():
            nothing: list[tuple[E, int]] = []
            found = self._run(lambda database: database.all_entries(kind), nothing)
            entries = {entry.row_key: entry for entry, _ in found} | self._kept_of(kind)
        return [entries[key] for key in sorted(entries)]

    def merge(self, other: CostStore | Iterable[Entry]) -> Merged:
        """Merges the rows and refusals of another store into this one, in one transaction.

        Of two entries of a kind and key, the one with the lower rank stays, so the order of merges
        does not matter. Verdicts and checks of a store are not merged: each machine checks for
        itself.
        """
        entries = [*other.rows(), *other.refusals()] if isinstance(other, CostStore) else [*other]
        sound = [entry for entry in entries if entry.is_sane]
        joined: dict[tuple[type[Entry], RowKey], Entry] = {}
        for entry in sound:
            name = type(entry), entry.row_key
            joined[name] = join(joined[name], entry) if name in joined else entry
        with self._locked():
            taken = self._join(joined)
        return Merged(len(entries), taken, len(entries) - len(sound))

    def _join(self, entries: Mapping[tuple[type[Entry], RowKey], Entry]) -> int:
        """Merges entries into the store. Returns the number of entries that changed it."""
        if self._flush() and self._can_write:
            taken = self._run(lambda database: database.join(entries.values(), today()), None)
            if taken is not None:
                return taken
        known = {(type(e), e.row_key): e for e in (*self.rows(), *self.refusals())}
        new = {k: e for k, e in entries.items() if k not in known or join(known[k], e) != known[k]}
        self._kept.update(new)
        return len(new)

    def export_lines(self) -> Iterator[str]:
        """Returns every sound row and refusal as a line of JSON. Equal stores give equal lines."""
        return map(to_line, [*self.rows(), *self.refusals()])

    def import_lines(self, lines: Iterable[str]) -> Merged:
        """Merges lines of export_lines. Leaves out lines that are damaged or of another origin."""
        read = [from_line(line) for line in lines if line.strip()]
        merged = self.merge(entry for entry in read if entry is not None)
        return Merged(len(read), merged.taken, read.count(None))

    # ---- texts ---------------------------------------------------------------------------------

    def verdict(self, plan: str, environment: str) -> str | None:
        """Returns the guard's verdict on a plan as JSON; None if there is none or it is damaged."""
        return self._text("verdicts", plan, environment)

    def keep_verdict(self, plan: str, environment: str, verdict: str) -> None:
        self._keep_text("verdicts", plan, environment, verdict)

    def verdicts(self) -> list[tuple[str, str, str, int]]:
        """Returns plan, environment, text and day of last use of every verdict on disk."""
        nothing: list[tuple[str, str, str, int]] = []
        with self._locked():
            return self._run(lambda database: database.texts("verdicts"), nothing)

    def forget_verdicts(self, keys: Iterable[tuple[str, str]]) -> None:
        """Drops verdicts by plan and environment."""
        dropped = sorted(set(keys))
        with self._locked():
            for plan, environment in dropped:
                self._kept_texts.pop(("verdicts", plan, environment), None)
            if dropped and self._can_write:
                self._run(lambda database: database.drop_texts("verdicts", dropped), None)

    def peaks(self, device: str, environment: str) -> str | None:
        """Returns the highest rates that a device was ever probed at, as JSON.

        Returns None if there are none or they are damaged.
        """
        return self._text("peaks", device, environment)

    def keep_peaks(self, device: str, environment: str, rates: str) -> None:
        self._keep_text("peaks", device, environment, rates)

    def _text(self, table: str, name: str, environment: str) -> str | None:
        with self._locked():
            if self._is_fresh and (table, name, environment) not in self._written:
                return None
            kept = self._kept_texts.get((table, name, environment))
            found = self._run(lambda database: database.text(table, name, environment), None)
            if kept is not None or found is None:
                return kept
            text, checksum, day = found
            if type(text) is not str or checksum != checksum_of([name, environment, text]):
                return None
            if day != today():
                self._put_text(table, name, environment, text)
            return text

    def _keep_text(self, table: str, name: str, environment: str, text: str) -> None:
        with self._locked():
            self._kept_texts[table, name, environment] = text
            self._written.add((table, name, environment))
            if self._put_text(table, name, environment, text):
                del self._kept_texts[table, name, environment]

    def _put_text(self, table: str, name: str, environment: str, text: str) -> bool:
        checksum = checksum_of([name, environment, text])

        def put(database: Database) -> bool:
            database.put_text(table, name, environment, text, checksum, today())
            return True

        return self._can_write and self._run(put, False)

    # ---- upkeep --------------------------------------------------------------------------------

    def info(self) -> Info:
        """Returns the path of the store and counts of its entries."""
        with self._locked():
            rows = self.rows()
            database = self._connected()
            texts = [name for name, *_ in self.verdicts()]
            texts += [name for table, name, _ in self._kept_texts if table == "verdicts"]
            owners = [name.partition(":")[0] for name in texts if ":" in name]
            return Info(
                path=str(self._path or ""),
                journal="memory" if database is None else database.journal,
                trouble=self.trouble,
                rows=len(rows),
                verdicts=len(texts) - len(owners),
                records=_counted(owners),
                bytes=self._run(lambda d: d.size_bytes(), 0),
                max_bytes=self._max_bytes,
                environments=_counted(row.environment for row in rows),
                algorithms=_counted(row.primitive.partition("{")[0] for row in rows),
                refusals=_counted(f"{r.primitive}: {r.reason}" for r in self.refusals()),
                checks=len(self.checks()),
                set_aside=[] if self._path is None else _names(self._path),
            )

    def verify(self) -> Verified:
        """Checks every checksum and the structure of the file."""
        with self._locked():
            unsound = self._run(lambda d: sum(len(d.unsound_keys(k)) for k in KINDS_OF_ENTRY), 0)
            damages: list[str] = self._run(lambda database: database.damages(), [])
            counts = len(self.rows()), len(self.refusals()), len(self.checks())
            return Verified(*counts, unsound, damages)

    def gc(self, max_bytes: int | None = None) -> int:
        """Drops unsound entries, then those that were not used for the longest time.

        Stops when the file has at most `max_bytes`; None is the store's own limit.

        Returns: the number of dropped rows, refusals and checks.
        """
        limit = self._max_bytes if max_bytes is None else max_bytes

        def collect(database: Database) -> int:
            dropped = 0
            for kind in KINDS_OF_ENTRY:
                unsound = database.unsound_keys(kind)
                database.drop(kind, unsound)
                dropped += len(unsound)
            return dropped + _evict(database, limit)

        with self._locked():
            return self._run(collect, 0) if self._can_write else 0

    def close(self) -> None:
        """Writes the entries in memory and closes the file. The next call opens it again."""
        with self._locked():
            if self._kept and not self._gave_up:
                self._flush()
            if self._database is not None:
                self._database.close()
                self._database = None

    # ---- writing ------------------------------------------------------------------------------

    def _flush(self) -> bool:
        """Writes the entries that are only in memory. Returns True if none is left."""
        entries = list(self._kept.values())
        if not entries:
            return True

        def put(database: Database) -> bool:
            database.put(entries, today())
            return True

        if not self._can_write or not self._run(put, False):
            return False
        self._kept.clear()
        self._run(self._limit, 0)
        return True

    def _limit(self, database: Database) -> int:
        if database.size_bytes() <= self._max_bytes:
            return 0
        return _evict(database, int(SHRINK_TO * self._max_bytes))

    def _mark_used(self, kind: type[Entry], keys: list[RowKey]) -> None:
        """Marks entries as used today, at most once a day. Ignores errors."""
        database = self._database
        if not keys or database is None or database.journal == "read-only":
            return
        with contextlib.suppress(StorageError):
            database.mark_used(kind, keys, today())


def _evict(database: Database, limit: int) -> int:
    """Drops entries that were not used for the longest time until the file fits `limit` bytes.

    Returns the number of dropped entries.
    """
    dropped = 0
    tables = ("costs", "refusals", "checks", "verdicts", "peaks")
    while (size := database.size_bytes()) > limit and any(map(database.count, tables)):
        dropped += database.drop_oldest(1 - limit / size, today())
    database.shrink()
    return dropped


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in sorted(names):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _names(path: Path) -> list[str]:
    try:
        return [str(file) for file in files.set_aside_files(path)]
    except OSError:
        return []
