# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a cost database."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

from torchalgo._db import Refusal, Row
from torchalgo._db.cost_file import APPLICATION_ID, OLD_TABLES
from torchalgo._db.row import (
    Check,
    Entry,
    PeakRates,
    Text,
    Verdict,
    checksum_of,
    columns_of,
)

ROW = Row(
    environment='{"cpu":"a"}', problem="fwd_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1",
    primitive="cpu.direct", src="nchw", dst="nchw", version=1, ticks=7, noise_ticks=1, samples=9,
    median_ticks=7, p10_ticks=6, p90_ticks=8, workspace_bytes=0, rel_error=1e-7,
    provenance="a test", measured_at=3,
)  # fmt: skip


def many(count: int, **change: object) -> list[Row]:
    return [
        dataclasses.replace(ROW, problem=f"fwd_f32_n{i}", **change)  # type: ignore[arg-type]
        for i in range(count)
    ]


CHECK = Check(
    environment=ROW.environment, problem=ROW.problem, primitive="cpu.direct", src="nchw",
    dst="nchw", version=1, gate=1, rel_error=1e-7, bound=1e-5, provenance="a test", checked_at=3,
)  # fmt: skip


REFUSAL = Refusal(
    environment=ROW.environment, problem=ROW.problem, primitive="cpu.direct", src="nchw",
    dst="nchw", version=1, kind="ended", reason="SIGSEGV", bound=None, provenance="a test",
    refused_at=3,
)  # fmt: skip


def old_file(path: Path, schema: int) -> list[Entry]:
    """Writes a file as a release with an older schema did. Returns its entries.

    All were used on day 7. The file also has damaged entries, which are not returned.
    """
    of_kind: dict[type[Entry], list[Entry]] = {
        Row: [*many(3)], Refusal: [REFUSAL], Check: [CHECK],
        Verdict: [Verdict.of("here", "plan", '{"a":1}', 7 * 86400)],
        PeakRates: [PeakRates.of("here", "cpu", "[1]", 7 * 86400)],
    }  # fmt: skip
    entries: list[Entry] = []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for table, (kind, first) in OLD_TABLES.items():
            if first > schema:
                continue
            columns = [*columns_of(kind), "checksum", "last_used"]
            if issubclass(kind, Text):
                columns = ["name", "environment", "text", "checksum", "last_used"]
            raw.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            for entry in of_kind[kind]:
                values: tuple[object, ...] = (*entry.values, entry.checksum)
                if isinstance(entry, Text):
                    text = (entry.problem, entry.environment, entry.text)
                    values = (*text, checksum_of(text))
                marks = ", ".join("?" * len(columns))
                raw.execute(f"INSERT INTO {table} VALUES ({marks})", (*values, 7))
                damaged = (b"\xff", *values[1:], 7)
                raw.execute(f"INSERT INTO {table} VALUES ({marks})", damaged)
            entries += of_kind[kind]
        raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        raw.execute(f"PRAGMA user_version = {schema}")
    path.chmod(0o600)
    return entries
