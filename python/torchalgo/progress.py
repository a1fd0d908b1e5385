# SPDX-License-Identifier: BSD-3-Clause
"""Progress of tuning: a bar on a terminal, plain lines elsewhere, or the caller's function.

With the package rich ("torchalgo[progress]") the bar on a terminal is its, else one of plain text.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TextIO


@dataclass(frozen=True)
class Event:
    """One step of tuning, in units of work; total == 0: a message.

    text: what is done now, or the message; best_us: what the cheapest plan of known costs takes by
    prediction, None as long as there is none.
    """

    text: str
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None
    best_us: float | None = None

    @property
    def share(self) -> float:
        return self.done / max(self.total, 1)

    @property
    def count(self) -> str:
        """ "42 %, 12 s left, best 31.20 ms", as far as it is known."""
        left = "" if self.eta_s is None else f", {self.eta_s:.0f} s left"
        best = "" if self.best_us is None else f", best {self.best_us / 1000:.2f} ms"
        return f"{100 * self.done // max(self.total, 1)} %{left}{best}"


class Display(Protocol):
    """Where events are shown."""

    def say(self, text: str) -> None: ...

    def draw(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Plain lines, for files and pipes: one in five seconds, the first and the last at once."""

    EVERY_S = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = float("-inf")
        self._has_ended = False

    def say(self, text: str) -> None:
        self._stream.write(f"torchalgo: {text}\n")
        self._stream.flush()

    def draw(self, event: Event) -> None:
        now = time.monotonic()
        is_end = event.done == event.total
        if event.done == 0:
            self._last, self._has_ended = float("-inf"), False
        if (now - self._last < self.EVERY_S and not is_end) or (is_end and self._has_ended):
            return
        self._last, self._has_ended = now, is_end
        self.say(f"tuning {event.count}: {event.text}")

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A bar of plain characters, drawn again and again on one line of a terminal."""

    WIDTH, MOST_TEXT = 24, 44

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_open = False

    def say(self, text: str) -> None:
        self.close()
        self._stream.write(f"torchalgo: {text}\n")
        self._stream.flush()

    def draw(self, event: Event) -> None:
        filled = int(self.WIDTH * event.share)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        self._stream.write(f"\r\x1b[K[{bar}] {event.count}  {event.text[: self.MOST_TEXT]}")
        self._stream.flush()
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\n")
            self._stream.flush()
        self._is_open = False


class RichBar:
    """The same with rich: in colour, as wide as the terminal. No thread of its own draws it, so
    that none runs beside a measurement."""

    EVERY_S = 0.1

    def __init__(self, stream: TextIO, console: Any = None) -> None:
        """Raises: ImportError where rich is not installed."""
        from rich.console import Console

        self._console = console if console is not None else Console(file=stream)
        self._bar: Any = None
        self._task: Any = None
        self._last = float("-inf")

    def say(self, text: str) -> None:
        self._console.print(f"torchalgo: {text}", markup=False, highlight=False)

    def draw(self, event: Event) -> None:
        now = time.monotonic()
        if now - self._last < self.EVERY_S and event.done < event.total:
            return
        self._last = now
        if self._bar is None:
            self._open(event.total)
        left = "" if event.eta_s is None else f"{event.eta_s:.0f} s left"
        best = "" if event.best_us is None else f"best {event.best_us / 1000:.2f} ms"
        self._bar.update(self._task, completed=event.done, total=event.total)
        self._bar.update(self._task, left=left, best=best, now=event.text)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def _open(self, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        def text(field: str, style: str, **column: Any) -> TextColumn:
            return TextColumn(field, style=style, markup=False, table_column=Column(**column))

        self._bar = Progress(
            BarColumn(24),
            text("{task.percentage:>3.0f} %", "bold"),
            text("{task.fields[left]}", "cyan", no_wrap=True),
            text("{task.fields[best]}", "green", no_wrap=True),
            text("{task.fields[now]}", "dim", no_wrap=True, overflow="ellipsis", ratio=1),
            console=self._console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task("", total=total, left="", best="", now="")
        self._bar.start()


def display_for(stream: TextIO) -> Display:
    """What suits a stream."""
    if not stream.isatty():
        return Lines(stream)
    try:
        return RichBar(stream)
    except ImportError:
        return Bar(stream)


class Progress:
    """On stderr if `target` is True, nowhere if False, else a call of `target` with each Event."""

    MOST_SHARE = 0.97  # before the end
    LEAST_SHARE = 0.04  # for a guess of the time left: a worker's start is no pace

    def __init__(
        self,
        target: bool | Callable[[Event], None],
        stream: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self._now_s = target, now_s
        self._display = display_for(stream if stream is not None else sys.stderr)
        self._done = self._total = 0
        self._started = now_s()
        self._best_us: float | None = None
        self._most_s = float("inf")  # until the end, whatever the pace

    @property
    def is_silent(self) -> bool:
        return self._target is False

    def say(self, text: str) -> None:
        """A message on a line of its own."""
        self._emit(Event(text))

    def start(self, total: int) -> None:
        """Begins a count to `total`."""
        self._done, self._total, self._started = 0, total, self._now_s()

    def doing(self, text: str) -> None:
        """Names the work that follows: a problem, and how many candidates of it."""
        self._count(text)

    def advance(self, text: str, steps: int = 1) -> None:
        """`steps` more are done, the last of them `text`. The total is a guess: until `finish`
        something is left."""
        self._done += steps
        self._total = max(self._total, int(self._done / self.MOST_SHARE) + 1)
        self._count(text)

    def set_best(self, best_us: float) -> None:
        """What the cheapest plan takes, of those that could be made now."""
        self._best_us = best_us

    def set_most(self, seconds: float) -> None:
        """It ends within so many seconds."""
        self._most_s = self._now_s() + seconds

    def finish(self, text: str) -> None:
        """Ends the count, however many steps it took."""
        if self._done < self._total:
            self._done = self._total
            self._count(text)
        self.close()

    def close(self) -> None:
        """Ends the bar's line."""
        self._display.close()

    def _count(self, text: str) -> None:
        now = self._now_s()
        elapsed, left = now - self._started, None
        if self._done >= self.LEAST_SHARE * self._total:
            pace_s = elapsed / self._done
            left = max(0.0, min(pace_s * (self._total - self._done), self._most_s - now))
        self._emit(Event(text, self._done, self._total, elapsed, left, self._best_us))

    def _emit(self, event: Event) -> None:
        if callable(self._target):
            self._target(event)
        elif self._target and event.total == 0:
            self._display.say(event.text)
        elif self._target:
            self._display.draw(event)
