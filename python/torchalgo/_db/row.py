# SPDX-License-Identifier: BSD-3-Clause
"""What the database holds: costs, refusals and checks, each with where it holds and a checksum.

A Row is a measured cost, a Refusal why a candidate cannot be chosen, a Check that it computes what
it should. A checksum makes anything else a miss. Of two entries of one kind and key, joining keeps
the one with the least `rank`: the minimum of a total order, hence commutative, associative and
idempotent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torchalgo._ir.costs import Cost, Key, Passed, Samples
from torchalgo._ir.failures import KINDS, Failure, kind_of

SCHEMA = 1  # of the lines of JSON
MAX_TICKS = 1024 * 10**9 * 3600  # an hour: no cost is more
MAX_TEXT = 4096
MAX_LINE = 1 << 15  # characters of an entry as JSON
TRANSIENT_S = 86400  # so long holds what the machine's state may have caused


class RowKey(NamedTuple):
    """What an entry answers: two of one kind and key are two answers to the same question."""

    environment: str
    problem: str
    primitive: str
    src: str
    dst: str
    version: int


@dataclass(frozen=True)
class Entry:
    """environment: canonical JSON of what it depends on; version: of the algorithm's row."""

    environment: str
    problem: str
    primitive: str
    src: str
    dst: str
    version: int

    @property
    def row_key(self) -> RowKey:
        return RowKey(
            self.environment, self.problem, self.primitive, self.src, self.dst, self.version
        )

    @property
    def key(self) -> Key:
        return Key(self.problem, self.primitive, self.src, self.dst)

    @property
    def values(self) -> tuple[Any, ...]:
        """In the order of columns_of."""
        return tuple(getattr(self, name) for name in columns_of(type(self)))

    @property
    def checksum(self) -> str:
        return checksum_of(self.values)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The least one of a key is kept when entries are joined; no clock decides."""
        raise NotImplementedError

    @property
    def is_sane(self) -> bool:
        """Whether each field has its type and a value that an entry can have."""
        return _are_texts(self.environment, self.problem, self.primitive, self.src, self.dst) and (
            _are_counts(self.version)
        )


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Row(Entry):
    """A measured cost. Times are in ticks of 1/1024 ns. measured_at, in seconds since 1970, is for
    people only: clocks jump, so no decision rests on it. rel_error is None in rows that are written
    now: a Check has it.
    """

    ticks: int
    noise_ticks: int
    samples: int
    median_ticks: int
    p10_ticks: int
    p90_ticks: int
    workspace_bytes: int | None
    rel_error: float | None
    provenance: str
    measured_at: int

    @property
    def cost(self) -> Cost:
        samples = Samples(self.samples, self.median_ticks, self.p10_ticks, self.p90_ticks)
        return Cost(self.ticks, self.noise_ticks, samples, self.workspace_bytes)

    @property
    def rank(self) -> tuple[Any, ...]:
        """More samples first, then the smaller checksum."""
        return -self.samples, self.checksum

    @property
    def is_sane(self) -> bool:
        times = (self.ticks, self.noise_ticks, self.median_ticks, self.p10_ticks, self.p90_ticks)
        workspace = () if self.workspace_bytes is None else (self.workspace_bytes,)
        return (
            super().is_sane
            and _are_texts(self.provenance)
            and _are_counts(*times, self.samples, self.measured_at, *workspace)
            and self.ticks > 0
            and max(times) <= MAX_TICKS
            and (self.rel_error is None or _is_size(self.rel_error))
        )


@dataclass(frozen=True)
class Refusal(Entry):
    """Why a candidate cannot be chosen: failures.Failure, and when that was found out, in seconds
    since 1970: what the machine's state may have caused holds for a day."""

    kind: str
    reason: str
    bound: float | None
    provenance: str
    refused_at: int

    @property
    def failure(self) -> Failure:
        kind = kind_of(self.kind)
        assert kind is not None, self.kind
        return Failure(self.reason, kind, self.bound)

    def holds_at(self, time_s: float) -> bool:
        """Whether it still counts; a clock that fell back ends it as well."""
        return not self.failure.is_transient or 0 <= time_s - self.refused_at < TRANSIENT_S

    @property
    def rank(self) -> tuple[Any, ...]:
        """What holds for longer and for more callers first, then the smaller checksum."""
        bound = math.inf if self.bound is None else self.bound
        return self.failure.is_transient, -bound, -self.refused_at, self.checksum

    @property
    def is_sane(self) -> bool:
        return (
            super().is_sane
            and _are_texts(self.kind, self.reason, self.provenance)
            and self.kind in KINDS
            and _are_counts(self.refused_at)
            and (self.bound is None or _is_size(self.bound))
        )


@dataclass(frozen=True)
class Check(Entry):
    """A candidate that passed the comparison with f64: its relative L2, the bound that it kept, and
    the version of the comparison. checked_at, in seconds since 1970, is for people only."""

    gate: int
    rel_error: float
    bound: float
    provenance: str
    checked_at: int

    @property
    def passed(self) -> Passed:
        return Passed(self.rel_error, self.bound)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The newest comparison and the tightest bound first, then the smaller checksum."""
        return -self.gate, self.bound, self.checksum

    @property
    def is_sane(self) -> bool:
        return (
            super().is_sane
            and _are_texts(self.provenance)
            and _are_counts(self.gate, self.checked_at)
            and _is_size(self.rel_error)
            and _is_size(self.bound)
            and self.rel_error <= self.bound
        )


KINDS_OF_ENTRY: tuple[type[Row], type[Refusal], type[Check]] = (Row, Refusal, Check)
# Kinds that are exported, imported and merged. Whether a candidate computes what it should, each
# machine finds out for itself.
SHARED_KINDS: tuple[type[Row], type[Refusal]] = (Row, Refusal)


def columns_of(kind: type[Entry]) -> tuple[str, ...]:
    """The names of its values, in order."""
    return tuple(kind.__dataclass_fields__)


def _are_texts(*texts: object) -> bool:
    return all(type(t) is str and len(t) <= MAX_TEXT and t.isprintable() for t in texts)


def _are_counts(*counts: object) -> bool:
    return all(type(count) is int and 0 <= count < 1 << 62 for count in counts)


def _is_size(value: object) -> bool:
    return type(value) is float and math.isfinite(value) and value >= 0


def checksum_of(values: Sequence[object]) -> str:
    """128 bits of SHA-256 over the values as JSON. Against accidents, not against forgery."""
    text = json.dumps(list(values), separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry_of(kind: type[E], values: Sequence[object], checksum: object) -> E | None:
    """The entry that the values of its columns make; None if it is damaged, edited or absurd."""
    if len(values) != len(columns_of(kind)):
        return None
    entry = kind(*values)  # type: ignore[arg-type]
    if not entry.is_sane or entry.checksum != checksum:
        return None
    return entry


def join(a: E, b: E) -> E:
    """The one of two entries of a kind and key that a merge keeps."""
    return min(a, b, key=lambda entry: entry.rank)


def to_line(entry: Entry) -> str:
    """An entry as one line of JSON."""
    fields = {"schema": SCHEMA, **dataclasses.asdict(entry), "checksum": entry.checksum}
    return json.dumps(fields, allow_nan=False)


def from_line(line: str) -> Row | Refusal | None:
    """The entry of to_line's text; None if it is anything else."""
    if len(line) > MAX_LINE:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        return None
    for kind in SHARED_KINDS:
        columns = columns_of(kind)
        if set(fields) == {"schema", "checksum", *columns}:
            return entry_of(kind, [fields[name] for name in columns], fields["checksum"])
    return None
