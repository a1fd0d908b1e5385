# SPDX-License-Identifier: BSD-3-Clause
"""Progress of tuning: a bar on a terminal, plain lines elsewhere, or the caller's function.

If the package rich is installed ("torchalgo[progress]"), it draws the bar on a terminal. Otherwise
the bar is plain text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from torchalgo_cli.waiting import SILENCE_S, beside

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """The progress of tuning after one step, in units of work. `total` is 0 for a message.

    `text` names the current work or holds the message. `best_us` is the predicted time of the
    cheapest plan so far, or None while there is no plan. `eta_s` is None while the time left is not
    known.
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
        """Formats the known parts as "42 %, 12 s left, best 31.20 ms"."""
        left = "" if self.eta_s is None else f", {self.eta_s:.0f} s left"
        best = "" if self.best_us is None else f", best {self.best_us / 1000:.2f} ms"
        return f"{100 * self.done // max(self.total, 1)} %{left}{best}"


class Display(Protocol):
    """An output for events."""

    def say(self, text: str) -> None: ...

    def draw(self, event: Event) -> bool:
        """Returns whether it drew the event. A display may skip events that follow too soon."""
        ...

    def close(self) -> None: ...


class Lines:
    """A display of plain lines, for files and pipes.

    It writes one line in five seconds, and the first and the last line at once.
    """

    EVERY_S = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = float("-inf")
        self._has_ended = False

    def say(self, text: str) -> None:
        self._stream.write(f"torchalgo: {text}\n")
        self._stream.flush()

    def draw(self, event: Event) -> bool:
        now = time.monotonic()
        is_end = event.done == event.total
        if event.done == 0:
            self._last, self._has_ended = float("-inf"), False
        if (now - self._last < self.EVERY_S and not is_end) or (is_end and self._has_ended):
            return False
        self._last, self._has_ended = now, is_end
        self.say(f"tuning {event.count}: {event.text}")
        return True

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class Bar:
    """A bar of plain characters, redrawn on one line of a terminal."""

    WIDTH, MOST_TEXT = 24, 44

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_open = False

    def say(self, text: str) -> None:
        self.close()
        self._stream.write(f"torchalgo: {text}\n")
        self._stream.flush()

    def draw(self, event: Event) -> bool:
        filled = int(self.WIDTH * event.share)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        self._stream.write(f"\r\x1b[K[{bar}] {event.count}  {event.text[: self.MOST_TEXT]}")
        self._stream.flush()
        self._is_open = True
        return True

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\n")
            self._stream.flush()
        self._is_open = False


class RichBar:
    """A bar drawn by rich: in colour, and as wide as the terminal.

    It starts no thread, because a thread would run beside the measurements.
    """

    EVERY_S = 0.1

    def __init__(self, stream: TextIO, console: Any = None) -> None:
        """Raises: ImportError if rich is not installed."""
        from rich.console import Console

        self._console = console if console is not None else Console(file=stream)
        self._bar: Any = None
        self._task: Any = None
        self._last = float("-inf")

    def say(self, text: str) -> None:
        self._console.print(f"torchalgo: {text}", markup=False, highlight=False)

    def draw(self, event: Event) -> bool:
        now = time.monotonic()
        if now - self._last < self.EVERY_S and event.done < event.total:
            return False
        self._last = now
        if self._bar is None:
            self._open(event.total)
        left = "" if event.eta_s is None else f"{event.eta_s:.0f} s left"
        best = "" if event.best_us is None else f"best {event.best_us / 1000:.2f} ms"
        self._bar.update(self._task, completed=event.done, total=event.total)
        self._bar.update(self._task, left=left, best=best, now=event.text)
        self._bar.refresh()
        return True

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


def display_for(stream: TextIO | None) -> Display:
    """Returns a display for a stream. None means that the process has no stderr."""
    if stream is None or not stream.isatty():
        return Lines(stream if stream is not None else io.StringIO())
    try:
        return RichBar(stream)
    except ImportError:
        return Bar(stream)


# Texts for the steps of optimize. A step without a text is shown by its name.
STEP_TEXTS = {
    "": "working",
    "read": "tracing and freezing the model",
    "values": "comparing values with the model as it was given",
    "find": "listing candidates",
    "look up": "reading the database of costs",
    "probe": "measuring the processor's rates",
    "measure": "measuring candidates",
    "check": "checking candidates against fp64",
    "predict": "predicting costs",
    "solve": "solving for the cheapest plan",
    "compare": "comparing with other ways to plan",
    "bind": "building the planned module",
    "try": "running the planned module",
    "in the net": "timing the plan inside the network",
    "describe": "describing the plan",
    "guard": "timing the plan beside PyTorch",
}


class Progress:
    """The progress of one call: shown on stderr, or passed to a function, or hidden.

    `target` is True for stderr, False for no output, or a function that is called with each event.
    It may also be another Progress. Both then share one display.
    """

    MOST_SHARE = 0.97  # highest share that is shown before the end
    LEAST_SHARE = 0.04  # no time left is shown below this share: a worker's start is slow

    def __init__(
        self,
        target: bool | Callable[[Event], None] | Progress,
        stream: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now_s = now_s
        self._shown: _Shown = (
            target._shown if isinstance(target, Progress) else _Shown(target, stream)
        )
        self._done = self._total = 0
        self._started = now_s()
        self._reached: list[tuple[int, float]] = [(0, self._started)]  # steps done, and the time
        self._best_us: float | None = None
        self._most_s = float("inf")  # upper limit of the time left

    @property
    def is_silent(self) -> bool:
        return self._shown.target is False

    @contextlib.contextmanager
    def watched(self, step_now: Callable[[], str]) -> Iterator[None]:
        """Shows at least one line per SILENCE_S seconds inside the block, naming the current step.

        A thread writes these lines, and only to stderr. It never calls a caller's function.
        """
        if self._shown.target is not True:
            yield
            return
        began = time.monotonic()

        def watch(ended: threading.Event) -> None:
            wait_s = SILENCE_S
            while not ended.wait(wait_s):
                wait_s = self._shown.told_at + SILENCE_S - time.monotonic()
                if wait_s <= 0:
                    step, wait_s = step_now(), SILENCE_S
                    text = STEP_TEXTS.get(step, step)
                    self._shown.remind(f"{text}, {time.monotonic() - began:.0f} s so far")

        with beside(watch, "torchalgo progress"):
            yield

    def say(self, text: str) -> None:
        """Shows a message on a line of its own."""
        _log.info(text)
        self._emit(Event(text))

    def start(self, total: int) -> None:
        """Starts a count to `total`."""
        self._done, self._total, self._started = 0, total, self._now_s()
        self._reached = [(0, self._started)]

    def doing(self, text: str) -> None:
        """Shows a text about the work that follows: a problem, and its number of candidates."""
        _log.debug(text)
        self._count(text)

    def advance(self, text: str, steps: int = 1) -> None:
        """Counts `steps` more as done; `text` describes the last one.

        The total is an estimate. It is raised where needed, so that the count never ends before
        `finish`.
        """
        self._done += steps
        self._reached.append((self._done, self._now_s()))
        self._total = max(self._total, int(self._done / self.MOST_SHARE) + 1)
        self._count(text)

    def set_best(self, best_us: float) -> None:
        """Sets the predicted time of the cheapest plan that is possible now."""
        self._best_us = best_us

    def set_most(self, seconds: float) -> None:
        """Limits the time left that is shown to `seconds` from now."""
        self._most_s = self._now_s() + seconds

    def finish(self, text: str, is_whole: bool = True) -> None:
        """Ends the count at its total, or at the share that was reached if `is_whole` is False."""
        if self._done < self._total and is_whole:
            self._done = self._total
            self._count(text)
        elif self._done < self._total:
            self.say(f"{text} after {100 * self._done // self._total} % of the work")
        self.close()

    def close(self) -> None:
        """Ends the line of the bar."""
        self._shown.close()

    def _count(self, text: str) -> None:
        now = self._now_s()
        elapsed, left = now - self._started, None
        if self._done >= self.LEAST_SHARE * self._total:
            left = max(0.0, min(self._expect_s(now), self._most_s - now))
        self._emit(Event(text, self._done, self._total, elapsed, left, self._best_us))

    def _expect_s(self, now: float) -> float:
        """Returns the seconds left at the pace of the second half of the work done so far.

        The first half is not representative: a worker starts, and the largest problems come first.
        """
        done, at = next(r for r in reversed(self._reached) if 2 * r[0] <= self._done)
        return (now - at) / (self._done - done) * (self._total - self._done)

    def _emit(self, event: Event) -> None:
        self._shown.show(event)


class _Shown:
    """The display of one call's events, and the time of the last one. Two threads may use it."""

    def __init__(self, target: bool | Callable[[Event], None], stream: TextIO | None) -> None:
        stream = stream if stream is not None else sys.stderr
        self.target = False if target is True and stream is None else target  # stderr is closed
        self.told_at = time.monotonic()
        self._display = display_for(stream)
        self._lock = threading.Lock()
        self._count = Event("")  # the last event, while a count is open

    def show(self, event: Event) -> None:
        if callable(self.target):
            self.target(event)
        elif self.target:
            with self._lock:
                self._draw(event)

    def remind(self, text: str) -> None:
        """Shows `text` with the open count, if there is one."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # stderr may be closed
            self._draw(dataclasses.replace(self._count, text=text, eta_s=None))

    def close(self) -> None:
        with self._lock:
            self._count = Event("")
            self._display.close()

    def _draw(self, event: Event) -> None:
        if event.total == 0:
            self._display.say(event.text)
            self.told_at = time.monotonic()
        else:
            if self._display.draw(event):
                self.told_at = time.monotonic()
            self._count = event if event.done < event.total else Event("")
