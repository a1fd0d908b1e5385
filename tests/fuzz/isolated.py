# SPDX-License-Identifier: BSD-3-Clause
"""Runs a fuzzer's seeds in forked processes: a crash, a hang or a leak is a finding of one seed."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import time
from collections.abc import Generator, Iterable

from campaign import FindingError, Fuzzer, outcomes_of, told

PROCESS_S = 20.0  # a process ends after this time, so that leaks cannot add up
TIMEOUT_S = 120  # for one seed; a busy machine is slow
MEMORY_BYTES = 12 << 30  # torch.load takes 16 bytes per number of a memo, which a file may say


def results(fuzzer: Fuzzer, seed: int) -> Generator[Iterable[str] | FindingError, None, None]:
    """Runs consecutive seeds, many in each process."""
    at = seed
    while True:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run(fuzzer, at, writer)
        os.close(writer)
        try:
            with os.fdopen(reader) as lines:
                for line in lines:
                    outcomes, finding = json.loads(line)
                    at += 1
                    yield outcomes if finding is None else FindingError(finding)
        except GeneratorExit:  # the campaign is over
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            at += 1
            ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            yield FindingError(f"the process ended with {ended}")


def _run(fuzzer: Fuzzer, seed: int, writer: int) -> None:
    """Runs seeds until the time is over and writes a line for each. Never returns."""
    code, end = 1, time.monotonic() + PROCESS_S
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for at in itertools.count(seed):
            signal.alarm(TIMEOUT_S)
            result = _outcomes_or_error(fuzzer, at)
            signal.alarm(0)
            is_finding = isinstance(result, FindingError)
            line = json.dumps([[], str(result)[:2000]] if is_finding else [result, None])
            os.write(writer, (line + "\n").encode())
            if time.monotonic() > end:
                break
        code = 0
    finally:
        os._exit(code)


def _outcomes_or_error(fuzzer: Fuzzer, seed: int) -> list[str] | FindingError:
    try:
        return outcomes_of(fuzzer, seed)
    except Exception as error:
        return FindingError(told(error))
