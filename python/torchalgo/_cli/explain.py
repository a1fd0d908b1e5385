# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo explain`: prints plans, fronts or candidates, or writes a report."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchalgo._api.optimize import optimize
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import (
    end_code,
    error_arguments,
    loaded,
    need_input,
    print_result,
    refuse,
    tuning_arguments,
)
from torchalgo._ir.plan import Plan, plans_to_json
from torchalgo._plan.candidates import candidates
from torchalgo._plan.pareto import Front, ParetoPoint
from torchalgo._report.page import write_report
from torchalgo._report.subject import Subject
from torchalgo._report.texts import text_report
from torchalgo._run.load import load_with_graphs
from torchalgo._run.optimized import Optimized
from torchalgo_cli.files import is_problem
from torchalgo_cli.waiting import tell, told

MOST_POINTS = 16  # of a front


def run(args: argparse.Namespace) -> int:
    """Explains a problem, the plans of a file, or those of a model that it optimizes first."""
    if is_problem(args.source):
        refuse(args, "a problem", "--input", "--shapes", "-o", "--over", "--measure")
        return _print_candidates(args, args.source)
    if args.candidates:
        refuse(args, "--candidates", "--shapes", "-o", "--over", "--measure")
        need_input(args, args.source)
        model = loaded(args, args.source)
        return _print_candidates(args, model, random_inputs(model, args.input))
    is_model = bool(args.input or args.shapes)
    if args.measure is not None and (args.report is None or not is_model):
        raise Error(
            "TA7201 explain: --measure is for the report of a model: add -o report.html, and give"
            " the model and its --input"
        )
    return _explain_model(args) if is_model else _explain_file(args)


def _print_candidates(args: argparse.Namespace, target: Any, inputs: Any = None) -> int:
    # A model is on its device already. The device of a problem may be one that is not here.
    where = args.device if inputs is None else None
    found = candidates(target, inputs, device=where, **error_arguments(args))
    print_result(args, [dataclasses.asdict(layer) for layer in found], found)
    return 0


def _explain_file(args: argparse.Namespace) -> int:
    """Explains the plans of a file of torchalgo.

    Raises: torchalgo.Error if the source is a model, which needs its input.
    """
    path = Path(args.source)
    if not path.exists() or path.suffix.lower() in (".onnx", ".prototxt"):
        need_input(args, args.source)
    if args.over is not None:
        raise Error(
            "TA7201 explain: --over needs costs, which a file of plans does not have: give the"
            " model and its --input, or leave --over out"
        )
    subjects = [Subject(plan, graph) for plan, graph in load_with_graphs(path)]
    if args.report is not None:
        write_report(subjects, args.report, path.stem.removesuffix(".plan"))
    _print(args, [subject.plan for subject in subjects])
    return 0


def _explain_model(args: argparse.Namespace) -> int:
    if args.source.endswith(".json"):
        raise Error(
            f"TA7201 explain: {args.source} is a plan file, and --input and --shapes are for a"
            " model: leave them out"
        )
    model = loaded(args, args.source)
    optimized = optimize(
        model,
        None if args.shapes else random_inputs(model, args.input),
        shapes=args.shapes,
        objective=args.objective,
        **tuning_arguments(args),
    )
    front = None
    if args.over is not None:
        front = _front(optimized, args)
    if args.report is not None:
        with told(
            "explain: timing the bars of the report",
            args.measure is None or args.quiet or args.json,
        ):
            optimized.report(args.report, front=front, measure_s=args.measure)
    if front is None or args.report is not None:
        _print(args, list(optimized.plans.values()))
    else:
        print_result(args, [_point(point, args.over) for point in front], front)
    return end_code(optimized.is_interrupted, "the plan is of the costs measured so far")


def _front(optimized: Optimized, args: argparse.Namespace) -> Front | None:
    """Returns the front. Of a report, returns None without one, as if too few costs are known."""
    try:
        return optimized.pareto(args.over, max_points=MOST_POINTS)
    except Error as problem:
        if args.report is None:
            raise
        tell(f"the report has no front of time and {args.over}: {problem}")
        return None


def _point(point: ParetoPoint, over: str) -> dict[str, Any]:
    errors = {
        "error": point.error,
        "predicted_error": point.plan.predicted_error,
        "max_error": point.max_error,
    }
    amounts = errors if over == "error" else {"bytes": point.bytes}
    return {"us": point.us, **amounts, "is_proven": point.is_proven}


def _print(args: argparse.Namespace, plans: Sequence[Plan]) -> None:
    """Prints the plans, or the file of the report if there is one."""
    if args.json:
        print(plans_to_json(plans), end="")
    elif args.report is None:
        print(text_report(plans), end="")
    else:
        print(f"report  {args.report}")
