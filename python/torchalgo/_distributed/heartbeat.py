# SPDX-License-Identifier: BSD-3-Clause
"""Connects processes by a torch.distributed store, so that they work together and fail together.

Two threads of each rank supervise the others. Only the courier thread uses the store. It sends and
fetches messages, increases its rank's counter of heart beats, and checks that the counters of the
others still increase. The watch thread checks that the store still answers the courier. So no call
of the main thread can hang.

No clock is read here: a time limit is a number of looks, with a sleep between two looks.
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

from torchalgo._base.error_code import with_inner_code
from torchalgo._C import Error

BEAT_S = 0.2  # seconds between two heart beats, and between two looks at those of the others
TICK_S = 0.02  # seconds between two looks for a message that is awaited
STUCK_S = 0.6  # seconds that a rank may go on after another one failed
LEAVE_S = 1.0  # seconds that a rank waits after a failure, so that the others learn of it
GONE = -(1 << 40)  # added to the counter of a rank that has left

FAILURE, NO_FAILURE = "failure", "none"


class Ranks:
    """The processes that take part in `torchalgo.tune.tune`. They share a store.

    Each process uses its Ranks as a context, `with ranks:`. Contexts may be nested; the outermost
    one ends the connection.

    If one process fails, all of them raise the same torchalgo.Error. A failure is an exception, the
    end of a process, a process that hangs, or one that never arrives. The first failure that
    reaches the store counts. Messages are JSON.

        ranks = torchalgo.tune.Ranks(store, rank, size)
        fast = torchalgo.tune.tune(model, x, ranks)
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
        """Starts nothing yet: entering the context does.

        Args:
            store: a store of torch.distributed that all ranks share. Nothing else may use its keys
                with the prefix "torchalgo".
            rank: the number of this process, from 0.
            size: the number of processes.
            holder: the rank whose process holds the store. None: another process, such as
                torchrun's agent.
            join_s: the most seconds without a new arrival, while ranks are missing.
            patience_s: the most seconds without a heart beat of a rank, or an answer of the store.
            step_s: the most seconds to wait for a message of a rank that still beats.
            on_stuck: called by a thread if another rank failed and this one, since it computes,
                does not notice for STUCK_S. It may end the process. None: this rank notices later.
        """
        self.rank, self.size = rank, size
        self.lost: list[int] = []  # the ranks that caused a failure and cannot report it
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
        self._reason = ""  # this rank's own failure, for the store
        self._failure = ""  # the failure that counts, from the store
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
        """The rank that prints a failure: the first one that still runs."""
        here = (r for r, beat in enumerate(self._beats) if beat and r not in self.lost)
        return next(here, self.rank)

    def check(self) -> None:
        """Raises torchalgo.Error if a rank failed."""
        if self._failure:
            raise self._noticed()

    def post(self, name: str, value: Any) -> None:
        """Sends a message that any rank may receive. Each name may be used once.

        Raises: torchalgo.Error if a rank failed.
        """
        self.check()
        with self._changed:
            self._outbox.append((name, json.dumps(value)))
        self._wake.set()

    def receive(self, names: Sequence[str], patience: int = 1) -> list[Any]:
        """Waits for the messages with these names and returns them.

        Args:
            patience: the most time to wait, in units of step_s. It is larger for a message whose
                sender itself waits, so that the rank that lets all wait is named first.

        Raises: torchalgo.Error if a rank failed, or the messages do not arrive in time.
        """
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
        """Exchanges values: returns the value of each rank, on each rank.

        Raises: torchalgo.Error if a rank failed, or a value does not arrive in time.
        """
        self._gathered += 1
        names = [f"gather {self._gathered} of rank {rank}" for rank in range(self.size)]
        self.post(names[self.rank], value)
        return self.receive(names)

    def fail(self, text: str) -> Error:
        """Publishes a failure and returns the error to raise, which is the same on all ranks.

        If another failure was published before, the error is about that one.
        """
        with self._changed:
            self._reason = self._reason or json.dumps([text, []])
            self._wake.set()
            while not self._failure:  # the courier sets it, or the watch does
                self._changed.wait(BEAT_S)
        return self._noticed()

    def _noticed(self) -> Error:
        self._has_noticed = True
        text, self.lost = json.loads(self._failure)
        return Error(with_inner_code(f"TA6004 tune: {text}"))

    def _leave(self) -> None:
        """Tells the other ranks that this one leaves, and waits until they no longer need it."""
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
        """Publishes a failure. The first one in the store is the one that all ranks raise."""
        self._adopt(self._store.compare_set(FAILURE, NO_FAILURE, failure).decode())

    def _adopt(self, failure: str) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _look(self, has_left: bool) -> None:
        """Sends a heart beat, and checks the other ranks. Publishes a failure if one is missing."""
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
        """Fetches awaited messages from the store.

        Stops at the first message that has not arrived, unless `every` is set.
        """
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
        """Decides whether this rank may end.

        After a success it may end at once, unless it holds the store. Otherwise, it may end when no
        other rank is left.
        """
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
        """Sets the failure that the store is lost. The other ranks find the same by themselves."""
        self._is_cut_off = True
        text, lost = f"the store of torch.distributed is lost: {reason}", []
        if self._holder is not None:
            text = f"rank {self._holder}, which has the store, died or hangs"
            lost = [] if self._holder == self.rank else [self._holder]
        self._adopt(json.dumps([text, lost]))

    def failure_text(self) -> str:
        """Returns the text of the failure that counts; "" if there is none."""
        with contextlib.suppress(ValueError):
            return with_inner_code(f"TA6004 tune: {json.loads(self._failure)[0]}")
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
