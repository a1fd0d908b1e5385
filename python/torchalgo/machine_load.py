# SPDX-License-Identifier: BSD-3-Clause
"""Other programs that use the processors while something is timed.

A time that was taken while its process waited for a processor is too long, by luck for one
candidate and not for another. Such times serve the run that took them. They are not kept.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from torchalgo.plan import MOST_WAITING

# "1": times count as if this process had the machine to itself. For machines that are never idle.
IGNORE = "TORCHALGO_IGNORE_LOAD"

# A process that waited less than this was interrupted once, if at all.
LEAST_WAIT_S = 0.01

# Before the first measurement, other programs are watched for so long.
LOOK_S = 0.1


def is_ignored() -> bool:
    """True if TORCHALGO_IGNORE_LOAD is 1."""
    return os.environ.get(IGNORE, "0") == "1"


def used_s(pid: int | None) -> tuple[float, float]:
    """Returns the seconds that the threads of a process ran, and that they waited for a processor.

    Returns zeros if there is no such process, or if the system does not count this.
    """
    ran = waited = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="ascii")
            own, delay, _ = map(int, text.split())
            ran, waited = ran + own, waited + delay
    except (OSError, ValueError):
        pass  # a thread that has ended is not counted
    return 1e-9 * ran, 1e-9 * waited


def processors_s() -> tuple[float, float]:
    """Returns the seconds that this process's processors were busy, and that the hypervisor gave to
    other machines; zeros if the system does not count this."""
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


class WaitWatch:
    """Measures how long a process waits for processors, from when the watch is made."""

    def __init__(self, pid: Callable[[], int | None] = os.getpid) -> None:
        """`pid` names the process that times; it may be started, or started again, meanwhile."""
        self._pid = pid
        self._before = None if is_ignored() else self._now()

    def _now(self) -> tuple[int | None, float, float, float]:
        pid = self._pid()
        return pid, *used_s(pid), processors_s()[1]

    def share(self) -> float:
        """Returns which part of the time that it wanted to run the process had to wait; 0 if that
        was an interruption or less."""
        if self._before is None:
            return 0.0
        before, (pid, ran, waited, stolen) = self._before, self._now()
        if pid == before[0]:
            ran, waited = max(0.0, ran - before[1]), waited - before[2]
        waited += stolen - before[3]
        return 0.0 if waited < LEAST_WAIT_S else waited / (waited + ran)

    def was_disturbed(self) -> bool:
        """True if what was timed meanwhile must not be kept."""
        return self.share() > MOST_WAITING


def warn_if_busy(threads: int, worker: int | None) -> None:
    """Warns if other programs need the processors on which `threads` threads will be timed.

    Args:
        worker: the process that will run candidates; it may still be starting.
    """
    if is_ignored():
        return
    own = {os.getpid(), worker} - {None}

    def others_s() -> float:
        return processors_s()[0] - sum(used_s(pid)[0] for pid in own)

    before, started = others_s(), time.monotonic()
    time.sleep(LOOK_S)
    busy = max(0.0, (others_s() - before) / (time.monotonic() - started))
    cores = len(os.sched_getaffinity(0))
    if busy + threads <= 1.25 * cores:
        return
    warnings.warn(
        f"torchalgo: other programs use {busy:.1f} of {cores} processors (load average"
        f" {os.getloadavg()[0]:.1f}), and torch has {threads} threads. Times taken now are too long"
        " and differ by chance, so those that they disturb are not kept for later runs. Wait until"
        " the other programs have ended, or leave them processors by torch.set_num_threads;"
        f" {IGNORE}=1 keeps all times on a machine that is never idle",
        RuntimeWarning,
        stacklevel=2,
    )
