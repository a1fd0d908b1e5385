# SPDX-License-Identifier: BSD-3-Clause
"""Work that one of several overlapping calls does, while the others go on without it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable, Iterator


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
