# SPDX-License-Identifier: BSD-3-Clause
"""Engines of bench_peers.py that only sleep, and some that fail. Needs no converter."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

import peer_engines
from torchalgo_cli import turns

CALL_S = {"python": 0.0, "torchalgo": 0.002, "ncnn": 0.008, "iree": 0.002}
DIES_IN_TURN, REFUSES, HAS_NO_FILES, ITS_CONVERTER_DIES = "iree", "mnn", "litert", "openvino"


def prepare(network: str, folder: str) -> int:
    np.save(Path(folder, "input.npy"), np.ones(3, np.float32))
    np.save(Path(folder, "reference.npy"), np.full(4, 2.0))
    return 0


def convert(engine: str, network: str, folder: str, *settings: float) -> dict[str, Any]:
    if engine == ITS_CONVERTER_DIES:
        os._exit(3)
    if engine == HAS_NO_FILES:
        return {"failure": "TypeError: no operation swish"}
    return {"file_bytes": 1000, "convert_s": 0.0}


def serve(name: str, folder: str) -> None:
    turns.WARM_S = 0.01
    calls = 0

    def call() -> Any:
        nonlocal calls
        calls += 1
        if name == DIES_IN_TURN and calls > 1 + peer_engines.CALLS:
            os._exit(3)
        sleep(CALL_S[name])
        return np.full(4, 2.002)

    def opened(folder: Path, x: Any) -> Any:
        if name == REFUSES:
            raise ValueError("no such layer\nin net.mnn")
        return call

    peer_engines.ENGINES[name] = peer_engines.Engine(opened, (), "numpy", name)
    peer_engines.serve(name, folder)
