# SPDX-License-Identifier: BSD-3-Clause
"""`torchalgo db forget`: selects entries of a database, counts them, and drops them."""

from __future__ import annotations

import datetime
import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchalgo._db.environment import find_here
from torchalgo._db.row import KINDS_OF_ENTRY, Check, Entry, Refusal, Row, RowKey
from torchalgo._db.store import CostStore

NAMES: dict[type[Entry], str] = {Row: "costs", Refusal: "failures", Check: "checks"}
VERDICTS = "verdicts"
DAY_S = 86400


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


@dataclass(frozen=True)
class Found:
    """The keys of the selected entries by kind, and plan and environment of selected verdicts."""

    entries: Mapping[type[Entry], Sequence[RowKey]]
    verdicts: Sequence[tuple[str, str]]

    def counts(self) -> dict[str, int]:
        """Returns the number of selected entries of each kind."""
        counts = {NAMES[kind]: len(self.entries.get(kind, [])) for kind in KINDS_OF_ENTRY}
        return {**counts, VERDICTS: len(self.verdicts)}


def environment_text(environment: str) -> str:
    """Returns the JSON of an environment as words; any other text unchanged."""
    try:
        return ", ".join(f"{name} {value}" for name, value in json.loads(environment).items())
    except (ValueError, AttributeError, RecursionError):  # not written by torchalgo
        return environment


def find(store: CostStore, selection: Selection) -> Found:
    """Returns the entries of a store that `selection` selects.

    Verdicts belong to whole models, so globs of problems or primitives select no verdicts.
    """
    here = find_here() if selection.environment == "here" else None
    kinds = () if selection.only_verdicts else KINDS_OF_ENTRY
    entries: dict[type[Entry], list[RowKey]] = {
        kind: [
            entry.row_key
            for entry in store.all_of(kind)
            if _is_environment(entry.environment, selection, here)
            and fnmatch.fnmatchcase(entry.problem, selection.problem or "*")
            and fnmatch.fnmatchcase(entry.primitive, selection.primitive or "*")
            and _is_in_time(_day(_written_at(entry)), selection)
        ]
        for kind in kinds
    }
    has_globs = bool(selection.problem or selection.primitive)
    verdicts = [
        (plan, environment)
        for plan, environment, text, day in store.verdicts()
        if not has_globs
        and _is_environment(environment, selection, here)
        and _is_in_time(_timed_on(text) or _day(day * DAY_S), selection)
    ]
    return Found(entries, verdicts)


def forget(store: CostStore, found: Found) -> None:
    """Drops the entries and verdicts of `found`."""
    for kind, keys in found.entries.items():
        store.forget(kind, keys)
    store.forget_verdicts(found.verdicts)


def _is_environment(text: str, selection: Selection, here: Callable[[str], bool] | None) -> bool:
    if here is not None:
        return here(text)
    return selection.environment.lower() in environment_text(text).lower()


def _is_in_time(day: str, selection: Selection) -> bool:
    return (not selection.since or day >= selection.since) and (
        not selection.before or day < selection.before
    )


def _written_at(entry: Entry) -> int:
    names = ("measured_at", "refused_at", "checked_at")
    return next(int(getattr(entry, name)) for name in names if hasattr(entry, name))


def _day(time_s: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):  # the clock was wrong by centuries
        return "9999-12-31"


def _timed_on(verdict: str) -> str:
    """Returns the day in a verdict's text; empty if there is none."""
    try:
        day = json.loads(verdict)["timed_on"]
        return day if isinstance(day, str) else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
