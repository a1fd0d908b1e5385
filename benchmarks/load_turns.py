# SPDX-License-Identifier: BSD-3-Clause
"""Runs an endless loop for bench_load.py. Imports no torch, so that it starts at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torchalgo_cli.turns import answers, by_call


def loop() -> Iterator[dict[str, Any]]:
    """Computes without a pause in each turn."""
    yield {}
    yield from answers(by_call(partial(sum, range(10_000))))
