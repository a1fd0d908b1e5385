# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the database of costs, for fault_injection.py, which injects them.

A child process commits rows and says over a pipe which ones the database called committed. It is
killed, or its files fail under it (tests/faults/shim.c, preloaded), or their bytes are changed
afterwards. Then the database must open, every row that it gives must be true, and every committed
row must be there, except where bytes were changed: then the file may be damaged. A row is true if
its cost is the one that its name and generation give.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torchalgo._db import CostStore, Row
from torchalgo._db.cost_file import _transaction

NO_SPACE, INPUT_OUTPUT, NO_LOCKS, READ_ONLY = 1, 2, 4, 8  # as in shim.c
ENVIRONMENT = '{"cpu":"invented"}'
ACK = struct.Struct("<II")
PATIENCE_S = 60.0  # for a child to end; more is a hang


# ---- rows whose truth can be told ----------------------------------------------------------------


def problem_of(writer: int, index: int) -> str:
    return f"fwd_f32_n{writer + 1}c{index + 1}h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1"


def true_ticks(problem: str, generation: int) -> int:
    return 1 + zlib.crc32(f"{problem} {generation}".encode())


def make_row(problem: str, generation: int) -> Row:
    """The row that measuring `problem` for the n-th time gives."""
    ticks = true_ticks(problem, generation)
    return Row(
        environment=ENVIRONMENT, problem=problem, primitive="cpu.direct", src="nchw", dst="nchw",
        version=1, ticks=ticks, noise_ticks=0, samples=generation, median_ticks=ticks,
        p10_ticks=ticks, p90_ticks=ticks, workspace_bytes=None, rel_error=None,
        provenance="a fault injector " + "." * (generation % 200), measured_at=0,
    )  # fmt: skip


def is_true(row: Row) -> bool:
    return row.ticks == true_ticks(row.problem, row.samples)


# ---- a case and its children ---------------------------------------------------------------------


@dataclass
class Case:
    """One fault: its folder, its dice, and what was found wrong."""

    folder: Path
    rng: random.Random
    acked: dict[str, int] = field(default_factory=dict)  # problem -> generation
    wrong: list[str] = field(default_factory=list)
    lost_to_damage: int = 0
    patience_s: float = PATIENCE_S  # for a child to end; more is a hang
    rows: int = 0

    @property
    def path(self) -> Path:
        return self.folder / "costs.sqlite3"

    def note(self, text: str) -> None:
        self.wrong.append(text)


@dataclass
class Child:
    """A forked process that acknowledges rows, and then maybe an error, through a pipe."""

    pid: int
    pipe: int
    writer: int
    data: bytes = b""

    def await_acks(self, count: int) -> None:
        """Waits until so many rows are committed, or the child has ended."""
        while len(self.data) < count * ACK.size:
            chunk = os.read(self.pipe, 1 << 12)
            if not chunk:
                return
            self.data += chunk


def set_faults(folder: Path, kinds: int, rate: float, seed: int) -> None:
    """Makes calls on files below `folder` fail in this process from now on; rate 0: none."""
    library = ctypes.CDLL(None)
    library.faults_set.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double, ctypes.c_uint64]
    library.faults_set(str(folder.resolve()).encode(), kinds, rate, seed)


def spawn(work: Callable[[int], None], writer: int = 0) -> Child:
    """Forks a child that runs `work`, with the pipe to write acknowledgements to, and exits."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _run_child(work, writing)
    os.close(writing)
    return Child(pid, reading, writer)


def _run_child(work: Callable[[int], None], writing: int) -> NoReturn:
    code = 0
    try:
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(writing)
    except BaseException:
        os.write(2, f"in a child: {traceback.format_exc()}\n".encode())
        code = 99
    os._exit(code)


def finish(case: Case, child: Child, *, killed_by: int | None = None) -> None:
    """Waits for a child and takes its acknowledgements."""
    while chunk := os.read(child.pipe, 1 << 16):
        child.data += chunk
    os.close(child.pipe)
    status = wait(case, child.pid)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != killed_by:
            case.note(f"a child died of signal {os.WTERMSIG(status)}")
    elif os.WEXITSTATUS(status):
        case.note("a child raised")
    for at in range(0, len(child.data) - ACK.size + 1, ACK.size):
        index, generation = ACK.unpack_from(child.data, at)
        problem = problem_of(child.writer, index)
        case.acked[problem] = max(case.acked.get(problem, 0), generation)


def wait(case: Case, pid: int) -> int:
    deadline = time.monotonic() + case.patience_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    case.note("a child hangs")
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def write_rows(path: Path, writer: int, count: int, seed: int, busy_s: float = 10.0) -> Any:
    """A child's work: appends of one to four rows, each acknowledged once it is committed."""

    def work(pipe: int) -> None:
        rng = random.Random(seed)
        generations: dict[int, int] = {}
        with CostStore.open(path, busy_s=busy_s) as store:
            for _ in range(count):
                indices = {rng.randrange(40) for _ in range(rng.randint(1, 4))}
                for index in indices:
                    generations[index] = generations.get(index, 0) + 1
                rows = [make_row(problem_of(writer, i), generations[i]) for i in indices]
                if store.append(rows):
                    acks = [ACK.pack(i, generations[i]) for i in indices]
                    os.write(pipe, b"".join(acks))
                if rng.random() < 0.1:
                    store.entries(Row, [ENVIRONMENT], [row.problem for row in rows])

    return work


def check(case: Case, *, may_lose: bool = False) -> None:
    """Opens the database after a fault and notes what is not as it must be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with CostStore.open(case.path) as store:
            if store.is_in_memory and not may_lose:
                case.note(f"does not open: {store.trouble}")
            found = {row.problem: row for row in store.rows()}
            case.rows = len(found)
            wrong = [row for row in found.values() if not is_true(row)]
            if wrong:
                case.note(f"{len(wrong)} rows are wrong")
            lost = [p for p, g in case.acked.items() if p not in found or found[p].samples < g]
            if may_lose:
                case.lost_to_damage = len(lost)
            elif lost:
                case.note(f"{len(lost)} of {len(case.acked)} committed rows are lost")
            if not may_lose and store.verify().damages:
                case.note(f"damaged: {store.verify().damages[0]}")
            new = make_row(problem_of(9999, 0), 1)
            if not store.append([new]):
                if not may_lose:
                    case.note(f"cannot be written: {store.trouble}")
                for file in case.folder.glob(f"{case.path.name}*"):  # as the warning says
                    file.unlink()
        if not case.path.exists():
            with CostStore.open(case.path) as store:
                store.append([new])
        with CostStore.open(case.path) as store:
            if new not in store.entries(Row, [ENVIRONMENT], [new.problem]):
                case.note("a new row does not come back")


# ---- faults --------------------------------------------------------------------------------------


def die_of(number: int) -> Callable[[Case], None]:
    """One or several writers; one gets a signal at a random moment."""

    def fault(case: Case) -> None:
        count = case.rng.choice((1, 1, 3))
        seed = case.rng.randrange(1 << 30)
        children = [spawn(write_rows(case.path, w, 400, seed + w), w) for w in range(count)]
        children[0].await_acks(case.rng.choice((0, 1, case.rng.randrange(400))))
        time.sleep(case.rng.random() * 0.01)
        os.kill(children[0].pid, number)
        for child in children:
            finish(case, child, killed_by=number if child is children[0] else None)
        check(case)

    return fault


def fail_with(kinds: int, *rates: float) -> Callable[[Case], None]:
    """Calls on files fail, from the start or from some moment on; now and then a kill on top."""

    def fault(case: Case) -> None:
        rate, seed = case.rng.choice(rates), case.rng.randrange(1 << 30)
        if case.rng.random() < 0.7:  # there was a database before
            finish(case, spawn(write_rows(case.path, 0, 20, seed)))
        inner = write_rows(case.path, 1, 60, seed, busy_s=1.0)

        def work(pipe: int) -> None:
            set_faults(case.folder, kinds, rate, seed)
            inner(pipe)

        child = spawn(work, 1)
        is_killed = case.rng.random() < 0.2
        if is_killed:
            time.sleep(case.rng.random() * 0.05)
            os.kill(child.pid, signal.SIGKILL)
        finish(case, child, killed_by=signal.SIGKILL if is_killed else None)
        check(case)

    return fault


def change_bytes(case: Case) -> None:
    """Bytes of the database or of SQLite's files beside it are changed, cut off or doubled."""
    child = spawn(write_rows(case.path, 0, 400, case.rng.randrange(1 << 30)))
    child.await_acks(case.rng.randrange(1, 400))
    os.kill(child.pid, signal.SIGKILL)  # leaves a log behind
    finish(case, child, killed_by=signal.SIGKILL)
    files = sorted(f for f in case.folder.iterdir() if f.stat().st_size)
    if files:
        _damage(case.rng.choice(files), case.rng)
    check(case, may_lose=True)


def _damage(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    at = rng.randrange(min(len(data), rng.choice((100, 4096, len(data)))))
    match rng.randrange(5):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at : at + 512] = rng.randbytes(512)
        case 2:
            del data[at:]
        case 3:
            data[at : at + 4096] = bytes(4096)
        case 4:
            data[at:at] = data[at : at + 4096]
    file.write_bytes(data)


def jump_clock(case: Case) -> None:
    """The clock of a writer jumps by years, back and forth."""
    seed = case.rng.randrange(1 << 30)
    inner = write_rows(case.path, 0, 60, seed)

    def work(pipe: int) -> None:
        rng = random.Random(seed)
        time.time = lambda: rng.choice((-1e9, 0.0, 1e9, 1.7e9, 4e9, 1e11)) * rng.random()
        inner(pipe)

    finish(case, spawn(work))
    check(case)


def loop_forever(case: Case) -> None:
    """A process takes the lock and never gives it back; another one must get on meanwhile."""

    def hold(pipe: int) -> None:
        with CostStore.open(case.path) as store:
            file = store._opened()
            assert file is not None
            with _transaction(file._connection):
                os.write(pipe, b"!")
                while True:
                    pass

    seed = case.rng.randrange(1 << 30)
    finish(case, spawn(write_rows(case.path, 0, 10, seed)))
    stuck = spawn(hold)
    os.read(stuck.pipe, 1)
    started = time.monotonic()
    finish(case, spawn(write_rows(case.path, 1, 5, seed, busy_s=0.1), 1))
    if time.monotonic() - started > PATIENCE_S / 2:
        case.note("waits too long for a stuck process")
    os.kill(stuck.pid, signal.SIGKILL)
    finish(case, stuck, killed_by=signal.SIGKILL)
    check(case)


def take_away(case: Case) -> None:
    """The file is deleted or moved under a writer: what it says is gone, the run is not."""
    child = spawn(write_rows(case.path, 0, 200, case.rng.randrange(1 << 30)))
    for _ in range(3):
        child.await_acks(len(child.data) // ACK.size + case.rng.randrange(50))
        moved = case.folder / "moved"
        for file in case.folder.glob("costs.sqlite3*"):
            with contextlib.suppress(FileNotFoundError):  # SQLite was faster
                if case.rng.random() < 0.5:
                    file.unlink()
                else:
                    file.replace(moved)
    finish(case, child)
    check(case, may_lose=True)


DATABASE_FAULTS: dict[str, Callable[[Case], None]] = {
    "database: SIGKILL": die_of(signal.SIGKILL),
    "database: SIGSEGV": die_of(signal.SIGSEGV),
    "database: abort": die_of(signal.SIGABRT),
    "database: infinite loop": loop_forever,
    "database: ENOSPC": fail_with(NO_SPACE, 0.01, 0.2, 1.0),
    "database: EIO": fail_with(INPUT_OUTPUT, 0.002, 0.02, 0.3),
    "database: no locks": fail_with(NO_LOCKS, 0.01, 1.0),
    "database: read-only": fail_with(READ_ONLY, 0.2, 1.0),
    "database: all at once": fail_with(15, 0.003, 0.05),
    "database: corrupt bytes": change_bytes,
    "database: clock jump": jump_clock,
    "database: file taken away": take_away,
}
