# SPDX-License-Identifier: BSD-3-Clause
"""A process that ends while its threads call a module ends at once and with its own status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchalgo

# PyTorch itself may abort if a thread frees a tensor while Python ends, so the results are kept.
PROGRAM = """
import signal, sys, threading, time, warnings
import torch, torchalgo
warnings.simplefilter("ignore")
path, how, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
fast = torchalgo.load(path)
x = torch.rand(1, 3, 24, 32)
kept, running = [], []

def work():
    running.append(None)
    while True:
        kept.append(fast(x))

if how == "handler":
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(3))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    work()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while len(running) < 3 or len(kept) < 20:
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.parametrize("how", ["handler", "daemons"])
# With more threads than can run, our kernels take those of the pool.
@pytest.mark.parametrize("threads", [2, len(os.sched_getaffinity(0)) + 1], ids=["openmp", "pool"])
def test_the_process_ends_during_calls(
    fast: torchalgo.Optimized, tmp_path: Path, how: str, threads: int
) -> None:
    fast.save(tmp_path / "net.pt")
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "net.pt"), how, str(threads)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")
