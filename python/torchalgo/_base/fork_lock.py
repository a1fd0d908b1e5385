# SPDX-License-Identifier: BSD-3-Clause
"""Locks that are free in the child of a fork(), even if another thread held them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_lock() -> threading.Lock:
    """Returns a lock that is always free in a forked child of this process.

    The code that holds it must leave the guarded data in a usable state after every line.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_all)
