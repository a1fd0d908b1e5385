# SPDX-License-Identifier: BSD-3-Clause
"""Implements the commands of `torchalgo`. torchalgo_cli reads the arguments and calls `run`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchalgo._api.optimize import optimize
from torchalgo._api.profile import profile
from torchalgo._base.compare_outputs import output_error
from torchalgo._base.timings import timings_text
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli import bench, demo, diff, explain, train, tune
from torchalgo._cli.doctor import examine, report
from torchalgo._cli.tuning_flags import end_code, on_device, plans_in, tuning_arguments
from torchalgo._ir.plan import (
    plans_to_json,
    save_plans,
)
from torchalgo._lint.lint import lint
from torchalgo._plan.candidates import candidates
from torchalgo._plan.pareto import ParetoPoint
from torchalgo._report.texts import short_report
from torchalgo._run.load import load, load_plan, load_plans
from torchalgo._run.model_files import load_model, read_data
from torchalgo._run.optimized import Optimized
from torchalgo.verify.check_plan import check_plan
from torchalgo_cli import EXIT_ERROR
from torchalgo_cli.files import is_problem
from torchalgo_cli.waiting import told


def run(args: argparse.Namespace) -> int:
    """Runs one command and returns its exit code."""
    if args.threads is not None and args.command != "tune":
        torch.set_num_threads(args.threads)
    return COMMANDS[args.command](args)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))


# ---- commands ------------------------------------------------------------------------------------


def _optimize(args: argparse.Namespace) -> int:
    if args.training:
        return train.optimize_command(args)
    if args.output is None:
        raise Error("TA7201 optimize: the file to write is missing: add -o net.pt")
    model = on_device(args, _loaded(args))
    optimized = optimize(
        model,
        None if args.shapes else random_inputs(model, args.input),
        shapes=args.shapes,
        plan=None if args.plan is None else plans_in(args.plan),
        objective=args.objective,
        **tuning_arguments(args),
    )
    plans = list(optimized.plans.values())
    optimized.save(args.output, portable=args.portable)
    if args.plan_out is not None:
        save_plans(plans, args.plan_out)
    if args.report is not None:
        optimized.report(args.report)
    if args.json:
        texts = json.loads(plans_to_json(plans))
        what = {"plans": texts["plans"]} if len(plans) > 1 else {"plan": texts}
        _print_json({"output": str(args.output), "runs": optimized.runs, **what})
    else:
        print(short_report(plans, args.output), end="")
    if args.timings:
        print(f"optimize took {timings_text(optimized.timings)}", file=sys.stderr)
    return end_code(optimized.is_interrupted, f"{args.output} runs the costs measured so far")


def _loaded(args: argparse.Namespace) -> nn.Module:
    """Loads the model that `args` names. A download or a large file may take minutes."""
    with told(f"loading {args.model}", args.quiet or args.json, at_once=False):
        return load_model(args.model)


def _pareto(args: argparse.Namespace) -> int:
    if args.max_points < 2:
        raise Error(f"TA2501 pareto: --max-points {args.max_points}, expected 2 or more")
    model = on_device(args, _loaded(args))
    inputs = random_inputs(model, args.input)
    optimized = optimize(model, inputs, **tuning_arguments(args))
    front = optimized.pareto(args.over, max_points=args.max_points)
    if args.plans is not None:
        for i, point in enumerate(front):
            point.plan.save(args.plans / f"{args.over}_{i}.plan.json")
    if args.json:
        _print_json([_point(p, args.over) for p in front])
    else:
        print(front)
    return end_code(optimized.is_interrupted, "the front is of the costs measured so far")


def _point(point: ParetoPoint, over: str) -> dict[str, Any]:
    errors = {
        "error": point.error,
        "predicted_error": point.plan.predicted_error,
        "max_error": point.max_error,
    }
    amounts = errors if over == "error" else {"bytes": point.bytes}
    return {"us": point.us, **amounts, "is_proven": point.is_proven}


def _candidates(args: argparse.Namespace) -> int:
    target, inputs = _target(args)
    found = candidates(
        target,
        inputs,
        device=args.device,
        directions=args.direction,
        dtype=args.dtype,
        workspace_limit_bytes=args.workspace_limit,
        max_error=args.max_error,
    )
    if args.json:
        _print_json([dataclasses.asdict(layer) for layer in found])
    else:
        print(found.details if args.verbose else found)
    return 0


def _profile(args: argparse.Namespace) -> int:
    target, inputs = _target(args)
    found = profile(
        target,
        inputs,
        directions="all" if "all" in args.direction else args.direction or "all",
        device=args.device,
        dtype=args.dtype,
        budget_s=args.budget,
        check=not args.no_check,
        max_error=args.max_error,
        workspace_limit_bytes=args.workspace_limit,
        runtime_compiled=args.runtime_compiled,
    )
    print(found.to_json() if args.json else found, end="" if args.json else "\n")
    return 0


def _target(args: argparse.Namespace) -> tuple[nn.Module | str, tuple[torch.Tensor, ...] | None]:
    """Returns the text of a problem and None, or a model and its random inputs.

    Raises: torchalgo.Error if the target is a model, and no input is given.
    """
    if is_problem(args.target):
        return args.target, None
    if not args.input:
        raise Error(
            f"TA7201 {args.command}: {args.target} is a model and needs its input, such as --input"
            " 1x3x224x224"
        )
    model = load_model(args.target)
    return model, random_inputs(model, args.input)


def _lint(args: argparse.Namespace) -> int:
    """Prints the faults of a model. Returns the exit code: 1 if there are any."""
    with told(f"loading {args.model}", args.json, at_once=False):
        model = on_device(args, load_model(args.model))
    found = lint(model, random_inputs(model, args.input), budget_s=args.budget)
    print(found.to_json() if args.json else found)
    return EXIT_ERROR if found.findings else 0


def _check_outputs(args: argparse.Namespace) -> int:
    """Compares an optimized model with the original on data. Returns the exit code."""
    data = read_data(args.data)
    optimized, original = _pair(args, data)
    batch = _planned_batch(optimized, data)
    worst, agree, count = 0.0, 0, 0
    with torch.no_grad():
        for chunk in data.split(batch):
            want = _original_output(original, chunk)
            got = optimized(chunk)
            worst = max(worst, output_error(got, want))
            if isinstance(want, torch.Tensor) and want.dim() == 2:
                agree += int((got.argmax(1) == want.argmax(1)).sum())
                count += len(want)
    passed = worst <= args.max_error
    record = {
        "samples": len(data),
        "max_rel_error": worst,
        "top1_agreement": agree / count if count else None,
        "passed": passed,
    }
    if args.json:
        _print_json(record)
    else:
        top1 = f", top-1 agrees on {agree} of {count}" if count else ""
        bound = f"bound {args.max_error:.0e}"
        verdict = "ok" if passed else "FAILS"
        print(f"{len(data)} samples: relative L2 at most {worst:.2e} ({bound}){top1}: {verdict}")
    return 0 if passed else EXIT_ERROR


def _planned_batch(optimized: Optimized, data: torch.Tensor) -> int:
    """Returns the number of samples per call: that of a plan for their sizes, or of the first plan.

    Raises: torchalgo.Error if the model has more than one input.
    """
    plans = list(optimized.plans.values())
    if len(plans[0].inputs) != 1:
        raise Error(
            f"TA7202 check-outputs: the model has {len(plans[0].inputs)} inputs, expected a model"
            " with one input"
        )
    shapes = [plan.inputs[0].shape for plan in plans]
    fitting = [shape for shape in shapes if shape[1:] == list(data.shape[1:])]
    first = (fitting or shapes)[0]
    return first[0] if first else 1


def _check_plan(args: argparse.Namespace) -> int:
    """Checks a plan that was saved with its proof, and prints the result. Returns the exit code."""
    plan = load_plan(args.file)
    if plan.proof is None:
        raise Error(
            f"TA2403 check-plan: {args.file} has no proof: write one with"
            " plan.with_proof().save(path)"
        )
    try:
        checked = check_plan(plan)
    except Error as problem:
        if args.json:
            _print_json({"passed": False, "reason": str(problem)})
        else:
            print(f"FAILS: {problem}")
        return EXIT_ERROR
    if args.json:
        _print_json({"passed": True, "reason": "", **dataclasses.asdict(checked)})
    else:
        print(
            f"{checked}\nok: what is called proven above holds; the rest is not part of the proof"
        )
    return 0


def _doctor(args: argparse.Namespace) -> int:
    found = examine()
    print(json.dumps(found, indent=1) if args.json else report(found))
    return 0


def _original_output(original: nn.Module, chunk: torch.Tensor) -> Any:
    try:
        return original(chunk)
    except RuntimeError as problem:
        reason = str(problem).strip().splitlines()[-1]
        raise Error(
            f"TA1110 check-outputs: the original fails on {list(chunk.shape)}: {reason}"
        ) from None


def _pair(args: argparse.Namespace, data: torch.Tensor) -> tuple[Optimized, nn.Module]:
    """Returns the optimized model and the original, which it may have to optimize first.

    Raises: torchalgo.Error if the file is an optimized one, and no original is given.
    """
    if args.original is not None:
        return load(args.model), load_model(args.original)
    if Path(args.model).exists():
        try:
            load_plans(args.model)
        except Error:
            pass
        else:
            raise Error(
                f"TA7203 check-outputs: {args.model} is an optimized file: name the original model"
                " with --original model.pt|package.module:factory"
            )
    model = load_model(args.model)
    settings = Settings(progress=sys.stderr.isatty())
    return optimize(model, data[:1], max_error=args.max_error, settings=settings), model


COMMANDS = {
    "optimize": _optimize,
    "pareto": _pareto,
    "candidates": _candidates,
    "profile": _profile,
    "lint": _lint,
    "explain": explain.run,
    "diff": diff.run,
    "bench": bench.run,
    "check-outputs": _check_outputs,
    "check-plan": _check_plan,
    "tune": tune.run,
    "demo": lambda args: demo.run(),
    "doctor": _doctor,
}
