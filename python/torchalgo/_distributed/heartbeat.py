# SPDX-License-Identifier: BSD-3-Clause
"""Processes that work together through a torch.distributed store, and end together.

Two threads of each rank look after the others. The courier alone talks to the store: it sends and
fetches messages, counts its rank's heart beats up, and sees whether those of the others still rise.
The watch sees whether the store still answers the courier. So no call of the main thread can hang.
Nothing here reads a clock, on any host: patience is a number of looks, with a sleep in between.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from torchalgo._C import Error

BEAT_S = 0.2  # between two beats, and two looks at those of the others
TICK_S = 0.02  # between two looks for a message, while one is awaited
STUCK_S = 0.6  # how long a rank may go on after another one failed
LEAVE_S = 1.0  # how long a rank waits, after a failure, for the others to hear of it
GONE = -(1 << 40)  # added to the beats of a rank that left

FAILURE, NO_FAILURE = "failure", "none"


class Ranks:
    """`size` processes that share a store; use it as `with ranks:`, on each of them. It may be
    nested, and is over with the outermost.

    Whatever fails on one of them (an exception, a death, a stop, an absence) is one Error with one
    text on all: the first failure that reaches the store. Messages are JSON.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        holder: int | None = None,
        join_s: float = 3.5,
        patience_s: float = 2.5,
        step_s: float = 600.0,
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            store: the same for all, and used by nothing else under the prefix "torchalgo".
            holder: the rank inside which the store lives; None: none of them (torchrun's agent).
            join_s: how long nobody may arrive while ranks are missing.
            patience_s: how long a rank's heart may not beat, and the store not answer.
            step_s: how long a message may be awaited of a rank whose heart does beat.
            on_stuck: called by a thread if another rank failed and this one does not notice for
                STUCK_S, since it computes; it may end the process. None: it notices later.
        """
        self.rank, self.size = rank, size
        self.lost: list[int] = []  # the ranks that a failure lies in, if they cannot speak
        self._store = PrefixStore("torchalgo", store)
        self._holder, self._on_stuck = holder, on_stuck
        self._join_looks, self._looks = (math.ceil(s / BEAT_S) for s in (join_s, patience_s))
        self._step_looks, self._step_s, self._join_s = math.ceil(step_s / BEAT_S), step_s, join_s
        self._patience_s = patience_s
        self._beats = [0] * size
        self._silent = [0] * size  # looks since the last beat
        self._since_arrival = 0  # looks since the last arrival
        self._outbox: list[tuple[str, str]] = []
        self._missing: list[str] = []  # names of messages that are awaited
        self._received: dict[str, bytes] = {}
        self._reason = ""  # of a failure of this rank, for the store
        self._failure = ""  # the one that counts
        self._has_noticed = self._is_leaving = self._is_closed = False
        self._is_settled = self._is_cut_off = False
        self._ticks = 0
        self._gathered = self._depth = 0
        self._changed = threading.Condition()
        self._wake = threading.Event()

    # ---- for the main thread -------------------------------------------------------------------

    def __enter__(self) -> Ranks:
        self._depth += 1
        if self._depth > 1:
            return self
        for work in (self._carry, self._watch):
            threading.Thread(target=work, name=f"torchalgo{work.__name__}", daemon=True).start()
        return self

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        self._depth -= 1
        error = None
        if problem is not None and not (self._has_noticed and isinstance(problem, Error)):
            error = self.fail(_told(self.rank, problem))
        if not self._depth:
            self._leave()
        if error is not None:
            raise error from problem

    @property
    def speaker(self) -> int:
        """The rank that tells of a failure: the first that is there."""
        here = (r for r, beat in enumerate(self._beats) if beat and r not in self.lost)
        return next(here, self.rank)

    def check(self) -> None:
        """Raises: torchalgo.Error if a rank failed."""
        if self._failure:
            raise self._noticed()

    def post(self, name: str, value: Any) -> None:
        """Sends a message that any rank may receive; a name is used once."""
        self.check()
        with self._changed:
            self._outbox.append((name, json.dumps(value)))
        self._wake.set()

    def receive(self, names: Sequence[str], patience: int = 1) -> list[Any]:
        """The messages of these names, when all of them are there; `patience`: in units of step_s,
        for what waits in turn for others, so that who lets all wait is named first."""
        with self._changed:
            self._received, self._missing = {}, list(names)
            self._wake.set()
            looks = 0
            while self._missing and not self._failure:
                looks += not self._changed.wait(BEAT_S)
                if looks > patience * self._step_looks:
                    break
            missing, self._missing = self._missing, []
        self.check()
        if missing:
            raise self.fail(
                f"rank {self.rank} waited {patience * self._step_s:g} s for {', '.join(missing)}"
            )
        return [json.loads(self._received[name]) for name in names]

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, on each rank."""
        self._gathered += 1
        names = [f"gather {self._gathered} of rank {rank}" for rank in range(self.size)]
        self.post(names[self.rank], value)
        return self.receive(names)

    def fail(self, text: str) -> Error:
        """What to raise for `text`, which all others raise as well; or for what failed before."""
        with self._changed:
            self._reason = self._reason or json.dumps([text, []])
            self._wake.set()
            while not self._failure:  # the courier brings it, or the watch gives up
                self._changed.wait(BEAT_S)
        return self._noticed()

    def _noticed(self) -> Error:
        self._has_noticed = True
        text, self.lost = json.loads(self._failure)
        return Error(f"tune: {text}")

    def _leave(self) -> None:
        """Tells the others, and stays while they need to hear it."""
        looks = 0
        with self._changed:
            self._is_leaving = True
            self._wake.set()
            while not self._is_settled and not self._is_cut_off:
                looks += not self._changed.wait(BEAT_S)
                most_s = self._join_s if 0 in self._beats else LEAVE_S
                if self._failure and looks * BEAT_S >= most_s:
                    break
            self._is_closed = True
        self._wake.set()

    # ---- the courier ---------------------------------------------------------------------------

    def _carry(self) -> None:
        try:
            self._store.compare_set(FAILURE, "", NO_FAILURE)
            for rank in range(self.size):
                self._store.add(_beat(rank), 0)
            has_left, left = False, 0.0
            while not self._is_closed:
                self._send()
                is_time = left <= 0
                if is_time:
                    self._look(has_left)
                    left = BEAT_S
                self._fetch(every=is_time)
                if self._is_leaving and not has_left:
                    has_left = True
                    self._send()
                    self._store.add(_beat(self.rank), GONE)
                if has_left:
                    self._settle()
                self._ticks += 1
                nap = min(left, TICK_S) if self._missing else left
                left -= 0.0 if self._wake.wait(nap) else nap
                self._wake.clear()
        except Exception as problem:  # torch.distributed has no documented set of them
            self._cut_off(f"{problem} ".splitlines()[0])

    def _send(self) -> None:
        with self._changed:
            letters, self._outbox = self._outbox, []
        for name, data in letters:
            self._store.set(name, data)
        if self._reason and not self._failure:
            self._publish(self._reason)

    def _publish(self, failure: str) -> None:
        """The first one that does this decides what all raise."""
        self._adopt(self._store.compare_set(FAILURE, NO_FAILURE, failure).decode())

    def _adopt(self, failure: str) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _look(self, has_left: bool) -> None:
        """Beats, and looks after the others."""
        if not has_left:
            self._store.add(_beat(self.rank), 1)
        names = [FAILURE, *map(_beat, range(self.size))]
        failure, *beats = (value.decode() for value in self._store.multi_get(names))
        if failure != NO_FAILURE:
            self._adopt(failure)
        before, self._beats = self._beats, list(map(int, beats))
        for rank, beat in enumerate(self._beats):
            self._silent[rank] = self._silent[rank] + 1 if beat == before[rank] else 0
        self._since_arrival += 1
        if self._beats.count(0) < before.count(0):
            self._since_arrival = 0
        if self._failure or self._is_leaving:
            return
        absent = [rank for rank, beat in enumerate(self._beats) if beat == 0]
        silent = self._silent_ranks()
        if silent:
            text = f"{_named(silent)} died or hangs: no sign of life for {self._patience_s:g} s"
            self._publish(json.dumps([text, silent]))
        elif absent and self._since_arrival > self._join_looks:
            text = f"{_named(absent)} did not arrive within {self._join_s:g} s after the last one"
            self._publish(json.dumps([text, absent]))

    def _silent_ranks(self) -> list[int]:
        return [
            rank
            for rank, beat in enumerate(self._beats)
            if rank != self.rank and beat > 0 and self._silent[rank] > self._looks
        ]

    def _fetch(self, *, every: bool) -> None:
        """Brings what is there of `every` awaited message, or while the next one is there."""
        for name in list(self._missing):
            if self._store.check([name]):
                data = self._store.get(name)
                with self._changed:
                    self._received[name] = data
                    self._missing = [other for other in self._missing if other != name]
                    self._changed.notify_all()
            elif not every:
                return

    def _settle(self) -> None:
        """This rank may go: after a success unless it holds the store, else when none is left."""
        lost = json.loads(self._failure)[1] if self._failure else []
        others = {r for r, beat in enumerate(self._beats) if beat >= 0} - {self.rank, *lost}
        is_needed = self._failure or self._holder == self.rank
        if not is_needed or others <= set(self._silent_ranks()):
            with self._changed:
                self._is_settled = True
                self._changed.notify_all()

    # ---- the watch -----------------------------------------------------------------------------

    def _watch(self) -> None:
        ticks, stalled, stuck = 0, 0, 0
        while not self._is_closed:
            time.sleep(BEAT_S)
            stalled = stalled + 1 if ticks == self._ticks else 0
            ticks = self._ticks
            if stalled > self._looks:
                self._cut_off(f"no answer for {self._patience_s:g} s")
            is_unaware = self._failure and not self._has_noticed and not self._is_leaving
            stuck = stuck + 1 if is_unaware else 0
            if stuck * BEAT_S >= STUCK_S and self._on_stuck is not None:
                self.lost = json.loads(self._failure)[1]
                self._on_stuck()
                return

    def _cut_off(self, reason: str) -> None:
        """The store is lost: this rank ends by itself, as the others do."""
        self._is_cut_off = True
        text, lost = f"the store of torch.distributed is lost: {reason}", []
        if self._holder is not None:
            text = f"rank {self._holder}, which has the store, died or hangs"
            lost = [] if self._holder == self.rank else [self._holder]
        self._adopt(json.dumps([text, lost]))

    def failure_text(self) -> str:
        """Of the failure that counts, for whoever ends the process; empty: there is none."""
        with contextlib.suppress(ValueError):
            return f"tune: {json.loads(self._failure)[0]}"
        return ""


def _beat(rank: int) -> str:
    return f"beat {rank}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _told(rank: int, problem: BaseException) -> str:
    if isinstance(problem, KeyboardInterrupt):
        return f"rank {rank} was interrupted"
    kind = "" if isinstance(problem, Error) else f"{type(problem).__name__}: "
    return f"rank {rank}: {kind}{problem}"
