# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo check`: of a model, its outputs, an algorithm, or a proof."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchalgo import _C
from torchalgo._api.optimize import optimize
from torchalgo._base.compare_outputs import output_error
from torchalgo._C import Error, matches_name
from torchalgo._capture.example_calls import random_inputs
from torchalgo._capture.settings import Settings
from torchalgo._cli.tuning_flags import loaded, need_input, print_result, refuse
from torchalgo._ir.choices import near
from torchalgo._ir.costs import MAX_ERROR
from torchalgo._ir.overrides import some
from torchalgo._lint.lint import lint
from torchalgo._measure.sampling import Bench
from torchalgo._run.load import load, load_plan, load_plans
from torchalgo._run.model_files import load_model, read_data
from torchalgo._run.optimized import Optimized
from torchalgo.verify.check_plan import check_plan
from torchalgo_cli import EXIT_ERROR
from torchalgo_cli.files import is_problem


def run(args: argparse.Namespace) -> int:
    """Runs the check that the arguments mean. Returns the exit code, 1 if it fails."""
    if is_problem(args.source):
        refuse(args, "a problem", "--input", "--original", "--device")
        return _check_primitive(args)
    refuse(args, f"{args.source}, which is no problem", "--primitive")
    if args.data is not None:
        refuse(args, "DATA", "--input", "--device")
        return _check_outputs(args)
    refuse(args, "a check without DATA", "--original")
    if args.source.endswith(".json"):
        refuse(args, "a plan file", "--input", "--device")
        return _check_proof(args)
    need_input(args, args.source)
    model = loaded(args, args.source)
    report = lint(model, random_inputs(model, args.input), budget_s=args.budget)
    print(report.to_json() if args.json else report)
    return EXIT_ERROR if report.findings else 0


# ---- outputs -------------------------------------------------------------------------------------


def _check_outputs(args: argparse.Namespace) -> int:
    """Compares an optimized model with the original on data."""
    data = read_data(args.data)
    bound = args.max_error or MAX_ERROR
    optimized, original = _pair(args, data, bound)
    worst, agree, count = 0.0, 0, 0
    with torch.no_grad():
        for chunk in data.split(_planned_batch(optimized, data)):
            want = _original_output(original, chunk)
            got = optimized(chunk)
            worst = max(worst, output_error(got, want))
            if isinstance(want, torch.Tensor) and want.dim() == 2:
                agree += int((got.argmax(1) == want.argmax(1)).sum())
                count += len(want)
    passed = worst <= bound
    found = {
        "samples": len(data),
        "max_rel_error": worst,
        "top1_agreement": agree / count if count else None,
        "passed": passed,
    }
    top1 = f", top-1 agrees on {agree} of {count}" if count else ""
    verdict = f"(bound {bound:.0e}){top1}: {'ok' if passed else 'FAILS'}"
    print_result(args, found, f"{len(data)} samples: relative L2 at most {worst:.2e} {verdict}")
    return 0 if passed else EXIT_ERROR


def _pair(
    args: argparse.Namespace, data: torch.Tensor, bound: float
) -> tuple[Optimized, nn.Module]:
    """Returns the optimized model and the original, which it may have to optimize first.

    Raises: torchalgo.Error if the file is an optimized one, and no original is given.
    """
    if args.original is not None:
        return load(args.source), load_model(args.original)
    if Path(args.source).exists():
        try:
            load_plans(args.source)
        except Error:
            pass
        else:
            raise Error(
                f"TA7203 check: {args.source} is an optimized file: name the original model with"
                " --original model.pt|package.module:factory"
            )
    model = load_model(args.source)
    settings = Settings(progress=sys.stderr.isatty() and not args.quiet)
    return optimize(model, data[:1], max_error=bound, settings=settings), model


def _planned_batch(optimized: Optimized, data: torch.Tensor) -> int:
    """Returns the number of samples per call: that of a plan for their sizes, or of the first plan.

    Raises: torchalgo.Error if the model has more than one input.
    """
    plans = list(optimized.plans.values())
    if len(plans[0].inputs) != 1:
        raise Error(
            f"TA7202 check: the model has {len(plans[0].inputs)} inputs, expected a model with one"
            " input"
        )
    shapes = [plan.inputs[0].shape for plan in plans]
    fitting = [shape for shape in shapes if shape[1:] == list(data.shape[1:])]
    first = (fitting or shapes)[0]
    return first[0] if first else 1


def _original_output(original: nn.Module, chunk: torch.Tensor) -> Any:
    try:
        return original(chunk)
    except RuntimeError as problem:
        reason = str(problem).strip().splitlines()[-1]
        raise Error(f"TA1110 check: the original fails on {list(chunk.shape)}: {reason}") from None


# ---- a proof, a primitive ------------------------------------------------------------------------


def _check_proof(args: argparse.Namespace) -> int:
    """Checks a plan that was saved with its proof, and prints the result."""
    plan = load_plan(args.source)
    if plan.proof is None:
        raise Error(
            f"TA2403 check: {args.source} has no proof: write one with plan.with_proof().save(path)"
        )
    try:
        checked = check_plan(plan)
    except Error as problem:
        print_result(args, {"passed": False, "reason": str(problem)}, f"FAILS: {problem}")
        return EXIT_ERROR
    ok = "ok: what is called proven above holds; the rest is not part of the proof"
    data = {"passed": True, "reason": "", **dataclasses.asdict(checked)}
    print_result(args, data, f"{checked}\n{ok}")
    return 0


def _check_primitive(args: argparse.Namespace) -> int:
    """Compares the results of a primitive with f64, in each of its layouts."""
    problem, name = _C.parse_problem(args.source), args.primitive
    if name is None:
        raise Error(
            "TA7201 check: a problem needs --primitive NAME; torchalgo explain PROBLEM lists them"
        )
    offered, _, refusals = _C.offers_of(problem, coarse_types=True)
    chosen = [p for p in offered if matches_name(p.name, name)]
    if not chosen:
        reasons = [r.reason for r in refusals if matches_name(r.primitive, name)]
        names = sorted({p.name for p in offered})
        supported = f". Supported for {problem}: {some(names)}"
        if reasons:
            text = f"{name!r} refuses {problem}: {some(reasons)}{supported}"
        else:
            known = sorted({*names, *(known for known, _ in _C.algorithms())})
            text = f"there is no primitive {name!r}{near(name, known, 0.75) or supported}"
        raise Error(f"TA4005 check: {text}")
    results = Bench.on(None).check(problem, chosen, args.max_error or MAX_ERROR)
    records = [
        {"problem": problem, "primitive": p.name, "src": p.src, "dst": p.dst, "rel_error": error,
         "failure": failure}
        for p, (error, failure) in zip(chosen, results, strict=True)
    ]  # fmt: skip
    lines = [
        f"{r['primitive']}  {r['src']}->{r['dst']}  relative L2 {r['rel_error']:.2e}"
        f"  {'FAILS: ' if r['failure'] else 'ok'}{r['failure']}"
        for r in records
    ]
    print_result(args, records, "\n".join(lines))
    return EXIT_ERROR if any(r["failure"] for r in records) else 0
