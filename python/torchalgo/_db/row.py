# SPDX-License-Identifier: BSD-3-Clause
"""The entries of the database, with environments and checksums.

A Row is a measured cost. A Refusal says why a candidate cannot be chosen. A Check says that a
candidate computes the right result. A Verdict and PeakRates are texts about a whole model and about
a device. An entry with a wrong checksum is ignored. A merge keeps, of
two entries of one kind and key, the one with the lower `rank`. That is the minimum of a total
order, so merging is commutative, associative and idempotent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from torchalgo._ir.costs import Cost, Key, Passed, Samples
from torchalgo._ir.failures import KINDS, Failure, Kind

SCHEMA = 1  # schema of the lines of JSON
MAX_TICKS = 1024 * 10**9 * 3600  # one hour: no cost is higher
MAX_TEXT = 4096
MAX_LINE = 1 << 15  # most characters of an entry as JSON
DAY_S = 86400
TRANSIENT_S = DAY_S  # lifetime of a failure that the machine's state may have caused


@dataclass(frozen=True)
class Entry:
    """The fields that all entries have. There is at most one entry of a kind with these values.

    `environment` is the canonical JSON of the facts that the entry depends on. `version` is the
    version of the algorithm.
    """

    NAME: ClassVar[str]  # of the kind, in the file
    TIME: ClassVar[str]  # the field with the time when it was written, in seconds since 1970

    environment: str
    problem: str
    primitive: str
    src: str
    dst: str
    version: int

    @property
    def row_key(self) -> tuple[Any, ...]:
        """The values of the fields of Entry, after the kind: at most one entry has them."""
        return (self.NAME, *self.values[:6])

    @property
    def written_at(self) -> int:
        return int(getattr(self, self.TIME))

    @property
    def key(self) -> Key:
        return Key(self.problem, self.primitive, self.src, self.dst)

    @property
    def values(self) -> tuple[Any, ...]:
        """Returns the values in the order of columns_of."""
        return tuple(getattr(self, name) for name in columns_of(type(self)))

    @property
    def checksum(self) -> str:
        return checksum_of(self.values)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Returns the rank. A merge keeps the entry with the least rank; no clock decides."""
        raise NotImplementedError

    @property
    def is_sane(self) -> bool:
        """Returns whether each field has its type and a possible value."""
        return all(
            _IS_SOUND[str(field.type)](getattr(self, field.name))
            for field in dataclasses.fields(self)
        )


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Row(Entry):
    """A measured cost. Times are in ticks of 1/1024 ns.

    `measured_at` is in seconds since 1970. It is for people only: clocks jump, so no decision
    depends on it. `rel_error` is None in new rows, because a Check holds it.
    """

    NAME, TIME = "cost", "measured_at"

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
        """Returns a rank that prefers more samples, then the smaller checksum."""
        return -self.samples, self.checksum

    @property
    def is_sane(self) -> bool:
        times = (self.ticks, self.noise_ticks, self.median_ticks, self.p10_ticks, self.p90_ticks)
        return super().is_sane and self.ticks > 0 and max(times) <= MAX_TICKS


@dataclass(frozen=True)
class Refusal(Entry):
    """A reason why a candidate cannot be chosen (failures.Failure), and the time when it was found.

    `refused_at` is in seconds since 1970. A failure that the machine's state may have caused is
    valid for a day.
    """

    NAME, TIME = "failure", "refused_at"

    kind: str
    reason: str
    bound: float | None
    provenance: str
    refused_at: int

    @property
    def failure(self) -> Failure:
        return Failure(self.reason, cast(Kind, self.kind), self.bound)  # as is_sane has found

    def holds_at(self, time_s: float) -> bool:
        """Returns whether the refusal is still valid at `time_s`.

        It is not if a clock was set back.
        """
        return not self.failure.is_transient or 0 <= time_s - self.refused_at < TRANSIENT_S

    @property
    def rank(self) -> tuple[Any, ...]:
        """Returns a rank that prefers longer validity, then more callers, then later refusals.

        The smaller checksum decides between equal ones.
        """
        bound = math.inf if self.bound is None else self.bound
        return self.failure.is_transient, -bound, -self.refused_at, self.checksum

    @property
    def is_sane(self) -> bool:
        return super().is_sane and self.kind in KINDS


@dataclass(frozen=True)
class Check(Entry):
    """A passed comparison of a candidate with f64.

    It holds the relative L2 error, the bound that it met, and the version `gate` of the comparison.
    `checked_at` is in seconds since 1970 and is for people only.
    """

    NAME, TIME = "check", "checked_at"

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
        """Returns a rank that prefers the newest comparison, then the tightest bound.

        The smaller checksum decides between equal ones.
        """
        return -self.gate, self.bound, self.checksum

    @property
    def is_sane(self) -> bool:
        return super().is_sane and self.rel_error <= self.bound


@dataclass(frozen=True)
class Text(Entry):
    """A text, whose key is its environment and a name, in the field `problem`."""

    TIME = "kept_at"

    text: str
    kept_at: int

    @classmethod
    def of(cls: type[T], environment: str, name: str, text: str, kept_at: int) -> T:
        return cls(environment, name, "", "", "", 0, text, kept_at)

    @property
    def is_sane(self) -> bool:
        texts = (self.environment, self.problem, self.text)
        has_key = (self.primitive, self.src, self.dst, self.version) == ("", "", "", 0)
        return has_key and all(type(t) is str for t in texts) and _is_count(self.kept_at)


class Verdict(Text):
    """The guard's verdict on a plan, as JSON. Other texts about a model have names "owner:..."."""

    NAME = "verdict"


class PeakRates(Text):
    """The highest rates at which a device was ever probed, as JSON."""

    NAME = "peaks"


T = TypeVar("T", bound=Text)
MEASURED_KINDS: tuple[type[Row], type[Refusal], type[Check]] = (Row, Refusal, Check)
KINDS_OF_ENTRY: tuple[type[Entry], ...] = (*MEASURED_KINDS, Verdict, PeakRates)
# Kinds that are exported, imported and merged. Checks are not: each machine checks its candidates
# itself.
SHARED_KINDS: tuple[type[Row], type[Refusal]] = (Row, Refusal)


def columns_of(kind: type[Entry]) -> tuple[str, ...]:
    """Returns the names of an entry's values, in order."""
    columns: tuple[str, ...] = kind.__match_args__
    return columns


def _is_text(value: object) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT and value.isprintable()


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_size(value: object) -> bool:
    return type(value) is float and math.isfinite(value) and value >= 0


# Tests of a field's value, by the type of the field. They return True if the value is possible.
_IS_SOUND: dict[str, Callable[[object], bool]] = {
    "str": _is_text,
    "int": _is_count,
    "float": _is_size,
    "int | None": lambda value: value is None or _is_count(value),
    "float | None": lambda value: value is None or _is_size(value),
}


def checksum_of(values: Sequence[object]) -> str:
    """Returns 128 bits of SHA-256 over the values as JSON. They detect accidents, not forgery."""
    text = json.dumps(list(values), separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry_of(kind: type[E], values: Sequence[object], checksum: object) -> E | None:
    """Makes an entry from the values of its columns.

    Returns None if it is damaged, edited or has impossible values.
    """
    if len(values) != len(columns_of(kind)):
        return None
    entry = kind(*values)  # type: ignore[arg-type]
    if not entry.is_sane or entry.checksum != checksum:
        return None
    return entry


def join(a: E, b: E) -> E:
    """Returns the one of two entries of a kind and key that a merge keeps."""
    return min(a, b, key=lambda entry: entry.rank)


def to_line(entry: Entry) -> str:
    """Returns an entry as one line of JSON."""
    fields = {"schema": SCHEMA, **dataclasses.asdict(entry), "checksum": entry.checksum}
    return json.dumps(fields, allow_nan=False)


def from_line(line: str) -> Row | Refusal | None:
    """Reads the text of `to_line`. Returns None for any other text."""
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
