# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks' records share: the commit they ran at, and how a line is kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def git_state() -> dict[str, Any]:
    """Commit and whether the tree differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return {
        "commit": git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
    }


def machine_state() -> dict[str, Any]:
    """The processor and what else it has to do."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def record(path: Path, line: dict[str, Any]) -> None:
    """Appends `line` to a file of JSON lines, and prints it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
