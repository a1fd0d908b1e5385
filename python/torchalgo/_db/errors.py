# SPDX-License-Identifier: BSD-3-Clause
"""Errors of a database file. The store handles all of them, so that none reaches the user."""

from __future__ import annotations

import enum


class Cause(enum.Enum):
    """The kind of a storage error. Each kind needs another reaction."""

    DAMAGED = "damaged"  # or not a database of torchalgo
    NEWER = "newer"  # written by a newer torchalgo; it is not changed
    BUSY = "busy"  # used by other processes for longer than the store waits
    LOCKLESS = "lockless"  # no file locks; each call of SQLite would take ten seconds to find out
    UNUSABLE = "unusable"  # disk full, read-only, input/output error, or file removed


class StorageError(Exception):
    """The error of an operation on a database file that is not possible."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause
