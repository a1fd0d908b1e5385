# SPDX-License-Identifier: BSD-3-Clause
"""What can be wrong with a database file: the store answers each, and none reaches the user."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """What is to be done about it decides which it is."""

    DAMAGED = "damaged"  # or never ours
    NEWER = "newer"  # of a newer torchalgo: stays as it is
    BUSY = "busy"  # other processes, for longer than we wait
    LOCKLESS = "lockless"  # SQLite finds that out again, for ten seconds, each time it is asked
    UNUSABLE = "unusable"  # full, read-only, input/output error, gone


class StorageError(Exception):
    """A database file that cannot do what was asked."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause
