# SPDX-License-Identifier: BSD-3-Clause
"""A child of fork() runs an optimized module, whatever the parent's threads did at that moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from support.nets import run_plan


@pytest.fixture
def one_thread() -> Iterator[None]:
    """OpenMP's threads do not exist in a child: with more than one, PyTorch itself hangs there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
def test_a_child_runs_a_module_that_other_threads_of_the_parent_run() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    fast = run_plan(net, torch.rand(1, 3, 12, 12))
    images = [torch.rand(1, 3, height, 7) for height in range(6, 30)]
    stop = threading.Event()

    def call() -> None:
        with torch.no_grad():
            for image in images:
                fast(image)

    def work() -> None:
        while not stop.is_set():
            call()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    hung = 0
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                call()
                os._exit(0)
            hung += os.waitpid(child, 0)[1] != 0
            if hung:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert hung == 0
