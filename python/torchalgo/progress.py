# SPDX-License-Identifier: BSD-3-Clause
"""Progress of tuning: a bar on a terminal, plain lines elsewhere, or the caller's function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Event:
    """One step of tuning, in units of work; total == 0: a message."""

    text: str
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None


class Progress:
    """On stderr if `target` is True, nowhere if False, else a call of `target` with each Event."""

    LINE_EVERY_S = 5.0  # between two plain lines

    def __init__(
        self, target: bool | Callable[[Event], None], stream: TextIO | None = None
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._is_tty = self._stream.isatty()
        self._target = target
        self._done = self._total = 0
        self._started = time.monotonic()
        self._last_line = float("-inf")
        self._bar_is_open = self._has_ended = False

    def say(self, text: str) -> None:
        """A message on a line of its own."""
        self._emit(Event(text))

    def start(self, total: int) -> None:
        """Begins a count to `total`."""
        self._done, self._total = 0, total
        self._started, self._last_line = time.monotonic(), float("-inf")
        self._has_ended = False

    def advance(self, text: str, steps: int = 1) -> None:
        """`steps` more are done; `text` names the work that follows."""
        self._done = min(self._done + steps, self._total)
        elapsed = time.monotonic() - self._started
        left = elapsed / self._done * (self._total - self._done) if self._done else None
        self._emit(Event(text, self._done, self._total, elapsed, left))

    def finish(self, text: str) -> None:
        """Ends the count, however many steps it took."""
        if self._done < self._total:
            self.advance(text, self._total - self._done)
        self.close()

    def close(self) -> None:
        """Ends the bar's line."""
        if self._bar_is_open:
            self._stream.write("\n")
            self._stream.flush()
        self._bar_is_open = False

    def _emit(self, event: Event) -> None:
        if callable(self._target):
            self._target(event)
        elif self._target and event.total == 0:
            self.close()
            self._stream.write(f"torchalgo: {event.text}\n")
            self._stream.flush()
        elif self._target:
            self._draw(event)

    def _draw(self, event: Event) -> None:
        left = "" if event.eta_s is None else f", {event.eta_s:.0f} s left"
        count = f"{100 * event.done // max(event.total, 1)} %{left}"
        if self._is_tty:
            filled = 24 * event.done // max(event.total, 1)
            bar = "#" * filled + "." * (24 - filled)
            self._stream.write(f"\r\x1b[K[{bar}] {count}  {event.text[:44]}")
            self._bar_is_open = True
        else:
            now = time.monotonic()
            is_end = event.done == event.total and not self._has_ended
            if now - self._last_line < self.LINE_EVERY_S and not is_end:
                return
            self._last_line, self._has_ended = now, self._has_ended or is_end
            self._stream.write(f"torchalgo: tuning {count}: {event.text}\n")
        self._stream.flush()
