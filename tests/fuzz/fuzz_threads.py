# SPDX-License-Identifier: BSD-3-Clause
"""Threads that call one optimized model and its copies, and processes forked meanwhile.

    python tests/fuzz/fuzz_threads.py threads --minutes 10

threads: eight threads call with inputs of several sizes while others change the number of threads
and make copies. forks: processes are forked meanwhile and call the model too. A case is a call, or
a forked process.
"""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
import threading
import time
import warnings
from typing import Any

import torch

import isolated
import torchalgo
from campaign import FindingError, main
from small_model import PLAN, check_outputs, inputs_and_outputs, model

SECONDS = 0.5
CHILD_S = 20  # a forked process that takes longer hangs


@functools.cache
def fast() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = torchalgo.load_plan(PLAN)
        return torchalgo.optimize(
            model(),
            torch.rand(1, 3, 24, 24),
            plan=plan,
            settings=torchalgo.Settings(progress=False, cost_db=False),
        )


class Threads:
    """Threads that call the model until `stop`; `findings` are what went wrong."""

    def __init__(self, seed: int) -> None:
        self.is_over, self.calls, self.findings = False, 0, []
        self.models = [fast(), copy.deepcopy(fast())]
        workers = [threading.Thread(target=self.call, args=(seed + i,)) for i in range(8)]
        others = [threading.Thread(target=target) for target in (self.set_threads, self.copies)]
        self.threads = [*workers, *others]
        for thread in self.threads:
            thread.start()

    def call(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.is_over:
            try:
                check_outputs(rng.choice(self.models), ())
            except Exception as error:
                self.findings.append(f"{type(error).__name__}: {error}")
            self.calls += 1

    def set_threads(self) -> None:
        for count in range(10**9):
            if self.is_over:
                break
            torch.set_num_threads(1 + count % 4)
            time.sleep(0.002)

    def copies(self) -> None:
        while not self.is_over:
            self.models[1] = copy.deepcopy(fast())

    def stop(self) -> None:
        self.is_over = True
        for thread in self.threads:
            thread.join()
        if self.findings:
            raise FindingError(f"{len(self.findings)} of {self.calls}: {self.findings[0]}")


def prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    inputs_and_outputs()
    fast()


def threads(seed: int) -> list[str]:
    prepare()
    running = Threads(seed)
    time.sleep(SECONDS)
    running.stop()
    return ["call"] * running.calls


def forks(seed: int) -> list[str]:
    prepare()
    running, ended = Threads(seed), []
    for _ in range(5):
        child = os.fork()
        if child == 0:
            _use_in_child()
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    running.stop()
    if any(ended):
        raise FindingError(f"forked processes ended with {ended}; {-signal.SIGALRM} is a hang")
    return ["fork"] * len(ended)


def _use_in_child() -> None:
    """Calls the model with one thread. Never returns."""
    code = 3
    try:
        signal.alarm(CHILD_S)
        torch.set_num_threads(1)
        check_outputs(fast(), ())
        code = 0
    finally:
        os._exit(code)


FUZZERS = {"threads": threads, "forks": forks}

if __name__ == "__main__":
    main(__doc__ or "", FUZZERS, isolated.results)
