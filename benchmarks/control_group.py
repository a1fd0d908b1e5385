# SPDX-License-Identifier: BSD-3-Clause
"""Control groups of Linux that limit the processors of a benchmark's own processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PREFIX = "torchalgo-load"  # of a group's name, before the process that made it


def group_folders() -> Iterator[Path]:
    """Yields folders in which a control group with a quota may be possible, the best first."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for mount in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = mount.split()
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            wanted = "cpu" if kind == "cgroup" else ""
            own = [path for _, names, path in lines if wanted in names.split(",")]
            yield from dict.fromkeys(Path(folder + path) for path in (*own, "/"))


@contextlib.contextmanager
def control_group(quota: float) -> Iterator[Path]:
    """Makes a control group whose processes together have so many processors, and removes it.

    Raises: OSError if this is not possible here.
    """
    for folder in group_folders():
        for old in folder.glob(f"{PREFIX}-*"):  # of a run that was killed
            if not Path("/proc", old.name.split("-")[2]).exists():
                old.rmdir()
        group = folder / f"{PREFIX}-{os.getpid()}-{quota:g}"
        with contextlib.suppress(OSError):
            group.mkdir()
        limit = f"{quota * 1e5:.0f}"  # us in a period of 100 ms
        for file, text in (("cpu.cfs_quota_us", limit), ("cpu.max", f"{limit} 100000")):
            if (group / file).exists():
                try:
                    (group / file).write_text(text)
                    yield group
                finally:
                    group.rmdir()
                return
        if group.exists():
            group.rmdir()
    raise OSError("no control group with a quota can be made here")
