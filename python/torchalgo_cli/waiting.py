# SPDX-License-Identifier: BSD-3-Clause
"""Prints lines on stderr while a command waits for something that reports no progress."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

SILENCE_S = 10.0  # the longest time without a line


def tell(line: str) -> None:
    """Writes a line to stderr. Does nothing if stderr is closed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"torchalgo: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Runs `work` in a thread while the block runs, and waits for its end.

    `work` gets an event, which is set when the block ends. Then it has to return soon.
    """
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def told(text: str, is_silent: bool = False, at_once: bool = True) -> Iterator[None]:
    """Prints `text` every SILENCE_S on stderr while the block runs, with the seconds so far.

    Args:
        is_silent: True prints nothing.
        at_once: True also prints `text` when the block begins.
    """
    if is_silent:
        yield
        return
    began = time.monotonic()

    def remind(ended: threading.Event) -> None:
        while not ended.wait(SILENCE_S):
            tell(f"{text}, {time.monotonic() - began:.0f} s so far")

    if at_once:
        tell(text)
    with beside(remind, "torchalgo waiting"):
        yield
