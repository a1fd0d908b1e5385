# SPDX-License-Identifier: BSD-3-Clause
"""One row: a measured cost, where it holds, and a checksum that makes any other row a miss."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchalgo.costs import Cost, Key, Samples

SCHEMA = 1
MAX_TICKS = 1024 * 10**9 * 3600  # an hour: no cost is more
MAX_TEXT = 4096
MAX_LINE = 1 << 15  # characters of a row as JSON


class RowKey(NamedTuple):
    """What a row answers: two rows of one key are two measurements of the same thing."""

    environment: str
    problem: str
    primitive: str
    src: str
    dst: str
    version: int


@dataclass(frozen=True)
class Row:
    """environment: canonical JSON of what the cost depends on; version: of the algorithm's row.

    Times are in ticks of 1/1024 ns. measured_at, in seconds since 1970, is for people only: clocks
    jump, so no decision rests on it.
    """

    environment: str
    problem: str
    primitive: str
    src: str
    dst: str
    version: int
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
    def row_key(self) -> RowKey:
        return RowKey(
            self.environment, self.problem, self.primitive, self.src, self.dst, self.version
        )

    @property
    def key(self) -> Key:
        return Key(self.problem, self.primitive, self.src, self.dst)

    @property
    def cost(self) -> Cost:
        samples = Samples(self.samples, self.median_ticks, self.p10_ticks, self.p90_ticks)
        return Cost(self.ticks, self.noise_ticks, samples, self.workspace_bytes, self.rel_error)

    @property
    def values(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        return tuple(getattr(self, name) for name in COLUMNS)

    @property
    def checksum(self) -> str:
        return checksum_of(self.values)


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_TEXTS = ("environment", "problem", "primitive", "src", "dst", "provenance")
_TIMES = ("ticks", "noise_ticks", "median_ticks", "p10_ticks", "p90_ticks")


def checksum_of(values: Sequence[object]) -> str:
    """128 bits of SHA-256 over the values as JSON. Against accidents, not against forgery."""
    text = json.dumps(list(values), separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def row_of(values: Sequence[object], checksum: object) -> Row | None:
    """The row that the values of COLUMNS make; None if it is damaged, edited or absurd."""
    if len(values) != len(COLUMNS):
        return None
    row = Row(*values)  # type: ignore[arg-type]
    if not is_sane(row) or row.checksum != checksum:
        return None
    return row


def is_sane(row: Row) -> bool:
    """Whether each field has its type and a value that a measurement can have."""
    texts = [getattr(row, name) for name in _TEXTS]
    if not all(type(t) is str and len(t) <= MAX_TEXT and t.isprintable() for t in texts):
        return False
    counts = [getattr(row, name) for name in (*_TIMES, "version", "samples", "measured_at")]
    if row.workspace_bytes is not None:
        counts.append(row.workspace_bytes)
    if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
        return False
    if not row.ticks or max(getattr(row, name) for name in _TIMES) > MAX_TICKS:
        return False
    error = row.rel_error
    return error is None or (type(error) is float and math.isfinite(error) and error >= 0)


def join(a: Row, b: Row) -> Row:
    """The one of two rows of a key that a merge keeps: more samples, then the smaller checksum.

    A maximum of a total order, hence commutative, associative and idempotent; no clock decides.
    """
    return min(a, b, key=lambda row: (-row.samples, row.checksum))


def to_line(row: Row) -> str:
    """A row as one line of JSON."""
    fields = {"schema": SCHEMA, **dataclasses.asdict(row), "checksum": row.checksum}
    return json.dumps(fields, allow_nan=False)


def from_line(line: str) -> Row | None:
    """The row of to_line's text; None if it is anything else."""
    if len(line) > MAX_LINE:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        return None
    if set(fields) != {"schema", "checksum", *COLUMNS}:
        return None
    return row_of([fields[name] for name in COLUMNS], fields["checksum"])
