# SPDX-License-Identifier: BSD-3-Clause
"""The types of a stage of gpu_check.py, its arguments and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """The result of a stage: for the table, for the exit status, for the record."""

    summary: str = ""
    failures: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def expect(self, condition: bool, failure: str) -> None:
        if not condition:
            self.failures.append(failure)

    def suppose(self, condition: bool, finding: str) -> None:
        """Notes a hypothesis that was missed: a result like any other."""
        if not condition:
            self.findings.append(finding)


@dataclass(frozen=True)
class Context:
    """A stage's arguments."""

    out: Path
    quick: bool
    seed: int
    left_s: Callable[[], float]  # of the stage's budget: a stage does less when it is spent
    emit: Callable[[Any], None] = lambda row: None  # writes one result at once


@dataclass(frozen=True)
class Stage:
    name: str
    title: str
    part: int
    budget_s: float
    run: Callable[[Context], Outcome]
    needs_gpu: bool = True
    is_default: bool = True
