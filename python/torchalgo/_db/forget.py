# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo db forget`: selects entries of a database."""

from __future__ import annotations

import datetime
import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass

from torchalgo._db.environment import find_here
from torchalgo._db.row import Check, Entry, Refusal, Row, Verdict
from torchalgo._db.store import CostStore

KINDS: dict[str, type[Entry]] = {
    "costs": Row, "failures": Refusal, "checks": Check, "verdicts": Verdict,
}  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """A selection of entries. An empty text does not restrict it.

    `environment` is a part of a text that `torchalgo db info` prints, in upper or lower case.
    "here" is this machine as it is now. `since` and `before` are days in UTC, such as 2026-11-20.
    The day `before` is not included.
    """

    environment: str = ""
    problem: str = ""  # a glob
    primitive: str = ""  # a glob
    since: str = ""
    before: str = ""
    only_verdicts: bool = False


def environment_text(environment: str) -> str:
    """Returns the JSON of an environment as words; any other text unchanged."""
    try:
        return ", ".join(f"{name} {value}" for name, value in json.loads(environment).items())
    except (ValueError, AttributeError, RecursionError):  # not written by torchalgo
        return environment


def find(store: CostStore, selection: Selection) -> dict[str, list[Entry]]:
    """Returns the entries of a store that `selection` selects, by the name of their kind.

    Verdicts belong to whole models, so globs of problems or primitives select no verdicts.
    """
    here = find_here() if selection.environment == "here" else None
    has_globs = bool(selection.problem or selection.primitive)

    def is_selected(entry: Entry) -> bool:
        if isinstance(entry, Verdict) and has_globs:
            return False
        if not isinstance(entry, Verdict) and selection.only_verdicts:
            return False
        return (
            _is_environment(entry.environment, selection, here)
            and fnmatch.fnmatchcase(entry.problem, selection.problem or "*")
            and fnmatch.fnmatchcase(entry.primitive, selection.primitive or "*")
            and _is_in_time(_day(entry.written_at), selection)
        )

    return {name: [*filter(is_selected, store.all_of(kind))] for name, kind in KINDS.items()}


def _is_environment(text: str, selection: Selection, here: Callable[[str], bool] | None) -> bool:
    if here is not None:
        return here(text)
    return selection.environment.lower() in environment_text(text).lower()


def _is_in_time(day: str, selection: Selection) -> bool:
    return (not selection.since or day >= selection.since) and (
        not selection.before or day < selection.before
    )


def _day(time_s: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):  # the clock was wrong by centuries
        return "9999-12-31"
