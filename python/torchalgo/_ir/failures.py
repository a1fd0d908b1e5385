# SPDX-License-Identifier: BSD-3-Clause
"""Reasons why a candidate cannot be chosen, in words, and their kinds."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchalgo._base.time_budget import OUT_OF_BUDGET

Kind = Literal["ended", "hung", "memory", "failed", "wrong"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Start of the reason of a candidate that was not run. Nothing is known about such a candidate.
NOT_RUN = "not run: "
LATE = f"{NOT_RUN}{OUT_OF_BUDGET}"  # the whole reason if the time budget ended

_NO_ANSWER = "no answer in"
_KILLED = "SIGKILL, as the system sends it where memory runs out"
_ENDINGS = ("abort", "exit with status", "signal ", "an answer ", "it closed its answers")
_NO_MEMORY = ("out of memory", "bad_alloc", "allocate memory", "not enough memory", "memoryerror")

# A primitive that ended its process on this many problems is not run on other problems.
MOST_OF_ONE = 3

# Part of the machine's memory. If less is available, a crash is not the candidate's fault.
LEAST_MEMORY = 0.05


@dataclass(frozen=True)
class Failure:
    """The failure of a candidate: its reason in words, and its kind.

    The kinds are:
        ended: it ended its process by a signal, abort or exit.
        hung: it did not end.
        memory: there was, or may have been, too little memory.
        failed: it returned an error.
        wrong: its error exceeded `bound`, which the caller allowed.
    """

    reason: str
    kind: Kind
    bound: float | None = None

    @property
    def is_transient(self) -> bool:
        """Returns whether the state of the machine may have been the cause."""
        return self.kind == "memory"

    def holds_for(self, bound: float) -> bool:
        """Returns whether the candidate also fails for a caller who allows the error `bound`."""
        return self.bound is None or bound <= self.bound


def failure_of(
    reason: str, bound: float | None = None, *, is_short: bool = False
) -> Failure | None:
    """Returns the failure that a reason describes; None if the candidate was not run.

    Args:
        bound: the error that the caller allows, if the candidate was checked; None if it was
            measured.
        is_short: whether the machine was short of memory when it happened.
    """
    if reason.startswith(NOT_RUN):
        return None
    text = reason.lower()
    kind: Kind = "failed" if bound is None else "wrong"
    if reason.startswith(_KILLED) or any(words in text for words in _NO_MEMORY):
        kind = "memory"
    elif reason.startswith(_NO_ANSWER):
        kind = "hung"
    elif reason.startswith(_ENDINGS) or _is_signal(reason.partition(":")[0]):
        kind = "ended"
    if is_short and kind in ("ended", "hung"):
        kind = "memory"
    return Failure(reason, kind, bound if kind == "wrong" else None)


def ended_by(code: int, last_words: str = "") -> str:
    """Returns the reason for a process that ended with `code`; a negative code is a signal."""
    if code >= 0:
        reason = f"exit with status {code}"
    else:
        reasons = {signal.SIGABRT: "abort", signal.SIGKILL: _KILLED}
        try:
            reason = reasons.get(signal.Signals(-code), signal.Signals(-code).name)
        except ValueError:
            reason = f"signal {-code}"
    return f"{reason}: {last_words}" if last_words else reason


def silent_for(seconds: float) -> str:
    """Returns the reason for a process that was killed because it gave no answer for `seconds`."""
    return f"{_NO_ANSWER} {seconds:.0f} s"


def ended_too_often(reasons: Sequence[str]) -> str:
    """Returns the reason for a primitive that is not run, since it ended its process too often."""
    return f"{NOT_RUN}ended the worker on {len(reasons)} other problems, by {reasons[-1]}"


def hung_as(primitive: str, reason: str) -> str:
    """Returns the reason for a candidate that is not run, since `primitive` hung on its problem.

    Both have the same engine, see engine_of.
    """
    return f"{NOT_RUN}{primitive} hung on this problem: {reason}"


def is_short_of_memory(source: Path = Path("/proc/meminfo")) -> bool:
    """Returns whether less than LEAST_MEMORY of this machine's memory is available now.

    Returns False if that cannot be read.
    """
    try:
        facts = dict(line.split(":", 1) for line in source.read_text().splitlines() if ":" in line)
        total, left = (int(facts[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, LookupError):
        return False
    return left < LEAST_MEMORY * total


def _is_signal(name: str) -> bool:
    return name in signal.Signals.__members__
