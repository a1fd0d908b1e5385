# SPDX-License-Identifier: BSD-3-Clause
"""Counts how long processors and threads were busy, and warns on a machine with other work."""

from __future__ import annotations

import functools
import math
import os
import time
from pathlib import Path

from torchalgo._base.user_warning import warn_user

# "1": all times are stored, as if no other program ran. For machines that are never idle.
IGNORE = "TORCHALGO_IGNORE_LOAD"

# The load of other programs is measured for this time before the first measurement.
LOOK_S = 0.1


def is_ignored() -> bool:
    """Returns True if TORCHALGO_IGNORE_LOAD is 1."""
    return os.environ.get(IGNORE, "0") == "1"


def used_s(pid: int | None) -> tuple[float, float]:
    """Returns the seconds that a process's threads ran, and the seconds that they waited to run.

    Returns zeros if there is no such process, or if the system does not count this.
    """
    ran = waited = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        threads = []
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
            own, delay, _ = map(int, text.split())
        except (OSError, ValueError):
            continue  # a thread that has ended is not counted
        ran, waited = ran + own, waited + delay
    return 1e-9 * ran, 1e-9 * waited


def processors_s() -> tuple[float, float]:
    """Returns the seconds that this process's processors were busy, and the seconds that the
    hypervisor gave to other machines.

    Returns zeros if the system does not count this.
    """
    busy = stolen = 0
    cores = os.sched_getaffinity(0)
    try:
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
                user, nice, system, _, _, irq, soft, steal = map(int, fields[:8])
                busy += user + nice + system + irq + soft
                stolen += steal
    except (OSError, ValueError):
        pass
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return busy * tick_s, stolen * tick_s


def may_spin() -> bool:
    """Returns whether PyTorch's threads may wait for work without leaving their processors."""
    return "GOMP_SPINCOUNT" not in os.environ


def warn_if_busy(threads: int, worker: int | None) -> bool:
    """Warns if other programs need the processors on which `threads` threads will be timed.

    Returns True if they do.

    Args:
        threads: the number of threads that will be timed.
        worker: the id of the process that will run candidates, which may still be starting. None if
            there is none.
    """
    if is_ignored():
        return False
    own = {os.getpid(), worker} - {None}

    def others_s() -> float:
        return processors_s()[0] - sum(used_s(pid)[0] for pid in own)

    before, started = others_s(), time.monotonic()
    time.sleep(LOOK_S)
    busy = max(0.0, (others_s() - before) / (time.monotonic() - started))
    cores = len(os.sched_getaffinity(0))
    if busy + threads <= 1.25 * cores:
        return False
    spin = " start with GOMP_SPINCOUNT=1000, so that PyTorch's threads do not wait on a processor;"
    _warn_once(
        f"other programs use {min(math.ceil(busy), cores)} of {cores} processors, and torch has"
        f" {threads} threads. Times taken now may be too long. Disturbed times are not stored for"
        " later runs. Wait until the other programs have ended, or give torch fewer threads with"
        f" torch.set_num_threads. On a machine that is never idle,{spin if may_spin() else ''}"
        f" {IGNORE}=1 stores all times"
    )
    return True


@functools.cache
def _warn_once(text: str) -> None:
    """Warns, unless this process had the same warning before, as for another part of a model."""
    warn_user(text, RuntimeWarning)
