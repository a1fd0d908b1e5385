# SPDX-License-Identifier: BSD-3-Clause
"""Workers that fail on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import torchalgo
from torchalgo import _C
from torchalgo._measure.process_bench import ProcessBench, Worker

CONV = "fwd_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias"


OPTIONS = {"warmup": 1, "rounds": 3, "budget_s": 0.1, "cold_bytes": 0, "seed": 0}


LIMIT_S = 1.5


MakeBench = Callable[..., ProcessBench]


def faulty_command(**faults: str) -> Callable[[], list[str]]:
    folder = Path(torchalgo.__file__).parent
    hello = {"isa": _C.cpu_device().isa, "version": _C.version}
    said = json.dumps({"worker": str(folder / "_measure" / "worker.py"), **hello, **faults})
    script = str(Path(__file__).with_name("faulty_worker.py"))
    return lambda: [sys.executable, "-I", script, said]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """A bench whose named primitives do a fault; its worker ends with the test."""
    workers: list[Worker] = []

    def make(**faults: str) -> ProcessBench:
        named = {name.replace("__", "."): fault for name, fault in faults.items()}
        workers.append(Worker(faulty_command(**named)))
        return ProcessBench(worker=workers[-1], least_limit_s=LIMIT_S)

    yield make
    for worker in workers:
        worker.close()
