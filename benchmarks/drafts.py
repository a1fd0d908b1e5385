# SPDX-License-Identifier: BSD-3-Clause
"""Keeps records of changed trees apart: no page and no table shows them.

A record names a commit. If the tree differs from the commit, nobody can repeat the run. So such a
record is refused, unless --draft is given. Then it goes to build/drafts.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TABLES = ROOT / "benchmarks" / "tables"
DRAFTS = ROOT / "build" / "drafts"
# Records and what is made of them may change between two runs.
MADE = (
    ":(exclude)benchmarks/results",
    ":(exclude)benchmarks/tables",
    ":(exclude)tests/fuzz/records",
)
_IS_DRAFT = "TORCHALGO_BENCH_DRAFT"  # set by --draft, for this process and its children


@functools.cache
def git_state(tree: Path = ROOT) -> dict[str, Any]:
    """Returns the commit and whether the tree differs from it, as they were at the first call.

    Records of earlier runs are no difference.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=tree, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    return {
        "commit": git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--", ".", *MADE)),
    }


class DraftAction(argparse.Action):
    """The option --draft."""

    def __init__(self, option_strings: Any, dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, dest, nargs=0, default=False,
            help="write to build/drafts; no page shows these records", **options,
        )  # fmt: skip

    def __call__(self, parser: Any, namespace: argparse.Namespace, *rest: Any) -> None:
        setattr(namespace, self.dest, True)
        os.environ[_IS_DRAFT] = "1"


def place_of(path: Path) -> Path:
    """Returns where a record goes that is meant for `path`: the same path, or that of a draft.

    Paths outside of benchmarks/results and benchmarks/tables stay as they are.

    Raises: SystemExit if the tree has changes, and the record is no draft.
    """
    path = path.resolve()
    if not path.is_relative_to(RESULTS) and not path.is_relative_to(TABLES):
        return path
    if os.environ.get(_IS_DRAFT):
        return DRAFTS / path.relative_to(RESULTS.parent)
    if git_state()["dirty"]:
        raise SystemExit(
            f"{path.name}: the tree has changes, so no commit tells what ran. Commit first, or give"
            f" --draft, which writes to {DRAFTS.relative_to(ROOT)}"
        )
    return path
