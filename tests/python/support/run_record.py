# SPDX-License-Identifier: BSD-3-Clause
"""A plugin of pytest that records what a run took, and refuses skips for unknown reasons.

`--record FILE` writes counts, skips, and the processor seconds of test files and of long tests.
With `--known-skips`, a skip for a reason that is not in KNOWN_SKIPS makes the run fail: the test
could otherwise stay out of every run unnoticed.
"""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Hardware and rights that a test needs. Packages are not among them: `make` installs those.
KNOWN_SKIPS = (
    "there is a GPU",
    "needs a processor with bf16",
    "this torch has no cuDNN",
    "no golden (file|plans) (for|of) cuDNN",
    "no toolkit, or a real driver",
    "this build has no nvcc",
    "no cuobjdump here",
    "cuobjdump has no nvdisasm beside it",
    "the GPU in software is not built",
    "the system does not count waiting",
    "only root can give files away",
    "runs in a process of its own, below",
)
LISTED_S = 1.0  # the shortest test that a record lists


def processor_s() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Clock:
    """Gives each report the processor time of its phase; it runs where the tests run."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self.started_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        now_s = processor_s()
        item.user_properties[:] = [("processor_s", now_s - self.started_s)]
        self.started_s = now_s
        return (yield)


class RunRecord:
    """Collects the reports of all processes."""

    def __init__(self, path: Path | None, refuses_unknown_skips: bool) -> None:
        self.path = path
        self.refuses_unknown_skips = refuses_unknown_skips
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.counts: collections.Counter[str] = collections.Counter()
        self.skips: collections.Counter[str] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += dict(report.user_properties).get("processor_s", 0.0)
        if report.when == "call" or report.outcome != "passed":
            self.counts["xfailed" if hasattr(report, "wasxfail") else report.outcome] += 1
        self.note_skip(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note_skip(report)  # of a whole file

    def note_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            self.skips[str(reason).removeprefix("Skipped: ")] += 1

    def unknown_skips(self) -> list[str]:
        if not self.refuses_unknown_skips:
            return []
        return [r for r in self.skips if not any(re.search(known, r) for known in KNOWN_SKIPS)]

    def as_json(self) -> dict[str, Any]:
        files: dict[str, float] = collections.defaultdict(float)
        for test, seconds in self.seconds.items():
            files[test.partition("::")[0]] += seconds
        long = {test: seconds for test, seconds in self.seconds.items() if seconds >= LISTED_S}
        return {
            "counts": dict(self.counts),
            "skips": dict(self.skips),
            "processor_s": round(sum(files.values()), 1),
            "files": by_time(files),
            "tests": by_time(long),
        }

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        if self.unknown_skips():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason in self.unknown_skips():
            terminalreporter.line(
                f"FAILED: skipped, but KNOWN_SKIPS of support/run_record.py has no such reason:"
                f" {reason}"
            )


def by_time(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(s, 2) for name, s in sorted(seconds.items(), key=lambda item: -item[1])}


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="the file that gets counts, skips and times")
    parser.addoption(
        "--known-skips",
        action="store_true",
        help="fail if a test is skipped without a known reason",
    )


def register(config: pytest.Config) -> None:
    config.pluginmanager.register(Clock())
    if not hasattr(config, "workerinput"):  # else xdist's first process gets the reports
        known_skips = config.getoption("--known-skips")
        config.pluginmanager.register(RunRecord(config.getoption("--record"), known_skips))
