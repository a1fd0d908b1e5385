# SPDX-License-Identifier: BSD-3-Clause
"""Cases that need no time, for test_harness: they run in the harness's children."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def measure(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """A record; notes in the folder that it ran."""
    with (Path(options["folder"]) / "runs").open("a") as file:
        file.write(f"{name}\n")
    print("what a library prints is no result")
    os.system("echo nor what its processes print")
    if name == options.get("bad"):
        raise RuntimeError("out of luck")
    return {"network": name, "threads": options["threads"], "pid": os.getpid()}


def counts(last: int) -> Iterator[int]:
    """Gives 0, 1, 2, ... and dies after `last`."""
    yield from range(last + 1)
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(folder: str) -> Iterator[str]:
    """Hears no signal of Python's, and neither does a process of its own."""
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(folder) / "pids").write_text(f"{os.getpid()} {inner.pid}")
    yield "before"
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    time.sleep(600)


def waits(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """`measure`, but for one case that never ends."""
    if name == options.get("slow"):
        Path(options["folder"], "waiting").write_text(str(os.getpid()))
        time.sleep(600)
    return measure(name, options)


def garbage() -> None:
    """Writes to the parent's pipe past the harness, as nothing should."""
    for fd in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, b"{ this is no JSON\n")
    os._exit(0)


def silent() -> None:
    """Ends well and gives nothing."""
    os._exit(0)


def environment(name: str) -> str | None:
    return os.environ.get(name)
