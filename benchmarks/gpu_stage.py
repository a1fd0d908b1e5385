# SPDX-License-Identifier: BSD-3-Clause
"""The types of a stage of gpu_check.py, its arguments and its result, and cases to resume."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

MOST_TRIES = 2  # of a case that ends its process
GPU_IS_LOST = 70  # exit status


@dataclass
class Outcome:
    """The result of a stage: for the table, for the exit status, for the record."""

    summary: str = ""
    failures: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # the cases for which there was no time

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
    earlier: Sequence[Any] = ()  # the results that an interrupted run of this stage has written
    resume: bool = False


@dataclass(frozen=True)
class Stage:
    name: str
    title: str
    part: int  # 0: it is the first one of each part
    budget_s: float
    run: Callable[[Context], Outcome]
    needs_gpu: bool = True
    is_default: bool = True
    # A resumable stage continues with `Context.earlier`. Its process is ended, and started again,
    # when it has written nothing for `quiet_s` seconds.
    resumes: bool = False
    quiet_s: float = 150.0


class OutOfTimeError(Exception):
    """The time ended within a case. A later call continues it with the results that it has."""


def each_case(
    context: Context,
    cases: Mapping[str, Callable[[], Row]],
    *,
    needs_s: float = 5.0,
    clean: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Row], list[str]]:
    """Runs the cases that have no result yet. Returns all results, and the cases for later.

    A case that raises has a "failure". A case that ends its process is tried once more, after all
    other cases.

    Args:
        needs_s: no case begins with less time.
        clean: runs after each case.
    """
    earlier = [row for row in context.earlier if isinstance(row, dict)]
    rows: dict[str, Row] = {row["case"]: row for row in earlier if row.get("case") in cases}
    begun = Counter(row["begun"] for row in earlier if "begun" in row)
    begun.subtract(row["paused"] for row in earlier if "paused" in row)
    left = []
    for name in sorted(cases, key=lambda name: begun[name]):
        if name in rows:
            continue
        if context.left_s() < needs_s:
            left.append(name)
            continue
        if begun[name] >= MOST_TRIES:
            rows[name] = {"case": name, "failure": f"ended its process {begun[name]} times"}
        else:
            context.emit({"begun": name})
            try:
                rows[name] = {"case": name, **result_of(cases[name])}
            except OutOfTimeError:
                context.emit({"paused": name})
                left.append(name)
                continue
        context.emit(rows[name])
        clean()
    return rows, left


def result_of(case: Callable[[], Row]) -> Row:
    """Returns the result of a case, or its failure."""
    try:
        return case()
    except OutOfTimeError:
        raise
    except Exception as problem:
        text = (str(problem).splitlines() or [""])[0]
        return {"failure": f"{type(problem).__name__}: {text[:300]}"}


def outcome_of(rows: Mapping[str, Row], left: Sequence[str]) -> Outcome:
    """Returns an outcome with the failures of the cases."""
    failures = [f"{name}: {row['failure']}" for name, row in rows.items() if row.get("failure")]
    return Outcome(failures=failures, data={"rows": list(rows.values())}, left=list(left))


def free_gpu() -> None:
    """Frees the GPU's memory after a case, whether or not it failed.

    After an illegal access all calls of CUDA fail until the process ends. Then this ends it, and
    the next process continues.
    """
    import torch

    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as problem:
        print(f"the GPU is lost: {problem}", flush=True)
        os._exit(GPU_IS_LOST)
