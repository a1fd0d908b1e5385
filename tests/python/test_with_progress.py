# SPDX-License-Identifier: BSD-3-Clause
"""scripts/with_progress.py: lines while a silent command runs, and its output if it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(command: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(SCRIPTS / "with_progress.py"), "building"]
    return subprocess.run(
        [*program, "sh", "-c", command], capture_output=True, text=True, check=False
    )


def test_a_failure_shows_what_the_command_printed_and_returns_its_status() -> None:
    done = run("echo one; echo two >&2; exit 3")
    assert done.returncode == 3
    assert "one\ntwo\n" in done.stdout
    assert "failed with exit status 3" in done.stdout


def test_success_shows_no_output_of_the_command() -> None:
    done = run("echo one")
    assert done.returncode == 0
    told = done.stdout.splitlines()
    assert told[0] == "torchalgo: building"
    assert told[1].startswith("torchalgo: building: done in ")
    assert len(told) == 2


def test_a_line_follows_after_the_longest_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    import with_progress

    monkeypatch.setattr(with_progress, "SILENCE_S", 0.05)
    step = "[3/9] Building CXX object csrc/CMakeFiles/ta_ops.dir/ops/conv.cpp.o"
    assert with_progress.run("building", ["sh", "-c", f"echo '{step}'; sleep 0.5"]) == 0
    assert "torchalgo: building: [3/9] ops/conv.cpp, 0 s so far" in capsys.readouterr().out
