# SPDX-License-Identifier: BSD-3-Clause
"""All that only a GPU can tell, in one command of at most 8 minutes.

    python benchmarks/gpu_check.py --out build/gpu_check            # all default stages
    python benchmarks/gpu_check.py --stages env,deviceprop,control  # some of them
    python benchmarks/gpu_check.py --resume                         # the rest after an interruption

Each stage writes one JSON file with its raw samples; a short table comes last. Exit status: 0 all
passed, 1 a stage failed, 2 a stage needs a GPU and there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
NEEDS_GPU = "needs a GPU"


@dataclass
class Outcome:
    """What a stage found: for the table, for the exit status, for the record."""

    summary: str = ""
    failures: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def expect(self, condition: bool, failure: str) -> None:
        if not condition:
            self.failures.append(failure)


@dataclass(frozen=True)
class Context:
    """A stage's arguments."""

    out: Path
    quick: bool
    seed: int
    left_s: Callable[[], float]  # of the stage's budget: a stage does less when it is spent


@dataclass(frozen=True)
class Stage:
    name: str
    title: str
    budget_s: float
    run: Callable[[Context], Outcome]
    needs_gpu: bool = True
    is_default: bool = True


class BudgetError(Exception):
    """A stage did not end by itself."""


@contextlib.contextmanager
def hard_limit(seconds: float) -> Iterator[None]:
    """Raises BudgetError in the main thread after `seconds`."""

    def stop(signum: int, frame: object) -> None:
        raise BudgetError(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def select_stages(stages: Sequence[Stage], names: str | None) -> list[Stage]:
    """The stages of a comma-separated list, in their own order; all default ones if None.

    Raises: SystemExit for an unknown name.
    """
    if names is None:
        return [stage for stage in stages if stage.is_default]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [stage.name for stage in stages]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise SystemExit(f"gpu_check: no stage {', '.join(unknown)}; there are {', '.join(known)}")
    return [stage for stage in stages if stage.name in wanted]


def run_stage(
    stage: Stage, context: Context, has_gpu: bool, now_s: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The record of one stage; whatever it raises is in it."""
    record: dict[str, Any] = {"schema": SCHEMA, "stage": stage.name, "title": stage.title}
    if stage.needs_gpu and not has_gpu:
        return {**record, "status": NEEDS_GPU, "seconds": 0.0, "summary": NEEDS_GPU}
    started = now_s()
    left_s = lambda: stage.budget_s - (now_s() - started)  # noqa: E731
    try:
        with hard_limit(1.5 * stage.budget_s):
            outcome = stage.run(Context(context.out, context.quick, context.seed, left_s))
    except (Exception, SystemExit) as problem:
        text = str(problem).splitlines() or [""]
        outcome = Outcome(
            summary=f"{type(problem).__name__}: {text[0]}",
            failures=[f"{type(problem).__name__}: {problem}"],
            data={"traceback": traceback.format_exc()},
        )
    return {
        **record,
        "status": "failed" if outcome.failures else "passed",
        "seconds": round(now_s() - started, 1),
        "summary": outcome.summary,
        "failures": outcome.failures,
        "data": outcome.data,
    }


def record_path(out: Path, stage: Stage) -> Path:
    return out / f"{stage.name}.json"


def read_record(path: Path) -> dict[str, Any] | None:
    """An earlier record that need not be taken again: a stage that passed."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    is_done = record.get("schema") == SCHEMA and record.get("status") == "passed"
    return record if is_done else None


def run_stages(
    stages: Sequence[Stage],
    context: Context,
    *,
    has_gpu: bool,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """The records of `stages`, each written when its stage ends."""
    context.out.mkdir(parents=True, exist_ok=True)
    records = []
    for stage in stages:
        path = record_path(context.out, stage)
        record = read_record(path) if resume else None
        if record is None:
            say(f"{stage.name}: {stage.title} ...")
            record = run_stage(stage, context, has_gpu)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            part.replace(path)
        else:
            record["resumed"] = True
        for failure in record.get("failures", []):
            say(f"  FAILED: {failure}")
        records.append(record)
    return records


def table(records: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'stage':12}  {'status':11}  {'s':>6}  what it found"]
    for record in records:
        status = record["status"] + ("*" if record.get("resumed") else "")
        lines.append(
            f"{record['stage']:12}  {status:11}  {record['seconds']:6.1f}  {record['summary']}"
        )
    if any(record.get("resumed") for record in records):
        lines.append("* from an earlier run")
    return "\n".join(lines)


def exit_status(records: Sequence[Mapping[str, Any]]) -> int:
    statuses = {record["status"] for record in records}
    return 1 if "failed" in statuses else 2 if NEEDS_GPU in statuses else 0


def main(
    arguments: Sequence[str] | None = None,
    stages: Sequence[Stage] | None = None,
    has_gpu: bool | None = None,
) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stages", help="comma-separated; all default ones if left out")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"))
    parser.add_argument("--resume", action="store_true", help="skip stages that passed before")
    parser.add_argument("--quick", action="store_true", help="fewer problems and sizes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    options = parser.parse_args(arguments)
    if stages is None:
        from gpu_stages import STAGES

        stages = STAGES
    if options.list:
        for stage in stages:
            mark = " " if stage.is_default else "-"
            print(f"{mark} {stage.name:12}  {stage.budget_s:4.0f} s  {stage.title}")
        print("- only if named in --stages")
        return 0
    chosen = select_stages(stages, options.stages)
    if has_gpu is None:
        import torch

        has_gpu = torch.cuda.is_available()
    context = Context(options.out, options.quick, options.seed, lambda: 0.0)
    records = run_stages(chosen, context, has_gpu=has_gpu, resume=options.resume)
    print(table(records))
    return exit_status(records)


if __name__ == "__main__":
    sys.exit(main())
