# SPDX-License-Identifier: BSD-3-Clause
"""Why a candidate cannot be chosen: in words, and of which kind."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchalgo._base.deadline import OUT_OF_BUDGET

Kind = Literal["ended", "hung", "memory", "failed", "wrong"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# How the reason of a candidate begins that was not run at all: nothing was found out about it.
NOT_RUN = "not run: "
LATE = f"{NOT_RUN}{OUT_OF_BUDGET}"  # the whole reason of what was broken off in time

_NO_ANSWER = "no answer in"
_KILLED = "SIGKILL, as the system sends it where memory runs out"
_ENDINGS = ("abort", "exit with status", "signal ", "an answer ", "it closed its answers")
_NO_MEMORY = ("out of memory", "bad_alloc", "allocate memory", "not enough memory", "memoryerror")

# A primitive that ended its process on so many problems is not run on others.
MOST_OF_ONE = 3

# With less of the machine's memory left, a candidate is not to blame for what happens to it.
LEAST_MEMORY = 0.05


@dataclass(frozen=True)
class Failure:
    """What was found out about a candidate.

    ended: it ended its process (a signal, abort, exit); hung: an endless loop; memory: there was
    too little, or so it may have been; failed: an error, in an orderly way; wrong: its numbers, by
    the error `bound` that the caller allowed.
    """

    reason: str
    kind: Kind
    bound: float | None = None

    @property
    def is_transient(self) -> bool:
        """Whether the machine's state may have been the cause."""
        return self.kind == "memory"

    def holds_for(self, bound: float) -> bool:
        """Whether a caller who allows the error `bound` would see it as well."""
        return self.bound is None or bound <= self.bound


def failure_of(
    reason: str, bound: float | None = None, *, is_short: bool = False
) -> Failure | None:
    """What a reason tells; None: nothing, for it was not run.

    Args:
        bound: of the error, if it was checked; None: it was measured.
        is_short: of memory, the machine, when it happened.
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


def kind_of(text: str) -> Kind | None:
    """The kind of that name."""
    return next((kind for kind in KINDS if kind == text), None)


def ended_by(code: int, last_words: str = "") -> str:
    """The reason for a process that ended with `code` (negative: a signal), as Popen has it."""
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
    """The reason for a process that was ended because it did nothing for so long."""
    return f"{_NO_ANSWER} {seconds:.0f} s"


def ended_too_often(reasons: Sequence[str]) -> str:
    """The reason for a primitive that is not run, since it ended its process MOST_OF_ONE times."""
    return f"{NOT_RUN}ended the worker on {len(reasons)} other problems, by {reasons[-1]}"


def is_short_of_memory(source: Path = Path("/proc/meminfo")) -> bool:
    """Whether this machine has next to no memory left now."""
    try:
        facts = dict(line.split(":", 1) for line in source.read_text().splitlines() if ":" in line)
        total, left = (int(facts[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, LookupError):
        return False
    return left < LEAST_MEMORY * total


def _is_signal(name: str) -> bool:
    return name in signal.Signals.__members__
