# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo explain`: prints plans, or writes a report of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torchalgo._api.optimize import optimize
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import end_code, on_device, tuning_arguments
from torchalgo._ir.plan import Plan, plans_to_json
from torchalgo._plan.pareto import Front, Quantity
from torchalgo._report.subject import Subject
from torchalgo._report.texts import text_report
from torchalgo._report.write import write_report
from torchalgo._run.load import load_with_graphs
from torchalgo._run.model_files import load_model
from torchalgo._run.optimized import Optimized
from torchalgo_cli.waiting import tell, told

MOST_POINTS = 16  # of a front


def run(args: argparse.Namespace) -> int:
    """Explains the plans of a file, or those of a model that it optimizes first."""
    if args.over is not None and args.report is None:
        raise Error(
            "TA7201 explain: --over is for a report: add -o report.html, or use `torchalgo pareto`"
        )
    if args.measure is not None and (args.report is None or not (args.input or args.shapes)):
        raise Error(
            "TA7201 explain: --measure is for the report of a model: add -o report.html, and give"
            " the model and its --input"
        )
    if not args.input and not args.shapes:
        subjects = _of_file(args)
        if args.report is not None:
            write_report(subjects, args.report, _title(args.plan_or_model))
        _print(args, [subject.plan for subject in subjects])
        return 0
    optimized = _optimized(args)
    if args.report is not None:
        front = _front(optimized, args.over)
        with told(
            "explain: timing the bars of the report",
            args.measure is None or args.quiet or args.json,
        ):
            optimized.report(args.report, front=front, measure_s=args.measure)
    _print(args, list(optimized.plans.values()))
    return end_code(optimized.is_interrupted, "the plan is of the costs measured so far")


def _front(optimized: Optimized, over: Quantity | None) -> Front | None:
    """Returns the front, or None if there is none, for example because too few costs are known."""
    if over is None:
        return None
    try:
        return optimized.pareto(over, max_points=MOST_POINTS)
    except Error as problem:
        tell(f"the report has no front of time and {over}: {problem}")
        return None


def _print(args: argparse.Namespace, plans: Sequence[Plan]) -> None:
    """Prints the plans, or the file of the report if there is one."""
    if args.json:
        print(plans_to_json(plans), end="")
    elif args.report is None:
        print(text_report(plans), end="")
    else:
        print(f"report  {args.report}")


def _of_file(args: argparse.Namespace) -> list[Subject]:
    """Returns the plans of a file of torchalgo.

    Raises: torchalgo.Error if the source is a model, which needs its input.
    """
    path = Path(args.plan_or_model)
    if not path.exists() or path.suffix.lower() in (".onnx", ".prototxt"):
        raise Error(
            f"TA7201 explain: {args.plan_or_model} is a model and needs its input, such as --input"
            " 1x3x224x224"
        )
    if args.over is not None:
        raise Error(
            "TA7201 explain: --over needs costs, which a file of plans does not have: give the"
            " model and its --input, or leave --over out"
        )
    return [Subject(plan, graph) for plan, graph in load_with_graphs(path)]


def _optimized(args: argparse.Namespace) -> Optimized:
    if args.plan_or_model.endswith(".json"):
        raise Error(
            f"TA7201 explain: {args.plan_or_model} is a plan file, and --input and --shapes are for"
            " a model: leave them out"
        )
    with told(f"loading {args.plan_or_model}", args.quiet or args.json, at_once=False):
        model = on_device(args, load_model(args.plan_or_model))
    return optimize(
        model,
        None if args.shapes else random_inputs(model, args.input),
        shapes=args.shapes,
        objective=args.objective,
        **tuning_arguments(args),
    )


def _title(source: str) -> str:
    """Returns the name of a file without its suffix, for the title of its report."""
    return Path(source).stem.removesuffix(".plan")
