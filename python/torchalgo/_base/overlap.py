# SPDX-License-Identifier: BSD-3-Clause
"""Locks, work and changes of the process's own state in calls that may overlap in threads."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

import torch

from torchalgo import _C
from torchalgo._C import Error

# A call waits so long for its turn. An error is better than a wait without end: the code of the
# user that has the turn may wait for this call.
MOST_WAIT_S = 300.0

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


class WhileAny:
    """A change that stays while any of several overlapping blocks runs.

    The first block makes it, and the last one undoes it. If each block saved and restored the
    state, overlapping blocks would leave it changed for good.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        """Takes `change`, which makes the change and returns the function that undoes it."""
        self._change, self._undo = change, lambda: None
        self._count = 0
        self._lock = fork_lock()

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Has the change in the block."""
        with self._lock:
            if not self._count:
                self._undo = self._change()
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._undo()


def filter_warnings(
    action: Literal["ignore", "always"], message: str, *categories: type[Warning]
) -> Callable[[], None]:
    """Adds filters of warnings whose text begins with a pattern. Returns what removes them.

    warnings.catch_warnings replaces all filters, and blocks of it in two threads leave those of
    one of them.
    """
    filters = warnings.filters
    before = list(filters)
    for category in categories:
        warnings.filterwarnings(action, message=message, category=category)
    added = [each for each in filters if each not in before]

    def undo() -> None:
        for each in added:
            with contextlib.suppress(ValueError):  # the user has reset the filters
                filters.remove(each)  # type: ignore[attr-defined]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    return undo


_hidden = WhileAny(
    lambda: filter_warnings("ignore", r"`torch\.jit\.", DeprecationWarning, FutureWarning)
)


def quiet_jit() -> contextlib.AbstractContextManager[None]:
    """Hides the deprecation warnings of torch.jit, because the user did not call it."""
    return _hidden.block()


def keep_fake_device() -> None:
    """Registers a device guard that outlives this thread. Call it before any FakeTensorMode.

    Without a GPU, PyTorch 2.11 registers a guard that belongs to the thread of the first
    FakeTensorMode, and reads it in each later one. A GPU is never initialized here: like
    FakeTensorMode itself, this only asks whether there is one.
    """
    if not torch.cuda.is_available():
        _C.keep_fake_cuda_guard()


class Claims:
    """Says which call does a piece of work. No call waits, and no lock is held during the work.

    The work may call the user's code: a model, a progress function, a meter. That code may make the
    same call again, or wait for a thread that does. A lock would then never be free again.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, list[int]] = {}

    @contextlib.contextmanager
    def claim(self, work: Hashable = None) -> Iterator[bool]:
        """Yields True if no other call does `work` now. Then this call does it in the block."""
        own = [os.getpid()]
        if self._held.setdefault(work, own)[0] != own[0]:
            self._held[work] = own  # of a thread of the parent, which a fork does not copy
        is_mine = self._held.get(work) is own
        try:
            yield is_mine
        finally:
            if is_mine:
                del self._held[work]


_turn = threading.RLock()


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Runs the block while no other thread runs such a block.

    It is for code that PyTorch runs in one thread only: torch.fx patches nn.Module while it
    traces, and the random generators belong to the process.

    Args:
        what: what the block does, for the text of the error.
    Raises: torchalgo.Error if another thread has not ended its block after MOST_WAIT_S.
    """
    if not _turn.acquire(timeout=MOST_WAIT_S):
        raise Error(
            f"TA1605 optimize: another thread has done this for {MOST_WAIT_S:.0f} s: {what}. Only"
            " one thread can: let the code that it runs not wait for this call"
        )
    try:
        yield
    finally:
        _turn.release()
