# SPDX-License-Identifier: BSD-3-Clause
"""Stages that need no GPU, for test_gpu_check: gpu_check imports them in its processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gpu_stage import Context, Outcome, OutOfTimeError, Row, Stage, each_case, outcome_of


def count(context: Context, name: str) -> None:
    with (context.out / f"{name}.runs").open("a") as file:
        file.write(f"{os.getpid()}\n")


def good(context: Context) -> Outcome:
    count(context, "good")
    for i in range(3):
        context.emit({"i": i, "pid": os.getpid()})
    return Outcome("all is well", data={"left_s": context.left_s(), "seed": context.seed})


def bad(context: Context) -> Outcome:
    count(context, "bad")
    if (context.out / "mended").exists():
        return Outcome("mended")
    return Outcome("3 of 4", failures=["engine 7 differs"])


def broken(context: Context) -> Outcome:
    raise RuntimeError("out of luck\nsecond line")


def dies(context: Context) -> Outcome:
    context.emit("before")
    os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome("not reached")


def hangs(context: Context) -> Outcome:
    """As in C++, where no signal of Python's is heard; with a process of its own."""
    context.emit("before")
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    (context.out / "hangs.pid").write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def missed(context: Context) -> Outcome:
    outcome = Outcome("1.05x")
    outcome.suppose(False, "hypothesis missed: below 1.10x")
    return outcome


def tries(context: Context, name: str) -> int:
    """Counts the runs of a case. Returns how many there were before."""
    count(context, name)
    return len((context.out / f"{name}.runs").read_text().splitlines()) - 1


def cases(context: Context) -> Outcome:
    """Cases that pass, raise, have no memory, end their process, hang, or need a second call."""

    def case(name: str) -> Row:
        before = tries(context, name)
        if name == "dies" or (name == "dies once" and before == 0):
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "hangs" and before == 0:
            time.sleep(60)
        if name == "no memory":
            raise MemoryError("out of memory\nsecond line")
        if name == "needs a second call" and not context.resume:
            raise OutOfTimeError
        return {"value": before}

    names = ("passes", "dies once", "no memory", "needs a second call", "dies", "hangs", "last")
    rows, left = each_case(
        context, {name: lambda name=name: case(name) for name in names}, needs_s=0.0
    )
    return outcome_of(rows, left)


def last(context: Context) -> Outcome:
    names = sorted(path.name for path in Path(context.out).iterdir())
    return Outcome("the last", data={"files": names})


STAGES = (
    Stage("good", "passes", 1, 10.0, good, needs_gpu=False),
    Stage("bad", "finds a failure", 1, 10.0, bad),
    Stage("broken", "raises", 2, 10.0, broken),
    Stage("dies", "ends its process", 2, 10.0, dies),
    Stage("hangs", "never ends", 2, 0.6, hangs, is_default=False),
    Stage("missed", "misses a hypothesis", 2, 10.0, missed),
    Stage(
        "cases", "cases of all kinds", 4, 60.0, cases, resumes=True, quiet_s=6.0, is_default=False
    ),
    Stage("last", "comes last", 3, 10.0, last),
)
