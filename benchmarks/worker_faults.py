# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the worker that measures candidates, and of the process that tunes.

For fault_injection.py, which injects them.

A fault of the worker: some of a call's candidates crash, hang, lie or want all memory, or the
worker is killed from outside or does not start. Afterwards those candidates, and no others, must
have failed with a reason. A fault of the tuning process: SIGINT or SIGKILL at a random moment of
`optimize`. Afterwards it must have ended, with no process left behind, its database must be sound,
and the same run must complete. Candidates of the first kind take no time (tests/python/
faulty_worker.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torchalgo
from torchalgo import _C
from torchalgo._db import CostStore
from torchalgo._measure.process_bench import ProcessBench, Worker

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(torchalgo.__file__).resolve().parent
FAULTY_WORKER = ROOT / "tests" / "python" / "support" / "faulty_worker.py"
CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias"
OPTIONS = {"warmup": 1, "rounds": 3, "budget_s": 0.1, "cold_bytes": 0, "seed": 0}
LEAST_LIMIT_S = 1.5
PATIENCE_S = 120.0  # for a process to end; more is a hang


class Case(Protocol):
    """One fault: its dice, and where it notes what is wrong."""

    rng: random.Random

    def note(self, text: str) -> None: ...


Fault = Callable[[Case], None]


# ---- the worker ----------------------------------------------------------------------------------


def command_with(faults: dict[str, str]) -> list[str]:
    hello = {"isa": _C.cpu_device().isa, "version": _C.version}
    said = json.dumps({"worker": str(PACKAGE / "_measure" / "worker.py"), **hello, **faults})
    return [sys.executable, "-I", str(FAULTY_WORKER), said]


def candidates(count: int) -> list[tuple[str, _C.Primitive]]:
    return [(CONV, _C.Primitive(f"test.row{i}", "nchw", "nchw")) for i in range(count)]


def candidates_do(kind: str) -> Fault:
    """One or two of some candidates do `kind`, measured or checked."""

    def run(case: Case) -> None:
        tasks = candidates(case.rng.randint(1, 9))
        bad = set(case.rng.sample(range(len(tasks)), min(len(tasks), case.rng.randint(1, 2))))
        faults = {tasks[i][1].name: kind for i in bad}
        worker = Worker(lambda: command_with(faults))
        bench = ProcessBench(worker=worker, least_limit_s=LEAST_LIMIT_S)
        try:
            if case.rng.random() < 0.5:
                failures = [taken.failure for taken in bench.measure(tasks, **OPTIONS)]
            else:
                primitives = [primitive for _, primitive in tasks]
                failures = [failure for _, failure in bench.check(CONV, primitives, 1e-5)]
            if {i for i, failure in enumerate(failures) if failure} != bad:
                case.note(f"{sorted(bad)} of {len(tasks)} did {kind}, and {failures} came back")
        finally:
            pid = worker.pid
            worker.close()
            if pid is not None and Path(f"/proc/{pid}").exists():
                case.note("the worker is still there")

    return run


def killed_from_outside(case: Case) -> None:
    """SIGKILL or SIGSEGV at a random moment of the worker's life."""
    tasks = candidates(case.rng.randint(1, 9))
    # Long enough that the moment may be while it starts, while it runs and after.
    worker = Worker(lambda: command_with({"pause": "0.02"}))
    number = case.rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    delay_s = case.rng.uniform(0.0, 0.4)

    def kill() -> None:
        time.sleep(delay_s)
        pid = worker.pid
        if pid is not None and Path(f"/proc/{pid}").exists():
            os.kill(pid, number)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        failures = [t.failure for t in ProcessBench(worker=worker).measure(tasks, **OPTIONS)]
        if any(failures):
            case.note(f"{number.name} after {delay_s:.3f} s, and {failures} came back")
    finally:
        thread.join()
        worker.close()


def fails_to_start(case: Case) -> None:
    """The first one or two workers end while they start."""
    kind = case.rng.choice(["segv", "abort", "kill", "leave", "fail"])
    bad_starts = iter(range(case.rng.randint(1, 2)))
    worker = Worker(lambda: command_with({} if next(bad_starts, None) is None else {"start": kind}))
    try:
        failures = [
            t.failure for t in ProcessBench(worker=worker).measure(candidates(3), **OPTIONS)
        ]
        if any(failures):
            case.note(f"bad starts by {kind}, and {failures} came back")
    finally:
        worker.close()


# ---- the process that tunes ----------------------------------------------------------------------

TUNER = """
import signal, sys, torch, torchalgo
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).eval()
print("started", flush=True)
try:
    fast = torchalgo.optimize(model, (torch.rand(1, 3, 12, 12),), cost_db=sys.argv[1],
                              progress=False, budget_s=3.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what comes now is for the interpreter
    print("plan", fast.plan.method, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def start_tuner(costs: Path, mark: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "TORCHALGO_FAULT": mark}
    return subprocess.Popen(
        [sys.executable, "-c", TUNER, str(costs)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def left_behind(mark: str) -> list[int]:
    """Processes that have `mark` in their environment, workers among them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"TORCHALGO_FAULT={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it ended, or is another user's
            continue
    return found


def check_database(case: Case, path: Path, number: signal.Signals) -> None:
    with CostStore.open(path) as store:
        if store.is_in_memory or not store.verify().is_sound:
            case.note(f"after {number.name} the database: {store.trouble} {store.verify()}")


def tuner_gets(number: signal.Signals) -> Fault:
    def run(case: Case) -> None:
        mark = uuid.UUID(int=case.rng.getrandbits(128)).hex
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            costs = Path(folder) / "costs.sqlite3"
            tuner = start_tuner(costs, mark)
            assert tuner.stdout is not None
            tuner.stdout.readline()
            time.sleep(case.rng.uniform(0.0, 8.0))
            tuner.send_signal(number)
            out, err = tuner.communicate(timeout=PATIENCE_S)
            said = out.split()[0] if out else ""
            if number == signal.SIGINT and (
                tuner.returncode or said not in {"plan", "interrupted"}
            ):
                case.note(f"{number.name}: status {tuner.returncode}, {out} {err[-500:]}")
            end = time.monotonic() + 5
            while left_behind(mark) and time.monotonic() < end:
                time.sleep(0.1)
            if orphans := left_behind(mark):
                case.note(f"{number.name}: left processes {orphans} behind")
            check_database(case, costs, number)
            again = start_tuner(costs, mark)
            out, err = again.communicate(timeout=PATIENCE_S)
            if again.returncode or "\nplan" not in out:
                case.note(f"after {number.name} the next run: {again.returncode} {err[-500:]}")

    return run


WORKER_FAULTS: dict[str, Fault] = {
    "candidate: SIGSEGV": candidates_do("segv"),
    "candidate: abort": candidates_do("abort"),
    "candidate: SIGKILL": candidates_do("kill"),
    "candidate: exit": candidates_do("leave"),
    "candidate: exception": candidates_do("fail"),
    "candidate: infinite loop": candidates_do("hang"),
    "candidate: sleeps": candidates_do("sleep"),
    "candidate: stopped": candidates_do("stop"),
    "candidate: out of memory": candidates_do("memory"),
    "candidate: garbage": candidates_do("garbage"),
    "candidate: much garbage": candidates_do("chatter"),
    "worker: killed from outside": killed_from_outside,
    "worker: fails to start": fails_to_start,
    "tuner: SIGINT": tuner_gets(signal.SIGINT),
    "tuner: SIGKILL": tuner_gets(signal.SIGKILL),
}

# Seconds each, and not a fraction of one: fewer of them.
SLOW_FAULTS = {
    "candidate: infinite loop": 0.2,
    "candidate: sleeps": 0.2,
    "candidate: stopped": 0.2,
    "candidate: garbage": 0.2,
    "candidate: much garbage": 0.2,
    "candidate: out of memory": 0.2,
    "tuner: SIGINT": 0.1,
    "tuner: SIGKILL": 0.1,
}
