# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a cost database."""

from __future__ import annotations

import dataclasses

from torchalgo._db import Refusal, Row
from torchalgo._db.row import Check

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
