# SPDX-License-Identifier: BSD-3-Clause
"""Implements `torchalgo explain`: prints plans, fronts or candidates, or writes them to files."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchalgo._base.write_file import write_file
from torchalgo._C import Error
from torchalgo._capture.example_calls import random_inputs
from torchalgo._cli.tuning_flags import (
    end_code,
    error_arguments,
    loaded,
    need_input,
    optimized_model,
    print_result,
    refuse,
)
from torchalgo._ir.plan import plans_to_json
from torchalgo._plan.candidates import candidates
from torchalgo._plan.pareto import Front, ParetoPoint
from torchalgo._report.export import csv_text, trace_text
from torchalgo._report.page import write_report
from torchalgo._report.subject import Subject, subjects_of
from torchalgo._report.texts import text_report
from torchalgo._run.load import load_with_graphs
from torchalgo._run.optimized import Optimized, report_subjects
from torchalgo_cli.files import STDOUT, is_problem
from torchalgo_cli.waiting import tell, told

MOST_POINTS = 16  # of a front
FILES = ("-o", "--trace", "--csv")


def run(args: argparse.Namespace) -> int:
    """Explains a problem, the plans of a file, or those of a model that it optimizes first."""
    if is_problem(args.source):
        refuse(args, "a problem", "--input", "--shapes", *FILES, "--over", "--measure")
        return _print_candidates(args, args.source)
    if args.candidates:
        refuse(args, "--candidates", "--shapes", *FILES, "--over", "--measure")
        need_input(args, args.source)
        model = loaded(args, args.source)
        return _print_candidates(args, model, random_inputs(model, args.input))
    if len(_on_stdout(args)) > 1:
        raise Error(
            f"TA7201 explain: {' and '.join(_on_stdout(args))} print to the same output: name a"
            " file, or leave one of them out"
        )
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
    subjects = subjects_of(load_with_graphs(path))
    if args.report is not None:
        write_report(subjects, args.report, path.stem.removesuffix(".plan"))
    _print(args, subjects)
    return 0


def _explain_model(args: argparse.Namespace) -> int:
    if args.source.endswith(".json"):
        raise Error(
            f"TA7201 explain: {args.source} is a plan file, and --input and --shapes are for a"
            " model: leave them out"
        )
    if args.over is not None and args.report is None:
        refuse(args, "--over without -o", "--trace", "--csv")
    optimized = optimized_model(args, args.source)
    front = None if args.over is None else _front(optimized, args)
    if args.report is not None:
        with told(
            "explain: timing the bars of the report",
            args.measure is None or args.quiet or args.json,
        ):
            optimized.report(args.report, front=front, measure_s=args.measure)
    if front is None or args.report is not None:
        _print(args, report_subjects(optimized))
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


def _on_stdout(args: argparse.Namespace) -> list[str]:
    """Returns the flags that print something else than the text of the plans."""
    flags = {"--trace -": args.trace == STDOUT, "--csv -": args.csv == STDOUT, "--json": args.json}
    return [flag for flag, is_given in flags.items() if is_given]


def _print(args: argparse.Namespace, subjects: Sequence[Subject]) -> None:
    """Writes the trace and the table. Prints what belongs on stdout, or the names of the files."""
    plans, written = [subject.plan for subject in subjects], {"report": args.report}
    for name, path, text_of in (("trace", args.trace, trace_text), ("csv", args.csv, csv_text)):
        if path == STDOUT:
            print(text_of(subjects), end="")
        elif path is not None:
            write_file(path, text_of(subjects), name)
            written[name] = path
    if args.json:
        print(plans_to_json(plans), end="")
    elif not _on_stdout(args):
        lines = [f"{name:7} {path}\n" for name, path in written.items() if path is not None]
        print("".join(lines) or text_report(plans), end="")
