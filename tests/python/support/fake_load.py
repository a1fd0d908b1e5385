# SPDX-License-Identifier: BSD-3-Clause
"""Engines of bench_load.py that only sleep. Its children import this, and no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from torchalgo_cli import turns

CALL_S = {"torchalgo": 0.002, "eager": 0.004}
DIES, HANGS, NEVER_STARTS = "inductor", "ncnn", "zentorch"
DIES_IN_CALL = 3


def serve(engine: str, network: str, threads: int, plan: str) -> Iterator[dict[str, Any]]:
    """`network` is a folder, to which a line is written for each call."""
    turns.WARM_S = 0.01
    if engine == NEVER_STARTS:
        raise ModuleNotFoundError(engine)
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if engine == DIES and calls == DIES_IN_CALL:
            os._exit(3)
        began = monotonic()
        sleep(600 if engine == HANGS else CALL_S.get(engine, 0.001))
        with (Path(network) / f"{engine}.{threads}.{os.getpid()}").open("a") as file:
            file.write(f"{began} {monotonic()}\n")

    yield {"pid": os.getpid(), "plan": plan and Path(plan).read_text()}
    yield from turns.answers(turns.by_call(call))


def tune(network: str, path: str, tune_s: float, threads: int, names: list[str]) -> str:
    Path(path).write_text(f"{threads} threads, {tune_s:g} s")
    return "plan"
