# SPDX-License-Identifier: BSD-3-Clause
"""The short form of benchmarks/fault_injection.py: nothing committed is lost or wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fault_injection.py"
COMPILER = os.environ.get("CC", "cc")

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or sys.platform != "linux", reason="the shim needs a C compiler"
)


def inject(tmp_path: Path, *arguments: object) -> list[dict[str, Any]]:
    """The records of a run that found no failure."""
    output = tmp_path / "faults.jsonl"
    command = [sys.executable, str(SCRIPT), *map(str, arguments), "--out", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    found = [r for r in records if r["failures"]]
    assert done.returncode == 0 and not found, f"{found} {done.stderr}"
    return records


@pytest.mark.slow
def test_faults_lose_no_committed_row_and_make_none_wrong(tmp_path: Path) -> None:
    records = inject(
        tmp_path, "--faults", 12, "--operations", 0, "--seed", 7, "--only", "database: *"
    )
    assert sum(r["count"] for r in records) == 12
    assert len(records) >= 12
    assert sum(r["committed"] for r in records) > 50
    kept = [
        r
        for r in records
        if r["fault"] not in ("database: corrupt bytes", "database: file taken away")
    ]
    assert all(r["lost_to_damage"] == 0 for r in kept)


@pytest.mark.slow
def test_faults_of_candidates_and_workers_reach_nobody_else(tmp_path: Path) -> None:
    kinds = ("SIGSEGV", "abort", "exit", "exception", "infinite loop", "out of memory")
    only = [argument for kind in kinds for argument in ("--only", f"candidate: {kind}")]
    more = ("--only", "worker: *")
    records = inject(tmp_path, "--faults", 12, "--operations", 0, "--seed", 3, *only, *more)
    assert {r["fault"] for r in records} >= {f"candidate: {kind}" for kind in kinds}
    assert all(r["count"] >= 1 for r in records)


@pytest.mark.slow
def test_processes_share_a_normal_a_lockless_and_a_full_folder(tmp_path: Path) -> None:
    records = inject(tmp_path, "--faults", 0, "--operations", 30, "--processes", 4, "--seed", 7)
    folders = {r["folder"]: r for r in records if "folder" in r}
    assert set(folders) == {"normal", "no locks", "full"}
    assert folders["normal"]["committed"] > 50


def test_the_shim_makes_calls_fail(tmp_path: Path) -> None:
    """Without this the tests above could pass by doing nothing."""
    library = tmp_path / "shim.so"
    shim = SCRIPT.parents[1] / "tests" / "faults" / "shim.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, shim, "-ldl"], check=True)
    code = (
        "import ctypes, errno, fcntl, os, sys\n"
        "folder, library = sys.argv[1], ctypes.CDLL(None)\n"
        "library.faults_set.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double,"
        " ctypes.c_uint64]\n"
        "file = os.open(folder + '/f', os.O_RDWR | os.O_CREAT)\n"
        "def code_of(kind, call):\n"
        "    library.faults_set(folder.encode(), kind, 1.0, 1)\n"
        "    try: call()\n"
        "    except OSError as problem: return errno.errorcode[problem.errno]\n"
        "print(code_of(1, lambda: os.pwrite(file, b'x', 9)),"
        " code_of(2, lambda: os.fsync(file)),"
        " code_of(4, lambda: fcntl.lockf(file, fcntl.LOCK_EX)),"
        " code_of(8, lambda: os.open(folder + '/f', os.O_RDWR)),"
        " code_of(15, lambda: os.stat(folder)))\n"
    )
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path.resolve())],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ENOSPC", "EIO", "ENOLCK", "EROFS", "None"]
