# SPDX-License-Identifier: BSD-3-Clause
"""Holds what a store tells of itself, and what checking and merging it found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Info:
    """Holds what `torchalgo db info` shows."""

    path: str
    journal: str  # wal | rollback | read-only | memory
    trouble: str  # why it is not on disk, or cannot be written
    rows: int
    verdicts: int
    bytes: int
    max_bytes: int
    environments: dict[str, int]  # rows of each
    algorithms: dict[str, int]
    refusals: dict[str, int]  # candidates that failed, by primitive and reason
    checks: int  # candidates that passed the comparison with f64
    set_aside: list[str]  # damaged files, kept


@dataclass(frozen=True)
class Verified:
    """rows, refusals, checks: sound ones; unsound: misses; damages: what SQLite finds wrong."""

    rows: int
    refusals: int
    checks: int
    unsound: int
    damages: list[str]

    @property
    def is_sound(self) -> bool:
        return not self.unsound and not self.damages


@dataclass(frozen=True)
class Merged:
    """seen: rows and refusals that were offered; taken: that are new or replaced one; unsound: left
    out."""

    seen: int
    taken: int
    unsound: int = 0
