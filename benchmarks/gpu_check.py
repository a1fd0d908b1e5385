# SPDX-License-Identifier: BSD-3-Clause
"""All that only a GPU can tell, in three parts of at most 9 minutes each.

    python benchmarks/gpu_check.py --part 1                  # what is here, smoke tests, capture
    python benchmarks/gpu_check.py --part 2                  # timing: layers, networks, replay
    python benchmarks/gpu_check.py --part 3                  # cuDNN's offers, sampled
    python benchmarks/gpu_check.py --stages env,control      # some stages
    python benchmarks/gpu_check.py --part 2 --resume         # the rest after an interruption

Where this Python cannot import torchalgo, it is built first; build.log and build.json tell how.
Each stage runs in a process of its own: a crash or an illegal access ends that stage only. It
writes a line of JSON per result to STAGE.jsonl at once, and a record, STAGE.json, at its end. After
each stage all files are put into one archive, gpu_check.tar.gz. No stage starts after --minutes,
and none runs on. A short table comes last. A hypothesis that was missed is a finding, no failure.
Exit status: 0 all passed, 1 a stage failed, 2 a stage needs a GPU and there is none, 3 a stage was
not reached.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stage import Context, Outcome, Stage
from harness import ending_of, kill_group, make_parser, run_script, script_line

SCHEMA = 1
NEEDS_GPU = "needs a GPU"
NOT_REACHED = "not reached"
ARCHIVE = "gpu_check.tar.gz"


def select_stages(stages: Sequence[Stage], names: str | None, part: int | None) -> list[Stage]:
    """The stages of a comma-separated list, or of a part, in their own order.

    Returns all default ones if both are None. Raises: SystemExit for an unknown name.
    """
    if names is None:
        return [s for s in stages if s.is_default and part in (None, s.part)]
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
    with results_path(context.out, stage).open("w") as results:

        def emit(row: Any) -> None:
            results.write(json.dumps(row) + "\n")
            results.flush()
            os.fsync(results.fileno())

        left_s = lambda: stage.budget_s - (now_s() - started)  # noqa: E731
        try:
            outcome = stage.run(Context(context.out, context.quick, context.seed, left_s, emit))
        except (Exception, SystemExit) as problem:
            text = str(problem).splitlines() or [""]
            outcome = Outcome(
                summary=f"{type(problem).__name__}: {text[0]}",
                failures=[f"{type(problem).__name__}: {problem}"],
                data={"traceback": traceback.format_exc()},
            )
    return {
        **head_of(stage),
        "status": "failed" if outcome.failures else "passed",
        "seconds": round(now_s() - started, 1),
        "summary": outcome.summary,
        "failures": outcome.failures,
        "findings": outcome.findings,
        "data": outcome.data,
    }


def head_of(stage: Stage) -> dict[str, Any]:
    return {"schema": SCHEMA, "stage": stage.name, "title": stage.title}


def record_path(out: Path, stage: Stage) -> Path:
    return out / f"{stage.name}.json"


def results_path(out: Path, stage: Stage) -> Path:
    """Returns the file of the stage's results, one per line, also if the stage did not end."""
    return out / f"{stage.name}.jsonl"


def write_record(record: Mapping[str, Any], path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    part.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """Returns the record in a file, or None if there is none or half of one."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if record.get("schema") == SCHEMA else None


# ---- the build -----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
BUILD = Stage("build", "torchalgo for this Python", 1, 480, lambda context: Outcome(), False)


def can_import() -> bool:
    """Returns True if a new process of this Python can import torchalgo."""
    command = [sys.executable, "-c", "import torchalgo"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build_commands() -> list[list[str]]:
    """Returns the commands that build torchalgo in its folder, by pip if this Python has it."""
    if importlib.util.find_spec("pip") is not None:
        flags = ["--no-build-isolation", "--no-deps", "--no-index", "-v", "-e", str(ROOT)]
        return [[sys.executable, "-m", "pip", "install", *flags]]
    build = ROOT / "build" / "release"
    options = ["-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", "-DTORCHALGO_CUDA=ON"]
    return [
        ["cmake", "-S", str(ROOT), "-B", str(build), *options],
        ["cmake", "--build", str(build)],
        ["cmake", "--install", str(build), "--prefix", str(ROOT / "python")],
    ]


def build_if_needed(
    out: Path,
    has_build: Callable[[], bool] = can_import,
    commands: Callable[[], list[list[str]]] = build_commands,
) -> dict[str, Any] | None:
    """Builds torchalgo unless `has_build`. Returns the record of this; None if nothing was to do.

    The processes of the stages find the result in PYTHONPATH.
    """
    if has_build():
        return None
    out.mkdir(parents=True, exist_ok=True)
    started, failures = time.monotonic(), []
    with (out / "build.log").open("wb") as log:
        for command in commands():
            left_s = BUILD.budget_s - (time.monotonic() - started)
            try:
                status = subprocess.run(
                    command, stdout=log, stderr=subprocess.STDOUT, timeout=left_s, check=False
                ).returncode
                failure = f"{command[0]} ended with {ending_of(status)}" if status else ""
            except (OSError, subprocess.TimeoutExpired) as problem:
                failure = str(problem)
            if failure:
                failures.append(f"{failure}; see {out / 'build.log'}")
                break
    paths = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(ROOT / "python"))
    if not failures and not has_build():
        failures = [f"this Python cannot import what was built; see {out / 'build.log'}"]
    record = {
        **head_of(BUILD),
        "status": "failed" if failures else "passed",
        "seconds": round(time.monotonic() - started, 1),
        "summary": failures[0] if failures else f"built for Python {sys.version.split()[0]}",
        "failures": failures,
    }
    write_record(record, record_path(out, BUILD))
    write_archive(out)
    return record


# ---- all of them ---------------------------------------------------------------------------------

Launch = Callable[[Stage, Context, float], dict[str, Any]]


def child_launcher(module: str) -> Launch:
    """Runs a stage of `module` in a process of its own, which is ended after so many seconds."""

    def launch(stage: Stage, context: Context, limit_s: float) -> dict[str, Any]:
        started = time.monotonic()
        path = record_path(context.out, stage)
        path.unlink(missing_ok=True)
        results_path(context.out, stage).unlink(missing_ok=True)
        command = [
            sys.executable, str(Path(__file__).resolve()), "--child", stage.name,
            "--module", module, "--out", str(context.out), "--seed", str(context.seed),
            *(["--quick"] if context.quick else []),
        ]  # fmt: skip
        log = context.out / f"{stage.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(limit_s)
                ending = f"ended with {ending_of(process.returncode)}"
            except subprocess.TimeoutExpired:
                ending = f"did not end within {limit_s:.3g} s"
            finally:
                kill_group(process)
        record = read_record(path)
        if record is not None:
            return record
        rows = results_path(context.out, stage)
        count = len(rows.read_text().splitlines()) if rows.exists() else 0
        text = f"{ending}; {count} results before are in {rows.name}"
        return {
            **head_of(stage),
            "status": "failed",
            "seconds": round(time.monotonic() - started, 1),
            "summary": text,
            "failures": [text],
            "data": {"log": log.read_text(errors="replace")[-4000:]},
        }

    return launch


def run_stages(
    stages: Sequence[Stage],
    context: Context,
    launch: Launch,
    *,
    has_gpu: bool,
    left_s: Callable[[], float],
    resume: bool = False,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> list[dict[str, Any]]:
    """The records of `stages`, each written when its stage ends.

    A stage is ended after 1.5 times its budget, or when no time is left for all of them.
    """
    context.out.mkdir(parents=True, exist_ok=True)
    records = []
    for stage in stages:
        path = record_path(context.out, stage)
        record = read_record(path) if resume else None
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


def write_archive(out: Path) -> None:
    """Puts all that the stages wrote into one archive; readers never see half of it."""
    part = out / f"{ARCHIVE}.part"
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(out.iterdir()):
            if path.suffix in (".json", ".jsonl", ".log") or path.name.endswith(".json.gz"):
                archive.add(path, arcname=path.name)
    part.replace(out / ARCHIVE)


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
    order = (("failed", 1), (NEEDS_GPU, 2), (NOT_REACHED, 3))
    return next((code for status, code in order if status in statuses), 0)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--part", type=int, choices=(1, 2, 3), help="its default stages")
    parser.add_argument("--stages", help="comma-separated; all default ones if left out")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all stages together")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"), help="a folder")
    parser.add_argument("--resume", action="store_true", help="skip stages that passed before")
    parser.add_argument("--quick", action="store_true", help="fewer problems and sizes")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and samples")
    parser.add_argument("--list", action="store_true", help="name the stages and end")
    parser.add_argument("--child", help=argparse.SUPPRESS)
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
    context = Context(options.out, options.quick, options.seed, lambda: 0.0)
    if options.child is not None:
        (stage,) = select_stages(stages, options.child, None)
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
        resume=options.resume,
    )
    print(table(records))
    return exit_status(records)


if __name__ == "__main__":
    run_script(main)
