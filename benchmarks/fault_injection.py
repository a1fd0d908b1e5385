# SPDX-License-Identifier: BSD-3-Clause
"""Faults at random into tuning, its worker and its database, and what was lost or wrong after.

    python benchmarks/fault_injection.py --faults 1000 --operations 1000 --processes 16 --seed 1
    python benchmarks/fault_injection.py --quick            # to see that it works: a minute
    python benchmarks/fault_injection.py --only 'database: *' --faults 200 --operations 0

Each fault has a folder and a seed of its own. Those of the database are in database_faults.py,
those of candidates, workers and the tuning process in worker_faults.py. After them, many processes
work on one database at once, in folders of several kinds. Takes an hour with the options of the
first line. Appends a line per kind of fault to benchmarks/results/faults.jsonl. Exit status 1 if
anything failed; a `repro:` line then repeats the case alone.

To add a fault, write a function that takes a Case and notes what it finds wrong, and add it to
DATABASE_FAULTS or WORKER_FAULTS.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import harness
from database_faults import (
    ACK,
    DATABASE_FAULTS,
    ENVIRONMENT,
    NO_LOCKS,
    NO_SPACE,
    Case,
    check,
    finish,
    is_true,
    make_row,
    problem_of,
    set_faults,
    spawn,
    write_rows,
)
from torchalgo._db import CostStore, Row
from torchalgo._db.row import Verdict
from worker_faults import SLOW_FAULTS, WORKER_FAULTS

SHIM = harness.ROOT / "tests" / "faults" / "shim.c"
MANY_PATIENCE_S = 600.0  # for one of many processes to end
FAULTS: dict[str, Callable[[Case], None]] = {**DATABASE_FAULTS, **WORKER_FAULTS}


def counts_of(names: Sequence[str], total: int) -> dict[str, int]:
    """Returns the number of faults of each kind: fewer of the slow ones, `total` in all."""
    weights = {name: SLOW_FAULTS.get(name, 1.0) for name in names}
    counts = {name: int(total * w / sum(weights.values())) for name, w in weights.items()}
    while (left := total - sum(counts.values())) > 0:  # to the rarest first: none is left out
        for name in sorted(counts, key=lambda name: counts[name])[:left]:
            counts[name] += 1
    return counts


def inject(name: str, cases: Sequence[int], seed: int) -> dict[str, Any]:
    """Runs cases of one kind. Returns what was found."""
    started = time.monotonic()
    totals: dict[str, Any] = {"committed": 0, "rows": 0, "lost_to_damage": 0, "failures": []}
    for i in cases:
        folder = Path(tempfile.mkdtemp(prefix="faults-"))
        case = Case(folder, random.Random(f"{name} {seed} {i}"))
        try:
            FAULTS[name](case)
        except Exception as problem:
            case.note(f"raised {problem!r}: {traceback.format_exc(limit=-3)}")
        totals["committed"] += len(case.acked)
        totals["rows"] += case.rows
        totals["lost_to_damage"] += case.lost_to_damage
        if case.wrong:
            totals["failures"].append({"case": i, "found": case.wrong})
            words = ("--only", name, "--case", i, "--seed", seed)
            repro = harness.script_line("fault_injection.py", *words)
            harness.tell_failure(f"{name}, case {i}", "; ".join(case.wrong), repro)
        shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - started, 1)
    return {"fault": name, "count": len(cases), "seed": seed, **totals, "seconds": seconds}


# ---- many processes ------------------------------------------------------------------------------


@dataclass
class Mixer:
    """One process of many: random operations, and what was found wrong in them."""

    store: CostStore
    writer: int
    rng: random.Random
    pipe: int
    last: dict[int, int] = field(default_factory=dict)  # index -> generation of own rows
    torn: int = 0
    lost: int = 0

    def append(self) -> None:
        indices = {self.rng.randrange(50) for _ in range(self.rng.randint(1, 5))}
        for index in indices:
            self.last[index] = self.last.get(index, 0) + 1
        rows = [make_row(problem_of(self.writer, i), self.last[i]) for i in indices]
        if self.store.append(rows):
            os.write(self.pipe, b"".join(ACK.pack(i, self.last[i]) for i in indices))

    def append_shared(self) -> None:
        problem = problem_of(5000, self.rng.randrange(20))
        self.store.append([make_row(problem, self.rng.randrange(1, 1000))])

    def read(self) -> None:
        own = self.rng.sample(range(50), 5)
        shared = [problem_of(5000, i) for i in self.rng.sample(range(20), 5)]
        wanted = [*(problem_of(self.writer, i) for i in own), *shared]
        found = {r.problem: r for r in self.store.entries(Row, [ENVIRONMENT], wanted)}
        self.torn += sum(not is_true(row) for row in found.values())
        for index in own:
            row = found.get(problem_of(self.writer, index))
            self.lost += (row.samples if row else 0) != self.last.get(index, 0)

    def read_all(self) -> None:
        self.torn += sum(not is_true(row) for row in self.store.rows())

    def merge(self) -> None:
        problems = [problem_of(5000, self.rng.randrange(20)) for _ in range(3)]
        self.store.merge(make_row(p, self.rng.randrange(1, 1000)) for p in problems)

    def look(self) -> None:
        self.store.info()
        self.store.verify()

    def judge(self) -> None:
        plan = f"plan {self.writer}"
        self.store.keep_text(Verdict, ENVIRONMENT, plan, f'"{self.rng.random()}"')
        self.lost += self.store.text(Verdict, ENVIRONMENT, plan) is None

    def run(self, operations: int) -> None:
        choices = (
            *((self.append, 40), (self.append_shared, 20), (self.read, 30), (self.read_all, 2)),
            *((self.merge, 3), (self.look, 1), (self.judge, 2), (self.store.close, 2)),
        )
        works, weights = [w for w, _ in choices], [n for _, n in choices]
        for work in self.rng.choices(works, weights, k=operations):
            work()
        if self.torn or self.lost:
            raise AssertionError(f"{self.torn} torn rows, {self.lost} rows not as written")


FOLDERS = {"normal": (0, 0.0), "no locks": (NO_LOCKS, 1.0), "full": (NO_SPACE, 1.0)}


def mix(kind: str, processes: int, operations: int, seed: int) -> dict[str, Any]:
    """Many processes at once on one database, in a folder of one kind."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    case = Case(folder, random.Random(seed), patience_s=MANY_PATIENCE_S)
    kinds, rate = FOLDERS[kind]
    started = time.monotonic()
    finish(case, spawn(write_rows(case.path, 0, 20, seed)))

    def work_of(writer: int) -> Callable[[int], None]:
        def work(pipe: int) -> None:
            if rate:
                set_faults(folder, kinds, rate, seed + writer)
            rng = random.Random(f"{kind} {seed} {writer}")
            with CostStore.open(case.path, busy_s=60.0 if not rate else 1.0) as store:
                Mixer(store, writer, rng, pipe).run(operations)

        return work

    children = [spawn(work_of(writer), writer) for writer in range(1, processes + 1)]
    for child in children:
        finish(case, child)
    check(case)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "folder": kind, "processes": processes, "operations": operations, "seed": seed,
        "committed": len(case.acked), "rows": case.rows, "failures": case.wrong,
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


# ---- the whole -----------------------------------------------------------------------------------


def main() -> int:
    parser = harness.make_parser(__doc__, harness.RESULTS / "faults.jsonl")
    parser.add_argument("--faults", type=int, default=1000, help="of all kinds together")
    parser.add_argument("--operations", type=int, default=1000, help="of each of many processes")
    parser.add_argument("--processes", type=harness.count, default=16, help="at once")
    parser.add_argument("--only", action="append", metavar="GLOB", help="these faults")
    parser.add_argument(
        "--case", type=int, help="only this case of each fault, as in a repro: line"
    )
    parser.add_argument("--seed", type=int, default=1, help="of all that is random")
    parser.add_argument("--quick", action="store_true", help="30 faults, 30 operations")
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(faults=30, operations=30, processes=4)
        args = parser.parse_args()
    if not hasattr(ctypes.CDLL(None), "faults_set"):
        _start_with_shim()
    globs = args.only or ["*"]
    names = [name for name in FAULTS if any(fnmatch.fnmatchcase(name, glob) for glob in globs)]
    if not names:
        parser.error(f"no fault is called {args.only}; there are {', '.join(FAULTS)}")
    cases = {name: range(count) for name, count in counts_of(names, args.faults).items()}
    if args.case is not None:
        cases, args.operations = dict.fromkeys(names, range(args.case, args.case + 1)), 0
    failures = 0
    for name, own in cases.items():
        found = inject(name, own, args.seed)
        failures += len(found["failures"])
        harness.record(args.out, {"schema": 1, **found})
    for kind in FOLDERS if args.operations else ():
        found = mix(kind, args.processes, args.operations, args.seed)
        failures += len(found["failures"])
        harness.record(args.out, {"schema": 1, **found})
    print(json.dumps({"failures": failures}))
    return 1 if failures else 0


def _start_with_shim() -> NoReturn:
    library = Path(tempfile.mkdtemp(prefix="faults-shim-")) / "shim.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(command, check=True)
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    harness.run_script(main)
