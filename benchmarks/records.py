# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks' records share: the commit they ran at, and how a line is kept."""

from __future__ import annotations

import json
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


def record(path: Path, line: dict[str, Any]) -> None:
    """Appends `line` to a file of JSON lines, and prints it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
