# SPDX-License-Identifier: BSD-3-Clause
"""All that only a GPU can tell, as five calls of at most 9 minutes each.

    python benchmarks/gpu_check.py --part 1                  # tables: times of candidates
    python benchmarks/gpu_check.py --part 1 --resume         # the rest of it
    python benchmarks/gpu_check.py --stages energy,host      # some stages

The parts are 1 tables, 2 baselines, 3 gaps, 4 the CPU of that machine, and 5 what has passed on an
H100 already. docs/gpu-status.md has the order, the stages and their seconds.

Where this Python cannot import torchalgo, the package of scripts/gpu_package.sh is unpacked. If
there is none for this Python and torch, torchalgo is built; build.log and build.json tell how.
Each stage runs in a process of its own: a crash or an illegal access ends that process only. It
writes a line of JSON per result to STAGE.jsonl at once, and a record, STAGE.json, at its end. After
each stage all files are put into one archive, gpu_check.tar.gz. No stage starts after --minutes,
and none runs on. A resumable stage is started again when its process has ended or hangs, and
--resume continues it in a later call: --out may then hold nothing but the archive. A short table
comes last. A hypothesis that was missed is a finding, no failure.
Exit status: 0 all passed, 1 a stage failed, 2 a stage needs a GPU and there is none, 3 a stage was
not reached, or had no time for all of its cases.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_build import build_if_needed
from gpu_records import (
    head_of,
    read_record,
    record_path,
    results_path,
    unpack_missing,
    write_archive,
    write_record,
)
from gpu_stage import Context, Outcome, Stage
from harness import ROOT, ending_of, kill_group, make_parser, read_lines, run_script, script_line

NEEDS_GPU = "needs a GPU"
NOT_REACHED = "not reached"
PARTIAL = "partial"
MOST_STARTS = 10  # of a resumable stage in one call
LEAST_S = 10.0  # with less time, a stage is not started again
GRACE_S = 8.0  # in which a stage ends by itself before its process is ended


def select_stages(stages: Sequence[Stage], names: str | None, part: int | None) -> list[Stage]:
    """The stages of a comma-separated list, or of a part, in their own order.

    Returns all default ones if both are None. Raises: SystemExit for an unknown name.
    """
    if names is None:
        return [s for s in stages if s.is_default and (part is None or s.part in (0, part))]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = [stage.name for stage in stages]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise SystemExit(f"gpu_check: no stage {', '.join(unknown)}; there are {', '.join(known)}")
    return [stage for stage in stages if stage.name in wanted]


# ---- one stage, in its process -------------------------------------------------------------------


def run_stage(
    stage: Stage, context: Context, now_s: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The record of one stage, run here; whatever it raises is in it."""
    started = now_s()
    context.out.mkdir(parents=True, exist_ok=True)
    path = results_path(context.out, stage)
    earlier = read_lines(path) if stage.resumes else []
    is_torn = bool(earlier) and not path.read_bytes().endswith(b"\n")
    with path.open("a" if stage.resumes else "w") as results:
        results.write("\n" * is_torn)

        def emit(row: Any) -> None:
            results.write(json.dumps(row) + "\n")
            results.flush()
            os.fsync(results.fileno())

        left_s = lambda: stage.budget_s - (now_s() - started)  # noqa: E731
        try:
            outcome = stage.run(replace(context, left_s=left_s, emit=emit, earlier=earlier))
        except (Exception, SystemExit) as problem:
            text = str(problem).splitlines() or [""]
            outcome = Outcome(
                summary=f"{type(problem).__name__}: {text[0]}",
                failures=[f"{type(problem).__name__}: {problem}"],
                data={"traceback": traceback.format_exc().replace(f"{ROOT}/", "")},
            )
    return {
        **head_of(stage),
        "status": "failed" if outcome.failures else PARTIAL if outcome.left else "passed",
        "seconds": round(now_s() - started, 1),
        "summary": outcome.summary,
        "left": outcome.left,
        "failures": outcome.failures,
        "findings": outcome.findings,
        "data": outcome.data,
    }


# ---- all of them ---------------------------------------------------------------------------------

Launch = Callable[[Stage, Context, float], dict[str, Any]]


def child_launcher(module: str) -> Launch:
    """Runs a stage of `module` in a process of its own, which is ended after so many seconds.

    A resumable stage gets another process if one has ended early and has left results.
    """

    def launch(stage: Stage, context: Context, limit_s: float) -> dict[str, Any]:
        started = time.monotonic()
        path, rows = record_path(context.out, stage), results_path(context.out, stage)
        path.unlink(missing_ok=True)
        if not (stage.resumes and context.resume):
            rows.unlink(missing_ok=True)
        log = context.out / f"{stage.name}.log"
        log.unlink(missing_ok=True)
        endings: list[str] = []
        for _ in range(MOST_STARTS if stage.resumes else 1):
            before = size_of(rows)
            left_s = limit_s - (time.monotonic() - started)
            own_s = min(stage.budget_s - (limit_s - left_s), left_s - GRACE_S)
            command = child_command(replace(stage, budget_s=own_s), module, context)
            endings.append(run_child(command, stage, rows, left_s))
            if (record := read_record(path)) is not None:
                record["findings"] += [f"its process {text}" for text in endings[:-1]]
                return record
            if size_of(rows) == before or limit_s - (time.monotonic() - started) < LEAST_S:
                break
        count = len(read_lines(rows))
        text = f"{endings[-1]}; {count} results before are in {rows.name}"
        return {
            **head_of(stage),
            "status": "failed",
            "seconds": round(time.monotonic() - started, 1),
            "summary": text,
            "failures": [text],
            "data": {"log": log.read_text(errors="replace")[-4000:]},
        }

    return launch


def child_command(stage: Stage, module: str, context: Context) -> list[str]:
    return [
        sys.executable, str(Path(__file__).resolve()), "--child", stage.name,
        "--module", module, "--out", str(context.out), "--seed", str(context.seed),
        "--seconds", str(stage.budget_s),
        *(["--quick"] if context.quick else []), *(["--resume"] if context.resume else []),
    ]  # fmt: skip


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def run_child(command: Sequence[str], stage: Stage, rows: Path, limit_s: float) -> str:
    """Runs a stage's process and returns how it ended.

    It is ended after `limit_s`. If the stage is resumable, it is also ended when it has added
    nothing to the file `rows` for `stage.quiet_s`.
    """
    ending = ""
    with rows.with_suffix(".log").open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        end = time.monotonic() + limit_s
        size, quiet_end = size_of(rows), time.monotonic() + stage.quiet_s
        try:
            while not ending:
                now = time.monotonic()
                if size_of(rows) != size:
                    size, quiet_end = size_of(rows), now + stage.quiet_s
                if now >= end:
                    ending = f"did not end within {limit_s:.3g} s"
                elif stage.resumes and now >= quiet_end:
                    ending = f"gave no result for {stage.quiet_s:.3g} s"
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(min(0.5, end - now))
                        ending = f"ended with {ending_of(process.returncode)}"
        finally:
            kill_group(process)
    return ending


def run_stages(
    stages: Sequence[Stage],
    context: Context,
    launch: Launch,
    *,
    has_gpu: bool,
    left_s: Callable[[], float],
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> list[dict[str, Any]]:
    """The records of `stages`, each written when its stage ends.

    A stage is ended after 1.5 times its budget, or when no time is left for all of them.
    """
    context.out.mkdir(parents=True, exist_ok=True)
    records = []
    for stage in stages:
        path = record_path(context.out, stage)
        record = read_record(path) if context.resume else None
        if record is not None and record.get("status") == "passed":
            record["resumed"] = True
        elif stage.needs_gpu and not has_gpu:
            record = _skipped(stage, NEEDS_GPU)
        elif left_s() <= 0:
            record = _skipped(stage, NOT_REACHED)
        else:
            say(f"{stage.name}: {stage.title} ...")
            record = launch(stage, context, min(1.5 * stage.budget_s, left_s()))
        if not record.get("resumed"):
            write_record(record, path)
            write_archive(context.out)
        for name, mark in (("failures", "FAILED"), ("findings", "finding")):
            for text in record.get(name, []):
                say(f"  {mark}: {text}")
        if record["status"] == "failed":
            quick = ["--quick"] if context.quick else []
            words = ("--stages", stage.name, "--seed", context.seed, *quick)
            say(f"  {script_line('gpu_check.py', *words)}")
        records.append(record)
    return records


def _skipped(stage: Stage, why: str) -> dict[str, Any]:
    return {**head_of(stage), "status": why, "seconds": 0.0, "summary": why}


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
    order = (("failed", 1), (NEEDS_GPU, 2), (NOT_REACHED, 3), (PARTIAL, 3))
    return next((code for status, code in order if status in statuses), 0)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 4, 5), help="its default stages")
    parser.add_argument("--stages", help="comma-separated; all default ones if left out")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all stages together")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"), help="a folder")
    parser.add_argument("--resume", action="store_true", help="skip what an earlier call has done")
    parser.add_argument("--quick", action="store_true", help="fewer problems and sizes")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and samples")
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--module", default="gpu_stages", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, has_gpu: bool | None = None) -> int:
    started = time.monotonic()
    options = parse_options(arguments)
    records = []
    if options.child is None and not options.list:
        built = build_if_needed(options.out)
        if built is not None:
            records.append(built)
            print(f"{built['stage']}: {built['summary']}", flush=True)
            if built["status"] == "failed":
                return 1
    stages: Sequence[Stage] = importlib.import_module(options.module).STAGES
    context = Context(options.out, options.quick, options.seed, lambda: 0.0, resume=options.resume)
    if options.resume and options.child is None:
        unpack_missing(options.out)
    if options.child is not None:
        (stage,) = select_stages(stages, options.child, None)
        stage = replace(stage, budget_s=options.seconds)
        write_record(run_stage(stage, context), record_path(options.out, stage))
        return 0
    if options.list:
        for stage in stages:
            mark = " " if stage.is_default else "-"
            print(f"{mark} {stage.part}  {stage.name:12}  {stage.budget_s:4.0f} s  {stage.title}")
        print("- only if named in --stages")
        return 0
    chosen = select_stages(stages, options.stages, options.part)
    if has_gpu is None:
        import torch

        has_gpu = torch.cuda.is_available()
    records += run_stages(
        chosen,
        context,
        child_launcher(options.module),
        has_gpu=has_gpu,
        left_s=lambda: 60 * options.minutes - (time.monotonic() - started),
    )
    print(table(records))
    return exit_status(records)


if __name__ == "__main__":
    run_script(main)
