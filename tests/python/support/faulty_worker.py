# SPDX-License-Identifier: BSD-3-Clause
"""worker.py with candidates that misbehave: for tests and benchmarks/fault_injection.py.

    python -I faulty_worker.py '{"worker": ".../worker.py", "cpu.direct": "segv"}' A BOARD PARENT

Each named primitive does its fault instead of running; the others take no time, and torch is not
even imported. "start" names a fault of the worker itself before it is ready, "pause" the seconds
that each candidate takes, "closed" the reason why the worker cannot use the GPU, "release" a fault
of that request. `"real": "yes"`: the others run in truth.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

NS = 1000.0  # what a candidate without fault takes


def segv() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.write(2, b"free(): invalid pointer\n")
    os.abort()


def hang() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(1e6)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    blocks = []
    while True:
        blocks.append(bytearray(1 << 26))


def garbage() -> None:
    os.write(int(sys.argv[2]), b'{"id": 10, "results"\n')
    time.sleep(1e6)


def chatter() -> None:
    os.write(int(sys.argv[2]), b"\xff{[" * 20000 + b"\n")
    time.sleep(1e6)


def fail() -> None:
    raise RuntimeError("unheard of")


FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (segv, abort, hang, sleep, stop, kill, leave, memory, garbage, chatter, fail)
}


def main() -> None:
    faults = json.loads(sys.argv[1])
    if "start" in faults:
        FAULTS[faults["start"]]()
    spec = importlib.util.spec_from_file_location("worker", faults["worker"])
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    if "real" in faults:
        patch_real(worker, faults)
    else:
        replace_steps(worker, faults)
    worker.main(sys.argv[2:])


def step(faults: dict[str, str], board: Any, index: int, name: str) -> None:
    board[1] = index
    board[0] += 1
    time.sleep(float(faults.get("pause", "0")))
    if name in faults:
        FAULTS[faults[name]]()


def replace_steps(worker: Any, faults: dict[str, str]) -> None:
    """The protocol without torch, which takes seconds to import."""
    worker._start = lambda first: {"isa": faults["isa"], "version": faults["version"]}

    def attempt(request: Any, board: Any) -> dict[str, Any]:
        if "closed" in faults:
            return {"closed": faults["closed"]}
        if request["do"] in ("start", "release"):
            FAULTS.get(faults.get(request["do"], ""), lambda: None)()
            return {"results": [], "lost": ""}
        primitives = [primitive for _, primitive in request["tasks"]]
        for i, primitive in enumerate(primitives):
            step(faults, board, i, primitive[0])
        if request["do"] == "check":
            return {"results": [[1e-7, ""]] * len(primitives), "lost": ""}
        samples = [[NS] * request["options"]["rounds"], "", 0]
        return {"results": [samples] * len(primitives), "lost": ""}

    worker._attempt = attempt


def patch_real(worker: Any, faults: dict[str, str]) -> None:
    """Candidates run in truth, but those with a fault."""
    start = worker._start

    def start_and_patch(first: Any) -> Any:
        answer = start(first)
        from torchalgo import _C

        measure, check = _C.measure, _C.check_primitives

        def measure_some(tasks: Sequence[Any], *, board: Any, **options: Any) -> list[Any]:
            for i, (_, primitive) in enumerate(tasks):
                step(faults, board, i, primitive.name)
            return list(measure(tasks, board=board, **options))

        def check_some(problem: str, primitives: Sequence[Any], *a: Any, **options: Any) -> Any:
            for i, primitive in enumerate(primitives):
                step(faults, options["board"], i, primitive.name)
            return check(problem, primitives, *a, **options)

        _C.measure, _C.check_primitives = measure_some, check_some
        return answer

    worker._start = start_and_patch


if __name__ == "__main__":
    main()
