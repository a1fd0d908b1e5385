# SPDX-License-Identifier: BSD-3-Clause
"""The facts that a store returns about itself, about checking and about merging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Info:
    """The facts that `torchalgo db info` shows."""

    path: str
    access: str  # read-write | read-only | memory | none
    trouble: str  # why the costs are not on disk; empty if they are
    rows: int
    verdicts: int  # of the guard on plans
    records: dict[str, int]  # number of other stored texts by owner, such as "context"
    bytes: int
    max_bytes: int
    environments: dict[str, int]  # number of rows of each
    algorithms: dict[str, int]
    refusals: dict[str, int]  # candidates that failed, by primitive and reason
    checks: int  # candidates that passed the comparison with f64


@dataclass(frozen=True)
class Verified:
    """The result of checking a store.

    `rows`, `refusals` and `checks` count sound entries, and `unsound` the others. `damages` lists
    what SQLite finds wrong.
    """

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
    """The result of a merge.

    `seen` counts the offered rows and refusals, and `taken` those that are new or replaced one.
    `unsound` counts those that were left out.
    """

    seen: int
    taken: int
    unsound: int = 0
