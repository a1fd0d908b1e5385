# SPDX-License-Identifier: BSD-3-Clause
"""Progress of tuning: a bar on a terminal or in a notebook, else lines, or a caller's function."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from torchalgo._base.timings import STEP_TEXTS
from torchalgo_cli.waiting import SILENCE_S, beside

_log = logging.getLogger("torchalgo")  # the name of all loggers of the package

# A count is drawn at most once in so many seconds. Its first and its last event are always drawn.
LINE_EVERY_S, BAR_EVERY_S, NOTEBOOK_EVERY_S = 5.0, 0.1, 0.5
NOTEBOOK_COLUMNS = 100


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
        # Once the budget is over, nothing is known of the time that the last steps take.
        left = f", {self.eta_s:.0f} s left" if self.eta_s is not None and self.eta_s >= 0.5 else ""
        best = "" if self.best_us is None else f", best {self.best_us / 1000:.2f} ms"
        return f"{100 * self.done // max(self.total, 1)} %{left}{best}"


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
        self._display: _Display = (
            target._display if isinstance(target, Progress) else _Display(target, stream)
        )
        self._done = self._total = 0
        self._started = now_s()
        self._reached: list[tuple[int, float]] = [(0, self._started)]  # steps done, and the time
        self._best_us: float | None = None
        self._most_s = float("inf")  # upper limit of the time left

    @property
    def is_silent(self) -> bool:
        return self._display.target is False

    @contextlib.contextmanager
    def watched(self, step_now: Callable[[], str]) -> Iterator[None]:
        """Shows at least one line per SILENCE_S seconds inside the block, naming the current step.

        A thread writes these lines, and only to stderr. It never calls a caller's function.
        """
        if self._display.target is not True:
            yield
            return
        began = time.monotonic()

        def watch(ended: threading.Event) -> None:
            wait_s = SILENCE_S
            while not ended.wait(wait_s):
                wait_s = self._display.told_at + SILENCE_S - time.monotonic()
                if wait_s <= 0:
                    step, wait_s = step_now(), SILENCE_S
                    text = STEP_TEXTS.get(step, step)
                    self._display.remind(f"{text}, {time.monotonic() - began:.0f} s so far")

        with contextlib.closing(self._display), beside(watch, "torchalgo progress"):
            yield

    def say(self, text: str) -> None:
        """Shows a message on a line of its own."""
        _log.info(text)
        self._display.show(Event(text))

    def start(self, total: int) -> None:
        """Starts a count to `total`, for a plan of which nothing is known yet."""
        self._best_us = None
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
        self._display.close()

    def _count(self, text: str) -> None:
        now = self._now_s()
        elapsed, left = now - self._started, None
        if self._done >= self.LEAST_SHARE * self._total:
            left = max(0.0, min(self._expect_s(now), self._most_s - now))
        self._display.show(Event(text, self._done, self._total, elapsed, left, self._best_us))

    def _expect_s(self, now: float) -> float:
        """Returns the seconds left at the pace of the second half of the work done so far.

        The first half is not representative: a worker starts, and the largest problems come first.
        """
        done, at = next(r for r in reversed(self._reached) if 2 * r[0] <= self._done)
        return (now - at) / (self._done - done) * (self._total - self._done)


class _Display:
    """Shows one call's events. Two threads may use it.

    A terminal and a notebook get a bar, which is a line that the next text overwrites. A file gets
    plain lines.

    `told_at` is the time of the last output, on the clock of time.monotonic.
    """

    def __init__(self, target: bool | Callable[[Event], None], stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        # stderr is None if it is closed.
        self.target = False if target is True and self._stream is None else target
        self.told_at = time.monotonic()
        self._lock = threading.Lock()
        self._count = Event("")  # the last event, while a count is open
        self._counted_at, self._has_ended = float("-inf"), False
        self._is_notebook = type(self._stream).__module__.startswith("ipykernel.")
        self._bar = ""  # the bar that is shown, until its line ends

    def show(self, event: Event) -> None:
        if callable(self.target):
            self.target(event)
        elif self.target:
            with self._locked():
                self._draw(event)

    def remind(self, text: str) -> None:
        """Shows `text` with the open count, if there is one."""
        with self._locked():
            self._draw(dataclasses.replace(self._count, text=text, eta_s=None))

    def close(self) -> None:
        """Ends the line of the bar."""
        with self._locked():
            self._count = Event("")
            if self._bar:
                self._write(self._bar)
                self._bar = ""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # A closed stream must not end hours of work.
        with self._lock, contextlib.suppress(OSError, ValueError):
            yield

    def _draw(self, event: Event) -> None:
        now, is_end = time.monotonic(), event.done == event.total
        if event.total == 0:
            self._write(f"torchalgo: {event.text}")
            self._draw_bar(self._bar)
        else:
            self._count = Event("") if is_end else event
            if event.done == 0:
                self._counted_at, self._has_ended = float("-inf"), False
            is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
            other_s = NOTEBOOK_EVERY_S if self._is_notebook else LINE_EVERY_S
            is_soon = now - self._counted_at < (BAR_EVERY_S if is_terminal else other_s)
            if self._has_ended if is_end else is_soon:
                return
            self._counted_at, self._has_ended = now, is_end
            if is_terminal or self._is_notebook:
                done = round(24 * event.share)
                bar = f"torchalgo: [{'#' * done}{'.' * (24 - done)}] {event.count}  {event.text}"
                columns = shutil.get_terminal_size().columns if is_terminal else NOTEBOOK_COLUMNS
                self._draw_bar(bar[:columns])
            else:
                self._write(f"torchalgo: tuning {event.count}: {event.text}")
        self.told_at = now

    def _write(self, line: str) -> None:
        """Writes a line in the place of the bar, if there is one."""
        start = "\r" if self._bar else ""
        self._stream.write(f"{start}{line.ljust(len(self._bar))}\n")
        self._stream.flush()

    def _draw_bar(self, bar: str) -> None:
        """Draws the bar in its place. The next text overwrites it."""
        if bar:
            self._stream.write(f"\r{bar.ljust(len(self._bar))}")
            self._stream.flush()
        self._bar = bar
