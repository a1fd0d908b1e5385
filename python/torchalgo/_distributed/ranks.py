# SPDX-License-Identifier: BSD-3-Clause
"""Exchanges values and failures between the processes that tune one model together."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from torchalgo import Error
from torchalgo._base.error_code import with_inner_code


class SharedError(Error):
    """An error that is raised on all ranks."""


class LostError(Error):
    """The error of a rank that could not reach another one within the timeout of the group."""


class Ranks:
    """The processes of a group of torch.distributed. Without a group, there is one rank."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Takes the ranks of `group`. None stands for the default group, if there is one."""
        self._group = group
        has_group = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if has_group else 0
        self.size = dist.get_world_size(group) if has_group else 1

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Runs the block on all ranks. If it fails on one of them, all raise the same error."""
        failure, cause = "", None
        try:
            yield
        except (SharedError, LostError):
            raise
        except Exception as problem:
            failure, cause = self.failure(problem), problem
        for text in self.gather(failure):
            if text:
                raise SharedError(text) from cause

    def failure(self, problem: BaseException) -> str:
        """Returns the text of an error of this rank, for all ranks."""
        kind = "" if isinstance(problem, Error) else f"{type(problem).__name__}: "
        return with_inner_code(f"TA6004 tune: rank {self.rank}: {kind}{problem}")

    def gather(self, value: Any) -> list[Any]:
        """Returns the value of each rank, on each rank."""
        values = [value] * self.size
        self._exchange(lambda: dist.all_gather_object(values, value, group=self._group))
        return values

    def broadcast(self, value: Any = None) -> Any:
        """Returns the value of rank 0, on each rank."""
        values = [value]
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        self._exchange(lambda: dist.broadcast_object_list(values, first, group=self._group))
        return values[0]

    def _exchange(self, collective: Callable[[], None]) -> None:
        if self.size == 1:
            return
        try:
            collective()
        except RuntimeError as problem:
            reason = (str(problem).splitlines() or [""])[0]
            raise LostError(
                f"TA6004 tune: rank {self.rank} lost another rank, which ended or did not answer"
                f" within the timeout of the group ({reason})"
            ) from None


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block, so that no exchange of values is cut short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
