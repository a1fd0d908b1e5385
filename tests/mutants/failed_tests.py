# SPDX-License-Identifier: BSD-3-Clause
"""A plugin of pytest that writes which tests start, end and fail. The process may die meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def _note(event: str, test: str) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the process that starts the workers hears of all
        with Path(os.environ["FAILED_TESTS"]).open("a") as file:
            print(event, test, file=file, flush=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    _note("started", nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _note("ended", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _note("failed", report.nodeid)


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _note("failed", report.nodeid)
