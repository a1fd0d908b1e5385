# SPDX-License-Identifier: BSD-3-Clause
"""Hostile databases of costs: opening one is quick and safe, and no false row comes out of it.

    python tests/fuzz/fuzz_databases.py databases --cases 2000

A database is changed as its file (bytes, pages, length), by SQL (schema, types, values), or by what
lies at its path (a folder, a pipe, a link, other journals). KINDS lists all kinds.
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import isolated
from campaign import FindingError, main

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import database_faults
from torchalgo._db import CostStore

SLOW_S = 30.0
PAGE = 4096
VICTIM = b"a file that nobody may write to"
Kind = Callable[[random.Random, Path], None]


@functools.cache
def sound() -> bytes:
    """The bytes of a database of 300 rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.sqlite3"
        with CostStore.open(path) as store:
            problems = [database_faults.problem_of(1, i) for i in range(300)]
            store.append([database_faults.make_row(problem, 3) for problem in problems])
        return path.read_bytes()


# ---- the file ------------------------------------------------------------------------------------


def header(rng: random.Random, path: Path) -> None:
    data = bytearray(sound())
    for _ in range(rng.choice((1, 2, 8))):
        data[rng.randrange(100)] = rng.randrange(256)
    path.write_bytes(data)


def some_bytes(rng: random.Random, path: Path) -> None:
    data = bytearray(sound())
    for _ in range(rng.choice((1, 2, 8, 60, 1000))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def cut_off(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound()[: rng.randrange(len(sound()))])


def more_bytes(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound() + rng.randbytes(rng.randrange(3 * PAGE)))


def pages_exchanged(rng: random.Random, path: Path) -> None:
    data = bytearray(sound())
    a, b = (PAGE * i for i in rng.sample(range(len(data) // PAGE), 2))
    data[a : a + PAGE], data[b : b + PAGE] = data[b : b + PAGE], data[a : a + PAGE]
    path.write_bytes(data)


def page_of_zeros(rng: random.Random, path: Path) -> None:
    data = bytearray(sound())
    a = PAGE * rng.randrange(len(data) // PAGE)
    data[a : a + PAGE] = bytes(PAGE)
    path.write_bytes(data)


def page_repeated(rng: random.Random, path: Path) -> None:
    a = PAGE * rng.randrange(len(sound()) // PAGE)
    path.write_bytes(sound()[: a + PAGE] + sound()[a:])


def empty(rng: random.Random, path: Path) -> None:
    path.write_bytes(b"")


def text(rng: random.Random, path: Path) -> None:
    path.write_bytes(b"hello\n" * rng.randrange(1, 2000))


def random_bytes(rng: random.Random, path: Path) -> None:
    path.write_bytes(rng.randbytes(rng.randrange(1, 5 * PAGE)))


def sparse(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound())
    os.truncate(path, 4 << 30)


# ---- what lies at the path -----------------------------------------------------------------------


def folder(rng: random.Random, path: Path) -> None:
    path.mkdir()


def pipe(rng: random.Random, path: Path) -> None:
    os.mkfifo(path)


def device(rng: random.Random, path: Path) -> None:
    path.symlink_to(rng.choice(("/dev/zero", "/dev/null", "/dev/full")))


def link_to_database(rng: random.Random, path: Path) -> None:
    path.with_name("elsewhere").write_bytes(sound())
    path.symlink_to("elsewhere")


def link_to_itself(rng: random.Random, path: Path) -> None:
    path.symlink_to(path.name)


def link_to_nothing(rng: random.Random, path: Path) -> None:
    path.symlink_to("missing/file")


def hard_link(rng: random.Random, path: Path) -> None:
    path.with_name("elsewhere").write_bytes(sound())
    os.link(path.with_name("elsewhere"), path)


def open_to_all(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound())
    path.chmod(rng.choice((0o666, 0o777, 0o622)))


def folder_open_to_all(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound())
    path.parent.chmod(0o777)


def unreadable(rng: random.Random, path: Path) -> None:
    path.write_bytes(sound())
    path.chmod(rng.choice((0, 0o400, 0o200)))


def beside(suffix: str, how: str) -> Kind:
    """A file beside the database that SQLite would read or write."""

    def make(rng: random.Random, path: Path) -> None:
        path.write_bytes(sound())
        other = path.with_name(path.name + suffix)
        if how == "link":
            other.symlink_to("victim")
        elif how == "folder":
            other.mkdir()
        elif how == "pipe":
            os.mkfifo(other)
        else:
            magic = bytes.fromhex("377f0682") if suffix == "-wal" else b"\xd9\xd5\x05\xf9 \xa1c\xd7"
            other.write_bytes((magic if how == "magic" else b"") + rng.randbytes(9000))

    return make


# ---- its contents --------------------------------------------------------------------------------


def sql(*statements: str) -> Kind:
    """Changes the database as a writer with SQLite would; {table} has the entries."""

    def make(rng: random.Random, path: Path) -> None:
        path.write_bytes(sound())
        connection = sqlite3.connect(path)
        tables = connection.execute("select name from sqlite_master where type='table'").fetchall()
        columns = {
            name: [row[1] for row in connection.execute(f"pragma table_info({name})")]
            for (name,) in tables
        }
        table = next(name for name, names in columns.items() if "body" in names)
        connection.execute("pragma writable_schema=1")
        for statement in statements:
            connection.execute(statement.replace("{table}", table))
        connection.commit()
        connection.close()

    return make


STATEMENTS = {
    "trigger deletes": ("create trigger t after insert on {table} begin delete from {table}; end",),
    "trigger raises": (
        "create trigger t before insert on {table} begin select raise(abort, 'no'); end",
    ),
    "trigger changes": (
        "create trigger t after insert on {table} begin update {table} set body = '[1]'; end",
    ),
    "view": ("alter table {table} rename to z", "create view {table} as select * from z"),
    "column renamed": ("alter table {table} rename column body to text",),
    "column added": ("alter table {table} add column more default 7",),
    "generated column": ("alter table {table} add column g as (randomblob(1000000))",),
    "ticks edited": ("update {table} set body = '[1' || substr(body, instr(body, ','))",),
    "body cut": ("update {table} set body = substr(body, 1, 9)",),
    "body nested": ("update {table} set body = printf('%.*c', 100000, '[')",),
    "body an object": ("update {table} set body = '{}'",),
    "body a number": ("update {table} set body = 7",),
    "body a real": ("update {table} set body = 9e999",),
    "body null": ("update or ignore {table} set body = null",),
    "kind unknown": ("update or ignore {table} set kind = 'odd'",),
    "kind another": ("update or ignore {table} set kind = 'check'",),
    "layout as blob": ("update or ignore {table} set src = x'00ff'",),
    "problem as blob": (
        "update {table} set problem = zeroblob(20000000)"
        " where problem = (select min(problem) from {table})",
    ),
    "problem of zeros": ("update or ignore {table} set problem = cast(x'610062' as text)",),
    "primitive empty": ("update or ignore {table} set primitive = ''",),
    "version of text": ("update or ignore {table} set version = 'x'",),
    "body longer": ("update {table} set body = '[1,' || substr(body, 2)",),
    "checksums exchanged": ("update {table} set checksum = (select max(checksum) from {table})",),
    "checksum null": ("update or ignore {table} set checksum = null",),
    "table dropped": ("drop table {table}",),
    "table empty": ("delete from {table}",),
    "table twice": ("create table copy as select * from {table}",),
    "user_version high": ("pragma user_version=2147483647",),
    "user_version negative": ("pragma user_version=-1",),
    "application id": ("pragma application_id=77",),
    "index of expression": ("create index i on {table}(hex(problem))",),
    "unique index": ("create unique index i on {table}(src) where 0",),
    "schema damaged": ("update sqlite_master set sql = 'create table x(y' where type='table'",),
    "schema of another": ("update sqlite_master set sql = 'create table x(y)' where type='table'",),
    "root pages moved": ("update sqlite_master set rootpage = 2",),
    "root page missing": ("update sqlite_master set rootpage = 99999",),
    "journal mode": ("pragma journal_mode=persist",),
    "encoding": ("create table utf16(x)", "pragma encoding='UTF-16'"),
}
FILES: tuple[Kind, ...] = (
    header, some_bytes, cut_off, more_bytes, pages_exchanged, page_of_zeros, page_repeated, empty,
    text, random_bytes, sparse, folder, pipe, device, link_to_database, link_to_itself,
    link_to_nothing, hard_link, open_to_all, folder_open_to_all, unreadable,
)  # fmt: skip
KINDS: dict[str, Kind] = {
    **{kind.__name__.replace("_", " "): kind for kind in FILES},
    **{
        f"{suffix} {how}": beside(suffix, how)
        for suffix in ("-wal", "-journal", "-shm")
        for how in ("garbage", "magic", "link", "folder", "pipe")
    },
    **{name: sql(*statements) for name, statements in STATEMENTS.items()},
}


def use(path: Path) -> str:
    """Does what tuning does with a database; returns how it was taken."""
    with CostStore.open(path) as store:
        rows = store.rows()
        if false := [row for row in rows if not database_faults.is_true(row)]:
            raise FindingError(f"{len(false)} false rows, such as {false[0]}")
        store.verify()
        new = database_faults.make_row(database_faults.problem_of(2, 1), 1)
        store.append([new])
        if new not in store.rows():
            raise FindingError("an appended row is not there")
        store.info()
        list(store.export_lines())
        store.gc()
        if store.is_in_memory:
            return "in memory"
        return "all rows" if len(rows) == 300 else "fewer rows" if rows else "no rows"


def databases(seed: int) -> list[str]:
    rng = random.Random(seed)
    name = list(KINDS)[seed % len(KINDS)]
    with tempfile.TemporaryDirectory() as outer, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(outer) / "own" / "costs.sqlite3"
        path.parent.mkdir(mode=0o700)
        victim = path.with_name("victim")
        victim.write_bytes(VICTIM)
        KINDS[name](rng, path)
        start = time.monotonic()
        try:
            outcome = use(path)
        except FindingError as finding:
            raise FindingError(f"{name}: {finding}") from None
        except Exception as error:
            raise FindingError(f"{name}: {type(error).__name__}: {error}") from None
        if time.monotonic() - start > SLOW_S:
            raise FindingError(f"{name}: {time.monotonic() - start:.0f} s")
        if victim.read_bytes() != VICTIM:
            raise FindingError(f"{name}: wrote to another file")
    return [outcome]


FUZZERS = {"databases": databases}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
