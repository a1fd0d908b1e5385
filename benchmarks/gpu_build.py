# SPDX-License-Identifier: BSD-3-Clause
"""Gives gpu_check.py a torchalgo for its Python: from a package, or built here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_records import head_of, record_path, write_archive, write_record
from gpu_stage import Outcome, Stage
from harness import ROOT, ending_of

PACKAGE = ROOT / "build" / "gpu_package.tar.gz"
BUILD = Stage("build", "torchalgo for this Python", 1, 480, lambda context: Outcome(), False)


def can_import() -> bool:
    """Returns True if a new process of this Python can import torchalgo."""
    command = [sys.executable, "-c", "import torchalgo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip().rpartition("\n")[2], flush=True)
    return done.returncode == 0


def unpack_package(package: Path, folder: Path) -> bool:
    """Puts the libraries of a package into `folder`. Returns False if there is no package.

    They are for one version of Python, which `can_import` finds out.
    """
    if not package.exists():
        return False
    with tarfile.open(package) as archive:
        archive.extractall(folder, filter="data")
    return True


def build_commands() -> list[list[str]]:
    """Returns the commands that build torchalgo in its folder, by pip if this Python has it."""
    if importlib.util.find_spec("pip") is not None:
        flags = ["--no-build-isolation", "--no-deps", "--no-index", "-v", "-e", str(ROOT)]
        return [[sys.executable, "-m", "pip", "install", *flags]]
    build = ROOT / "build" / "release"
    options = ["-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", "-DTORCHALGO_CUDA=ON"]
    return [
        ["cmake", "-S", str(ROOT), "-B", str(build), *options],
        ["cmake", "--build", str(build)],
        ["cmake", "--install", str(build), "--prefix", str(ROOT / "python")],
    ]


def run_commands(commands: Sequence[Sequence[str]], log_path: Path) -> list[str]:
    """Runs commands until one fails. Returns why it did; an empty list if none did."""
    started = time.monotonic()
    with log_path.open("wb") as log:
        for command in commands:
            left_s = BUILD.budget_s - (time.monotonic() - started)
            try:
                status = subprocess.run(
                    command, stdout=log, stderr=subprocess.STDOUT, timeout=left_s, check=False
                ).returncode
                failure = f"{command[0]} ended with {ending_of(status)}" if status else ""
            except (OSError, subprocess.TimeoutExpired) as problem:
                failure = str(problem)
            if failure:
                return [f"{failure}; see {log_path}"]
    return []


def build_if_needed(
    out: Path,
    has_build: Callable[[], bool] = can_import,
    commands: Callable[[], list[list[str]]] = build_commands,
    package: Path = PACKAGE,
    folder: Path = ROOT / "python" / "torchalgo",
) -> dict[str, Any] | None:
    """Unpacks or builds torchalgo unless `has_build`. Returns the record, None if it is there.

    The processes of the stages find the result in PYTHONPATH.
    """
    if has_build():
        return None
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    paths = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(ROOT / "python"))
    if unpack_package(package, folder) and has_build():
        how, failures = "unpacked", []
    else:
        how, failures = "built", run_commands(commands(), out / "build.log")
        if not failures and not has_build():
            failures = [f"this Python cannot import what was built; see {out / 'build.log'}"]
    record = {
        **head_of(BUILD),
        "status": "failed" if failures else "passed",
        "seconds": round(time.monotonic() - started, 1),
        "summary": failures[0] if failures else f"{how} for Python {sys.version.split()[0]}",
        "failures": failures,
    }
    write_record(record, record_path(out, BUILD))
    write_archive(out)
    return record
