# SPDX-License-Identifier: BSD-3-Clause
"""Run a command that is silent for minutes, and print a line at least every ten seconds.

usage: python scripts/with_progress.py TEXT COMMAND...

A line holds TEXT, the last thing that the command printed, and the time so far. What the command
printed is shown in full if it fails.
"""

from __future__ import annotations

import collections
import queue
import re
import subprocess
import sys
import threading
import time

SILENCE_S = 10.0  # the longest time without a line
PACE_S = 5.0  # the shortest time between two lines
SHOWN_ON_FAILURE = 4000  # lines
NINJA = re.compile(r"(\[\d+/\d+\]) .*? (\S+)$")  # "[12/240] Building CXX object a/b/c.cpp.o"


def shorten(line: str) -> str:
    """Returns what a line of progress shows of one of the command's lines."""
    step = NINJA.match(line)
    if step:
        path = step[2].removesuffix(".o").split(".dir/")[-1]
        return f"{step[1]} {path}"
    return line if len(line) <= 90 else f"{line[:87]}..."


def read_lines(command: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Puts each line that the command prints into `lines`, and None at its end."""
    assert command.stdout is not None
    with command.stdout:
        for line in command.stdout:
            lines.put(line.rstrip())
    lines.put(None)


def run(text: str, command: list[str]) -> int:
    """Runs the command and returns its exit status."""
    began = told = time.monotonic()
    print(f"torchalgo: {text}", flush=True)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=read_lines, args=(process, lines), daemon=True).start()
    printed: collections.deque[str] = collections.deque(maxlen=SHOWN_ON_FAILURE)
    last = shown = ""
    while True:
        try:
            line = lines.get(timeout=max(0.0, told + SILENCE_S - time.monotonic()))
        except queue.Empty:
            line = ""
        if line is None:
            break
        if line.strip():
            printed.append(line)
            last = shorten(line.strip())
        now = time.monotonic()
        silent_s = now - told
        if silent_s >= SILENCE_S or (silent_s >= PACE_S and last != shown):
            told, shown = now, last
            print(f"torchalgo: {text}: {last}, {now - began:.0f} s so far", flush=True)
    status = process.wait()
    if status != 0:
        print("\n".join(printed), flush=True)
        print(f"torchalgo: {text}: failed with exit status {status}: {' '.join(command)}")
    else:
        print(f"torchalgo: {text}: done in {time.monotonic() - began:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2:]))
