# SPDX-License-Identifier: BSD-3-Clause
"""The store of costs: a file if possible, otherwise memory. It never fails a run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torchalgo._base.user_warning import warn_user
from torchalgo._db import files
from torchalgo._db.row import (
    DAY_S,
    MEASURED_KINDS,
    SHARED_KINDS,
    Check,
    E,
    Entry,
    Refusal,
    Row,
    Text,
    Verdict,
    from_line,
    join,
    to_line,
)
from torchalgo._ir.names import without_knobs

if TYPE_CHECKING:  # Python may lack SQLite, so this is imported when it is used
    from torchalgo._db.cost_file import CostFile

MAX_BYTES = 128 << 20  # largest size of the file: about 300,000 rows
SHRINK_TO = 0.75  # part of the limit that is left after the file exceeded it
BUSY_S = 10.0  # seconds to wait for other processes

T = TypeVar("T")

# Files of a parent process. They stay open here: closing one would release the parent's locks.
_inherited: list[object] = []


@dataclass(frozen=True)
class Info:
    """The facts that `torchalgo db info` shows."""

    path: str
    access: str  # read-write | read-only | memory | none
    trouble: str  # why the costs are not on disk; empty if they are
    rows: int
    verdicts: int  # of the guard on plans
    records: dict[str, int]  # number of other stored texts by owner, such as "context"
    bytes: int
    max_bytes: int
    environments: dict[str, int]  # number of rows of each
    algorithms: dict[str, int]
    refusals: dict[str, int]  # candidates that failed, by primitive and reason
    checks: int  # candidates that passed the comparison with f64


@dataclass(frozen=True)
class Verified:
    """The result of checking a store.

    `rows`, `refusals` and `checks` count sound entries, and `unsound` the others. `damages` lists
    what SQLite finds wrong.
    """

    rows: int
    refusals: int
    checks: int
    unsound: int
    damages: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.unsound and not self.damages


@dataclass(frozen=True)
class Merged:
    """The result of a merge.

    `seen` counts the offered rows and refusals, and `taken` those that are new or replaced one.
    `unsound` counts those that were left out.
    """

    seen: int
    taken: int
    unsound: int = 0


def today() -> int:
    """Returns the days since 1970."""
    return max(0, int(time.time() // DAY_S))


class CostStore:
    """A store of entries for several threads. It is a cache, and never raises an error of the file.

    If the file cannot be written, its entries are still read, and new ones are kept in memory. If
    it cannot be read, all entries are in memory. Either gives one warning. Nothing is repaired.
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
        """Opens nothing yet.

        Args:
            path: None is a store in memory.
            max_bytes: limit of the file. Above it, the entries that were not used for the longest
                time are dropped.
            busy_s: seconds that a call waits for other processes.
            read_only: if True, writes nothing, not even repairs by SQLite.
            is_fresh: if True, reads by environment find only what this store wrote.
        """
        self.path, self.trouble = path, ""  # trouble: why new entries are not on disk
        self._max_bytes, self._busy_s, self._read_only = max_bytes, busy_s, read_only
        self._file: CostFile | None = None
        self._is_in_memory = path is None
        self._kept: dict[tuple[Any, ...], Entry] = {}  # entries that are not on disk
        self._is_fresh = is_fresh
        self._written: set[tuple[Any, ...]] = set()
        self._mutex, self._pid = threading.RLock(), os.getpid()

    @classmethod
    def open(cls, path: str | Path | None = None, **options: Any) -> CostStore:
        """Opens the store in the file `path`, at once. None is the user's own file.

        If that fails, the store is in memory, and there is a warning: missing rights, disk space,
        locks or SQLite raise no error. The options are those of CostStore.
        """
        try:
            place = files.default_path() if path is None else Path(path).absolute()
        except (ImportError, OSError, RuntimeError) as problem:
            store = cls(None, **options)
            store._warn(f"there is no place for it: {problem}")
            return store
        store = cls(place, **options)
        with store._locked():
            if path is None and not store._read_only:
                with contextlib.suppress(OSError, ValueError):  # _opened refuses the file
                    files.make_folder(place.parent)
            store._opened()
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

    def close(self) -> None:
        """Closes the file. The next call opens it again."""
        with self._locked():
            if self._file is not None:
                self._file.close()
                self._file = None

    @property
    def is_in_memory(self) -> bool:
        """Returns whether there is no file, so that nothing outlives this store."""
        with self._locked():
            return self._opened() is None

    @property
    def unwritten(self) -> int:
        """Returns the number of entries that are only in memory."""
        return len(self._kept)

    # ---- the file ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if os.getpid() != self._pid:  # a forked process: another thread may have held the mutex
            _inherited.append(self._file)
            self._file, self._mutex, self._pid = None, threading.RLock(), os.getpid()
        with self._mutex:
            yield

    def _opened(self) -> CostFile | None:
        """Returns the open file, opened if needed; None if this store is in memory."""
        if self._is_in_memory or self._file is not None or self.path is None:
            return self._file
        try:
            from torchalgo._db.cost_file import CostFile

            reason = files.refusal(self.path)
            if reason:
                raise OSError(f"is refused: {reason}")
            self._file = CostFile.open(self.path, self._busy_s, read_only=self._read_only)
            if self._file.why_read_only and not self._read_only:
                self._read_only = True
                self._warn(f"can only be read: {self._file.why_read_only}")
        except ImportError as problem:
            self._give_up(f"this Python has no SQLite: {problem}")
        except (OSError, ValueError) as problem:  # ValueError: a NUL in the name
            self._give_up(f"cannot be used: {problem}")
        return self._file

    @property
    def _can_write(self) -> bool:
        file = self._opened()
        return file is not None and not file.why_read_only

    def _read(self, work: Callable[[CostFile], T], otherwise: T) -> T:
        """Returns the result of `work`; `otherwise` if it fails or there is no file."""
        file = self._opened()
        if file is None:
            return otherwise
        try:
            result = work(file)
            if not file.is_current:
                raise OSError("it was moved or deleted")
            return result
        except OSError as problem:
            self._give_up(f"cannot be used: {problem}")
            return otherwise

    def _write(self, work: Callable[[CostFile], T], otherwise: T) -> T:
        """Does the same as _read. If `work` fails, the file is not written any more."""
        file = self._opened()
        if file is None or file.why_read_only:
            return otherwise
        try:
            result = work(file)
        except OSError as problem:
            result = otherwise
            if file.is_current:
                self._read_only, file.why_read_only = True, str(problem)
                self._warn(f"cannot be written: {problem}")
        return self._read(lambda _: result, otherwise)

    def _give_up(self, reason: str) -> None:
        self.close()
        self._is_in_memory = True
        self._warn(reason)

    def _warn(self, reason: str) -> None:
        if not self.trouble:
            place = f"the cost database {self.path or ''}".strip()
            warn_user(
                f"{place} {reason}; new costs are kept in memory. If the file is damaged, delete it"
            )
        self.trouble = reason

    # ---- entries -------------------------------------------------------------------------------

    def entries(
        self,
        kind: type[E],
        environments: Iterable[str],
        problems: Iterable[str] | None = None,
        *,
        has_older: bool = False,
    ) -> list[E]:
        """Returns the sound entries of a kind and of some environments.

        `problems` restricts them to some problems. Entries of given problems, and all refusals,
        count as used today.

        Args:
            has_older: if True, a fresh store returns the entries of other stores too.
        """
        wanted = set(environments)
        named = None if problems is None else set(problems)
        nothing: list[tuple[E, int]] = []
        with self._locked():
            found = self._read(lambda file: file.entries(kind, wanted, named), nothing)
            entries = {entry.row_key: entry for entry, _ in found}
            if named is not None or kind is Refusal:
                self._mark_used([entry for entry, day in found if day != today()])
            for key, entry in self._kept_of(kind).items():
                if entry.environment in wanted and (named is None or entry.problem in named):
                    entries[key] = entry
            is_own_only = self._is_fresh and not has_older
            return [e for k, e in entries.items() if k in self._written or not is_own_only]

    def _kept_of(self, kind: type[E]) -> dict[tuple[Any, ...], E]:
        return {key: entry for key, entry in self._kept.items() if isinstance(entry, kind)}

    def _mark_used(self, entries: Iterable[Entry]) -> None:
        """Marks entries as used today, at most once a day. Ignores errors."""
        keys = [entry.row_key for entry in entries]
        if keys and self._can_write and self._file is not None:
            with contextlib.suppress(OSError):
                self._file.mark_used(keys, today())

    def has_any(self, environments: Iterable[str]) -> bool:
        """Returns whether the file has a cost of one of the environments, sound or not."""
        wanted = sorted(set(environments))
        with self._locked():
            return self._read(lambda file: file.has_any(Row, wanted), False)

    def all_of(self, kind: type[E]) -> list[E]:
        """Returns every sound entry of a kind, in the order of keys."""
        nothing: list[tuple[E, int]] = []
        with self._locked():
            found = self._read(lambda file: file.entries(kind), nothing)
            entries = {entry.row_key: entry for entry, _ in found} | self._kept_of(kind)
        return [entries[key] for key in sorted(entries)]

    def rows(self) -> list[Row]:
        return self.all_of(Row)

    def refusals(self) -> list[Refusal]:
        return self.all_of(Refusal)

    def checks(self) -> list[Check]:
        return self.all_of(Check)

    def append(self, entries: Iterable[Entry]) -> bool:
        """Stores entries in one transaction, in place of those with the same kinds and keys.

        Leaves out entries with impossible values. Returns True if all entries are on disk.
        """
        sound = {entry.row_key: entry for entry in entries if entry.is_sane}
        if not sound:
            return not self._kept
        with self._locked():
            self._written.update(sound)
            if self._write(lambda file: self._put(file, sound.values()), False):
                return True
            self._kept.update(sound)
        return False

    def _put(self, file: CostFile, entries: Iterable[Entry]) -> bool:
        file.put(entries, today())
        if file.size_bytes() > self._max_bytes:
            file.shrink(int(SHRINK_TO * self._max_bytes), today())
        return True

    def forget(self, entries: Iterable[Entry]) -> int:
        """Drops entries. Returns their number."""
        dropped = {entry.row_key for entry in entries}
        with self._locked():
            self._kept = {key: e for key, e in self._kept.items() if key not in dropped}
            self._written -= dropped
            if dropped:
                self._write(lambda file: file.drop(dropped), None)
        return len(dropped)

    def forget_older(self, environments: Iterable[str], problems: Iterable[str]) -> int:
        """Drops the measured entries of some problems that this store did not write.

        Returns the number of dropped entries.
        """
        environments, problems = list(environments), list(problems)
        older: list[Entry] = []
        with self._locked():
            for kind in MEASURED_KINDS:
                found = self.entries(kind, environments, problems, has_older=True)
                older += [entry for entry in found if entry.row_key not in self._written]
            return self.forget(older)

    def text(self, kind: type[Text], environment: str, name: str) -> str | None:
        """Returns the text of a verdict or of rates; None if there is none."""
        found = self.entries(kind, [environment], [name])
        return found[0].text if found else None

    def keep_text(self, kind: type[Text], environment: str, name: str, text: str) -> None:
        self.append([kind.of(environment, name, text, max(0, int(time.time())))])

    # ---- exchange ------------------------------------------------------------------------------

    def merge(self, other: CostStore | Iterable[Entry]) -> Merged:
        """Merges the costs and refusals of another store into this one, in one transaction.

        Of two entries of a kind and key, the one with the lower rank stays, so the order of merges
        does not matter. Verdicts and checks are not merged: each machine checks for itself.
        """
        if isinstance(other, CostStore):
            other = [*other.rows(), *other.refusals()]
        entries = [*other]
        sound = [entry for entry in entries if entry.is_sane]
        joined: dict[tuple[Any, ...], Entry] = {}
        for entry in sound:
            before = joined.setdefault(entry.row_key, entry)
            joined[entry.row_key] = join(before, entry)
        with self._locked():
            new = joined.values()
            taken = self._write(lambda file: file.put_changed(new, _is_better, today()), None)
            if taken is None:
                known = {e.row_key: e for kind in SHARED_KINDS for e in self.all_of(kind)}
                better = {k: e for k, e in joined.items() if _is_better(e, known.get(k))}
                self._kept.update(better)
                taken = len(better)
        return Merged(len(entries), taken, len(entries) - len(sound))

    def export_lines(self) -> Iterator[str]:
        """Returns every sound row and refusal as a line of JSON. Equal stores give equal lines."""
        return map(to_line, [*self.rows(), *self.refusals()])

    def import_lines(self, lines: Iterable[str]) -> Merged:
        """Merges lines of export_lines. Leaves out lines that are damaged or of another origin."""
        read = [from_line(line) for line in lines if line.strip()]
        merged = self.merge(entry for entry in read if entry is not None)
        return Merged(len(read), merged.taken, read.count(None))

    # ---- upkeep --------------------------------------------------------------------------------

    def info(self) -> Info:
        """Returns the path of the store and counts of its entries."""
        with self._locked():
            rows, names = self.rows(), [verdict.problem for verdict in self.all_of(Verdict)]
            owners = [name.partition(":")[0] for name in names if ":" in name]
            file = self._opened()
            access = "read-only" if file is not None and file.why_read_only else "read-write"
            return Info(
                path=str(self.path or ""),
                access="memory" if file is None else access,
                trouble=self.trouble,
                rows=len(rows),
                verdicts=len(names) - len(owners),
                records=_counted(owners),
                bytes=self._read(lambda file: file.size_bytes(), 0),
                max_bytes=self._max_bytes,
                environments=_counted(row.environment for row in rows),
                algorithms=_counted(without_knobs(row.primitive) for row in rows),
                refusals=_counted(f"{r.primitive}: {r.reason}" for r in self.refusals()),
                checks=len(self.checks()),
            )

    def verify(self) -> Verified:
        """Checks every checksum and the structure of the file."""
        with self._locked():
            unsound = self._read(lambda file: len(file.unsound_keys()), 0)
            damages: list[str] = self._read(lambda file: file.damages(), [])
            counts = len(self.rows()), len(self.refusals()), len(self.checks())
            return Verified(*counts, unsound, damages)

    def gc(self, max_bytes: int | None = None) -> int:
        """Drops unsound entries, then those that were not used for the longest time.

        Stops when the file has at most `max_bytes`; None is the store's own limit.

        Returns: the number of dropped entries.
        """
        limit = self._max_bytes if max_bytes is None else max_bytes

        def collect(file: CostFile) -> int:
            unsound = file.unsound_keys()
            file.drop(unsound)
            dropped = len(unsound) + file.shrink(limit, today())
            file.vacuum()
            return dropped

        with self._locked():
            return self._write(collect, 0)


def _is_better(entry: Entry, known: Entry | None) -> bool:
    """Returns whether a merge replaces `known` by `entry`."""
    return known is None or join(known, entry) != known


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
