# SPDX-License-Identifier: BSD-3-Clause
"""Short runs of all fuzzers; tests/fuzz/records has the records of the long ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
CASES = {
    "texts problem": 2000,
    "texts graph": 500,
    "texts choice": 2000,
    "texts pbqp": 1000,
    "plans plans": 200,
    "files files": 60,
    "names names": 300,
    "rows rows": 5000,
    "databases databases": 71,
    "convolutions convolutions": 300,
    "networks networks": 400,
    "threads threads": 300,
    "threads forks": 15,
}


@pytest.mark.parametrize("fuzzer", CASES)
def test_a_short_campaign_finds_nothing(fuzzer: str) -> None:
    """Runs in a process of its own: seeds are forked, and this process has threads."""
    script, name = fuzzer.split()
    command = [sys.executable, FUZZ / f"fuzz_{script}.py", name, "--cases", str(CASES[fuzzer])]
    done = subprocess.run([*command, "--seed", "1000000000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
