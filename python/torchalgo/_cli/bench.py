# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo bench`: times a model, a training step, or the primitives of a problem."""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from torchalgo import _C
from torchalgo._api.optimize import optimize
from torchalgo._api.optimize_training import optimize_training
from torchalgo._api.profile import COLD_BYTES
from torchalgo._C import Error, matches_name
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings, allows_coarse_types
from torchalgo._cli.processes import LoadTimes, time_processes
from torchalgo._cli.train import trained_model
from torchalgo._cli.tuning_flags import on_device, plans_in
from torchalgo._ir.choices import near
from torchalgo._ir.overrides import some
from torchalgo._ir.plan.text_table import text_table
from torchalgo._measure.guard import PLAN
from torchalgo._measure.sampling import Bench
from torchalgo._run.call_times import CallTimes
from torchalgo._run.model_files import load_model
from torchalgo._run.optimized import Optimized
from torchalgo._train.guard import time_steps
from torchalgo._train.plan import TrainingPlan
from torchalgo_cli import EXIT_ERROR
from torchalgo_cli.files import is_problem

BUDGET_S = 60.0  # the most seconds for timing calls


def run(args: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    if is_problem(args.target):
        flags = "--training", "--input", "--plan", "--compile", "--device", "--processes"
        _refuse(args, "a problem", *flags)
        return _bench_problem(args)
    _refuse(args, "a model", "--check")
    if not args.input:
        raise Error(
            f"TA7201 bench: {args.target} is a model and needs its input, such as --input"
            " 1x3x224x224"
        )
    if args.training:
        _refuse(args, "--training", "--compile")
    if args.processes is not None:
        _refuse(args, "--processes", "--training", "--compile", "--device")
    times = _times(args)
    print(json.dumps(times.records(), indent=1) if args.json else times)
    return 0


def _refuse(args: argparse.Namespace, what: str, *flags: str) -> None:
    """Raises torchalgo.Error if one of `flags` is given."""
    for flag in flags:
        if getattr(args, flag.strip("-")) not in (None, False, [], "cpu"):  # the defaults
            raise Error(f"TA7201 bench: {flag} does not go with {what}: leave {flag} out")


def _times(args: argparse.Namespace) -> CallTimes | LoadTimes:
    if args.training:
        return _times_of_steps(args)
    if args.processes is not None:
        return _times_of_processes(args)
    return _optimized(args).compare(rounds=args.rounds, budget_s=BUDGET_S, compiled=args.compile)


def _optimized(args: argparse.Namespace) -> Optimized:
    model = on_device(args, load_model(args.target))
    return optimize(
        model,
        random_inputs(model, args.input),
        plan=None if args.plan is None else plans_in(args.plan),
        max_error=args.max_error,
        settings=Settings(run_untimed=True, progress=not args.json),
    )


def _times_of_processes(args: argparse.Namespace) -> LoadTimes:
    with tempfile.TemporaryDirectory() as folder:
        plan = args.plan or Path(folder) / "plan.json"
        if args.plan is None:
            _optimized(args).plan.save(plan)
        return time_processes(args.target, args.input, plan, args.processes, args.rounds)


def _times_of_steps(args: argparse.Namespace) -> CallTimes:
    """Times steps of a planned model, of the model as it is, and of it in channels_last."""
    model = on_device(args, trained_model(args.target))
    inputs = random_inputs(model, args.input)
    own, plain, last = (copy.deepcopy(model) for _ in range(3))
    last = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    planned = optimize_training(
        own,
        inputs,
        plan=None if args.plan is None else TrainingPlan.load(args.plan),
        max_error=args.max_error,
        settings=Settings(run_untimed=True, progress=not args.json),
    )
    sides = {PLAN: (own, planned), "as it is": (plain, plain), "channels_last": (last, last)}
    return CallTimes(time_steps(sides, inputs, args.rounds))


def _bench_problem(args: argparse.Namespace) -> int:
    problem = _C.parse_problem(args.target)
    is_coarse = allows_coarse_types(args.max_error)
    offered, _, refusals = _C.offers_of(problem, coarse_types=is_coarse or args.check is not None)
    if args.check is not None:
        return _check(args, problem, offered, refusals)
    primitives = [p for p in offered if not _C.is_view(p.name)]  # views do no work
    samples, failures = _take(problem, primitives, args.rounds)
    errors: list[float | None] = [None] * len(primitives)
    if is_coarse:
        checked = Bench.on(None).check(problem, primitives, args.max_error)
        errors = [error for error, _ in checked]
        failures = [ran or wrong for ran, (_, wrong) in zip(failures, checked, strict=True)]
    gflop = _C.flop_count(problem) / 1e9
    records = []
    for primitive, ns, failure, error in zip(primitives, samples, failures, errors, strict=True):
        us = sorted(t / 1000 for t in ns)
        record: dict[str, Any] = {"problem": problem, **_spelled(primitive)}
        if us:
            median = statistics.median(us)
            record |= {"median_us": round(median, 3), "min_us": round(us[0], 3), "samples": len(us)}
            record["gflops"] = round(gflop / median * 1e6, 2)
        if is_coarse:
            record["rel_error"] = error
        record["failure"] = failure
        records.append(record)
    records.sort(key=lambda r: (r.get("median_us", float("inf")), r["primitive"]))
    if args.json:
        print(json.dumps(records, indent=1))
        return 0
    print(f"{problem}  ({_C.cpu_device().name}, {torch.get_num_threads()} threads)")
    rows = []
    for r in records:
        time_text = "" if r["failure"] else f"{r['median_us']:.1f} us"
        speed = r["failure"] or f"{r['gflops']:8.1f} GFLOP/s"
        error_text = f"error {r['rel_error']:.0e}" if is_coarse and not r["failure"] else ""
        rows.append((r["primitive"], f"{r['src']}->{r['dst']}", time_text, speed, error_text))
    print(*text_table(rows, right=(2,), indent="  "), sep="\n")
    return 0


def _take(
    problem: str, primitives: list[_C.Primitive], rounds: int, limit_s: float = 30.0
) -> tuple[list[list[float]], list[str]]:
    """Returns the times in ns and the failure of each primitive; "" if it did not fail.

    Measures in short calls, so that Ctrl-C takes effect soon, for about `limit_s` seconds at most.
    """
    bench = Bench.on(None)
    tasks = [(problem, primitive) for primitive in primitives]
    samples: list[list[float]] = [[] for _ in primitives]
    failures = [""] * len(primitives)
    started, left = time.monotonic(), rounds
    while left > 0 and time.monotonic() - started < limit_s:
        taken = bench.measure(
            tasks, warmup=1, rounds=min(left, 9), budget_s=1.0, cold_bytes=COLD_BYTES, seed=0
        )
        for i, result in enumerate(taken):
            samples[i] += result.ns
            failures[i] = failures[i] or result.failure
        left -= max((len(result.ns) for result in taken), default=left) or left
    return samples, failures


def _check(
    args: argparse.Namespace,
    problem: str,
    primitives: list[_C.Primitive],
    refusals: list[_C.Refusal],
) -> int:
    chosen = [p for p in primitives if matches_name(p.name, args.check)]
    if not chosen:
        reasons = [r.reason for r in refusals if matches_name(r.primitive, args.check)]
        names = sorted({p.name for p in primitives})
        known = sorted({*names, *(name for name, _ in _C.algorithms())})
        supported = f". Supported for {problem}: {some(names)}"
        if reasons:
            text = f"{args.check!r} refuses {problem}: {some(reasons)}{supported}"
        else:
            hint = near(args.check, known, 0.75) or supported
            text = f"there is no primitive {args.check!r}{hint}"
        raise Error(f"TA4005 bench: {text}")
    results = Bench.on(None).check(problem, chosen, args.max_error)
    records = [
        {"problem": problem, **_spelled(p), "rel_error": error, "failure": failure}
        for p, (error, failure) in zip(chosen, results, strict=True)
    ]
    if args.json:
        print(json.dumps(records, indent=1))
    else:
        for r in records:
            verdict = f"FAILS: {r['failure']}" if r["failure"] else "ok"
            layouts = f"{r['src']}->{r['dst']}"
            print(f"{r['primitive']}  {layouts}  relative L2 {r['rel_error']:.2e}  {verdict}")
    return EXIT_ERROR if any(r["failure"] for r in records) else 0


def _spelled(primitive: _C.Primitive) -> dict[str, str]:
    return {"primitive": primitive.name, "src": primitive.src, "dst": primitive.dst}
